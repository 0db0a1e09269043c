# SPDX-License-Identifier: Apache-2.0
"""Join budgets and waits that go on from one file of a recording to the next.

`record --switch-output` writes into each file the budgets of threads, and the threads that are still blocked
at its end, with the time so far; the whole wait is in the file in which it ends. Where such files are joined
only that one counts.
"""

from __future__ import annotations

import numpy as np

from perf_offcpu.decode.account import BUDGET_SUMS
from perf_offcpu.model.columns import I32, I64, Bool
from perf_offcpu.model.recording import Budget, SampleFlag, Samples
from perf_offcpu.structs import frozen


@frozen
class Borders:
    """Moments at which the budgets of threads go on from one file of a recording to the next.

    Args:
        tid: int32[n].
        time_ns: int64[n].
    """

    tid: I32
    time_ns: I64


def joined_budget(parts: list[Budget]) -> tuple[Budget, Borders]:
    """Return all budgets, by (tid, begin); rows that several files have of one life of a thread are added.

    Such rows begin at the very ns at which the row before ended; rows of separate recordings do not.
    """
    budget = Budget.concat(parts)
    budget = budget.take(np.lexsort((budget.end_ns, budget.begin_ns, budget.tid)))
    goes_on = np.zeros(len(budget), np.bool_)
    goes_on[1:] = budget.begin_ns[1:] == budget.end_ns[:-1]
    for column in (budget.tid, budget.pid):
        goes_on[1:] &= column[1:] == column[:-1]
    borders = Borders(budget.tid[goes_on], budget.begin_ns[goes_on])
    if not goes_on.any():
        return budget, borders
    first = np.flatnonzero(~goes_on)
    last = np.append(first[1:], len(budget)) - 1
    sums = {name: np.add.reduceat(getattr(budget, name), first) for name in (*BUDGET_SUMS, "stopped_ns")}
    return budget.take(first).with_columns(end_ns=budget.end_ns[last], **sums), borders


def without_continued(samples: Samples, borders: Borders, end_ns: int) -> Samples:
    """Leave out samples of threads still blocked at the end of a file, if their wait goes on in a later one.

    It does where the thread's budget goes on, or where a later sample is of the same wait: budgets may be
    missing.

    Args:
        borders: where budgets go on.
        end_ns: of the whole recording: samples of threads that are still blocked then stay.
    """
    blocked = samples.has(SampleFlag.STILL_BLOCKED)
    rows = np.flatnonzero(blocked & (samples.time_ns < end_ns))
    if not len(rows):
        return samples
    goes_on = _in_borders(samples, rows, borders) | _repeated(samples, rows)
    keep = np.ones(len(samples), np.bool_)
    keep[rows[goes_on]] = False
    return samples.take(np.flatnonzero(keep))


def _in_borders(samples: Samples, rows: I64, borders: Borders) -> Bool:
    """Return bool[n]: whether the budget of the thread goes on where each sample (row) ends."""
    mine, theirs = _numbered((samples.tid[rows], samples.time_ns[rows]), (borders.tid, borders.time_ns))
    return np.isin(mine, theirs)


def _repeated(samples: Samples, rows: I64) -> Bool:
    """Return bool[n]: whether a later sample is of the same wait as each sample (row)."""
    others = np.flatnonzero((samples.switch_out_ns >= 0) & np.isin(samples.tid, samples.tid[rows]))
    mine, theirs = _numbered(
        (samples.tid[rows], samples.switch_out_ns[rows]), (samples.tid[others], samples.switch_out_ns[others])
    )
    last_ns = np.full(len(mine) + len(theirs), -1, np.int64)
    np.maximum.at(last_ns, theirs, samples.time_ns[others])
    repeated: Bool = last_ns[mine] > samples.time_ns[rows]
    return repeated


def _numbered(*sets: tuple[I32, I64]) -> list[I64]:
    """Number the different pairs of thread and moment in all sets, from 0."""
    pairs = [np.stack([tid.astype(np.int64), time_ns], axis=1) for tid, time_ns in sets]
    _, numbers = np.unique(np.concatenate(pairs), axis=0, return_inverse=True)
    return np.split(numbers.reshape(-1), np.cumsum([len(part) for part in pairs])[:-1])
