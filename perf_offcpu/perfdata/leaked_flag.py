# SPDX-License-Identifier: Apache-2.0
"""Repair MMAP2 records that are flagged as holding a build-id, and hold an inode.

The kernel writes one mapping to all events that ask for mappings, and for those with attr.build_id it sets
MISC_MMAP_BUILD_ID in a header that all of them share; it never clears the flag
(kernel/events/core.c: perf_event_mmap_output(), seen in 6.18). While one recorder asks for build-ids, as
perf 7.2 does, the records of all others have the flag, too, over maj, min and ino. perf 6.1 takes the major
number for a length and overruns its stack (abort in util/build-id.c).

Such records are recognized because build-ids have at most 20 bytes, and an event that did not ask gets none.
Records that perf synthesized stay as they are, and so do sizes of 20 or 16 bytes, as build-ids have.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from perf_offcpu.abi.attr import AttrFlag
from perf_offcpu.abi.records import RECORD_HEADER, RECORD_LAYOUTS, Misc, RecordType
from perf_offcpu.perfdata.events import Events
from perf_offcpu.perfdata.scan import HEADER_SIZE, Chunk
from perf_offcpu.perfdata.trailers import read_trailers

_FLAG = np.uint16(Misc.MMAP_BUILD_ID)
_SIZE_AT = HEADER_SIZE + RECORD_LAYOUTS[RecordType.MMAP2].offset("build_id_size", Misc.MMAP_BUILD_ID)
_SIZE_MAX = 20
_SIZES = (16, 20)


def without_leaked_flags(chunk: Chunk, events: Events) -> Chunk:
    """Return the chunk with the `miscs` that its MMAP2 records should have; the bytes stay as they are."""
    flagged = (chunk.types == RecordType.MMAP2) & ((chunk.miscs & _FLAG) != 0)
    rows = np.flatnonzero(flagged & (chunk.sizes > _SIZE_AT))
    if not len(rows):
        return chunk
    sizes = chunk.data[chunk.starts[rows] + _SIZE_AT]
    trailers = read_trailers(chunk, rows, events)
    asked = np.array([bool(spec.attr.flags & AttrFlag.BUILD_ID) for spec in events.specs] + [False])
    unasked = (trailers.time > 0) & ~asked[trailers.evsel] & ~np.isin(sizes, _SIZES)
    leaked = rows[unasked | (sizes > _SIZE_MAX)]
    if not len(leaked):
        return chunk
    miscs = chunk.miscs.copy()
    miscs[leaked] &= ~_FLAG
    return replace(chunk, miscs=miscs)


def with_written_miscs(chunk: Chunk, order: str) -> Chunk:
    """Return the chunk with the `miscs` of its MMAP2 records in the bytes, too."""
    rows = np.flatnonzero(chunk.types == RecordType.MMAP2)
    at = chunk.starts[rows] + RECORD_HEADER.offset("misc")
    places = at[:, None] + np.arange(2)
    wanted = chunk.miscs[rows].astype(f"{order}u2").view(np.uint8).reshape(-1, 2)
    if np.array_equal(chunk.data[places], wanted):
        return chunk
    data: NDArray[np.uint8] = chunk.data.copy()
    data[places] = wanted
    return replace(chunk, data=data)
