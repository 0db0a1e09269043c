# SPDX-License-Identifier: Apache-2.0
"""Find the user stacks of sums by caller: only the first sum of a caller has a copy of the stack.

The BPF program distinguishes short waits of programs without frame pointers by a number (`caller` in the
payload). Only the first wait of each has registers and stack, as a sum of one wait, before the other sums in
the file.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from perf_offcpu import losses
from perf_offcpu.binary.columnar import Columns
from perf_offcpu.binary.fields import Order
from perf_offcpu.decode.retype import Payload
from perf_offcpu.losses import Losses
from perf_offcpu.model.columns import I32, I64, U64


class CallerRows:
    """A map from callers to rows of snapshots, or of callchains."""

    def __init__(self) -> None:
        self._rows: dict[int, int] = {}

    def note(self, callers: U64, rows: I64 | I32) -> None:
        """Add rows; the first row of a caller stays."""
        unique, first = np.unique(callers, return_index=True)
        for caller, row in zip(unique.tolist(), rows[first].tolist(), strict=True):
            self._rows.setdefault(caller, row)

    def find(self, callers: U64) -> I64:
        """Return int64[n]: the row of each caller, -1 unknown."""
        unique, place = np.unique(callers, return_inverse=True)
        rows = [self._rows.get(caller, -1) for caller in unique.tolist()]
        return np.array(rows, np.int64)[place]


def sum_callers(data: NDArray[np.uint8], columns: Columns, order: Order) -> U64:
    """Return uint64[n]: the callers of sums; 0 for other samples, and for evsels without copies of stacks.

    Args:
        data: the buffer that `columns` point into.
        columns: the fields of raw or re-typed off-cpu samples of one evsel.
    """
    if "raw" not in columns.arrays or "stack_user" not in columns.arrays:
        return np.zeros(len(columns.ok), np.uint64)
    return Payload(data, columns, order).callers()


def with_callers(snapshot: I32, callers: U64, known: CallerRows, counters: Losses) -> I32:
    """Return the snapshots of n samples; sums without one get that of their caller.

    Args:
        snapshot: int32[n], the row in snapshots of each sample's own, -1 none.
        callers: uint64[n], as from `sum_callers`.
        known: the callers so far, extended by these.
        counters: where sums without a snapshot are counted.
    """
    if not callers.any():
        return snapshot
    own = np.flatnonzero((callers != 0) & (snapshot >= 0))
    known.note(callers[own], snapshot[own])
    others = np.flatnonzero((callers != 0) & (snapshot < 0))
    if not len(others):
        return snapshot
    result = snapshot.copy()
    result[others] = known.find(callers[others])
    counters.add(losses.CALLERS_NOT_COPIED, int((result[others] < 0).sum()))
    return result
