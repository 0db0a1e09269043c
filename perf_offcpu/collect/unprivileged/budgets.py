# SPDX-License-Identifier: Apache-2.0
"""Account the time of each thread from switch to switch. How long it waited for a CPU after wake-ups is known only as a
sum, from /proc/TID/schedstat; it is taken off the time that the thread was off the CPU by itself."""

import os
from collections.abc import Iterator
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from perf_offcpu.collect.bpf.header import SharedHeader, read_header
from perf_offcpu.collect.kernel_totals.budgets import budget_samples
from perf_offcpu.collect.unprivileged.looks import Look
from perf_offcpu.collect.unprivileged.switches import BEFORE, IN
from perf_offcpu.files import read_kernel_if_any
from perf_offcpu.perfdata.events import EventSpec
from perf_offcpu.resources import bpf_dir

_MOST_READ: Final = 256  # threads whose schedstat is read at once
_MODE_OF_STATE: Final = {0x1: "interruptible", 0x2: "uninterruptible", 0x4: "stopped", 0x8: "traced"}


class Budgets:
    """Sum the time of threads by state (running, preempted, …). `tasks`: tid → pid of the threads at the start."""

    def __init__(self, tasks: dict[int, int]) -> None:
        header: SharedHeader = read_header(bpf_dir() / "off_cpu.h")
        self._dtype = header.structs["budget"]
        self._modes = {mode: number for number, mode in enumerate(header.enums["mode"])}
        self._rows: dict[tuple[int, int], NDArray[Any]] = {}
        self._before_ns = {tid: _queued_ns(pid, tid) for tid, pid in tasks.items()}
        self._queued_ns = dict(self._before_ns)

    def add(self, intervals: NDArray[Any], looks: dict[int, Look | None]) -> None:
        """Add intervals (`switches.INTERVAL`). `looks`: row of `intervals` → the look at its thread, for its state."""
        modes = np.full(len(intervals), self._modes["other"])
        modes[intervals["preempted"] != 0] = self._modes["preempted"]
        modes[intervals["kind"] == IN] = self._modes["running"]
        modes[intervals["kind"] == BEFORE] = self._modes["unknown"]
        for place, look in looks.items():
            if look is not None and look.state in _MODE_OF_STATE:
                modes[place] = self._modes[_MODE_OF_STATE[look.state]]
        lengths = intervals["end"] - intervals["begin"]
        order = np.lexsort((intervals["tid"], intervals["pid"]))
        keys = intervals[["pid", "tid"]][order]
        firsts = np.flatnonzero(np.append(True, keys[1:] != keys[:-1])[: len(order)])
        for part in np.split(order, firsts[1:]) if len(order) else ():
            first = intervals[part[0]]
            key = int(first["pid"]), int(first["tid"])
            if key not in self._rows:
                self._rows[key] = np.zeros((), self._dtype)
                self._rows[key]["pid"], self._rows[key]["tid"] = key
                self._rows[key]["begin_ns"] = intervals["begin"][part].min()
            row = self._rows[key]
            row["ns"] += np.bincount(modes[part], lengths[part], row["ns"].size).astype(np.uint64)
            row["switches"] += np.uint64((intervals["kind"][part] == IN).sum())
            row["end_ns"] = max(int(row["end_ns"]), int(intervals["end"][part].max()))

    def read_delays(self) -> None:
        """Read the run-queue delay of the newest _MOST_READ threads that still exist."""
        for pid, tid in list(self._rows)[-_MOST_READ:]:
            if delay_ns := _queued_ns(pid, tid):
                self._queued_ns[tid] = delay_ns

    def records(self, event: EventSpec, time_ns: int) -> Iterator[bytes]:
        """Yield sample records of `event` with the budgets of all threads."""
        rows = np.array(list(self._rows.values()), self._dtype)
        ns, number = rows["ns"].view(np.int64), self._modes
        queued = [self._queued_ns.get(tid, 0) - self._before_ns.get(tid, 0) for tid in rows["tid"].tolist()]
        undivided = np.maximum(np.array(queued, np.int64) - ns[:, number["preempted"]], 0)
        for mode in ("other", "interruptible"):
            moved = np.minimum(undivided, ns[:, number[mode]])
            ns[:, number[mode]] -= moved
            ns[:, number["runnable"]] += moved
            undivided -= moved
        rows["ns"][:, number["unknown"]] += rows["end_ns"] - rows["begin_ns"] - rows["ns"].sum(axis=1)
        yield from (record for _, record in budget_samples(event, rows, list(number), time_ns))


def _queued_ns(pid: int, tid: int) -> int:
    """Return the run-queue delay of a thread since its birth, ns; 0 if it is not known."""
    words = read_kernel_if_any(f"/proc/{pid}/task/{tid}/schedstat", 128).split()
    return int(words[1]) if len(words) > 1 else 0


def threads_of(pid: int) -> list[int]:
    """Return the ids of the threads of a process; none if it has ended."""
    try:
        return sorted(int(name) for name in os.listdir(f"/proc/{pid}/task"))  # direct: of the kernel
    except OSError:
        return []
