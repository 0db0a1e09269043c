# SPDX-License-Identifier: Apache-2.0
"""Join budgets and waits that go on from one file of a recording to the next. `record --switch-output` writes into each
file the budgets of threads, and a sample with the time so far of each thread that is still blocked at its end. The file
in which the wait ends has a sample of the whole wait; in joined files only this sample counts."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from perf_offcpu.decode.account import BUDGET_SUMS
from perf_offcpu.model.columns import I32, I64, Bool, distinct, group, is_among
from perf_offcpu.model.recording import Budget, SampleFlag, Samples, Spans

_NEVER = np.iinfo(np.int64).max
Borders = tuple[I32, I64]  # (tid, time in ns) where a thread's budget goes on from one file to the next


def repeats(*pairs: tuple[NDArray[Any], NDArray[Any]]) -> Bool:
    """Return bool[n]: True for row i if a[i] == b[i - 1] in every pair of columns (a, b); False for row 0."""
    result = np.zeros(len(pairs[0][0]), np.bool_)
    result[1:] = np.all([later[1:] == earlier[:-1] for later, earlier in pairs], axis=0)
    return result


def joined_budget(parts: list[Budget]) -> tuple[Budget, Borders]:
    """Join budgets of several files; return (budgets by (tid, begin), borders: where threads go on in the next file).
    Rows of a thread are summed if one begins in the very ns in which the other ended, as only in one recording."""
    budget = Budget.concat(parts)
    budget = budget.take(np.lexsort((budget.end_ns, budget.begin_ns, budget.tid)))
    goes_on = repeats((budget.begin_ns, budget.end_ns), (budget.tid, budget.tid), (budget.pid, budget.pid))
    borders = budget.tid[goes_on], budget.begin_ns[goes_on]
    if not goes_on.any():
        return budget, borders
    first = np.flatnonzero(~goes_on)
    last = np.append(first[1:], len(budget)) - 1
    sums = {name: np.add.reduceat(getattr(budget, name), first) for name in (*BUDGET_SUMS, "stopped_ns")}
    return budget.take(first).with_columns(end_ns=budget.end_ns[last], **sums), borders


def without_continued(samples: Samples, borders: Borders, end_ns: int) -> Samples:
    """Return the samples without those of threads still blocked at the end of a file whose wait goes on in a later
    file: the thread's budget goes on then (`borders`), or, where budgets are missing, a later sample has the same tid
    and switch_out_ns. Samples of threads still blocked at the end of the whole recording (`end_ns`) stay."""
    rows = np.flatnonzero(samples.has(SampleFlag.STILL_BLOCKED) & (samples.time_ns < end_ns))
    if not len(rows):
        return samples
    ends, going_on = _numbered((samples.tid[rows], samples.time_ns[rows]), borders)
    keep = np.ones(len(samples), np.bool_)
    keep[rows[np.isin(ends, going_on) | _repeated(samples, rows)]] = False
    return samples.take(np.flatnonzero(keep))


def at_pauses(samples: Samples, parts: Spans) -> Samples:
    """Flag STILL_BLOCKED samples as AT_PAUSE if they are earlier than the last of `parts`, the spans between pauses."""
    blocked = samples.has(SampleFlag.STILL_BLOCKED)
    return _marked(samples, np.flatnonzero(blocked & (samples.time_ns < parts[-1][0]))) if parts else samples


def seen_again(samples: Samples) -> Samples:
    """Flag STILL_BLOCKED samples as AT_PAUSE if a later sample (of another recording) has their tid. That sample shows
    how the wait went on; and if the tid is another thread's by then, the wait ended."""
    rows = np.flatnonzero(samples.has(SampleFlag.STILL_BLOCKED))
    tids = distinct(samples.tid[rows])
    first_ns = samples.time_ns[rows].min(initial=_NEVER)
    later = np.flatnonzero((samples.time_ns > first_ns) & is_among(samples.tid, tids))
    last_ns = np.full(len(tids), -1, np.int64)
    np.maximum.at(last_ns, np.searchsorted(tids, samples.tid[later]), samples.time_ns[later])
    return _marked(samples, rows[last_ns[np.searchsorted(tids, samples.tid[rows])] > samples.time_ns[rows]])


def _marked(samples: Samples, rows: I64) -> Samples:
    flags = samples.flags.copy()
    flags[rows] |= np.uint32(SampleFlag.AT_PAUSE)
    return samples.with_columns(flags=flags) if len(rows) else samples


def _repeated(samples: Samples, rows: I64) -> Bool:
    """Return bool[len(rows)]: True if a later sample is of the same wait: it has the same tid and switch_out_ns."""
    # These few switch_out_ns are looked for in all samples; to sort all would take a third of the time of a report.
    began_ns = distinct(samples.switch_out_ns[rows])
    others = np.flatnonzero((samples.switch_out_ns >= 0) & is_among(samples.switch_out_ns, began_ns))
    wait, wait_of_other = _numbered(*((samples.tid[some], samples.switch_out_ns[some]) for some in (rows, others)))
    last_ns = np.full(len(wait) + len(wait_of_other), -1, np.int64)
    np.maximum.at(last_ns, wait_of_other, samples.time_ns[others])
    repeated: Bool = last_ns[wait] > samples.time_ns[rows]
    return repeated


def _numbered(*sets: tuple[I32, I64]) -> list[I64]:
    """Return int64[n] for each set of n pairs (tid, ns): numbers from 0, equal for equal pairs of any set."""
    _, numbers = group(*map(np.concatenate, zip(*sets, strict=True)))
    return np.split(numbers, np.cumsum([len(tid) for tid, _ in sets])[:-1])
