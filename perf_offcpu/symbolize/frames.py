# SPDX-License-Identifier: Apache-2.0
"""Columns of names, and the distinct frames built from them, inlined functions above their callers.

location ──> [innermost inlined, …, the function itself]       leaf first, as in a callchain

A callchain is a row of words, leaf first; a context marker tells the kind of the addresses after it (before
the first marker: the user's). The same words mean different code in different
address spaces, so the unit is a pair (address space, callchain)."""

import numpy as np

from perf_offcpu.abi.records import CpuMode
from perf_offcpu.abi.sample import CallchainContext
from perf_offcpu.binary.columnar import offsets_of
from perf_offcpu.model.callchains import Ragged, spread
from perf_offcpu.model.columns import I32, U8, U32, U64, Bool, Strings, Table, column, group
from perf_offcpu.model.lookup import KERNEL_SPACE
from perf_offcpu.model.profile import Frames
from perf_offcpu.objects.symtab import SymbolTable

_MODE_OF_MARKER = {
    CallchainContext.HV: CpuMode.HYPERVISOR,
    CallchainContext.KERNEL: CpuMode.KERNEL,
    CallchainContext.USER: CpuMode.USER,
    CallchainContext.USER_DEFERRED: CpuMode.UNKNOWN,
    CallchainContext.GUEST_KERNEL: CpuMode.GUEST_KERNEL,
    CallchainContext.GUEST_USER: CpuMode.GUEST_USER,
}


class Locations(Table):
    """Holds the distinct code addresses of a recording, each in its address space."""

    space: I32 = column("i4", doc="row in spaces; -1 the kernel's")
    ip: U64 = column("u8", doc="the address as recorded")
    lookup: U64 = column("u8", doc="the address to look up: a byte of the call, for return addresses")
    cpumode: U8 = column("u1", doc="abi.records.CpuMode")
    is_cookie: Bool = column("?", doc="the cookie of a deferred user callchain in place of an address")


def find_locations(chains: Ragged, spaces: I32) -> tuple[Locations, Ragged]:
    """Find the distinct locations in n callchains of raw words; return (locations, the callchains as location rows).
    `spaces`: int32[n], address space of each callchain."""
    words = chains.values
    is_marker = words >= np.uint64(CallchainContext.MAX)
    mode, is_exact, is_cookie = _modes(chains, is_marker)
    frame = ~is_marker
    ip, mode, is_exact, is_cookie = words[frame], mode[frame], is_exact[frame], is_cookie[frame]
    space = np.where(mode == CpuMode.USER, spaces[chains.row_of_value()[frame]], KERNEL_SPACE)
    first, inverse = group(space, ip.view(np.int64), is_exact, is_cookie)
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
    """Return (CpuMode, is_exact, is_cookie) of each word, by the last marker before it in its callchain. The first word
    after a marker is the address that was executing (exact), the others are return addresses."""
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


class SymbolNames(Table):
    """Holds symbol, dso and source line of n addresses; row i is of address i."""

    symbol: U32 = column("u4", doc='string: as the file spells it, not demangled; "" unknown')
    dso: U32 = column("u4", doc='string: path or pseudo name; "" unknown')
    address: U64 = column("u8", doc="dso-relative virtual address (kernel: absolute); 0 unknown")
    offset: U64 = column("u8", unit="bytes", doc="from the symbol's start; 0 if no symbol")
    is_called: Bool = column("?", doc="as in `model.profile.Frames`")
    file: U32 = column("u4", doc='string: source file; "" unknown')
    line: I32 = column("i4", sentinel=0, doc="source line; 0 unknown")


class InlinedFunctions(Table):
    """Holds the functions inlined at some of n addresses, sorted by (row of the address, innermost first)."""

    location: I32 = column("i4", doc="row of the address in `SymbolNames`")
    depth: I32 = column("i4", doc="1: inlined into the function itself, 2: into that, …")
    symbol: U32 = column("u4", doc="string: as the DWARF spells it, not demangled")
    file: U32 = column("u4", doc='string: source file; "" unknown')
    line: I32 = column("i4", sentinel=0, doc="source line; 0 unknown")


def symbols_and_offsets(table: SymbolTable, rows: I32, addresses: U64, strings: Strings) -> tuple[U32, U64]:
    """Return (string of the symbol, bytes from its start) of n addresses. `rows`: int32[n] in `table`; -1: "" and 0."""
    hit, inverse = np.unique(rows, return_inverse=True)
    ids = strings.intern_all("" if row < 0 else table.name(row) for row in hit.tolist())
    if not len(table):
        return ids[inverse], np.zeros(len(rows), np.uint64)
    start = table.start[np.maximum(rows, 0)]
    return ids[inverse], np.where(rows >= 0, addresses - start, np.uint64(0))


def build_frames(
    names: SymbolNames, inlined: InlinedFunctions, locations: Locations, *, keep_ips: bool
) -> tuple[Frames, Ragged]:
    """Return (distinct frames of n named locations; for each location the rows of its frames, leaf first). `keep_ips`:
    frames of one place in a file at different addresses (`locations.ip`) are different frames."""
    offsets = offsets_of(np.bincount(inlined.location, minlength=len(names)) + 1)
    own_slot = offsets[1:] - 1
    location = np.concatenate([inlined.location.astype(np.int64), np.arange(len(names))])
    slot = np.concatenate([own_slot[inlined.location] - inlined.depth, own_slot])
    ips = locations.ip if keep_ips else np.zeros_like(locations.ip)
    rows = Frames.filled(
        len(location),
        **{name: np.concatenate([getattr(inlined, name), getattr(names, name)]) for name in ("symbol", "file", "line")},
        **{name: getattr(names, name)[location] for name in ("dso", "address", "offset", "is_called")},
        inline_depth=np.concatenate([inlined.depth, np.zeros(len(names), np.int32)]),
        cpumode=locations.cpumode[location],
        ip=ips[location],
    )
    kind = rows.cpumode.astype(np.int64) << 32 | rows.inline_depth
    address, ip = rows.address.view(np.int64), rows.ip.view(np.int64)  # kernel addresses first
    first, frame_of_row = group(address, rows.dso, rows.symbol, kind, ip)
    frame_at = np.empty(len(location), np.uint64)
    frame_at[slot] = frame_of_row.astype(np.uint64)
    return rows.take(first), Ragged(offsets, frame_at)


def expand(chains: Ragged, frames_of_location: Ragged) -> Ragged:
    """Replace each location row in `chains` by the frame rows of this location, leaf first."""
    location = chains.values.astype(np.int64)
    lengths = frames_of_location.lengths[location]
    offsets = offsets_of(lengths)
    values = frames_of_location.values[spread(frames_of_location.offsets[location], lengths, offsets)]
    return Ragged(offsets[chains.offsets], values)
