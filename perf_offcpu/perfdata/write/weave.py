# SPDX-License-Identifier: Apache-2.0
"""Put records of several chunks together, in order, whatever they hold."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from perf_offcpu.abi.records import RecordType
from perf_offcpu.binary.gather import move_rows, offsets_of
from perf_offcpu.perfdata.scan import Chunk

I64 = NDArray[np.int64]

_ROOM = 8
"""Bytes that the data of any chunk has at least."""


def woven(parts: Sequence[tuple[I64, Chunk]]) -> Chunk:
    """Return the records of all parts in one chunk of its own.

    Args:
        parts: (places int64[n], chunk) each: records are sorted by their places, and records of one place are
            in the order of the parts.
    """
    places, types, miscs, sizes = (
        np.concatenate(columns)
        for columns in zip(*((at, one.types, one.miscs, one.sizes) for at, one in parts), strict=True)
    )
    order = np.argsort(places, kind="stable")
    offsets = offsets_of(sizes[order])
    targets = np.empty(len(order), np.int64)
    targets[order] = offsets[:-1]
    data = np.empty(max(_ROOM, int(offsets[-1])), np.uint8)
    for at, one in parts:
        move_rows(data, targets[: len(at)], one.data, one.starts, one.sizes)
        targets = targets[len(at) :]
    return Chunk(data, offsets[:-1], types[order], miscs[order], sizes[order], file_offset=0)


def chunk_of_samples(offsets: I64, data: NDArray[np.uint8], miscs: NDArray[np.uint16]) -> Chunk:
    """Return SAMPLE records as `perfdata.write.columns.sample_records` writes them, as a chunk."""
    count = len(offsets) - 1
    types = np.full(count, RecordType.SAMPLE, np.uint32)
    room = data if len(data) else np.zeros(_ROOM, np.uint8)
    return Chunk(room, offsets[:-1], types, miscs.astype(np.uint16), np.diff(offsets), file_offset=0)


def bytes_of(chunk: Chunk) -> memoryview:
    """Return the bytes of all records of a chunk, without a copy where they lie back to back."""
    if not len(chunk):
        return memoryview(b"")
    if (chunk.starts[1:] != chunk.starts[:-1] + chunk.sizes[:-1]).any():
        chunk = woven([(np.arange(len(chunk)), chunk)])
    return chunk.data.data[int(chunk.starts[0]) : int(chunk.starts[-1] + chunk.sizes[-1])]
