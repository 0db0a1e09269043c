# SPDX-License-Identifier: Apache-2.0
"""Sample what tasks of event loops, or goroutines, wait for, from outside of the program, while a recording goes on. A
reading stands for the time since the reading before; the intervals are random, so that timers of the program do not
keep step with them. Readings of one kind take at most _SHARE of a CPU (and _MOST_CREDIT_S): costly ones are rarer."""

import random
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any

from perf_offcpu.collect.counters import Reading
from perf_offcpu.collect.system.background import Future, in_background
from perf_offcpu.collect.system.clock import now_ns
from perf_offcpu.collect.system.helper import Avoided, Helper, ask_each
from perf_offcpu.losses import LossCause, Losses

_SHARE, _MOST_CREDIT_S, _FIRST_S = 0.01, 0.05, 0.3  # the last: time before the first reading
_PATIENCE_S, _MOST_S, _LAST_S = 2.0, 5.0, 1.0  # time limits of one process, of all, of all in the last reading
_LOOK_S, _MOST_LOOK_S, _SLOWER, _NEW_AT_ONCE = 0.25, 30.0, 1.5, 16  # processes in which a reading looks for tasks
_MOST_LISTS, _MOST_LIST_S = 200, 30.0  # lists of processes take 1/200 of a CPU; longest time between two of them


class TaskReader(ABC):
    """Reads the tasks (of an event loop, or goroutines) of processes, and keeps the readings until they are taken."""

    unread: LossCause  # cause under which processes that cannot be read are counted

    @abstractmethod
    def read(self, pid: int, program: Any) -> tuple[Any, Any]:
        """Return (program, reading) of a process; called in the helper process. `program`: where in memory the tasks
        are, None at the first call, then as returned; the returned one is falsy if there are no tasks. The reading is
        passed to `add`; None if the tasks are of an unsupported version. Raises OSError: the process has ended."""

    @abstractmethod
    def add(self, pid: int, times: tuple[int, int], reading: Any) -> None:
        """Keep a reading for `take`; count None (unsupported version) as lost. `times`: ns of the reading before (or
        the start of reading), and of this one, between which it stands for the time."""

    @abstractmethod
    def take(self) -> list[Reading]:
        """Return the readings kept since the last call; another thread may call `add` meanwhile."""


class TaskReadings:
    """Read tasks at most `rate_hz` times a second (0: never), in a thread, from `start` to `stop`. `candidates`:
    returns pids that may have tasks; a process without tasks is read again after ever longer times. `make_reader`:
    makes the reader when the first process is read. `lost`: counts unreadable processes."""

    def __init__(
        self, make_reader: Callable[[], TaskReader], rate_hz: int, candidates: Callable[[], Iterable[int]], lost: Losses
    ) -> None:
        self._make_reader, self._rate_hz = make_reader, rate_hz
        self._reader: Any = None
        self._candidates, self._lost = candidates, lost
        self._helper, self._avoided = Helper(self._work, _PATIENCE_S), Avoided()
        # Pid → (program, None for an unsupported version; ns of the last reading), the oldest reading first.
        self._programs = dict[int, tuple[Any, int]]()
        # Pid of a process without tasks so far → (monotonic time of the next look at it, s from that to the one after).
        self._looks, self._list_s = dict[int, tuple[float, float]](), 0.0
        self._start_ns = self._round_ns = now_ns()
        self._credit_s = _MOST_CREDIT_S
        self._stopped = threading.Event()
        self._running: Future[None] | None = None

    def start(self) -> None:
        """Begin reading; after `stop`, go on, without counting the time in between."""
        self._start_ns = self._round_ns = now_ns()
        self._stopped.clear()
        if self._rate_hz:
            self._running = in_background(self._run)

    def stop(self) -> None:
        """Read all tasks once more, and end the thread."""
        self._helper.until = time.monotonic() + _LAST_S
        self._stopped.set()
        if self._running is not None:
            self._running.wait()
            self._helper.close()

    def take(self) -> list[Reading]:
        """Return the readings since the last call."""
        return self._reader.take() if self._reader else []

    def _run(self) -> None:
        gap_s = _FIRST_S
        while not self._stopped.wait(gap_s * random.uniform(0.5, 1.5)):
            self._helper.until = time.monotonic() + _MOST_S
            self._read_all()
            gap_s = max(1 / self._rate_hz, -self._credit_s / _SHARE)
        self._helper.until = time.monotonic() + _LAST_S
        self._read_all()

    def _read_all(self) -> None:
        """Read each process known to have tasks, and look for tasks in some of the other candidates."""
        begin_s, now_s, begin_ns, cost_s = time.thread_time(), time.monotonic(), now_ns(), 0.0
        if now_s >= self._list_s:
            self._looks = {pid: self._looks.get(pid, (0.0, _LOOK_S)) for pid in self._candidates()}
            self._programs = {pid: program for pid, program in self._programs.items() if pid in self._looks}
            self._list_s = now_s + min(max(_LOOK_S, (time.thread_time() - begin_s) * _MOST_LISTS), _MOST_LIST_S)
        new = [pid for pid, (due_s, _) in self._looks.items() if due_s <= now_s and pid not in self._programs]
        items = [(pid, program) for pid, (program, _) in self._programs.items() if program]
        items += [(pid, None) for pid in sorted(new, key=self._looks.__getitem__)[:_NEW_AT_ONCE]]
        if items and not self._reader:
            self._reader = self._make_reader()
        for (pid, before), answer in ask_each(self._helper, items, self._avoided):
            if answer.is_stuck and pid not in self._avoided:
                continue  # there was no time for this process
            program, reading, spent_s = answer.value or (None, None, 0.0)
            last_ns, cost_s = self._programs.pop(pid, (None, self._round_ns))[1], cost_s + spent_s
            if program:
                times = max(last_ns, self._start_ns), now_ns()
                self._programs[pid] = None if reading is None else program, times[1]
                self._reader.add(pid, times, reading)
            else:
                gap_s = self._looks[pid][1]
                self._looks[pid] = now_s + gap_s, min(gap_s * _SLOWER, _MOST_LOOK_S)
                self._lost.add(self._reader.unread, int(bool(before) and answer.value is None))
        self._credit_s = min(self._credit_s + _SHARE * (begin_ns - self._round_ns) / 1e9, _MOST_CREDIT_S)
        self._credit_s, self._round_ns = self._credit_s - cost_s - time.thread_time() + begin_s, begin_ns

    def _work(self, item: tuple[int, Any]) -> tuple[Any, Any, float]:
        """Read a process in the helper; return (program, reading, CPU time in s). `item`: (pid, program or None)."""
        begin_s = time.process_time()
        try:
            answer = self._reader.read(*item)
        except OSError:
            answer = None, None
        return *answer, time.process_time() - begin_s
