# SPDX-License-Identifier: Apache-2.0
"""Split a stream of bytes into records. All readers work on `Chunk`s: a buffer, and the places, types and sizes of its
records as columns. `Scanner.feed` takes pieces of any size, of a file, pipe or decompressor, and keeps an incomplete
record for the next piece. Records form a chain: the size of one leads to the next. `_Walk` follows it in the only loop
over records in this project, which reads a single u16 per record (some 70 ns)."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from perf_offcpu import losses
from perf_offcpu.abi.records import RECORD_HEADER, RecordType
from perf_offcpu.binary.columnar import gather_fields
from perf_offcpu.binary.layout import Buffer, Order, to_int
from perf_offcpu.losses import Losses
from perf_offcpu.structs import mutable

HEADER_SIZE = 8  # bytes of a record's header
MAX_TRACING_DATA = 64 << 20  # most bytes of tracepoint formats that are kept of a pipe: perf writes a few MB
_TRACING_DATA, _AUXTRACE = int(RecordType.HEADER_TRACING_DATA), int(RecordType.AUXTRACE)
"""Types followed by a blob, which the size in the header does not include; the first field is its size."""

_R = RecordType
_ODD_SIZES = (_R.HEADER_TRACING_DATA, _R.HEADER_BUILD_ID, _R.HEADER_FEATURE, _R.COMPRESSED)
"""Types that perf writes with sizes that are no multiple of 8; the records after them are unaligned."""

_SHORT_WINDOW = 4096  # bytes of the first walk after such a record: a walk on into its blob is for nothing
_Part = tuple[NDArray[np.int64], NDArray[np.uint32], NDArray[np.uint16], NDArray[np.uint16]]
"""Offsets, types, miscs and sizes of consecutive records in a buffer."""


@mutable
class Chunk:
    """Holds consecutive records of a stream: their bytes, and columns of their headers."""

    data: NDArray[np.uint8]  # uint8[], the bytes, at least 8; no part of a stream is in two chunks
    # int64[n], each record's offset in `data`; any number, for some records have odd sizes
    starts: NDArray[np.int64]
    types: NDArray[np.uint32]  # uint32[n]
    miscs: NDArray[np.uint16]  # uint16[n]
    sizes: NDArray[np.int64]  # int64[n], header included
    file_offset: int  # where `data` begins in its file (for compressed data: in the decompressed stream)
    # the stream: "" the file itself, "data.0" a part of a directory, "zstd" and "data.0 zstd" the compressed
    # data in these
    origin: str = ""

    def __len__(self) -> int:
        return len(self.starts)

    def record(self, row: int) -> memoryview:
        """Return the bytes of one record, header included."""
        start = int(self.starts[row])
        return self.data.data[start : start + int(self.sizes[row])]

    def take(self, rows: slice | NDArray[np.int64]) -> "Chunk":
        """Return a chunk of the records in `rows`, in this order, on the same bytes."""
        return replace(self, **{name: getattr(self, name)[rows] for name in ("starts", "types", "miscs", "sizes")})


class Scanner:
    """Turns pieces of a stream, which begins at `file_offset`, into chunks of whole records; counts damaged bytes."""

    def __init__(self, order: Order, counters: Losses, file_offset: int = 0, origin: str = "") -> None:
        self.order, self.counters, self.origin = order, counters, origin
        self.at = file_offset
        self.stopped = False
        self.tracing_data = bytearray()  # the blob after a HEADER_TRACING_DATA record, so far
        self._rest = b""
        self._skip = 0
        self._is_tracing_data = False

    def take_rest(self) -> bytes:
        """Return and forget the begin of an incomplete record: the caller feeds it again, before the bytes after it."""
        rest, self._rest = self._rest, b""
        return rest

    def feed(self, piece: Buffer) -> Iterator[Chunk]:
        """Yield the records that are complete with `piece`, which must not change afterwards."""
        if self.stopped:
            self.counters.add(losses.BAD_SIZE, len(piece))
            return
        walk = _Walk(self._rest + bytes(piece) if self._rest else piece, self.order)
        parts, offset = self._records(walk)
        self._rest = b"" if self.stopped else bytes(walk.data[offset:])
        if parts:
            yield self._chunk(walk.data, parts)
        self.at += offset

    def finish(self) -> None:
        """Count the bytes after the last complete record as FILE_CUT, and forget them."""
        self.counters.add(losses.FILE_CUT, len(self._rest))
        self._rest = b""

    def resume(self) -> None:
        """Go on after missing bytes: count and forget an incomplete record; the next piece begins with a record."""
        self.finish()
        self.stopped, self._skip = False, 0

    def _records(self, walk: "_Walk") -> tuple[list[_Part], int]:
        """Return (complete records; offset after them and after the data that follows AUXTRACE and TRACING_DATA)."""
        raw = np.frombuffer(walk.data, np.uint8)
        parts: list[_Part] = []
        offset = self._skip_blob(walk.data, 0)
        window = len(raw)
        while offset < len(raw) and not self.stopped:
            starts, end, is_sound = walk.records(offset, window)
            heads = gather_fields(raw, starts, RECORD_HEADER.fields, self.order)
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
            offset = end
        return parts, offset

    def _take_blob(self, walk: "_Walk", record: int, kind: int) -> int:
        """Skip the data that follow the record at offset `record` (type `kind`: AUXTRACE or TRACING_DATA); return the
        offset after their part in this buffer."""
        end = record + walk.header(record)[1]
        self._is_tracing_data = kind == _TRACING_DATA
        width = 4 if self._is_tracing_data else 8
        size = walk.data[record + HEADER_SIZE : end][:width]  # the record's first field
        self.counters.add(losses.BAD_RECORD, int(len(size) < width))
        self._skip = to_int(size, self.order) if len(size) == width else 0
        return end + self._skip_blob(walk.data, end)

    def _skip_blob(self, data: Buffer, offset: int) -> int:
        """Skip the data after an AUXTRACE or TRACING_DATA record that `data` has from `offset` on, where the latter are
        kept in `tracing_data`; return their number of bytes, 0 if none are due."""
        skipped = min(self._skip, len(data) - offset)
        if self._is_tracing_data:
            self.tracing_data += data[offset : offset + min(skipped, MAX_TRACING_DATA - len(self.tracing_data))]
        self._skip -= skipped
        return skipped

    def _chunk(self, data: Buffer, parts: list[_Part]) -> Chunk:
        raw = np.frombuffer(data, np.uint8)
        columns = parts[0] if len(parts) == 1 else map(np.concatenate, zip(*parts, strict=True))
        starts, types, miscs, sizes = columns
        end = int(starts[-1]) + int(sizes[-1])
        return Chunk(raw[:end], starts, types, miscs, sizes.astype(np.int64), self.at, self.origin)


class _Walk:
    """Finds the offsets and sizes of the records in one buffer."""

    def __init__(self, data: Buffer, order: Order) -> None:
        self.data, self.order = data, order
        self._views: dict[int, memoryview] = {}

    def records(self, offset: int, window: int) -> tuple[NDArray[np.int64], int, bool]:
        """Find whole records from `offset` on, in about `window` bytes. Returns (starts, end, is_sound): the offset of
        each record, the offset after the last, and False if no record can begin there."""
        stop, size = min(offset + window, len(self.data)), 0
        parts: list[NDArray[np.int64]] = []
        while offset < stop:
            # Records of sizes that are multiples of 8, then one of an odd size.
            phase = offset & 1
            halves = self._sizes(phase)
            limit = min((stop + 1) >> 1, len(halves) - 3)
            places = _walk_chain(halves, offset >> 1, limit, len(halves)) * 2 + phase
            parts.append(places)
            if len(places):
                offset = int(places[-1]) + self.header(int(places[-1]))[1]
            size = self._odd_size(offset) if offset < stop else 0
            if size <= 0:
                break
            parts.append(np.array([offset], np.int64))
            offset += size
        return np.concatenate(parts) if parts else np.empty(0, np.int64), offset, size >= 0

    def _sizes(self, phase: int) -> memoryview:
        """Return the buffer from byte `phase` (0, 1) on as u16, swapped to host order; record sizes are among them."""
        view = self._views.get(phase)
        if view is None:
            count = max(0, len(self.data) - phase) // 2
            halves = memoryview(self.data)[phase : phase + 2 * count]
            kind = np.dtype(f"{self.order}u2")
            native = halves if kind.isnative else np.frombuffer(halves, kind).byteswap().data
            view = self._views[phase] = native.cast("B").cast("H")
        return view

    def _odd_size(self, offset: int) -> int:
        """Return the size of the record at `offset`, perhaps no multiple of 8; 0 if it is cut, -1 if impossible."""
        if len(self.data) - offset < HEADER_SIZE:
            return 0
        kind, size = self.header(offset)
        if size < HEADER_SIZE or (size & 7 and kind not in _ODD_SIZES):
            return -1
        return size if offset + size <= len(self.data) else 0

    def header(self, offset: int) -> tuple[int, int]:
        """Return (type, size) of the record at `offset`."""
        head = self.data[offset : offset + HEADER_SIZE]
        return to_int(head[:4], self.order), to_int(head[6:], self.order)


_STEPS = [0] * (1 << 16)  # by size: the u16 from a record to the next; 0 for sizes that are odd or impossible
_STEPS[HEADER_SIZE::8] = range(HEADER_SIZE // 2, 1 << 15, 4)
_BATCH = 256  # records that are walked between looks for a run


def _walk_chain(sizes: memoryview, place: int, stop: int, end: int) -> NDArray[np.int64]:
    """Follow record sizes (the buffer as u16) from `place` to `stop`; return the offsets of records with plausible
    sizes that end at most at `end`; all are numbers of 16-bit words. Runs of records of one size, which an event
    without callchains writes, are compared at once; the walk looks for runs less often each time that it finds none."""
    halves = np.frombuffer(sizes, np.uint16)
    parts = [np.empty(0, np.int64)]
    wait = pause = 1
    while place < stop:
        places, place = _walk_batch(sizes, place, stop)
        parts.append(np.array(places, np.int64))
        if len(places) < _BATCH:
            break
        wait -= 1
        if not wait:
            step = place - places[-1]
            count = _run_length(halves[place + 3 : stop + 3 : step], sizes[places[-1] + 3])
            parts.append(np.arange(place, place + count * step, step))
            place += count * step
            wait = pause = 1 if count >= _BATCH else 2 * pause
    offsets = np.concatenate(parts)
    return offsets[:-1] if place > end else offsets


def _walk_batch(sizes: memoryview, place: int, stop: int) -> tuple[list[int], int]:
    """Follow record sizes (the buffer as u16) from `place` to `stop`; return (offsets of the next records, at most
    _BATCH; offset after the last), in 16-bit words."""
    places: list[int] = []
    append, steps = places.append, _STEPS
    for _ in range(_BATCH):
        if place >= stop:
            break
        step = steps[sizes[place + 3]]
        if not step:
            break
        append(place)
        place += step
    return places, place


def _run_length(values: NDArray[np.uint16], value: int) -> int:
    """Return the number of leading values that equal `value`."""
    length = 0
    while length < len(values):
        others = np.flatnonzero(values[length : length + _BATCH] != value)
        if len(others):
            return length + int(others[0])
        length = min(length + _BATCH, len(values))
    return length
