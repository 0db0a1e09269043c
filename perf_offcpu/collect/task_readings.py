# SPDX-License-Identifier: Apache-2.0
"""Read what tasks wait for (of event loops, or goroutines), again and again while a recording goes on, from outside. A
reading stands for the time since the one before; these times are random, so that timers of the program do not keep step
with them. Readings of a kind take at most _SHARE of a CPU (besides _MOST_CREDIT_S): the costlier, the fewer."""

import random
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection
from typing import Any

from perf_offcpu.collect.counters import Reading
from perf_offcpu.collect.system.background import Future, in_background
from perf_offcpu.collect.system.clock import now_ns
from perf_offcpu.collect.system.helper import Avoided, Helper, ask_each
from perf_offcpu.losses import LossCause, Losses

_SHARE, _MOST_CREDIT_S, _FIRST_S = 0.01, 0.05, 0.3
_PATIENCE_S, _MOST_S, _LAST_S = 2.0, 5.0, 1.0  # for a process, until it is avoided; for all; for all in the end
_LOOK_S, _MOST_LOOK_S, _SLOWER, _NEW_AT_ONCE = 0.25, 30.0, 1.5, 16  # processes in which a reading looks for tasks
_MOST_LISTS, _MOST_LIST_S = 200, 30.0  # lists of processes take 1/200 of a CPU; longest time between two of them


class TaskReader(ABC):
    """Reads the tasks of one process after the other, and keeps them until they are taken."""

    unread: LossCause  # counts processes that cannot be read

    @abstractmethod
    def read(self, pid: int, program: Any) -> tuple[Any, Any]:
        """Return (program, reading) of a process; called in the helper. `program` says where the tasks are, and is
        passed again to the next call; it is false if there are no tasks. The reading is None if the tasks are of an
        unknown kind. Raises OSError: the process has ended."""

    @abstractmethod
    def add(self, pid: int, times: tuple[int, int], reading: Any) -> None:
        """Keep a reading, which stands for the time from times[0] to times[1], ns; None: tasks of an unknown kind."""

    @abstractmethod
    def take(self) -> list[Reading]:
        """Return what was kept since the last call; another thread adds more."""


class TaskReadings:
    """Read tasks at most `rate_hz` times a second (0: never), in a thread, from `start` to `stop`. `candidates` returns
    the processes that may have tasks; those without tasks are asked again after ever longer times. `make_reader` is
    called when the first process is to be read, so not in a short recording. `lost`: counts unreadable processes."""

    def __init__(
        self,
        make_reader: Callable[[], TaskReader],
        rate_hz: int,
        candidates: Callable[[], Collection[int]],
        lost: Losses,
    ) -> None:
        self._make_reader, self._rate_hz = make_reader, rate_hz
        self._reader: Any = None
        self._candidates, self._lost = candidates, lost
        self._helper, self._avoided = Helper(self._work, _PATIENCE_S), Avoided()
        self._programs = dict[int, tuple[Any, int]]()  # None: of an unknown kind; time of the last reading, first first
        self._looks, self._list_s = dict[int, tuple[float, float]](), 0.0  # time of the next look, and to the one after
        self._start_ns = self._round_ns = now_ns()
        self._credit_s = _MOST_CREDIT_S
        self._stopped = threading.Event()
        self._running: Future[None] | None = None

    def start(self) -> None:
        """Begin, or go on after a pause, whose time does not count."""
        self._start_ns = self._round_ns = now_ns()
        self._stopped.clear()
        if self._rate_hz:
            self._running = in_background(self._run)

    def stop(self) -> None:
        """Read once more, and stop."""
        self._helper.until = time.monotonic() + _LAST_S
        self._stopped.set()
        if self._running is not None:
            self._running.wait()
            self._helper.close()

    def take(self) -> list[Reading]:
        """Return what was read since the last call."""
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
        """Read all processes that have tasks, and look for tasks in others."""
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
                continue  # there was no time for it
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
        """Read (pid, known program) in the helper process; return (program, reading, CPU time in s)."""
        begin_s = time.process_time()
        try:
            answer = self._reader.read(*item)
        except OSError:
            answer = None, None
        return *answer, time.process_time() - begin_s
