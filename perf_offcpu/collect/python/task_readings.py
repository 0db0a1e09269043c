# SPDX-License-Identifier: Apache-2.0
"""Read the tasks of event loops again and again while a recording goes on. A reading stands for the time since the one
before; these times are random, so that timers of the program do not keep step with them. A loop whose thread runs is
not read, which is noted. Readings take at most _SHARE of a CPU (besides _MOST_CREDIT_S): the costlier, the fewer."""

import random
import threading
import time
from collections import defaultdict
from collections.abc import Callable

from perf_offcpu.collect.python.event_loops import Task, find_tables, loop_threads, read_loop, task_payloads
from perf_offcpu.collect.system.background import Future, in_background
from perf_offcpu.collect.system.clock import now_ns
from perf_offcpu.collect.system.helper import Avoided, Helper, ask_each

_SHARE, _MOST_CREDIT_S = 0.01, 0.05
_MOST_LOOK_S, _PATIENCE_S, _MOST_S = 0.5, 2.0, 5.0  # for the loops of a process; for each, until it is avoided; for all
_MOST_NAP_S = 0.2  # `TaskReadings.step` is called as often
_NEW_AT_ONCE, _MOST_KEPT = 4, 32 << 20  # processes in which a reading looks for loops; bytes of payloads


class TaskReadings:
    """Read tasks at most `rate_hz` times a second; 0: never. `pids` returns processes that may have event loops,
    `recorded` those that are recorded."""

    def __init__(self, rate_hz: int, pids: Callable[[], frozenset[int]], recorded: Callable[[], set[int]]) -> None:
        self._rate_hz, self._pids, self._recorded = rate_hz, pids, recorded
        self._helper, self._avoided = Helper(self._look, _PATIENCE_S), Avoided()
        self._turns: dict[int, int] = {}  # pid → time of its last reading, 0: it has no loop; next to be read first
        self._begin_ns = self._last_ns = now_ns()
        self._due_s, self._credit_s, self._payloads = 0.0, _MOST_CREDIT_S, list[bytes]()
        self._reading: Future[None] | None = None
        self._closing = threading.Event()
        # Of the helper, as long as it lives: tables of processes, and pages that their threads need.
        self._tables: dict[int, tuple[int, int]] = {}
        self._pages: defaultdict[int, set[int]] = defaultdict(set)

    def begin(self) -> None:
        """Begin, or go on after a pause, whose time does not count."""
        self._begin_ns = now_ns()

    def step(self) -> None:
        """Begin a reading in the background if one is due."""
        is_due = self._rate_hz and time.monotonic() >= self._due_s and (self._reading is None or self._reading.done())
        if is_due and (pids := self._pids()):
            last_readings = {pid: last_ns for pid, last_ns in self._turns.items() if pid in pids}
            self._turns = dict.fromkeys(pids - last_readings.keys(), 0) | last_readings
            self._reading = in_background(self._read)

    def take(self) -> list[bytes]:
        """Return the payloads (abi.counters.TASKS) since the last call."""
        payloads = self._payloads[:]  # another thread appends more
        del self._payloads[: len(payloads)]
        return payloads

    def close(self) -> None:
        """Wait for a reading that goes on, and end the helper."""
        self._closing.set()
        self._helper.until = 0.0
        if self._reading is not None:
            self._reading.wait()
        self._helper.close()

    def _read(self) -> None:
        self._closing.wait(random.uniform(0, _MOST_NAP_S))
        begin_s, read_ns = time.thread_time(), now_ns()
        new = [pid for pid, last_ns in self._turns.items() if not last_ns][:_NEW_AT_ONCE]
        recorded = self._recorded() if new else ()
        items = [(pid,) for pid, last_ns in self._turns.items() if last_ns or (pid in new and pid in recorded)]
        self._helper.until, cost_s = 0.0 if self._closing.is_set() else time.monotonic() + _MOST_S, 0.0
        answers = {item[0]: answer.value for item, answer in ask_each(self._helper, items, self._avoided)}
        for pid in dict.fromkeys([*new, *answers]):
            spent_s, loops = answers.get(pid) or (0.0, [])
            last_ns, cost_s = self._turns.pop(pid, 0), cost_s + spent_s
            self._turns[pid] = read_ns if loops else 0 if answers.get(pid) else last_ns
            weight_ns = read_ns - max(last_ns or self._last_ns, self._begin_ns)
            for tid, tasks in loops if weight_ns > 0 else ():
                has_room = sum(map(len, self._payloads)) < _MOST_KEPT
                self._payloads.extend(task_payloads((pid, tid), (0, read_ns, weight_ns), tasks if has_room else []))
        cost_s += time.thread_time() - begin_s
        self._credit_s = min(self._credit_s + _SHARE * (read_ns - self._last_ns) / 1e9, _MOST_CREDIT_S) - cost_s
        self._last_ns, gap_s = read_ns, max(1 / self._rate_hz, -self._credit_s / _SHARE)
        self._due_s = time.monotonic() + gap_s * random.uniform(0.5, 1.5) - _MOST_NAP_S / 2

    def _look(self, item: tuple[int]) -> tuple[float, list[tuple[int, list[Task]]]]:
        """Return CPU time, s, and (tid, tasks) of the loops of a process; called in the helper."""
        begin_s, until_s, (pid,) = time.process_time(), time.monotonic() + _MOST_LOOK_S, item
        tables = self._tables.pop(pid, None) or find_tables(pid)
        threads, loops = loop_threads(pid, tables) if tables else [], list[tuple[int, list[Task]]]()
        for tid in random.sample(threads, len(threads)):  # the last ones may have no time
            has_time = time.monotonic() < until_s
            answer = read_loop(pid, tid, tables, self._pages[tid]) if tables and has_time else (-1, False, [])
            loops += [(tid, answer[2] if answer[0] >= 0 and answer[1] else [])] if answer else []
        self._tables |= {pid: tables} if tables and loops else {}
        return time.process_time() - begin_s, loops
