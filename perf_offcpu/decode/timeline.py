# SPDX-License-Identifier: Apache-2.0
"""Looking up what held for a thread or process at a time: many lookups at once.

Pure: arrays in, row ids out.
"""

from __future__ import annotations

import numpy as np

from perf_offcpu.model.columns import I32, I64

_BLOCK = 1 << 16
"""Questions that are answered at once: what is made of them stays in a core's cache."""


def rows_at(ids: I32, begins: I64, wanted: I32, times: I64) -> I32:
    """Which row of a table of (id, begin) holds for each (wanted, time)?

    Args:
        ids, begins: the table, sorted by (id, begin); a row holds until the next row of the same id.
        wanted, times: the questions; a time of -1 asks for the last row of the id.

    Returns:
        int32[n]: the last row of that id with begin <= time, else the id's first row (what is known only
        later was true before, as far as anyone can tell), -1 if the id is not in the table.
    """
    if not len(ids):
        return np.full(len(wanted), -1, np.int32)
    # Two-column search in one: times become ranks among the begins, so that (id, rank) fits an int64.
    ranks = np.unique(begins)
    table = (ids.astype(np.int64) << 32) + np.searchsorted(ranks, begins)
    known = np.append(ids.astype(np.int64), 2**32)  # no id, behind the last row and before the first
    found = np.empty(len(wanted), np.int32)
    for block in (slice(at, at + _BLOCK) for at in range(0, len(wanted), _BLOCK)):
        one, time = wanted[block], times[block]
        rank = np.where(time < 0, len(ranks), np.searchsorted(ranks, time, side="right") - 1)
        row = np.searchsorted(table, (one.astype(np.int64) << 32) + rank, side="right") - 1
        later = np.where(known[row] == one, row, row + 1)
        found[block] = np.where(known[later] == one, later, -1)
    return found
