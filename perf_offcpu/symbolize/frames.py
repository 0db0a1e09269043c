# SPDX-License-Identifier: Apache-2.0
"""Build frames from named locations: each distinct frame once, inlined functions above their caller.

location ──> [innermost inlined, …, the function itself]       leaf first, as in a callchain
"""

from __future__ import annotations

import numpy as np

from perf_offcpu.binary.gather import offsets_of
from perf_offcpu.model.callchains import Ragged, spread
from perf_offcpu.model.columns import I64
from perf_offcpu.model.profile import Frames
from perf_offcpu.symbolize.locations import Locations
from perf_offcpu.symbolize.symbol_names import InlinedFunctions, SymbolNames


def build_frames(
    names: SymbolNames, inlined: InlinedFunctions, locations: Locations, *, keep_ips: bool
) -> tuple[Frames, Ragged]:
    """Return the distinct frames of n named locations, and for each location its frames, leaf first.

    Args:
        keep_ips: distinguish frames of one function offset at different addresses.
    """
    offsets, inlined_slot, own_slot = _slots(inlined, len(names))
    location = np.concatenate([inlined.location.astype(np.int64), np.arange(len(names))])
    slot = np.concatenate([inlined_slot, own_slot])
    ips = locations.ip if keep_ips else np.zeros_like(locations.ip)
    rows = Frames.filled(
        len(location),
        symbol=np.concatenate([inlined.symbol, names.symbol]),
        dso=names.dso[location],
        address=names.address[location],
        offset=names.offset[location],
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


def _slots(inlined: InlinedFunctions, locations: int) -> tuple[I64, I64, I64]:
    """Return (offsets of each location's frames, slots of inlined functions, slots of own functions)."""
    count = np.bincount(inlined.location, minlength=locations)
    offsets = offsets_of(count + 1)
    own = offsets[1:] - 1
    return offsets, own[inlined.location] - inlined.depth, own


def _distinct(rows: Frames) -> tuple[I64, I64]:
    """Return (first, inverse) of the distinct frames, as np.unique does."""
    keys = np.stack(
        [
            rows.address.view(np.int64),
            rows.dso.astype(np.int64),
            rows.symbol.astype(np.int64),
            rows.cpumode.astype(np.int64) << 32 | rows.inline_depth,
            rows.ip.view(np.int64),
        ]
    )
    _, first, inverse = np.unique(keys, axis=1, return_index=True, return_inverse=True)
    return first, inverse.reshape(-1)
