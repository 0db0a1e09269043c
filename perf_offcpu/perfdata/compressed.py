# SPDX-License-Identifier: Apache-2.0
"""Decompress and compress records: one zstd stream cut into PERF_RECORD_COMPRESSED and COMPRESSED2 records.

The stream is flushed after each record and never ended, so one decompressor serves all records of a file; the output
of a record may end inside an inner record. After an error perf begins a new frame, and so do we.

What we write are PERF_RECORD_COMPRESSED records (type 81), which perf reads from 5.2 on. A block is small enough for
its record even if nothing in it can be compressed; the stream's window goes on, so small blocks cost little."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from perf_offcpu import losses
from perf_offcpu.abi.features import Feature
from perf_offcpu.abi.records import RECORD_HEADER, RECORD_LAYOUTS, RecordType
from perf_offcpu.binary.layout import Buffer, Order
from perf_offcpu.errors import CapabilityError, FileFullError, LayoutError
from perf_offcpu.losses import Losses
from perf_offcpu.perfdata.features import feature_body
from perf_offcpu.perfdata.scan import HEADER_SIZE
from perf_offcpu.perfdata.write.writer import FileWriter, whole_records

MAX_OUTPUT = 64 << 20  # most bytes that one record may decompress to: perf writes less than the size of its ring
MAX_RATIO = 256  # most bytes of output, beyond `MAX_OUTPUT`, for each byte of input: samples have 4 to 40
_SLICE = 256
"""Bytes decompressed at once. A block of zstd of at least 4 bytes becomes at most 128 KiB, so that a slice
becomes at most 8 MiB before it is checked."""

_PIECE = 1 << 22  # bytes decompressed that the reader gets together, at least: each piece costs it a step


class Decompressor:
    """Decompresses the zstd stream of one file, record by record."""

    def __init__(self, counters: Losses) -> None:
        self.counters = counters
        self._stream: Any = None
        self._taken = self._given = 0

    def feed(self, records: Iterable[tuple[int, bytes]], order: Order) -> Iterator[bytes | None]:
        """Decompress records, each (type, bytes with header), and yield their content in pieces of at least _PIECE
        bytes; None where damage made bytes of it unreadable. Raises CapabilityError without a zstd library."""
        rest = iter(records)
        while True:
            try:
                yield from joined(self._decompressed(rest, order), _PIECE)
                return
            except (LayoutError, _Damage):
                self.counters.add(losses.BAD_COMPRESSED)
                self._stream = None
                yield None

    def _decompressed(self, records: Iterator[tuple[int, bytes]], order: Order) -> Iterator[bytes]:
        zstandard = zstd_library()
        for kind, record in records:
            data = RECORD_LAYOUTS[kind].unpack(record, order, start=HEADER_SIZE)["data"]
            end = self._given + MAX_OUTPUT
            for index in range(0, len(data), _SLICE):
                if self._stream is None:
                    self._stream = zstandard.ZstdDecompressor().decompressobj(read_across_frames=True)
                piece = data[index : index + _SLICE]
                try:
                    output = self._stream.decompress(piece)
                except zstandard.ZstdError:
                    raise _Damage from None
                self._taken, self._given = self._taken + len(piece), self._given + len(output)
                if self._given > min(end, MAX_OUTPUT + MAX_RATIO * self._taken):
                    raise _Damage
                yield output


class _Damage(Exception):
    """Raised if the rest of a zstd frame cannot be decompressed."""


def zstd_library() -> Any:
    """Import and return the module zstandard; raise CapabilityError if it is not installed."""
    try:
        import zstandard
    except ImportError:
        remedy = "install the package zstandard (Debian: python3-zstandard)"
        raise CapabilityError("this recording is compressed and Python has no zstd", remedy) from None
    return zstandard


def joined(pieces: Iterable[bytes], least: int) -> Iterator[bytes]:
    """Join `pieces` to pieces of at least `least` bytes (the last may be shorter). If `pieces` raises an exception, the
    bytes before it are yielded first."""
    waiting, size = list[bytes](), 0
    try:
        for piece in pieces:
            waiting.append(piece)
            size += len(piece)
            if size >= least:
                yield b"".join(waiting)
                waiting, size = [], 0
    except Exception:
        yield b"".join(waiting)
        raise
    yield b"".join(waiting)


LEVEL = 3  # zstd's own default; perf's is 1
BLOCK = 60_000  # bytes that become one record: zstd adds 0.4 % and some headers at worst, and a record has 65 535
_MMAP_LEN = 129 * 4096  # bytes that perf allocates for a record's content: as it writes with its default rings
_ZSTD = 1


class CompressedWriter:
    """Writes records compressed to a `FileWriter`; raises CapabilityError without a zstd library."""

    def __init__(self, writer: FileWriter, level: int = LEVEL) -> None:
        self.writer, self.level = writer, level
        self._zstd: Any = zstd_library()
        self._stream = self._zstd.ZstdCompressor(level=level).compressobj()
        self._taken = 0
        self._broken = False

    def append(self, *pieces: Buffer) -> None:
        """Add bytes that are, together, whole records; errors as in `FileWriter.append`. After an error the stream
        cannot go on, because zstd refers to bytes that are not in the file: later records are written as they are."""
        if self._broken:
            self.writer.append(*pieces)
            return
        data = memoryview(pieces[0] if len(pieces) == 1 else b"".join(pieces)).cast("B")
        records = [self._record(data[index : index + BLOCK]) for index in range(0, len(data), BLOCK)]
        try:
            self.writer.append(*records)
        except FileFullError as problem:
            self._broken = True
            limit = min(problem.records * BLOCK, len(data))
            raise FileFullError(str(problem), *whole_records([data], limit, self.writer.order)) from None
        self._taken += len(data)

    def finish(self, features: Mapping[int, bytes]) -> None:
        """End the file; errors as in `FileWriter.finish`."""
        ratio = round(self._taken / max(1, self.writer.data_size))
        values = {"version": 0, "type": _ZSTD, "level": self.level, "ratio": ratio, "mmap_len": _MMAP_LEN}
        body = feature_body(Feature.COMPRESSED, self.writer.order, **values)
        self.writer.finish({**features, Feature.COMPRESSED: body})

    def _record(self, block: memoryview) -> bytes:
        packed: bytes = self._stream.compress(block)
        packed += self._stream.flush(self._zstd.COMPRESSOBJ_FLUSH_BLOCK)
        values = {"type": RecordType.COMPRESSED, "misc": 0, "size": RECORD_HEADER.size() + len(packed)}
        return RECORD_HEADER.pack(values, self.writer.order) + packed
