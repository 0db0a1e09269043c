# SPDX-License-Identifier: Apache-2.0
"""Waits that were not over when a file of a recording ended, and went on in the next one.

`record --switch-output` shows in each file who is still blocked at its end, with the time so far; the wait,
whole, is in the file in which it ends. Where such files are merged only that counts.
"""

from __future__ import annotations

import numpy as np

from perf_offcpu.decode.budget import Borders
from perf_offcpu.model.columns import I32, I64, Bool
from perf_offcpu.model.recording import SampleFlag, Samples


def without_continued(samples: Samples, borders: Borders, end_ns: int) -> Samples:
    """The samples without those of threads still blocked at the end of a file, of which later ones tell more.

    That is so where the thread's budget goes on from there, or the same wait is told again: budgets may be
    missing.

    Args:
        borders: where budgets go on.
        end_ns: of the whole recording: who is still blocked then stays.
    """
    blocked = samples.has(SampleFlag.STILL_BLOCKED)
    rows = np.flatnonzero(blocked & (samples.time_ns < end_ns))
    if not len(rows):
        return samples
    goes_on = _in_borders(samples, rows, borders) | _told_again(samples, rows)
    keep = np.ones(len(samples), np.bool_)
    keep[rows[goes_on]] = False
    return samples.take(np.flatnonzero(keep))


def _in_borders(samples: Samples, rows: I64, borders: Borders) -> Bool:
    """bool[n]: whether the budget of the thread goes on where the sample in a row ends."""
    mine, theirs = _numbered((samples.tid[rows], samples.time_ns[rows]), (borders.tid, borders.time_ns))
    return np.isin(mine, theirs)


def _told_again(samples: Samples, rows: I64) -> Bool:
    """bool[n]: whether a later sample is of the same wait as the one in a row."""
    others = np.flatnonzero((samples.switch_out_ns >= 0) & np.isin(samples.tid, samples.tid[rows]))
    mine, theirs = _numbered(
        (samples.tid[rows], samples.switch_out_ns[rows]), (samples.tid[others], samples.switch_out_ns[others])
    )
    last_ns = np.full(len(mine) + len(theirs), -1, np.int64)
    np.maximum.at(last_ns, theirs, samples.time_ns[others])
    again: Bool = last_ns[mine] > samples.time_ns[rows]
    return again


def _numbered(*sets: tuple[I32, I64]) -> list[I64]:
    """Numbers for threads and moments, the same for the same, below the number of all."""
    pairs = [np.stack([tid.astype(np.int64), time_ns], axis=1) for tid, time_ns in sets]
    _, numbers = np.unique(np.concatenate(pairs), axis=0, return_inverse=True)
    return np.split(numbers.reshape(-1), np.cumsum([len(part) for part in pairs])[:-1])
