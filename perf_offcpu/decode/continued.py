# SPDX-License-Identifier: Apache-2.0
"""Leave out waits that had not ended with their file of a recording, and went on in the next one.

`record --switch-output` writes into each file the threads that are still blocked at its end, with the time so
far; the whole wait is in the file in which it ends. Where such files are joined only that one counts.
"""

from __future__ import annotations

import numpy as np

from perf_offcpu.decode.budget import Borders
from perf_offcpu.model.columns import I32, I64, Bool
from perf_offcpu.model.recording import SampleFlag, Samples


def without_continued(samples: Samples, borders: Borders, end_ns: int) -> Samples:
    """Return the samples without those of threads still blocked at the end of a file that is not the last.

    These are the ones where the thread's budget goes on from there, or where a later sample is of the same
    wait: budgets may be missing.

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
