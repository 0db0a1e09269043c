# SPDX-License-Identifier: Apache-2.0
"""Read, some times a second, where the goroutines of recorded Go programs wait (`record --goroutines`): from outside,
while the program runs, within _BUDGET of a CPU. A goroutine counts if it stood still from before its stack was read to
after it (Go counts how often it stops running), and weighs the time since the reading before. One that runs, or is in a
system call, has a thread, whose waits are recorded as those of all threads."""

import functools
import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from perf_offcpu import losses
from perf_offcpu.abi.counters import GOROUTINES
from perf_offcpu.collect.go.program import LAYOUTS, U64, Functions, Memory, find_program
from perf_offcpu.collect.python.event_loops import task_payloads
from perf_offcpu.collect.python.memory import UnreadableError
from perf_offcpu.collect.system.background import Future, in_background
from perf_offcpu.collect.system.clock import now_ns
from perf_offcpu.collect.system.helper import Avoided, Helper, ask_each
from perf_offcpu.losses import Losses

_BUDGET, _PAUSE_S, _LOOK_S, _MOST_LOOKS = 0.01, 0.1, 0.25, 400  # looks for programs take 1/400 of a CPU
_MOST_GOROUTINES, _AT_ONCE, _MOST_STACK, _MOST_FRAMES = 1 << 17, 256, 16 << 10, 64
_MOST_STACKS, _MOST_ALL, _MOST_UNREAD, _MOST_REASON = 2048, 1 << 15, 256, 64  # of a process, of all, …; bytes
_SIZE, _LO, _HI, _SP, _PC, _ID, _REASON = 256, 0, 1, 7, 8, 8, 32  # words of runtime.g; the last two after the status
_RUNNABLE, _WAITING, _PREEMPTED, _STATUS = 1, 4, 9, 0xFFF
_OTHERS: Final = {_RUNNABLE: "runnable", _PREEMPTED: "preempted"}
Stacks = Counter[tuple[str, tuple[str, ...]]]
"""(What a goroutine waits for, its functions, leaf first) → number of goroutines."""


class Reader:
    """Read the goroutines of one process, as long as it runs the same program."""

    def __init__(self, pid: int, program: dict[str, int]) -> None:
        self.program, self._memory = program, Memory(pid)
        self._functions, self._reason = Functions(self._memory, program), functools.cache(self._read_reason)
        self._status, self._bp, sequence, _ = LAYOUTS[program["minor"]]
        words = np.array([8 * _LO, 8 * _HI, 8 * _SP, 8 * _PC, self._bp, self._status + _ID])
        still = self._status, self._status + _REASON, sequence
        self._still = np.append(np.add.outer(words, np.arange(8)), still)

    def read(self) -> tuple[int, int, dict[Any, int]]:
        """Return (goroutines that moved, goroutines that could not be read, others). Raises UnreadableError: none."""
        begin, number, _ = self._memory.words(self.program["allgs"], 3).tolist()
        places = self._memory.words(begin, min(number, _MOST_GOROUTINES))
        moved, unread, first, stacks = 0, 0, 0, Stacks()
        while first < len(places) and unread < _MOST_UNREAD:
            more = self._read_some(places[first : first + _AT_ONCE], stacks)
            moved, unread, first = moved + more[0], unread + more[1], first + _AT_ONCE
        return moved, unread + min(max(number - first, 0), 1 << 31), dict(stacks)

    def _read_some(self, places: U64, stacks: Stacks) -> tuple[int, int]:
        before, is_read = self._gather(places)
        words = before.view(np.uint64)
        status, (low, high, sp, pc) = words[:, self._status // 8] & np.uint64(_STATUS), words[:, [_LO, _HI, _SP, _PC]].T
        waits = is_read & np.isin(status, (_RUNNABLE, _WAITING, _PREEMPTED))
        is_sound = (sp % 8 == 0) & (low <= sp) & (sp < high) & (high < 2**47)
        rows = np.flatnonzero(waits & is_sound)
        sizes = np.minimum(high[rows] - sp[rows], np.uint64(_MOST_STACK)) & ~np.uint64(7)
        content, has_stack = self._memory.gather(sp[rows], sizes)
        after, again = self._gather(places[rows])
        stands = again & (before[rows][:, self._still] == after[:, self._still]).all(axis=1)
        chains = walk(content.view(np.uint64), sp[rows], sizes, words[rows, self._bp // 8], pc[rows])
        keys = np.column_stack([status[rows], before[rows, self._status + _REASON], chains])[stands & has_stack]
        kinds, counts = np.unique(keys.astype(np.uint64), axis=0, return_counts=True)
        for (state, reason, *chain), count in zip(kinds.tolist(), counts.tolist(), strict=True):
            names = [name for address in chain if address for name in self._functions.of(address)]
            names = names[:-1] if names[1:] and names[-1] == "runtime.goexit" else [*names, "[truncated]"]
            names = [name for name in names if ".gowrap" not in name]  # made by `go function(argument)`
            stacks[_OTHERS.get(state) or self._reason(reason), tuple(names)] += count
        return int((has_stack & ~stands).sum()), int((~is_read | waits & ~is_sound).sum() + (~has_stack).sum())

    def _gather(self, places: U64) -> tuple[NDArray[np.uint8], NDArray[np.bool_]]:
        content, is_read = self._memory.gather(places, np.full(len(places), _SIZE, np.uint64))
        return content.reshape(-1, _SIZE), is_read

    def _read_reason(self, number: int) -> str:
        begin, size = self._memory.words(self.program["reasons"] + 16 * number, 2).tolist()
        return self._memory.read(begin, min(size, _MOST_REASON)).decode("utf-8", "replace") or "waiting"


def walk(stacks: U64, base: U64, sizes: U64, frame: U64, leaf: U64) -> U64:
    """Return uint64[n, frames]: return addresses along frame pointers, leaf first, 0 after the last. `stacks`: words of
    all stacks, one after the other, from `base` on `sizes` bytes each; `frame`: the first frame pointers."""
    columns, first = [leaf], (np.cumsum(sizes) - sizes) // np.uint64(8)
    while len(columns) < _MOST_FRAMES:
        offset = frame - base
        is_inside = (frame >= base) & (frame % 8 == 0) & (offset < sizes) & (sizes - offset >= 16)
        if not is_inside.any():
            break
        word = np.where(is_inside, first + offset // np.uint64(8), 0).astype(np.int64)
        columns.append(np.where(is_inside, stacks[word + 1], 0))
        frame = np.where(is_inside & (stacks[word] > frame), stacks[word], 0)
    return np.column_stack(columns)


class Goroutines:
    """Follow the goroutines of recorded processes, from `start` to `stop`. `recorded`: returns the pids of recorded
    processes that live. `lost`: counts what is not read."""

    def __init__(self, recorded: Callable[[], set[int]], lost: Losses) -> None:
        self._recorded, self._lost = recorded, lost
        self._helper, self._avoided = Helper(self._work), Avoided()
        self._readers: dict[int, Reader] = {}  # in the helper
        self._looks, self._look_s = dict[int, int](), 0.0  # number of looks by pid, time of the next
        self._programs: dict[int, dict[str, int]] = {}
        self._read_at: dict[int, int] = {}  # times of readings that another follows
        self._sums: dict[int, tuple[list[int], Stacks]] = {}  # begin and end of readings, ns in place of numbers
        self._lock, self._stopped = threading.Lock(), threading.Event()
        self._running: Future[None] | None = None

    def start(self) -> None:
        """Begin to read, in a thread; the time of a pause before does not count."""
        self._read_at.clear()
        self._stopped.clear()
        self._running = in_background(self._run)

    def stop(self) -> None:
        """Read once more, and stop."""
        self._stopped.set()
        if self._running is not None:
            self._running.wait()
            self._helper.close()

    def _run(self) -> None:
        # Of random length, because fixed ones would go in step with what is watched.
        while not self._stopped.wait(max(_PAUSE_S, self._read_all() / _BUDGET) * random.uniform(0.5, 1.5)):
            pass
        self._read_all()

    def _read_all(self) -> float:
        """Read all Go programs, and look for new ones; return the CPU time, s. Others are looked at again after ever
        longer times: they may run another program by then."""
        begin_s, now_s, cpu_ns = time.thread_time(), time.monotonic(), 0
        due = [(pid, program) for pid, program in self._programs.items() if "allgs" in program]
        if now_s >= self._look_s:
            self._looks = {pid: self._looks.get(pid, 0) + 1 for pid in self._recorded()}
            self._programs = {pid: program for pid, program in self._programs.items() if pid in self._looks and program}
            self._read_at = {pid: ns for pid, ns in self._read_at.items() if pid in self._programs}
            due += [(pid, {}) for pid, n in self._looks.items() if not n & n - 1 and pid not in self._programs]
            self._look_s = now_s + max(_LOOK_S, (time.thread_time() - begin_s) * _MOST_LOOKS)
        for (pid, _), answer in ask_each(self._helper, due, self._avoided):
            self._programs[pid], *counts, used_ns = answer.value or ({}, 0, 1, {}, 0)
            self._add(pid, *counts)
            cpu_ns += used_ns
        return cpu_ns / 1e9 + time.thread_time() - begin_s

    def _work(self, item: tuple[int, dict[str, int]]) -> Any:
        """Return (program, what `Reader.read` returns, ns of CPU time), in the helper. `item`: pid, known program."""
        (pid, program), begin_ns, answer = item, time.process_time_ns(), (0, 0, dict[Any, int]())
        try:
            program = program or find_program(pid)
            if "allgs" in program:
                if pid not in self._readers or self._readers[pid].program != program:
                    self._readers[pid] = Reader(pid, program)
                answer = self._readers[pid].read()
        except (UnreadableError, OSError) as problem:  # it has ended, runs another program by now, or is hostile
            self._readers.pop(pid, None)
            program = {} if program or isinstance(problem, OSError) else {"minor": 0}
        return program, *answer, time.process_time_ns() - begin_ns

    def _add(self, pid: int, moved: int, unread: int, stacks: dict[Any, int]) -> None:
        """Add a reading to the sums."""
        begin_ns, end_ns, program = self._read_at.pop(pid, 0), now_ns(), self._programs[pid]
        self._read_at |= {pid: end_ns} if stacks else {}
        with self._lock:
            times, sums = self._sums.get(pid, ([begin_ns, 0], Stacks()))
            if begin_ns and stacks:
                self._sums[pid], times[1] = (times, sums), end_ns
            room = min(_MOST_STACKS, _MOST_ALL - sum(len(counts) for _, counts in self._sums.values()) + len(sums))
            for stack, count in stacks.items():
                if stack in sums or len(sums) < room:
                    sums[stack] += count * (end_ns - (begin_ns or end_ns))
                else:
                    unread += count
        self._lost.add(losses.GO_UNKNOWN, int("minor" in program and "allgs" not in program))
        self._lost.add(losses.GOROUTINES_MOVED, moved)
        self._lost.add(losses.GOROUTINES_UNREAD, unread)

    def take(self) -> list[bytes]:
        """Return payloads (abi.counters.TASKS) of what was read since the last call: a task for each stack."""
        with self._lock:
            taken, self._sums = self._sums, {}
        payloads = list[bytes]()
        for pid, ((begin_ns, end_ns), sums) in taken.items():
            for number, ((waits_for, names), ns) in enumerate(sums.items(), 1):
                frames = [(name, "", 0) for name in names]
                task = number, GOROUTINES, waits_for, 0, list[int](), list[int](), frames
                payloads += task_payloads((pid, pid), (begin_ns, end_ns, ns), [task])
        return payloads
