# SPDX-License-Identifier: Apache-2.0
"""Write compressed records: the inverse of `perfdata.compressed`.

Appended bytes become one zstd stream, flushed after each block and never ended, in PERF_RECORD_COMPRESSED
records (type 81), which perf reads from 5.2 on. A block is small enough for its record even if nothing in it
can be compressed; the stream's window goes on, so small blocks cost little.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from perf_offcpu.abi.features import Feature
from perf_offcpu.abi.records import RECORD_HEADER, RecordType
from perf_offcpu.binary.fields import Buffer
from perf_offcpu.errors import FileFullError
from perf_offcpu.perfdata.compressed import zstd_library
from perf_offcpu.perfdata.features import feature_body
from perf_offcpu.perfdata.write.writer import FileWriter, whole_records

LEVEL = 3
"""zstd's own default; perf's is 1."""

BLOCK = 60_000
"""Bytes that become one record: zstd adds 0.4 % and some headers at worst, and a record has 65 535."""

_MMAP_LEN = 129 * 4096
"""Bytes that perf allocates for the content of one record; it writes 129 pages with its default rings."""

_ZSTD = 1


class CompressedWriter:
    """A `FileWriter` whose records are compressed.

    Raises:
        CapabilityError: no zstd library for this Python.
    """

    def __init__(self, writer: FileWriter, level: int = LEVEL) -> None:
        self.writer, self.level = writer, level
        self._zstd: Any = zstd_library()
        self._stream = self._zstd.ZstdCompressor(level=level).compressobj()
        self._taken = 0
        self._broken = False

    def append(self, *pieces: Buffer) -> None:
        """Add bytes that are, together, whole records; errors as in `FileWriter.append`.

        After an error the stream cannot go on, because zstd refers to bytes that are not in the file: later
        records are written as they are.
        """
        if self._broken:
            self.writer.append(*pieces)
            return
        data = memoryview(pieces[0] if len(pieces) == 1 else b"".join(pieces)).cast("B")
        records = []
        for at in range(0, len(data), BLOCK):
            records.append(self._record(data[at : at + BLOCK]))
        try:
            self.writer.append(*records)
        except FileFullError as problem:
            self._broken = True
            limit = min(problem.records * BLOCK, len(data))
            raise FileFullError(str(problem), *whole_records([data], limit, self.writer.order)) from None
        self._taken += len(data)

    def finish(self, features: Mapping[int, bytes]) -> None:
        """End the file; errors as in `FileWriter.finish`."""
        body = feature_body(
            Feature.COMPRESSED,
            self.writer.order,
            version=0,
            type=_ZSTD,
            level=self.level,
            ratio=round(self._taken / max(1, self.writer.data_size)),
            mmap_len=_MMAP_LEN,
        )
        self.writer.finish({**features, Feature.COMPRESSED: body})

    def _record(self, block: memoryview) -> bytes:
        packed: bytes = self._stream.compress(block)
        packed += self._stream.flush(self._zstd.COMPRESSOBJ_FLUSH_BLOCK)
        values = {"type": RecordType.COMPRESSED, "misc": 0, "size": RECORD_HEADER.size() + len(packed)}
        return RECORD_HEADER.pack(values, self.writer.order) + packed
