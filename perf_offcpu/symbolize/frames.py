# SPDX-License-Identifier: Apache-2.0
"""From named places to frames: each different one once, and the functions inlined at a place above its own.

place ──> [innermost inlined, …, function itself]       leaf first, as in a callchain
"""

from __future__ import annotations

import numpy as np

from perf_offcpu.model.callchains import Ragged, offsets_of, spread
from perf_offcpu.model.columns import I64
from perf_offcpu.model.profile import Frames
from perf_offcpu.symbolize.places import Places
from perf_offcpu.symbolize.symbol_names import Inlined, Named


def build_frames(named: Named, inlined: Inlined, places: Places, *, keep_ips: bool) -> tuple[Frames, Ragged]:
    """The different frames of n places.

    Args:
        named: n names of functions.
        inlined: what was inlined there, sorted by (place, innermost first) within each place.
        keep_ips: frames of one place at different addresses are different.

    Returns:
        (frames, frames_of_place): row i of the latter holds the frames of place i, leaf first.
    """
    offsets, inner, own = _slots(inlined, len(named))
    every = np.concatenate([inlined.place.astype(np.int64), np.arange(len(named))])
    slot = np.concatenate([inner, own])
    ips = places.ip if keep_ips else np.zeros_like(places.ip)
    rows = Frames.filled(
        len(every),
        symbol=np.concatenate([inlined.symbol, named.symbol]),
        dso=named.dso[every],
        address=named.address[every],
        offset=named.offset[every],
        file=np.concatenate([inlined.file, named.file]),
        line=np.concatenate([inlined.line, named.line]),
        inline_depth=np.concatenate([inlined.depth, np.zeros(len(named), np.int32)]),
        cpumode=places.cpumode[every],
        ip=ips[every],
    )
    first, frame_of_row = _different(rows)
    frame_at = np.empty(len(every), np.uint64)
    frame_at[slot] = frame_of_row.astype(np.uint64)
    return rows.take(first), Ragged(offsets, frame_at)


def expand(chains: Ragged, frames_of_place: Ragged) -> Ragged:
    """Chains of frames instead of chains of places."""
    place = chains.values.astype(np.int64)
    lengths = frames_of_place.lengths[place]
    offsets = offsets_of(lengths)
    values = frames_of_place.values[spread(frames_of_place.offsets[place], lengths, offsets)]
    return Ragged(offsets[chains.offsets], values)


def _slots(inlined: Inlined, places: int) -> tuple[I64, I64, I64]:
    """(offsets of each place's frames, where each inlined one goes, where each function itself goes)."""
    count = np.bincount(inlined.place, minlength=places)
    offsets = offsets_of(count + 1)
    own = offsets[1:] - 1
    return offsets, own[inlined.place] - inlined.depth, own


def _different(rows: Frames) -> tuple[I64, I64]:
    """(first, inverse) of the different frames, as np.unique gives them."""
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
