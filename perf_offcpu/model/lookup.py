# SPDX-License-Identifier: Apache-2.0
"""Look up many rows at once: the rows valid for threads or processes at given times, and the mappings of addresses."""

from typing import NamedTuple

import numpy as np

from perf_offcpu.model.columns import I32, I64, U64, distinct
from perf_offcpu.model.recording import Maps, Recording, Spaces

_BLOCK = 1 << 16  # number of look-ups per step, so that intermediate columns stay in the cache of a core


def rows_at(ids: I32, begins: I64, wanted: I32, times: I64) -> I32:
    """Return int32[n]: the row that is valid for id wanted[i] at times[i] (-1: at the end), in a table sorted by (id,
    begin) whose columns are `ids` and `begins`.

    A row is valid until the next row of the same id. The result is the last row of the id with begin <= time; if all
    begin later, its first row (assumed to be valid before its record); -1 if the id is not in the table."""
    if not len(ids):
        return np.full(len(wanted), -1, np.int32)
    # Two-column search in one: times become ranks among the begins, so that (id, rank) fits an int64.
    ranks = distinct(begins)
    table = (ids.astype(np.int64) << 32) + np.searchsorted(ranks, begins)
    sorted_ids = np.append(ids.astype(np.int64), 2**32)  # no id, after the last row and before the first
    # By id: its first row + 1, 0 none; only without impossible ids.
    first_rows = None
    if int(ids[0]) >= 0 and int(ids[-1]) < _MAX_ID:
        first_rows = np.zeros(int(ids[-1]) + 1, np.int32)
        first_rows[ids[::-1]] = np.arange(len(ids), 0, -1)
    result = np.empty(len(wanted), np.int32)
    for block in (slice(index, index + _BLOCK) for index in range(0, len(wanted), _BLOCK)):
        id_, time = wanted[block], times[block]
        rows = _first_row(first_rows, ids, id_)
        # Most ids have one row, which is valid at all times.
        several = np.flatnonzero((sorted_ids[rows + 1] == id_) & (rows >= 0))
        id_, time = id_[several], time[several]
        rank = np.where(time < 0, len(ranks), np.searchsorted(ranks, time, side="right") - 1)
        row = np.searchsorted(table, (id_.astype(np.int64) << 32) + rank, side="right") - 1
        rows[several] = np.where(sorted_ids[row] == id_, row, row + 1)
        result[block] = rows
    return result


_MAX_ID = 1 << 22  # all thread ids are smaller (the kernel's PID_MAX_LIMIT)


def _first_row(first_rows: I32 | None, ids: I32, wanted: I32) -> I32:
    """Return int32[n]: the first row in `ids`, ascending, of each wanted id; -1 none. `first_rows`: int32, by id: that
    row + 1, 0 none; or None, to search `ids`."""
    if first_rows is None:
        slot = np.minimum(np.searchsorted(ids, wanted), len(ids) - 1)
        return np.where(ids[slot] == wanted, slot, -1).astype(np.int32)
    inside = np.clip(wanted, 0, len(first_rows) - 1)
    return np.where(inside == wanted, first_rows[inside] - np.int32(1), np.int32(-1))


KERNEL_SPACE = -1
NO_MAP = -1
KERNEL_DSO = "[kernel.kallsyms]"


class KernelMap(NamedTuple):
    """Mapping of the kernel itself: a symbol (`_text`), its recorded address, build-id in hex; "" and 0: unknown."""

    symbol: str = ""
    address: int = 0
    build_id: str = ""


def kernel_map(recording: Recording) -> KernelMap:
    """Return the mapping of the kernel itself, not of its modules; an empty KernelMap if it was not recorded."""
    maps, dsos, strings = recording.maps, recording.dsos, recording.strings
    for row in np.flatnonzero(maps.space == KERNEL_SPACE).tolist():
        path = strings[int(dsos.path[maps.dso[row]])]
        if path.startswith(KERNEL_DSO):
            build_id = strings[int(dsos.build_id[maps.dso[row]])]
            return KernelMap(path[len(KERNEL_DSO) :], int(maps.pgoff[row]), build_id)
    return KernelMap()


def find_mappings(maps: Maps, table: Spaces, spaces: I32, addresses: U64) -> I32:
    """Return the mapping of each (address space, address): int32[n], rows of `maps`; NO_MAP if it is not mapped. An
    address that a space does not map is looked up in the space it replaced (`table.previous`): execve() is called in
    the old image, and until it returns, frames have addresses of that image. `spaces`: rows of `table`, -1 kernel."""
    row = _find(maps, spaces, addresses)
    missing = np.flatnonzero((row == NO_MAP) & (spaces >= 0))
    before = table.previous[spaces[missing]]
    missing, before = missing[before >= 0], before[before >= 0]
    row[missing] = _find(maps, before, addresses[missing])
    return row


def _find(maps: Maps, spaces: I32, addresses: U64) -> I32:
    row = np.full(len(addresses), NO_MAP, np.int32)
    if not len(addresses):
        return row
    # A binary search for all at once, each within the mappings of its space: the last that begins at or before it.
    low = np.searchsorted(maps.space, spaces)
    first, high = low, np.searchsorted(maps.space, spaces, side="right")
    for _ in range(int((high - low).max()).bit_length()):
        middle = (low + high) >> 1
        is_before = (low < high) & (maps.start.take(middle, mode="clip") <= addresses)
        low, high = np.where(is_before, middle + 1, low), np.where(is_before, high, middle)
    hit = np.flatnonzero(low > first)
    hit = hit[addresses[hit] < maps.end[low[hit] - 1]]
    row[hit] = low[hit] - 1
    return row
