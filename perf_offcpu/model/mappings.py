# SPDX-License-Identifier: Apache-2.0
"""Find the mappings of addresses, many at once, in the table of all address spaces."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from perf_offcpu.model.columns import I32, U64
from perf_offcpu.model.recording import Maps, Recording, Spaces

KERNEL_SPACE = -1
NO_MAP = -1
KERNEL_DSO = "[kernel.kallsyms]"


class KernelMap(NamedTuple):
    """The kernel's own map: a symbol (`_text`), its recorded address, the build-id in hex; "", 0 unknown."""

    symbol: str = ""
    address: int = 0
    build_id: str = ""


def kernel_map(recording: Recording) -> KernelMap:
    """Find the map of the kernel itself, not of its modules."""
    maps, dsos, strings = recording.maps, recording.dsos, recording.strings
    for row in np.flatnonzero(maps.space == KERNEL_SPACE).tolist():
        path = strings[int(dsos.path[maps.dso[row]])]
        if path.startswith(KERNEL_DSO):
            build_id = strings[int(dsos.build_id[maps.dso[row]])]
            return KernelMap(path[len(KERNEL_DSO) :], int(maps.pgoff[row]), build_id)
    return KernelMap()


def find_mappings(maps: Maps, table: Spaces, spaces: I32, addresses: U64) -> I32:
    """Find the mapping of each (address space, address).

    An address that an image does not map is looked up in the image that it replaced: that one called
    execve(), and until it returns, the caller's frames are addresses of the old image.

    Args:
        maps: sorted by (space, start), not overlapping within a space.
        table: the recording's spaces.
        spaces: int32[n], rows in spaces; -1 the kernel's.
        addresses: uint64[n].

    Returns:
        int32[n]: rows of `maps`, NO_MAP where none covers the address.
    """
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
    order = np.argsort(spaces, kind="stable")
    present, first = np.unique(spaces[order], return_index=True)
    lows, highs = np.searchsorted(maps.space, present), np.searchsorted(maps.space, present, side="right")
    for rows, low, high in zip(np.split(order, first[1:]), lows.tolist(), highs.tolist(), strict=True):
        if low == high:
            continue
        address = addresses[rows]
        slot = np.searchsorted(maps.start[low:high], address, side="right") - 1 + low
        hit = (slot >= low) & (address < maps.end[slot])
        row[rows[hit]] = slot[hit]
    return row
