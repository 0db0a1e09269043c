# SPDX-License-Identifier: Apache-2.0
"""Ask recorded JVMs for the names of the code that they have compiled: the perf map that `jcmd PID Compiler.perfmap`
writes (JDK 17 and later), which all commands that read recordings use. A JVM that ends takes its names with it, so each
is asked some time after it was seen, then after ever longer times, and at the end. It happens in the background, with
the rights of the JVM's owner (`system.owner_child`)."""

import time
from collections.abc import Callable
from typing import Final

from perf_offcpu.collect.python.processes import MappingFollower, ended_process, pid_of
from perf_offcpu.collect.system.as_owner import ask_as_owner
from perf_offcpu.collect.system.background import Future, in_background
from perf_offcpu.text import printable

_FIRST_S, _LONGER, _LONGEST_S = 2.0, 4.0, 3600.0
_MOST_JVMS: Final = 256
_MOST_S: Final = 10.0  # time for all at the end; one takes some 0.1 s
_LONGEST_TEXT: Final = 200


class Jvms(MappingFollower):
    """Follow processes that map libjvm.so. `say` is called once for each that gives no names; `asks`: whether any is
    asked."""

    needle = b"/libjvm.so"

    def __init__(self, say: Callable[[str], None], *, asks: bool) -> None:
        self._say, self._asks = say, asks
        self._due: dict[int, tuple[float, float]] = {}  # pid → monotonic time of the next question, time after it
        self._refused: set[int] = set()
        self._unasked = 0  # JVMs that ended too soon
        self._asking: Future[None] | None = None

    def see_mapping(self, record: memoryview) -> None:
        """Take one MMAP2 record: a process that maps libjvm.so runs a JVM."""
        if self._asks and self.is_of_needle(record) and len(self._due) < _MOST_JVMS:
            self._due.setdefault(pid_of(record), (time.monotonic() + _FIRST_S, _FIRST_S))

    def see_task(self, kind: int, record: memoryview) -> None:
        """Take a FORK or EXIT record."""
        if self._due and (pid := ended_process(kind, record)):
            plan = self._due.pop(pid, None)
            self._unasked += plan is not None and plan[1] == _FIRST_S

    def step(self) -> None:
        """Ask in the background what is due."""
        now = time.monotonic()
        due = [pid for pid, (when, _) in self._due.items() if when <= now]
        if due and (self._asking is None or self._asking.done()):
            self._asking = in_background(lambda: self._ask(due))

    def ask_all(self) -> None:
        """Ask all, once more, within some seconds."""
        if self._asking is not None:
            self._asking.wait(_MOST_S)
        self._ask(list(self._due))
        if self._unasked:
            self._say(
                f"perf-offcpu record: JVMs that ended before they were asked for names: {self._unasked} "
                "(java -XX:+DumpPerfMapAtExit writes them at the end)"
            )
            self._unasked = 0

    def _ask(self, pids: list[int]) -> None:
        until_s = time.monotonic() + _MOST_S
        for pid in pids:
            if time.monotonic() > until_s:
                self._say(f"perf-offcpu record: no time was left to ask all of {len(pids)} JVMs for names")
                return
            try:
                problem = printable(ask_as_owner("perf-map", pid).decode("utf-8", "replace"))[:_LONGEST_TEXT]
            except OSError as error:
                problem = error.strerror or ""
            if (plan := self._due.get(pid)) is None:  # it has ended
                continue
            pause_s = min(_LONGER * plan[1], _LONGEST_S)
            self._due[pid] = time.monotonic() + pause_s, pause_s
            if problem and pid not in self._refused:
                self._refused.add(pid)
                self._say(f"perf-offcpu record: JVM {pid} gives no names of compiled code: {problem}")
