# SPDX-License-Identifier: Apache-2.0
"""Columns of names, and the distinct frames built from them, inlined functions above their callers.

location ──> [innermost inlined, …, the function itself]       leaf first, as in a callchain
"""

from __future__ import annotations

import numpy as np

from perf_offcpu.binary.gather import offsets_of
from perf_offcpu.model.callchains import Ragged, spread
from perf_offcpu.model.columns import I32, I64, U32, U64, Bool, Table, column
from perf_offcpu.model.profile import Frames
from perf_offcpu.model.strings import Strings
from perf_offcpu.objects.symtab import SymbolTable
from perf_offcpu.symbolize.locations import Locations


class SymbolNames(Table):
    """The names of n addresses, in the order of the addresses."""

    symbol: U32 = column("u4", doc='string: as the file spells it, not demangled; "" unknown')
    dso: U32 = column("u4", doc='string: path or pseudo name; "" unknown')
    address: U64 = column("u8", doc="dso-relative virtual address (kernel: absolute); 0 unknown")
    offset: U64 = column("u8", unit="bytes", doc="from the symbol's start; 0 if no symbol")
    is_called: Bool = column("?", doc="as in `model.profile.Frames`")
    file: U32 = column("u4", doc='string: source file; "" unknown')
    line: I32 = column("i4", sentinel=0, doc="source line; 0 unknown")


class InlinedFunctions(Table):
    """Functions inlined at some of n addresses, sorted by (address, innermost first)."""

    location: I32 = column("i4", doc="row of the address in `SymbolNames`")
    depth: I32 = column("i4", doc="1: inlined into the function itself, 2: into that, …")
    symbol: U32 = column("u4", doc="string: as the DWARF spells it, not demangled")
    file: U32 = column("u4", doc='string: source file; "" unknown')
    line: I32 = column("i4", sentinel=0, doc="source line; 0 unknown")


def symbols_and_offsets(table: SymbolTable, rows: I32, addresses: U64, strings: Strings) -> tuple[U32, U64]:
    """Return (symbol, offset) of addresses; `rows` is what `table.lookup` returned for them."""
    hit, inverse = np.unique(rows, return_inverse=True)
    ids = strings.intern_all("" if row < 0 else table.name(row) for row in hit.tolist())
    if not len(table):
        return ids[inverse], np.zeros(len(rows), np.uint64)
    start = table.start[np.maximum(rows, 0)]
    return ids[inverse], np.where(rows >= 0, addresses - start, np.uint64(0))


def build_frames(
    names: SymbolNames, inlined: InlinedFunctions, locations: Locations, *, keep_ips: bool
) -> tuple[Frames, Ragged]:
    """Return the distinct frames of n named locations, and for each location its frames, leaf first.

    Args:
        keep_ips: distinguish frames of one function offset at different addresses.
    """
    offsets = offsets_of(np.bincount(inlined.location, minlength=len(names)) + 1)
    own_slot = offsets[1:] - 1
    location = np.concatenate([inlined.location.astype(np.int64), np.arange(len(names))])
    slot = np.concatenate([own_slot[inlined.location] - inlined.depth, own_slot])
    ips = locations.ip if keep_ips else np.zeros_like(locations.ip)
    rows = Frames.filled(
        len(location),
        symbol=np.concatenate([inlined.symbol, names.symbol]),
        dso=names.dso[location],
        address=names.address[location],
        offset=names.offset[location],
        is_called=names.is_called[location],
        file=np.concatenate([inlined.file, names.file]),
        line=np.concatenate([inlined.line, names.line]),
        inline_depth=np.concatenate([inlined.depth, np.zeros(len(names), np.int32)]),
        cpumode=locations.cpumode[location],
        ip=ips[location],
    )
    first, frame_of_row = _distinct(rows)
    frame_at = np.empty(len(location), np.uint64)
    frame_at[slot] = frame_of_row.astype(np.uint64)
    return rows.take(first), Ragged(offsets, frame_at)


def expand(chains: Ragged, frames_of_location: Ragged) -> Ragged:
    """Turn chains of locations into chains of frames."""
    location = chains.values.astype(np.int64)
    lengths = frames_of_location.lengths[location]
    offsets = offsets_of(lengths)
    values = frames_of_location.values[spread(frames_of_location.offsets[location], lengths, offsets)]
    return Ragged(offsets[chains.offsets], values)


def _distinct(rows: Frames) -> tuple[I64, I64]:
    """Return (first, inverse) of the distinct frames, as np.unique does."""
    kind = rows.cpumode.astype(np.int64) << 32 | rows.inline_depth
    keys = np.stack([key.astype(np.int64) for key in (rows.address, rows.dso, rows.symbol, kind, rows.ip)])
    _, first, inverse = np.unique(keys, axis=1, return_index=True, return_inverse=True)
    return first, inverse.reshape(-1)
