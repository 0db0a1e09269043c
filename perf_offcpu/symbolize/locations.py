# SPDX-License-Identifier: Apache-2.0
"""Split raw callchains into locations: each distinct code address of each address space, once.

A callchain is a row of words, leaf first; a context marker tells the kind of the addresses after it (before
the first marker: the user's). The same words mean different code in different
address spaces, so the unit is a pair (address space, callchain).
"""

from __future__ import annotations

import numpy as np

from perf_offcpu.abi.records import CpuMode
from perf_offcpu.abi.sample import CallchainContext
from perf_offcpu.binary.gather import offsets_of
from perf_offcpu.model.callchains import Ragged
from perf_offcpu.model.columns import I32, I64, U8, U64, Bool, Table, column
from perf_offcpu.model.mappings import KERNEL_SPACE

_MODE_OF_MARKER = {
    CallchainContext.HV: CpuMode.HYPERVISOR,
    CallchainContext.KERNEL: CpuMode.KERNEL,
    CallchainContext.USER: CpuMode.USER,
    CallchainContext.USER_DEFERRED: CpuMode.UNKNOWN,
    CallchainContext.GUEST_KERNEL: CpuMode.GUEST_KERNEL,
    CallchainContext.GUEST_USER: CpuMode.GUEST_USER,
}


class Locations(Table):
    """The distinct code addresses of a recording."""

    space: I32 = column("i4", doc="row in spaces; -1 the kernel's")
    ip: U64 = column("u8", doc="the address as recorded")
    lookup: U64 = column("u8", doc="the address to look up: a byte of the call, for return addresses")
    cpumode: U8 = column("u1", doc="abi.records.CpuMode")
    is_cookie: Bool = column("?", doc="the cookie of a deferred user callchain in place of an address")


def find_locations(chains: Ragged, spaces: I32) -> tuple[Locations, Ragged]:
    """Return the distinct locations of n callchains of raw words, and for each chain its locations."""
    words = chains.values
    is_marker = words >= np.uint64(CallchainContext.MAX)
    mode, is_exact, is_cookie = _modes(chains, is_marker)
    frame = ~is_marker
    ip, mode, is_exact, is_cookie = words[frame], mode[frame], is_exact[frame], is_cookie[frame]
    space = np.where(mode == CpuMode.USER, spaces[chains.row_of_value()[frame]], KERNEL_SPACE)
    first, inverse = _unique(space, ip, is_exact, is_cookie)
    locations = Locations(
        space[first].astype(np.int32),
        ip[first],
        np.where(is_exact[first] | (ip[first] == 0), ip[first], ip[first] - np.uint64(1)),
        mode[first],
        is_cookie[first],
    )
    frames_before = offsets_of(frame.astype(np.int64))[chains.offsets]
    return locations, Ragged(frames_before, inverse.astype(np.uint64))


def _modes(chains: Ragged, is_marker: Bool) -> tuple[U8, Bool, Bool]:
    """Return (cpumode, is_exact, is_cookie) of each word, by the last marker before it.

    The first word after a marker is the address that was executing (exact), the others are return addresses.
    """
    index = np.arange(len(chains.values))
    start = np.repeat(chains.offsets[:-1], chains.lengths)
    last_marker = np.maximum.accumulate(np.where(is_marker, index, -1)) if len(index) else index
    has_marker = last_marker >= start
    marker = np.where(has_marker, chains.values[last_marker], np.uint64(CallchainContext.USER))
    mode = np.full(len(index), CpuMode.UNKNOWN, np.uint8)
    for word, cpumode in _MODE_OF_MARKER.items():
        mode[marker == np.uint64(word)] = cpumode
    is_exact = index == np.where(has_marker, last_marker + 1, start)
    return mode, is_exact, marker == np.uint64(CallchainContext.USER_DEFERRED)


def _unique(space: I32, ip: U64, is_exact: Bool, is_cookie: Bool) -> tuple[I64, I64]:
    """Return (first, inverse) of the distinct (space, ip, is_exact, is_cookie), as np.unique does."""
    _, rank = np.unique(ip, return_inverse=True)
    key = ((space.astype(np.int64) + 1) << 34) | (rank.astype(np.int64) << 2)
    key |= (is_exact.astype(np.int64) << 1) | is_cookie
    _, first, inverse = np.unique(key, return_index=True, return_inverse=True)
    return first, inverse
