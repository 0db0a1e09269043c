# SPDX-License-Identifier: Apache-2.0
"""Read the head of a perf.data file: form, byte order, attrs, features and the place of the data.

Every offset and size may be wrong (a file may be cut, or made to harm): sections are clamped to the file, numbers are
limited, and unreadable parts are counted. Only a file that is no perf.data, or of an unsupported kind, raises.

In the pipe form the head arrives as records before the records that it describes (`PipeHead`): HEADER_ATTR holds an
event and its ids, EVENT_UPDATE its name, HEADER_FEATURE the body of a feature, HEADER_BUILD_ID an entry of the
feature BUILD_ID, HEADER_TRACING_DATA the formats of tracepoints."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import field, replace
from typing import Any, BinaryIO

import numpy as np

from perf_offcpu import losses
from perf_offcpu.abi import features as layouts
from perf_offcpu.abi.attr import ATTR_SIZE_MAX, ATTR_SIZE_VER0, unpack_attr
from perf_offcpu.abi.records import EVENT_UPDATE_NAME, RECORD_LAYOUTS, RecordType
from perf_offcpu.binary.layout import Order, to_int
from perf_offcpu.errors import FormatError, LayoutError
from perf_offcpu.losses import Losses
from perf_offcpu.perfdata.events import Events, EventSpec
from perf_offcpu.perfdata.features import MAX_EVENTS, Features, decoded
from perf_offcpu.perfdata.scan import HEADER_SIZE, Chunk
from perf_offcpu.structs import mutable

MAX_IDS = 1 << 24
MAX_FEATURE_SIZE = 256 << 20
_MOST_MISSING = 1 << 60  # most bytes that are counted as missing: sums of such numbers fit an int64
_SECTION_SIZE = layouts.SECTION.size()


@mutable
class FileHead:
    """Holds the content of the header. In the pipe form, `events` and `features` arrive as records later."""

    order: Order
    is_pipe: bool
    events: list[EventSpec] = field(default_factory=list)
    features: dict[int, bytes] = field(default_factory=dict)
    feature_sections: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Bit → (offset, size) as in the file, of readable features and others."""
    data_offset: int = layouts.PIPE_HEADER_SIZE
    data_end: int | None = None  # end of the data section; None: the end of the stream


def read_head(stream: BinaryIO, path: str, size: int | None, counters: Losses) -> FileHead:
    """Read the header and the sections that it points to; raise FormatError for files of other kinds. The stream is at
    its beginning, and seekable unless the file is in pipe form; `size` is None if it is unknown."""
    start = stream.read(layouts.PIPE_HEADER_SIZE)
    order = _byte_order(start, path)
    header_size = to_int(start[8:16], order)
    if header_size == layouts.PIPE_HEADER_SIZE:
        return FileHead(order, is_pipe=True)
    if header_size not in (layouts.FILE_HEADER_SIZE, layouts.FILE_HEADER_SIZE_OLD):
        raise FormatError(path, "file header", f"its size is {header_size}, expected is 16, 72 or 104", 8)
    if size is None:
        raise FormatError(path, "file header", "the file form needs a file, not a pipe")
    data = start + stream.read(header_size - layouts.PIPE_HEADER_SIZE)
    if len(data) < header_size:
        raise FormatError(path, "file header", f"cut: {len(data)} bytes of {header_size}", 0)
    header = layouts.FILE_HEADER.unpack(data.ljust(layouts.FILE_HEADER_SIZE, b"\0"), order)
    return _HeadReader(stream, path, size, order, header, counters).read()


def _byte_order(start: bytes, path: str) -> Order:
    magic = start[:8]
    if len(start) < layouts.PIPE_HEADER_SIZE:
        raise FormatError(path, "file header", f"{len(start)} bytes, a perf.data file has at least 16", 0)
    if magic == layouts.MAGIC:
        return "<"
    if magic == layouts.MAGIC_SWAPPED:
        return ">"
    if magic == layouts.MAGIC_V1:
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
        ((begin, end),) = self._taken
        is_killed = begin == end
        self.counters.add(losses.NO_END, int(is_killed))
        if not is_killed:
            self._count_missing(end)
        events, features = list(self._events()), {} if is_killed else dict(self._features(end))
        places = min(begin, self.size), self.size if is_killed else min(end, self.size)
        return FileHead(self.order, False, events, features, self.feature_sections, *places)

    def _count_missing(self, end: int) -> None:
        """Count as FILE_CUT the bytes that the file lacks if it should reach to offset `end`."""
        self.counters.add(losses.FILE_CUT, min(max(0, end - self.size), _MOST_MISSING))

    def _bytes(self, offset: int, size: int, what: str) -> bytes:
        """Return `size` bytes at `offset`, fewer at the end of the file; `what` names them in errors."""
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
            raise FormatError(self.path, "attr section", f"entries of {stride} bytes, expected are at least 80", 16)
        stated = section["size"] // stride
        table = self._bytes(section["offset"], min(stated, MAX_EVENTS) * stride, "attr section")
        self.counters.add(losses.BAD_ATTRS, stated - len(table) // stride)
        for index in range(0, len(table) - stride + 1, stride):
            entry = table[index : index + stride]
            attr = unpack_attr(entry[:-_SECTION_SIZE], self.order)
            self.counters.add(losses.ODD_ATTRS, int(attr.size + _SECTION_SIZE != stride))
            yield EventSpec(attr, ids=self._ids(entry[-_SECTION_SIZE:]))

    def _ids(self, entry: bytes) -> tuple[int, ...]:
        section = layouts.SECTION.unpack(entry, self.order)
        data = self._bytes(section["offset"], min(section["size"], self._ids_left * 8), "event ids")
        count = len(data) // 8
        self._ids_left -= count
        self.counters.add(losses.BAD_IDS, int(count * 8 != section["size"]))
        return tuple(np.frombuffer(data, f"{self.order}u8", count).tolist())

    def _features(self, table_at: int) -> Iterator[tuple[int, bytes]]:
        bits = self._feature_bits()
        table = self._bytes(table_at, len(bits) * _SECTION_SIZE, "feature table")
        for bit, offset in zip(bits, range(0, len(table) - _SECTION_SIZE + 1, _SECTION_SIZE), strict=False):
            section = layouts.SECTION.unpack(table, self.order, start=offset)
            self.feature_sections[bit] = (section["offset"], section["size"])
            body = self._feature(bit, section["offset"], section["size"])
            self.counters.add(losses.BAD_FEATURE, int(body is None))
            if body is not None:
                yield bit, body
        self.counters.add(losses.BAD_FEATURE, len(bits) - len(table) // _SECTION_SIZE)
        if table_at <= self.size:  # else the data is cut already
            self._count_missing(max(table_at + len(bits) * _SECTION_SIZE, self._end_of_features()))

    def _end_of_features(self) -> int:
        """Return the offset at which the last feature should end, if the file is cut within the features; else 0."""
        sections = [(begin, begin + size) for begin, size in self.feature_sections.values()]
        last = max((begin for begin, end in sections if end <= self.size), default=0)
        is_cut = any(last <= begin <= self.size < end for begin, end in sections)
        return max(end for _, end in sections) if is_cut else 0

    def _feature(self, bit: int, begin: int, size: int) -> bytes | None:
        """Return the body of a feature; None if the file ends before it does, or another section overlaps it."""
        end = begin + size
        if any(begin < other_end and other_begin < end for other_begin, other_end in self._taken):
            return None
        body = self._bytes(begin, min(size, MAX_FEATURE_SIZE), f"feature {bit}")
        if len(body) < size:
            return None
        if size:
            self._taken.append((begin, end))
        return body

    def _feature_bits(self) -> list[int]:
        """Return the bits of the features in the file, ascending. 32-bit big-endian recorders exchange the halves of
        each u64 of the bitmap: exchanged again if HOSTNAME is set only then."""
        bits = _bits_of(self.header["features"])
        if self.order == ">" and layouts.Feature.HOSTNAME not in bits:
            swapped = _bits_of([word << 32 & 2**64 - 1 | word >> 32 for word in self.header["features"]])
            return swapped if layouts.Feature.HOSTNAME in swapped else bits
        return bits


def _bits_of(words: list[int]) -> list[int]:
    return [bit for bit in range(layouts.FEATURE_BITS) if words[bit // 64] >> (bit % 64) & 1]


MAX_PIPE_IDS = 1 << 22  # most event ids that are kept of a pipe: those of 4000 events on 1000 CPUs
MAX_BUILD_IDS = 16 << 20  # most bytes of build-ids that are kept of a pipe: those of some 200 000 files
R = RecordType
_TYPES = np.array([R.HEADER_ATTR, R.HEADER_BUILD_ID, R.HEADER_FEATURE, R.EVENT_UPDATE], np.uint32)


class PipeHead:
    """Collects events and features from header records. `specs`: evsels in the header of a file whose recorder was
    killed before it wrote their names, which may be in records. `features`: gets the features in records. `events`: the
    evsels so far; replaced by a new object when an evsel is added or named."""

    def __init__(self, features: Features, order: Order, counters: Losses, specs: Sequence[EventSpec] = ()) -> None:
        self.features, self.order, self.counters = features, order, counters
        self._specs: list[EventSpec] = list(specs)
        self.events = Events(list(specs), order)
        self._row_of_id: dict[int, int] = {}
        for row, spec in enumerate(specs):
            self._add_ids(spec.ids, row)
        self._build_ids = bytearray()

    def take(self, chunk: Chunk) -> None:
        """Add the events, names and features in the header records of a chunk."""
        rows = np.flatnonzero(np.isin(chunk.types, _TYPES)).tolist()
        before, build_ids_before = list(self._specs), len(self._build_ids)
        for row in rows:
            try:
                self._take(int(chunk.types[row]), bytes(chunk.record(row)))
            except LayoutError:
                self.counters.add(losses.BAD_RECORD)
        if self._specs != before:
            self.events = Events(list(self._specs), self.order)
        if len(self._build_ids) > build_ids_before:
            self.features.bodies[layouts.Feature.BUILD_ID] = bytes(self._build_ids)

    def _take(self, kind: int, record: bytes) -> None:
        if kind == RecordType.HEADER_ATTR:
            self._take_attr(record)
            return
        if kind == RecordType.HEADER_BUILD_ID:
            # An entry of the feature except for its type, which is 0 there.
            if len(self._build_ids) < MAX_BUILD_IDS:
                self._build_ids += bytes(4) + record[4:]
            return
        values = RECORD_LAYOUTS[kind].unpack(record, self.order, start=HEADER_SIZE)
        if kind == RecordType.HEADER_FEATURE:
            if values["data"] and values["feat_id"] < layouts.FEATURE_BITS:
                self.features.bodies[values["feat_id"]] = values["data"]
            if values["feat_id"] == layouts.Feature.EVENT_DESC:
                self._specs = self.features.named(self._specs)
                for row, spec in enumerate(self._specs):
                    self._add_ids(spec.ids, row)
        elif values["kind"] == EVENT_UPDATE_NAME and (named := self._row_of_id.get(values["id"])) is not None:
            name = decoded(values["data"].split(b"\0", 1)[0])
            self._specs[named] = replace(self._specs[named], name=name)

    def _take_attr(self, record: bytes) -> None:
        attr = unpack_attr(record[HEADER_SIZE:], self.order)
        ids = record[HEADER_SIZE + min(attr.size, len(record)) :]
        event_ids = np.frombuffer(ids, f"{self.order}u8", len(ids) // 8).tolist()
        if len(self._specs) >= MAX_EVENTS or len(self._row_of_id) + len(event_ids) > MAX_PIPE_IDS:
            self.counters.add(losses.BAD_ATTRS)
            return
        self._add_ids(event_ids, len(self._specs))
        kept = attr._replace(size=min(attr.size, ATTR_SIZE_MAX))
        self._specs.append(EventSpec(kept, ids=tuple(event_ids)).named())

    def _add_ids(self, ids: Iterable[int], row: int) -> None:
        for event_id in ids:
            self._row_of_id.setdefault(event_id, row)
