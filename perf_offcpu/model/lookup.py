# SPDX-License-Identifier: Apache-2.0
"""Look up rows of tables that are valid for threads or processes at times, many at once."""

from __future__ import annotations

import numpy as np

from perf_offcpu.model.columns import I32, I64, distinct

_BLOCK = 1 << 16
"""Number of look-ups per step, so that intermediate columns stay in the cache of a core."""


def rows_at(ids: I32, begins: I64, wanted: I32, times: I64) -> I32:
    """Return the row of a table of (id, begin) that is valid for each (id, time).

    Args:
        ids, begins: the table, sorted by (id, begin); a row is valid until the next row of the same id.
        wanted, times: the ids and times to look up; a time of -1 finds the last row of the id.

    Returns:
        int32[n]: the last row of the id with begin <= time, else the first row of the id (assumed to be valid
        before its record), -1 if the id is not in the table.
    """
    if not len(ids):
        return np.full(len(wanted), -1, np.int32)
    # Two-column search in one: times become ranks among the begins, so that (id, rank) fits an int64.
    ranks = distinct(begins)
    table = (ids.astype(np.int64) << 32) + np.searchsorted(ranks, begins)
    sorted_ids = np.append(ids.astype(np.int64), 2**32)  # no id, after the last row and before the first
    first_rows = _first_rows(ids)
    result = np.empty(len(wanted), np.int32)
    for block in (slice(index, index + _BLOCK) for index in range(0, len(wanted), _BLOCK)):
        one, time = wanted[block], times[block]
        rows = _first_row(first_rows, ids, one)
        # Most ids have one row, which is valid at all times.
        several = np.flatnonzero((sorted_ids[rows + 1] == one) & (rows >= 0))
        one, time = one[several], time[several]
        rank = np.where(time < 0, len(ranks), np.searchsorted(ranks, time, side="right") - 1)
        row = np.searchsorted(table, (one.astype(np.int64) << 32) + rank, side="right") - 1
        rows[several] = np.where(sorted_ids[row] == one, row, row + 1)
        result[block] = rows
    return result


_MAX_ID = 1 << 22
"""All thread ids are smaller (the kernel's PID_MAX_LIMIT)."""


def _first_rows(ids: I32) -> I32 | None:
    """Return by id: its first row + 1 in a sorted table, 0 none; None if there are impossible ids."""
    if int(ids[0]) < 0 or int(ids[-1]) >= _MAX_ID:
        return None
    rows = np.zeros(int(ids[-1]) + 1, np.int32)
    rows[ids[::-1]] = np.arange(len(ids), 0, -1)
    return rows


def _first_row(first_rows: I32 | None, ids: I32, wanted: I32) -> I32:
    """Return int32[n]: the first row of each id, -1 none."""
    if first_rows is None:
        slot = np.minimum(np.searchsorted(ids, wanted), len(ids) - 1)
        return np.where(ids[slot] == wanted, slot, -1).astype(np.int32)
    inside = np.clip(wanted, 0, len(first_rows) - 1)
    return np.where(inside == wanted, first_rows[inside] - np.int32(1), np.int32(-1))
