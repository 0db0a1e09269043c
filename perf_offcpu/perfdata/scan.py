# SPDX-License-Identifier: Apache-2.0
"""Splitting a stream of bytes into records.

Records form a chain: where one begins is known only from the size of the one before. That walk is the one
loop over records in this project; it touches a single u16 per record (some 70 ns). Everything else works
on `Chunk`s: a buffer with the places, types and sizes of its records as columns.

`Scanner.feed` accepts pieces of any size (from a file, a pipe, a decompressor) and keeps an unfinished
record for the next piece.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perf_offcpu.abi.records import RECORD_HEADER, RecordType
from perf_offcpu.columnar import gather, gather_structs
from perf_offcpu.layout import U32, Buffer, Order
from perf_offcpu.perfdata import losses
from perf_offcpu.perfdata.losses import Losses

HEADER_SIZE = 8
MAX_TRACING_DATA = 64 << 20
"""Bytes of tracepoint formats that are kept of a pipe: perf writes a few MB at most."""

_ODD_SIZES = (
    RecordType.HEADER_TRACING_DATA,
    RecordType.HEADER_BUILD_ID,
    RecordType.HEADER_FEATURE,
    RecordType.COMPRESSED,
)
"""Types that perf writes with sizes that are no multiple of 8; what follows them is unaligned."""

_TRACING_DATA, _AUXTRACE = int(RecordType.HEADER_TRACING_DATA), int(RecordType.AUXTRACE)
"""Types followed by bytes that their header's size does not count; their first field does (u32, u64)."""

_SHORT_WINDOW = 4096
"""A walk that runs on past such a record, into its blob, is for nothing: after one, walks begin short."""


@dataclass(slots=True)
class Chunk:
    """Consecutive records of a stream.

    Args:
        data: uint8[], the bytes, at least 8; no part of a stream is in two chunks.
        starts: int64[n], each record's offset in `data`; any number, for some records have odd sizes.
        types: uint32[n]; miscs: uint16[n]; sizes: int64[n], header included.
        file_offset: where `data` begins in its file (for compressed data: in the decompressed stream).
        origin: which stream that is: "" the file itself, "data.0" a part of a directory, "zstd" and
            "data.0 zstd" what these hold compressed.
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
        """The bytes of one record, header included."""
        start = int(self.starts[row])
        return self.data.data[start : start + int(self.sizes[row])]

    def take(self, rows: slice | NDArray[np.int64]) -> Chunk:
        """Some of the records, on the same bytes."""
        return Chunk(
            self.data,
            self.starts[rows],
            self.types[rows],
            self.miscs[rows],
            self.sizes[rows],
            self.file_offset,
            self.origin,
        )


class Scanner:
    """Turns pieces of bytes into chunks of whole records, and counts what is no record.

    Args:
        order: byte order of the stream.
        counters: where damage is counted.
        file_offset: where the stream begins in its file.
        origin: what the chunks are to say of where they come from.
    """

    def __init__(self, order: Order, counters: Losses, file_offset: int = 0, origin: str = "") -> None:
        self.order, self.counters, self.origin = order, counters, origin
        self.at = file_offset
        self.stopped = False
        self.tracing_data = bytearray()
        """The blob behind a HEADER_TRACING_DATA record, as far as it has come."""
        self._rest = b""
        self._skip = 0
        self._is_tracing_data = False

    def take_rest(self) -> bytes:
        """The begin of a record that is not whole yet: to be fed again, in front of what follows it."""
        rest, self._rest = self._rest, b""
        return rest

    def feed(self, piece: Buffer) -> Iterator[Chunk]:
        """Yield the records that are whole once `piece` is added. It must not change afterwards."""
        if self.stopped:
            self.counters.add(losses.BAD_SIZE, len(piece))
            return
        walk = _Walk(self._rest + bytes(piece) if self._rest else piece, self.order)
        parts, at = self._records(walk)
        self._rest = b"" if self.stopped else bytes(walk.data[at:])
        if parts:
            yield self._chunk(walk.data, np.concatenate(parts))
        self.at += at

    def finish(self) -> None:
        """Count what is left behind the last whole record."""
        self.counters.add(losses.TRUNCATED, len(self._rest))
        self._rest = b""

    def resume(self) -> None:
        """Something of the stream is missing here: what follows begins with a record again."""
        self.finish()
        self.stopped, self._skip = False, 0

    def _records(self, walk: _Walk) -> tuple[list[NDArray[np.int64]], int]:
        """Where the whole records of a buffer begin, blobs between them left out, and where they end."""
        raw = np.frombuffer(walk.data, np.uint8)
        parts: list[NDArray[np.int64]] = []
        at = self._skip_blob(walk.data, 0)
        window = len(raw)
        while at < len(raw) and not self.stopped:
            starts, end, is_sound = walk.records(at, window)
            kinds = gather(raw, starts, U32, self.order)
            blobs = np.flatnonzero((kinds == _TRACING_DATA) | (kinds == _AUXTRACE))
            if len(blobs):
                starts = starts[: int(blobs[0]) + 1]
                end = self._take_blob(walk, int(starts[-1]), int(kinds[blobs[0]]))
            elif not is_sound:
                self.stopped = True
                self.counters.add(losses.BAD_SIZE, len(raw) - end)
            if not len(starts):
                break
            parts.append(starts)
            window = _SHORT_WINDOW if len(blobs) else 2 * window
            at = end
        return parts, at

    def _take_blob(self, walk: _Walk, record: int, kind: int) -> int:
        """Skip the bytes behind a record that belong to it; gives the place behind what is here of them."""
        size = walk.header(record)[1]
        self._is_tracing_data = kind == _TRACING_DATA
        self._skip = self._blob_size(walk.data[record : record + size], 4 if self._is_tracing_data else 8)
        return record + size + self._skip_blob(walk.data, record + size)

    def _skip_blob(self, data: Buffer, at: int) -> int:
        """How many bytes from `at` on belong to a blob."""
        skipped = min(self._skip, len(data) - at)
        if self._is_tracing_data:
            self.tracing_data += data[at : at + min(skipped, MAX_TRACING_DATA - len(self.tracing_data))]
        self._skip -= skipped
        return skipped

    def _blob_size(self, record: Buffer, width: int) -> int:
        """The size of a record's blob, which is its own first field."""
        if len(record) < HEADER_SIZE + width:
            self.counters.add(losses.BAD_RECORD)
            return 0
        return int.from_bytes(record[8 : 8 + width], "little" if self.order == "<" else "big")

    def _chunk(self, data: Buffer, starts: NDArray[np.int64]) -> Chunk:
        raw = np.frombuffer(data, np.uint8)
        heads = gather_structs(raw, starts, RECORD_HEADER, self.order)
        sizes = heads["size"].astype(np.int64)
        end = int(starts[-1]) + int(sizes[-1])
        return Chunk(raw[:end], starts, heads["type"], heads["misc"], sizes, self.at, self.origin)


class _Walk:
    """Finds the records of one buffer.

    Args:
        data: the buffer.
        order: its byte order.
    """

    def __init__(self, data: Buffer, order: Order) -> None:
        self.data, self.order = data, order
        self._views: dict[int, memoryview] = {}

    def records(self, at: int, window: int) -> tuple[NDArray[np.int64], int, bool]:
        """Where whole records begin, from `at` on, in about `window` bytes.

        Returns:
            (starts, end, is_sound): where they end, and whether what follows can still become a record.
        """
        stop, size = min(at + window, len(self.data)), 0
        parts: list[NDArray[np.int64]] = []
        while at < stop:
            places = self._chain(at, stop)
            parts.append(places)
            at = self._end(places, at)
            size = self._odd_size(at) if at < stop else 0
            if size <= 0:
                break
            parts.append(np.array([at], np.int64))
            at += size
        starts = np.concatenate(parts) if parts else np.empty(0, np.int64)
        return starts, at, size >= 0

    def _chain(self, at: int, stop: int) -> NDArray[np.int64]:
        """The places of records of sizes that are multiples of 8, from `at` on."""
        phase = at & 1
        sizes = self._sizes(phase)
        places = _walk_chain(sizes, at >> 1, min((stop + 1) >> 1, len(sizes) - 3), len(sizes))
        return places * 2 + phase

    def _sizes(self, phase: int) -> memoryview:
        """The buffer as u16 in native order, from byte `phase` on: where sizes are, if records begin so."""
        view = self._views.get(phase)
        if view is None:
            count = max(0, len(self.data) - phase) // 2
            halves = memoryview(self.data)[phase : phase + 2 * count]
            kind = np.dtype(f"{self.order}u2")
            native = halves if kind.isnative else np.frombuffer(halves, kind).byteswap().data
            view = self._views[phase] = native.cast("B").cast("H")
        return view

    def _end(self, places: NDArray[np.int64], at: int) -> int:
        return at if not len(places) else int(places[-1]) + self.header(int(places[-1]))[1]

    def _odd_size(self, at: int) -> int:
        """The size of a whole record that is no multiple of 8; 0 if it is not whole; -1 if impossible."""
        if len(self.data) - at < HEADER_SIZE:
            return 0
        kind, size = self.header(at)
        if size < HEADER_SIZE or (size & 7 and kind not in _ODD_SIZES):
            return -1
        return size if at + size <= len(self.data) else 0

    def header(self, at: int) -> tuple[int, int]:
        """(type, size) of the record at `at`."""
        byteorder: Any = "little" if self.order == "<" else "big"
        data = self.data
        return int.from_bytes(data[at : at + 4], byteorder), int.from_bytes(data[at + 6 : at + 8], byteorder)


_STEPS = [0] * (1 << 16)
"""By size: how many u16 lie between a record and the next; 0 for sizes that are odd or impossible."""
_STEPS[HEADER_SIZE::8] = range(HEADER_SIZE // 2, 1 << 15, 4)


_BATCH = 256
"""Records that are walked before the walk looks whether it might run."""


def _walk_chain(sizes: memoryview, at: int, stop: int, end: int) -> NDArray[np.int64]:
    """Places (in u16) of the records before `stop` that are possible and whole, from `at` on.

    An event without callchains, or with one that is always the same, writes records of one size: such a run
    is compared at once. Where none is found, the walk looks for one less and less often.
    """
    halves = np.frombuffer(sizes, np.uint16)
    parts = [np.empty(0, np.int64)]
    wait = pause = 1
    while at < stop:
        places, at = _walk_batch(sizes, at, stop)
        parts.append(np.array(places, np.int64))
        if len(places) < _BATCH:
            break
        wait -= 1
        if not wait:
            step = at - places[-1]
            count = _run_length(halves[at + 3 : stop + 3 : step], sizes[places[-1] + 3])
            parts.append(np.arange(at, at + count * step, step))
            at += count * step
            wait = pause = 1 if count >= _BATCH else 2 * pause
    found = np.concatenate(parts)
    return found[:-1] if at > end else found


def _walk_batch(sizes: memoryview, at: int, stop: int) -> tuple[list[int], int]:
    """The places of the next records, up to a batch of them, and where they end."""
    places: list[int] = []
    append, steps = places.append, _STEPS
    for _ in range(_BATCH):
        if at >= stop:
            break
        step = steps[sizes[at + 3]]
        if not step:
            break
        append(at)
        at += step
    return places, at


def _run_length(values: NDArray[np.uint16], value: int) -> int:
    """How many of the first values are this one."""
    length = 0
    while length < len(values):
        others = np.flatnonzero(values[length : length + _BATCH] != value)
        if len(others):
            return length + int(others[0])
        length = min(length + _BATCH, len(values))
    return length
