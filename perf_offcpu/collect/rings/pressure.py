# SPDX-License-Identifier: Apache-2.0
"""Measure the time from one drain of the rings to the next, and what the recorder does in it: write, compute, wait for
a CPU or in the kernel. Time in which the recorder sleeps until a ring wakes it does not count. The longest time between
two drains is shown; times in which a ring became full, the cause of losses, are added up."""

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from perf_offcpu.files import descriptor
from perf_offcpu.losses import FEWER_SAMPLES, LARGER_RINGS

FULL = 0.9  # fill at which a ring counts as full: a record that does not fit may be large
_MUCH = 0.3  # share of the elapsed time from which on an activity is the cause
_AT_ONCE_S = 0.001  # longest time in which clocks are read that count as read together


class TimeSpent(NamedTuple):
    """Seconds of the recorder's thread: elapsed; of these, waiting for the file, on a CPU, runnable without a CPU."""

    elapsed_s: float = 0.0
    file_s: float = 0.0
    cpu_s: float = 0.0
    runnable_s: float = 0.0

    @property
    def kernel_s(self) -> float:
        """Seconds in which the thread waited in the kernel, but not for the file: `elapsed_s` less the other fields."""
        return max(0.0, self.elapsed_s - self.file_s - self.cpu_s - self.runnable_s)

    def __str__(self) -> str:
        """Return the elapsed time and its parts as text."""
        elapsed, file, cpu, runnable, kernel = (f"{seconds * 1e3:.0f}" for seconds in (*self, self.kernel_s))
        return f"{elapsed} ms ({cpu} busy, {runnable} without a CPU, {file} for the file, {kernel} for the kernel)"


@contextmanager
def run_delay() -> Iterator[Callable[[], float]]:
    """Yield a function that returns the seconds in which this thread has been runnable without a CPU; 0 if unknown."""
    try:
        # direct: a file of /proc
        fd = os.open("/proc/thread-self/schedstat", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        yield lambda: 0.0
        return
    with descriptor(fd):
        yield lambda: int(os.pread(fd, 128, 0).split()[1]) / 1e9


class Pressure:
    """Measure what the recorder's thread does from one drain of the rings to the next. `runnable`: the function of
    `run_delay`. `full`: sum of times between drains in which a ring became full. `longest`: longest of all."""

    def __init__(self, runnable: Callable[[], float] = lambda: 0.0) -> None:
        self._runnable = runnable
        self._file_s = self._asleep_s = 0.0
        self.begin()

    def begin(self) -> None:
        """Begin to measure, as if the rings were drained now."""
        self._drained = self._now()
        self.full = self.longest = TimeSpent()

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Count the time that the thread waits in the `with` block as waiting for the file."""
        before = self._waited()
        try:
            yield
        finally:
            self._file_s += max(0.0, self._waited() - before)  # less than 0: the host had the CPU

    @contextmanager
    def sleeping(self) -> Iterator[None]:
        """Leave out the time that the thread waits in the `with` block: it sleeps until something wakes it."""
        before = self._waited()
        try:
            yield
        finally:
            self._asleep_s += self._waited() - before

    @contextmanager
    def draining(self, fill: Callable[[], float]) -> Iterator[None]:
        """Measure the time from the last drain to this one, which the `with` block makes. `fill`: returns, after the
        block, the fill of the fullest ring that was drained, 0 to 1."""
        now = self._now()
        spent = TimeSpent(*(end - begin for end, begin in zip(now, self._drained, strict=True)))
        self.longest = max(self.longest, spent)
        try:
            yield
        finally:
            if fill() >= FULL:
                self.full = TimeSpent(*map(sum, zip(self.full, spent, strict=True)))
            self._drained = now

    def _waited(self) -> float:
        """Return for how many seconds, since an arbitrary moment, this thread was neither running nor runnable."""
        while True:
            wall = time.monotonic()
            waited = wall - time.thread_time() - self._runnable()
            if time.monotonic() - wall < _AT_ONCE_S:  # else the thread lost its CPU between two clocks
                return waited

    def _now(self) -> TimeSpent:
        return TimeSpent(time.monotonic() - self._asleep_s, self._file_s, time.thread_time(), self._runnable())


def remedy(full: TimeSpent, copies: bool, compressed: bool) -> str:
    """Return a line on cause and remedy of losses by full rings. `full`: time of the recorder while rings became full.
    `copies`: samples hold copies of stacks. `compressed`: the recorder compresses."""
    smaller = "smaller copies (--call-graph cfi,2048) or none (--call-graph fp), " if copies else ""
    faster = "" if compressed else "compress (-z), "
    most = max(full.file_s, full.cpu_s, full.runnable_s, full.kernel_s)
    time_s = f"for {most:.2f} of the {full.elapsed_s:.2f} s in which rings filled: "
    if most <= _MUCH * full.elapsed_s:
        return f"rings filled before the recorder looked: {LARGER_RINGS}, {smaller}{FEWER_SAMPLES}"
    if most == full.file_s:
        memory = f"write to memory (-o /dev/shm/perf.data), {faster}take {LARGER_RINGS}"
        return f"the file took no bytes {time_s}{memory}, {smaller}{FEWER_SAMPLES}"
    if most == full.cpu_s:
        without = "no -z, " if compressed else ""
        return f"the recorder was busy {time_s}{without}{smaller}{FEWER_SAMPLES}"
    if most == full.runnable_s:
        return f"the recorder had no CPU {time_s}-r 1, {LARGER_RINGS}, {smaller}{FEWER_SAMPLES}"
    return f"the recorder waited for the kernel {time_s}{LARGER_RINGS}, {smaller}{FEWER_SAMPLES}"


_WINDOW_S = 0.5
_MOST = 0.3  # share of a CPU above which the thread is an ordinary one for the next window
_LEAST_PRIORITY = os.sched_param(1)


class DrainPriority:
    """Keeps the calling thread real-time (SCHED_FIFO 1) while it uses little CPU time, so that it cannot starve others;
    without the permission, it stays as it is. Threads and processes that it starts are ordinary ones. A nice value
    would not do: it counts only within a session if the kernel groups tasks by session
    (kernel.sched_autogroup_enabled, the default). Next to eight tasks that compute in another session, a thread of nice
    -20 waited 0.3 s for one of two CPUs. `is_wanted`: False to leave the priority alone."""

    def __init__(self, is_wanted: bool = True) -> None:
        self._is_allowed, self._is_raised = is_wanted, False
        self._begin = (0.0, 0.0)

    @contextlib.contextmanager
    def raised(self) -> Iterator[None]:
        """Raise the priority during the `with` block, in which `adapt` must be called often."""
        self._begin = time.monotonic(), time.thread_time()
        self._set(raised=True)
        try:
            yield
        finally:
            self._set(raised=False)

    def adapt(self) -> None:
        """Choose the priority by the CPU time of the last _WINDOW_S, once that has passed."""
        now = time.monotonic(), time.thread_time()
        elapsed, used = (end - begin for end, begin in zip(now, self._begin, strict=True))
        if elapsed >= _WINDOW_S:
            self._begin = now
            self._set(raised=used <= _MOST * elapsed)

    def _set(self, *, raised: bool) -> None:
        if raised == self._is_raised or not self._is_allowed:
            return
        policy, priority = (os.SCHED_FIFO, _LEAST_PRIORITY) if raised else (os.SCHED_OTHER, os.sched_param(0))
        try:
            os.sched_setscheduler(0, policy | os.SCHED_RESET_ON_FORK, priority)
        except OSError:  # no CAP_SYS_NICE, or a control group without real-time budget
            self._is_allowed = False
        else:
            self._is_raised = raised
