# SPDX-License-Identifier: Apache-2.0
"""Read the head of a perf.data file: form, byte order, attrs, features and the place of the data.

Every offset and size may be wrong (a file may be cut, or made to harm): sections are clamped to the file,
numbers are limited, and unreadable parts are counted. Only a file that is no perf.data, or of an unsupported
kind, raises.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import field
from typing import Any, BinaryIO

import numpy as np

from perf_offcpu import losses
from perf_offcpu.abi.attr import ATTR_SIZE_VER0, unpack_attr
from perf_offcpu.abi.features import (
    FEATURE_BITS,
    FILE_HEADER,
    FILE_HEADER_SIZE,
    FILE_HEADER_SIZE_OLD,
    MAGIC,
    MAGIC_SWAPPED,
    MAGIC_V1,
    PIPE_HEADER_SIZE,
    SECTION,
    Feature,
)
from perf_offcpu.binary.fields import Order
from perf_offcpu.errors import FormatError
from perf_offcpu.losses import Losses
from perf_offcpu.perfdata.events import EventSpec
from perf_offcpu.perfdata.features import MAX_EVENTS
from perf_offcpu.structs import mutable

MAX_IDS = 1 << 24
MAX_FEATURE_SIZE = 256 << 20
_MOST_MISSING = 1 << 60
"""Most bytes that are counted as missing: sums of such numbers fit an int64."""

_SECTION_SIZE = SECTION.size()


@mutable
class FileHead:
    """Content of the header. In the pipe form, `events` and `features` arrive as records later."""

    order: Order
    is_pipe: bool
    events: list[EventSpec] = field(default_factory=list)
    features: dict[int, bytes] = field(default_factory=dict)
    feature_sections: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Bit → (offset, size) as in the file, of readable features and others."""
    data_offset: int = PIPE_HEADER_SIZE
    data_end: int | None = None
    """End of the data section; None: the end of the stream."""


def read_head(stream: BinaryIO, path: str, size: int | None, counters: Losses) -> FileHead:
    """Read the header and the sections that it points to.

    Args:
        stream: at its beginning; seekable unless the file is in pipe form.
        size: of the file in bytes; None if it is unknown (a pipe).

    Raises:
        FormatError: not a perf.data file, or one of an unsupported kind.
    """
    start = stream.read(PIPE_HEADER_SIZE)
    order = _byte_order(start, path)
    header_size = int.from_bytes(start[8:16], "little" if order == "<" else "big")
    if header_size == PIPE_HEADER_SIZE:
        return FileHead(order, is_pipe=True)
    if header_size not in (FILE_HEADER_SIZE, FILE_HEADER_SIZE_OLD):
        raise FormatError(path, "file header", f"its size is {header_size}, known are 16, 72 and 104", 8)
    if size is None:
        raise FormatError(path, "file header", "the file form needs a file, not a pipe")
    data = start + stream.read(header_size - PIPE_HEADER_SIZE)
    if len(data) < header_size:
        raise FormatError(path, "file header", f"cut: {len(data)} bytes of {header_size}", 0)
    header = FILE_HEADER.unpack(data.ljust(FILE_HEADER_SIZE, b"\0"), order)
    return _HeadReader(stream, path, size, order, header, counters).read()


def _byte_order(start: bytes, path: str) -> Order:
    magic = start[:8]
    if len(start) < PIPE_HEADER_SIZE:
        raise FormatError(path, "file header", f"{len(start)} bytes, a perf.data file has at least 16", 0)
    if magic == MAGIC:
        return "<"
    if magic == MAGIC_SWAPPED:
        return ">"
    if magic == MAGIC_V1:
        raise FormatError(path, "file header", "PERFFILE, the format before Linux 3.2, is not supported", 0)
    raise FormatError(path, "file header", f"magic is {magic!r}: this is no perf.data file", 0)


class _HeadReader:
    """Reads the sections of one file, with all offsets and sizes checked."""

    def __init__(
        self, stream: BinaryIO, path: str, size: int, order: Order, header: dict[str, Any], counters: Losses
    ) -> None:
        self.stream, self.path, self.size, self.order = stream, path, size, order
        self.header, self.counters = header, counters
        self.feature_sections: dict[int, tuple[int, int]] = {}
        # Many sections with the same bytes would make a small file a large one.
        self._ids_left = min(MAX_IDS, size // 8)
        data = header["data"]
        self._taken = [(data["offset"], data["offset"] + data["size"])]

    def read(self) -> FileHead:
        data = self.header["data"]
        begin = min(data["offset"], self.size)
        killed = data["size"] == 0
        self.counters.add(losses.NO_END, int(killed))
        end = self.size if killed else min(data["offset"] + data["size"], self.size)
        if not killed:
            self._count_missing(data["offset"] + data["size"])
        return FileHead(
            self.order,
            is_pipe=False,
            events=list(self._events()),
            features={} if killed else dict(self._features(data["offset"] + data["size"])),
            feature_sections=self.feature_sections,
            data_offset=begin,
            data_end=end,
        )

    def _count_missing(self, end: int) -> None:
        """Count the bytes from the end of the file to that of a part of it."""
        self.counters.add(losses.FILE_CUT, min(max(0, end - self.size), _MOST_MISSING))

    def _bytes(self, offset: int, size: int, what: str) -> bytes:
        """Return a section, cut at the end of the file."""
        if offset >= self.size or size <= 0:
            return b""
        try:
            self.stream.seek(offset)
            return self.stream.read(min(size, self.size - offset))
        except (OSError, ValueError) as problem:
            raise FormatError(self.path, what, str(problem), offset) from None

    def _events(self) -> Iterator[EventSpec]:
        stride, section = self.header["attr_size"], self.header["attrs"]
        if stride < ATTR_SIZE_VER0 + _SECTION_SIZE:
            raise FormatError(self.path, "attr section", f"entries of {stride} bytes, 80 at least", 16)
        stated = section["size"] // stride
        table = self._bytes(section["offset"], min(stated, MAX_EVENTS) * stride, "attr section")
        self.counters.add(losses.BAD_ATTRS, stated - len(table) // stride)
        for index in range(0, len(table) - stride + 1, stride):
            entry = table[index : index + stride]
            attr = unpack_attr(entry[:-_SECTION_SIZE], self.order)
            self.counters.add(losses.ODD_ATTRS, int(attr.size + _SECTION_SIZE != stride))
            yield EventSpec(attr, ids=self._ids(entry[-_SECTION_SIZE:]))

    def _ids(self, entry: bytes) -> tuple[int, ...]:
        section = SECTION.unpack(entry, self.order)
        data = self._bytes(section["offset"], min(section["size"], self._ids_left * 8), "event ids")
        whole = len(data) // 8
        self._ids_left -= whole
        self.counters.add(losses.BAD_IDS, int(whole * 8 != section["size"]))
        return tuple(np.frombuffer(data, f"{self.order}u8", whole).tolist())

    def _features(self, table_at: int) -> Iterator[tuple[int, bytes]]:
        bits = self._feature_bits()
        table = self._bytes(table_at, len(bits) * _SECTION_SIZE, "feature table")
        for bit, offset in zip(bits, range(0, len(table) - _SECTION_SIZE + 1, _SECTION_SIZE), strict=False):
            section = SECTION.unpack(table, self.order, start=offset)
            self.feature_sections[bit] = (section["offset"], section["size"])
            body = self._feature(bit, section["offset"], section["size"])
            self.counters.add(losses.BAD_FEATURE, int(body is None))
            if body is not None:
                yield bit, body
        self.counters.add(losses.BAD_FEATURE, len(bits) - len(table) // _SECTION_SIZE)
        if table_at <= self.size:  # else the data is cut already
            self._count_missing(max(table_at + len(bits) * _SECTION_SIZE, self._end_of_features()))

    def _end_of_features(self) -> int:
        """Return the end of the features if the file ends within the last one; else 0.

        Places of features that are merely wrong are no cut.
        """
        sections = [(begin, begin + size) for begin, size in self.feature_sections.values()]
        last = max((begin for begin, end in sections if end <= self.size), default=0)
        is_cut = any(last <= begin <= self.size < end for begin, end in sections)
        return max(end for _, end in sections) if is_cut else 0

    def _feature(self, bit: int, begin: int, size: int) -> bytes | None:
        """Return the body of a feature; None if it is not inside the file, or inside another section."""
        end = begin + size
        if any(begin < other_end and other < end for other, other_end in self._taken):
            return None
        body = self._bytes(begin, min(size, MAX_FEATURE_SIZE), f"feature {bit}")
        if len(body) < size:
            return None
        if size:
            self._taken.append((begin, end))
        return body

    def _feature_bits(self) -> list[int]:
        """Return the set bits. Foreign 32-bit recorders have words of 32 bits: perf checks for HOSTNAME."""
        bits = _bits_of(self.header["features"])
        if self.order == ">" and Feature.HOSTNAME not in bits:
            swapped = _bits_of([word << 32 & 2**64 - 1 | word >> 32 for word in self.header["features"]])
            return swapped if Feature.HOSTNAME in swapped else bits
        return bits


def _bits_of(words: list[int]) -> list[int]:
    return [bit for bit in range(FEATURE_BITS) if words[bit // 64] >> (bit % 64) & 1]
