# SPDX-License-Identifier: Apache-2.0
"""Write budgets of threads as samples of the event `offcpu-counters` (abi/counters.py). The BPF program keeps one
budget for a thread's whole life in the recording. If a recording has several files (`--switch-output`), each gets the
share that was added since the file before."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perf_offcpu.abi.counters import BUDGET, BUDGET_MAGIC, BUDGET_VERSION, BUDGETS
from perf_offcpu.collect.bpf.last_tasks import WAITING_FOR_CPU, joined_fields
from perf_offcpu.collect.counters import account_sample
from perf_offcpu.collect.events.perf_event import NATIVE
from perf_offcpu.model.columns import is_among
from perf_offcpu.perfdata.events import EventSpec

I64 = NDArray[np.int64]
U64 = NDArray[np.uint64]

BATCH = 256  # budgets in one sample: a record has room for some 500
_THREAD = ("tid", "begin_ns")
_MISSES = 16  # successive calls of `share` with `noting` that may lack a thread
SWITCH_NS = 5000  # time of a switch that may count for the thread that leaves or for the one that comes


def budget_samples(
    event: EventSpec, budgets: NDArray[Any], modes: Sequence[str], time_ns: int
) -> Iterator[tuple[int, bytes]]:
    """Yield (number of budgets, at most BATCH; a sample record of them). `event`: offcpu-counters. `budgets`: rows of
    `struct offcpu_budget` (time of a thread by mode). `modes`: enumerators of `enum offcpu_mode`, which index `ns`."""
    rows = _as_in_file(budgets, modes)
    for low in range(0, len(rows), BATCH):
        part = rows[low : low + BATCH]
        head = BUDGETS.pack({"magic": BUDGET_MAGIC, "version": BUDGET_VERSION, "nr": 0, "budgets": []}, NATIVE)
        raw = head[:6] + np.uint16(len(part)).tobytes() + part.tobytes()
        yield len(part), account_sample(event, raw, time_ns)


def _as_in_file(budgets: NDArray[Any], modes: Sequence[str]) -> NDArray[Any]:
    """Return the budgets as rows of abi.counters.BUDGET, which has no bucket for the time of dead threads."""
    rows = np.zeros(len(budgets), BUDGET.dtype(NATIVE))
    for name in ("pid", "tid", "begin_ns", "end_ns", "switches", "own_pid", "own_tid"):
        rows[name] = budgets[name]
    for index, mode in enumerate(modes):
        if f"{mode}_ns" in (rows.dtype.names or ()):
            rows[f"{mode}_ns"] = budgets["ns"][:, index]
    return rows


class BudgetShares:
    """Subtract from budgets (time of a thread by mode) what earlier files hold. `modes`: of `enum offcpu_mode`."""

    def __init__(self, modes: Sequence[str]) -> None:
        self._modes = modes
        self._written: list[NDArray[Any]] = []

    def share(self, budgets: NDArray[Any], *, noting: bool = False) -> NDArray[Any]:
        """Return the share of each budget for this file: `budgets` (sums over lives of threads) after
        `by_kernel_figures`, less the shares in earlier files; it begins where the last of these ended. `noting`: note
        the shares as written. Notes on threads that are not in `budgets` are kept for _MISSES calls: such a thread has
        ended and is drained later, or changed while it was read. The sum of the shares is noted, not the budget: if a
        thread came to a CPU while it was read, its wait for the CPU may have been counted twice or not at all."""
        shares = by_kernel_figures(budgets, self._modes)
        rows, before = self._before(budgets)
        shares["switches"][rows] -= before["switches"]
        shares["ns"][rows] = _difference(shares["ns"][rows], before["ns"])
        shares["begin_ns"][rows] = before["end_ns"]
        shares["end_ns"] = np.maximum(shares["end_ns"], shares["begin_ns"])
        if noting:
            written, keys = shares.copy(), np.sort(joined_fields(budgets, _THREAD))
            for name in ("switches", "ns"):
                written[name][rows] += before[name]
            written["begin_ns"] = budgets["begin_ns"]
            earlier = [notes[~is_among(joined_fields(notes, _THREAD), keys)] for notes in self._written[-_MISSES:]]
            self._written = [*earlier, written]
        return shares

    def _before(self, budgets: NDArray[Any]) -> tuple[I64, NDArray[Any]]:
        """Return (indices in `budgets` of threads with shares in earlier files, the sum of these shares for each)."""
        if not self._written or not len(budgets):
            return np.empty(0, np.int64), budgets[:0]
        written = np.concatenate(self._written)
        written_row = _last_rows(written, budgets)
        rows = np.flatnonzero(written_row >= 0)
        return rows, written[written_row[rows]]


def _difference(now: U64, before: U64) -> U64:
    """Return `now - before`, uint64[n, modes], with negative values set to 0 and subtracted from the largest values of
    the row. A later budget can have less in a mode: the time of an unfinished wait is divided again if a second wake-up
    comes, or if the thread turns out to be just born."""
    change = (now - before).view(np.int64)
    missing = -np.minimum(change, 0).sum(axis=1, keepdims=True)
    change = np.maximum(change, 0)
    largest_first = np.argsort(-change, axis=1, kind="stable")
    ordered = np.take_along_axis(change, largest_first, axis=1)
    larger = ordered.cumsum(axis=1) - ordered
    np.put_along_axis(change, largest_first, ordered - np.clip(missing - larger, 0, ordered), axis=1)
    return change.view(np.uint64)


def _last_rows(table: NDArray[Any], wanted: NDArray[Any]) -> I64:
    """Return int64[n]: for each row of `wanted` the last index in `table` with the same tid and begin_ns, or -1."""
    unique, key_of_row = np.unique(joined_fields(np.concatenate([table, wanted]), _THREAD), return_inverse=True)
    rows = np.full(len(unique), -1, np.int64)
    np.maximum.at(rows, key_of_row[: len(table)], np.arange(len(table)))
    return rows[key_of_row[len(table) :]]


def by_kernel_figures(budgets: NDArray[Any], modes: Sequence[str]) -> NDArray[Any]:
    """Return `budgets` with the time on CPUs and the run-queue delay that the kernel counted. `budgets`: rows of
    `struct offcpu_budget`, sums over lives of threads. `modes`: enumerators of `enum offcpu_mode`, which index the
    field `ns`.

    The BPF program sees a wake-up when it begins (sched_waking), if at all; the kernel counts run-queue delay from when
    the thread is in a queue, 1 to 2 us later. At a switch the program accounts some time to the other thread. With many
    short waits that adds up. So the totals are the kernel's, and the program's own counts only divide them: run-queue
    delay by its reasons, the rest by states.

    The sum of `ns` of each row stays the same. The other states get the time that was counted too much as run-queue
    delay, and up to SWITCH_NS a switch. The remainder goes to `unknown`: time on a CPU that interrupts or the
    hypervisor took, and the making of a new thread before it was in a queue. Threads that have not switched keep the
    program's counts, which are exact; so do all threads if the kernel has no figures."""
    corrected = budgets.copy()
    rows = np.flatnonzero((budgets["switches"] > 0) & (budgets["ran_ns"] > 0))
    number = {mode: index for index, mode in enumerate(modes)}
    queues = [number[mode] for mode in WAITING_FOR_CPU]  # the first is that of wake-ups
    others = [index for mode, index in number.items() if mode != "running" and index not in queues]
    own: I64 = budgets["ns"][rows].astype(np.int64)
    ran, queued = (
        (budgets[f"{name}_ns"][rows] - budgets[f"{name}_before_ns"][rows]).view(np.int64) for name in ("ran", "queued")
    )
    wall = own.sum(axis=1)
    ran = np.clip(ran, 0, wall)
    queued = np.clip(queued, 0, wall - ran)
    in_queues, in_others = own[:, queues].sum(axis=1), own[:, others].sum(axis=1)
    slack = np.maximum(in_queues - queued, 0) + SWITCH_NS * budgets["switches"][rows].astype(np.int64)
    blocked = np.where(in_others > 0, np.minimum(wall - ran - queued, in_others + slack), 0)
    ns = np.zeros_like(own)
    ns[:, number["running"]] = ran
    exact = queues[1:]  # from switch to switch
    in_exact = np.minimum(own[:, exact].sum(axis=1), queued)
    ns[:, exact] = _divided(in_exact, own[:, exact])
    ns[:, queues[0]] = queued - in_exact
    ns[:, others] = _divided(blocked, own[:, others])
    ns[:, number["unknown"]] += wall - ran - queued - blocked
    corrected["ns"][rows] = ns.astype(np.uint64)
    return corrected


def _divided(totals: I64, parts: I64) -> I64:
    """Return int64[n, modes]: totals[i] divided in proportion to parts[i]; the largest part takes the remainder."""
    ratio = totals / np.maximum(parts.sum(axis=1), 1)
    divided: I64 = (parts * ratio[:, None]).astype(np.int64)
    divided[np.arange(len(parts)), parts.argmax(axis=1)] += totals - divided.sum(axis=1)
    return divided
