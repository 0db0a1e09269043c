# SPDX-License-Identifier: Apache-2.0
"""Split a stream of bytes into records.

All readers work on `Chunk`s: a buffer, and the places, types and sizes of its records as columns.
`Scanner.feed` takes pieces of any size, of a file, pipe or decompressor, and keeps an incomplete record for
the next piece.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from perf_offcpu import losses
from perf_offcpu.abi.records import RECORD_HEADER, RecordType
from perf_offcpu.binary.fields import Buffer, Order
from perf_offcpu.binary.gather import gather_structs
from perf_offcpu.losses import Losses
from perf_offcpu.perfdata.walk import HEADER_SIZE, Walk
from perf_offcpu.structs import mutable

__all__ = ["HEADER_SIZE", "MAX_TRACING_DATA", "Chunk", "Scanner"]

MAX_TRACING_DATA = 64 << 20
"""Most bytes of tracepoint formats that are kept of a pipe: perf writes a few MB."""

_TRACING_DATA, _AUXTRACE = int(RecordType.HEADER_TRACING_DATA), int(RecordType.AUXTRACE)
"""Types followed by a blob, which the size in the header does not include; the first field is its size."""

_SHORT_WINDOW = 4096
"""Bytes of the first walk after such a record: a walk on into its blob is for nothing."""


_Part = tuple[NDArray[np.int64], NDArray[np.uint32], NDArray[np.uint16], NDArray[np.uint16]]
"""Places, types, miscs and sizes of consecutive records."""


@mutable
class Chunk:
    """Consecutive records of a stream.

    Args:
        data: uint8[], the bytes, at least 8; no part of a stream is in two chunks.
        starts: int64[n], each record's offset in `data`; any number, for some records have odd sizes.
        types: uint32[n]; miscs: uint16[n]; sizes: int64[n], header included.
        file_offset: where `data` begins in its file (for compressed data: in the decompressed stream).
        origin: the stream: "" the file itself, "data.0" a part of a directory, "zstd" and "data.0 zstd" the
            compressed data in these.
    """

    data: NDArray[np.uint8]
    starts: NDArray[np.int64]
    types: NDArray[np.uint32]
    miscs: NDArray[np.uint16]
    sizes: NDArray[np.int64]
    file_offset: int
    origin: str = ""

    def __len__(self) -> int:
        return len(self.starts)

    def record(self, row: int) -> memoryview:
        """Return the bytes of one record, header included."""
        start = int(self.starts[row])
        return self.data.data[start : start + int(self.sizes[row])]

    def take(self, rows: slice | NDArray[np.int64]) -> Chunk:
        """Return some of the records, on the same bytes."""
        columns = {name: getattr(self, name)[rows] for name in ("starts", "types", "miscs", "sizes")}
        return replace(self, **columns)


class Scanner:
    """Turns pieces of bytes into chunks of whole records, and counts other bytes.

    Args:
        order: byte order of the stream.
        counters: damage is counted here.
        file_offset: where the stream begins in its file.
        origin: of the chunks.
    """

    def __init__(self, order: Order, counters: Losses, file_offset: int = 0, origin: str = "") -> None:
        self.order, self.counters, self.origin = order, counters, origin
        self.at = file_offset
        self.stopped = False
        self.tracing_data = bytearray()
        """The blob after a HEADER_TRACING_DATA record, so far."""
        self._rest = b""
        self._skip = 0
        self._is_tracing_data = False

    def take_rest(self) -> bytes:
        """Return the begin of an incomplete record, to be fed again before the bytes that follow."""
        rest, self._rest = self._rest, b""
        return rest

    def feed(self, piece: Buffer) -> Iterator[Chunk]:
        """Yield the records that are complete with `piece`, which must not change afterwards."""
        if self.stopped:
            self.counters.add(losses.BAD_SIZE, len(piece))
            return
        walk = Walk(self._rest + bytes(piece) if self._rest else piece, self.order)
        parts, at = self._records(walk)
        self._rest = b"" if self.stopped else bytes(walk.data[at:])
        if parts:
            yield self._chunk(walk.data, parts)
        self.at += at

    def finish(self) -> None:
        """Count the bytes after the last complete record."""
        self.counters.add(losses.FILE_CUT, len(self._rest))
        self._rest = b""

    def resume(self) -> None:
        """Go on after missing bytes: the next piece begins with a record."""
        self.finish()
        self.stopped, self._skip = False, 0

    def _records(self, walk: Walk) -> tuple[list[_Part], int]:
        """Return the complete records of a buffer, without blobs between them, and where they end."""
        raw = np.frombuffer(walk.data, np.uint8)
        parts: list[_Part] = []
        at = self._skip_blob(walk.data, 0)
        window = len(raw)
        while at < len(raw) and not self.stopped:
            starts, end, is_sound = walk.records(at, window)
            heads = gather_structs(raw, starts, RECORD_HEADER, self.order)
            kinds = heads["type"]
            blobs = np.flatnonzero((kinds == _TRACING_DATA) | (kinds == _AUXTRACE))
            if len(blobs):
                starts = starts[: int(blobs[0]) + 1]
                end = self._take_blob(walk, int(starts[-1]), int(kinds[blobs[0]]))
            elif not is_sound:
                self.stopped = True
                self.counters.add(losses.BAD_SIZE, len(raw) - end)
            if not len(starts):
                break
            types, miscs, sizes = (heads[name][: len(starts)] for name in ("type", "misc", "size"))
            parts.append((starts, types, miscs, sizes))
            window = _SHORT_WINDOW if len(blobs) else 2 * window
            at = end
        return parts, at

    def _take_blob(self, walk: Walk, record: int, kind: int) -> int:
        """Skip the blob after a record, and return the place after the part of it that is here."""
        size = walk.header(record)[1]
        self._is_tracing_data = kind == _TRACING_DATA
        self._skip = self._blob_size(walk.data[record : record + size], 4 if self._is_tracing_data else 8)
        return record + size + self._skip_blob(walk.data, record + size)

    def _skip_blob(self, data: Buffer, at: int) -> int:
        """Return the number of bytes from `at` on that belong to a blob."""
        skipped = min(self._skip, len(data) - at)
        if self._is_tracing_data:
            self.tracing_data += data[at : at + min(skipped, MAX_TRACING_DATA - len(self.tracing_data))]
        self._skip -= skipped
        return skipped

    def _blob_size(self, record: Buffer, width: int) -> int:
        """Return the size of the blob after a record, its first field."""
        if len(record) < HEADER_SIZE + width:
            self.counters.add(losses.BAD_RECORD)
            return 0
        return int.from_bytes(record[8 : 8 + width], "little" if self.order == "<" else "big")

    def _chunk(self, data: Buffer, parts: list[_Part]) -> Chunk:
        raw = np.frombuffer(data, np.uint8)
        columns = parts[0] if len(parts) == 1 else map(np.concatenate, zip(*parts, strict=True))
        starts, types, miscs, sizes = columns
        end = int(starts[-1]) + int(sizes[-1])
        return Chunk(raw[:end], starts, types, miscs, sizes.astype(np.int64), self.at, self.origin)
