# SPDX-License-Identifier: Apache-2.0
"""Print a recording as text: every byte that has a meaning, in the order of the file.

    0x368 [0x30]: PERF_RECORD_COMM misc 0x2000 (COMM_EXEC)
      pid: 9016
      tid: 9016
      comm: b'ls'
      sample_id: {pid: 9016, tid: 9016, time: 4323278205115, cpu: 0, cpu_res: 0, identifier: 4094}

It resembles `perf script -D`, reads files that perf refuses, too, and does not re-type, merge, order or repair
anything. A record that does not fit its layout is shown as far as it does, with a line that begins with `!`. Offsets
are those of the file; records out of compressed ones are marked `zstd`, with offsets in the decompressed stream."""

from collections import Counter
from collections.abc import Generator, Iterator
from typing import Any

import numpy as np

from perf_offcpu.abi import counters, offcpu
from perf_offcpu.abi.attr import ATTR, unpack_attr
from perf_offcpu.abi.features import FEATURE_LAYOUTS, FILE_HEADER, FILE_HEADER_SIZE, FILE_HEADER_SIZE_OLD, Feature
from perf_offcpu.abi.records import CALLCHAIN_DEFERRED_V12, HEADER_ATTR_IDS, RECORD_LAYOUTS, Misc, RecordType
from perf_offcpu.abi.sample import SAMPLE, TRAILER
from perf_offcpu.binary.fields import Shape
from perf_offcpu.binary.layout import Layout
from perf_offcpu.errors import LayoutError
from perf_offcpu.losses import LossCause, Losses, by_text
from perf_offcpu.perfdata.describe import describe_misc, field_lines, hex_lines, inline, record_name
from perf_offcpu.perfdata.events import UNKNOWN, EventSpec, owners_of
from perf_offcpu.perfdata.features import Features, encoded
from perf_offcpu.perfdata.reader import COMPRESSED_TYPES, PerfDataReader
from perf_offcpu.perfdata.scan import HEADER_SIZE, Chunk

Lines = Iterator[str]


def dump(reader: PerfDataReader) -> Lines:
    """Yield a recording as lines: header, events, features, records, and the number of records of each type. Raises
    CapabilityError if the recording is compressed and there is no zstd for this Python."""
    return _Dump(reader).lines()


class _Dump:
    def __init__(self, reader: PerfDataReader) -> None:
        self.reader, self.order = reader, reader.order
        self.reported = Counter[LossCause]()
        self.types: Counter[str] = Counter()

    def lines(self) -> Lines:
        """Yield all lines."""
        yield from self._head()
        yield from self._damage()
        for chunk in self.reader.chunks(with_compressed=True):
            yield from self._damage()
            yield from self._records(chunk)
        yield from self._damage()
        yield f"{sum(self.types.values())} records"
        for name, count in sorted(self.types.items()):
            yield f"  {name}: {count}"

    def _damage(self) -> Lines:
        """Yield lines on losses and damage that the reader has counted since the last call."""
        now = Counter(self.reader.counters)
        for cause, count in by_text(now - self.reported).items():
            yield f"! {count} {cause}"
        self.reported = now

    # Header, events, features; in the pipe form they are records.

    def _head(self) -> Lines:
        endian = "little-endian" if self.order == "<" else "big-endian"
        form = "pipe" if self.reader.head.is_pipe else "file"
        yield f"{self.reader.path!a}: {form} form, {endian}"
        if self.reader.head.is_pipe:
            return
        yield from self._file_header()
        for number, spec in enumerate(self.reader.events.specs):
            yield f"event {number}"
            yield from _event_lines(spec)
        sections, bodies = self.reader.head.feature_sections, self.reader.features.bodies
        for bit, (offset, size) in sections.items():
            yield f"feature {bit} {_feature_name(bit)} at {offset:#x} [{size:#x}]"
            yield from self._feature(bit, bodies[bit]) if bit in bodies else ("  ! not readable",)

    def _file_header(self) -> Lines:
        self.reader.stream.seek(0)
        data = self.reader.stream.read(FILE_HEADER_SIZE)
        values = FILE_HEADER.unpack(data.ljust(FILE_HEADER_SIZE, b"\0"), self.order)
        if values["size"] == FILE_HEADER_SIZE_OLD:
            del values["features"]
        yield f"0x0 [{values['size']:#x}]: {FILE_HEADER.name}"
        yield from field_lines(FILE_HEADER, values)

    def _feature(self, bit: int, body: bytes) -> Lines:
        feature = Features({bit: body}, self.order, Losses())
        if bit == Feature.BUILD_ID:
            for entry in feature.build_ids():
                text = f"pid: {entry.pid}, cpumode: {entry.cpumode}, build_id: {entry.build_id}"
                yield f"  {{{text}, filename: {entry.filename!r}}}"
        elif bit == Feature.EVENT_DESC and (specs := feature.event_specs()):
            for number, spec in enumerate(specs):
                yield f"  event {number}"
                yield from _event_lines(spec, "    ")
        elif layout := FEATURE_LAYOUTS.get(bit):
            yield from self._structure(layout, body, 0, len(body))
        else:
            yield from hex_lines(body)

    # Records.

    def _records(self, chunk: Chunk) -> Lines:
        samples = (chunk.types == RecordType.SAMPLE).nonzero()[0]
        evsels = owners_of(chunk, np.arange(len(chunk)), self.reader.events)
        evsels[evsels == UNKNOWN] = 0  # laid out most likely as the first event's
        evsels[samples] = self.reader.events.of_samples(chunk, samples)
        columns = (chunk.starts, chunk.types, chunk.miscs, evsels)
        origin = f"{chunk.origin} " if chunk.origin else ""
        for row, (start, kind, misc, evsel) in enumerate(zip(*(column.tolist() for column in columns), strict=True)):
            record, name = bytes(chunk.record(row)), record_name(kind)
            self.types[name] += 1
            place = f"{origin}{chunk.file_offset + start:#x} [{len(record):#x}]"
            yield f"{place}: {name} misc {describe_misc(kind, misc)}"
            if kind == RecordType.SAMPLE:
                yield from self._sample(record, evsel)
            else:
                yield from self._other(kind, misc, record, evsel)

    def _sample(self, record: bytes, evsel: int) -> Lines:
        if evsel < 0:
            yield from ("  ! its id belongs to no event", *hex_lines(record[HEADER_SIZE:]))
            return
        spec = self.reader.events.specs[evsel]
        yield f"  event: {evsel} {encoded(spec.name)!r}"
        values = yield from self._structure(SAMPLE, record, HEADER_SIZE, len(record), spec.shape)
        if "raw" in values:
            yield from self._payload(spec, values["raw"])

    def _payload(self, spec: EventSpec, raw: bytes) -> Lines:
        """Yield the raw bytes of off-cpu events, this project's and upstream's, by their layouts."""
        if spec.name in (counters.EVENT_NAME, counters.TASK_EVENT):
            layout = counters.payload_layout(raw, self.order)
            yield f"  {layout.name}"
            yield from self._structure(layout, raw, 0, len(raw), indent="    ")
        elif spec.name == offcpu.EVENT_NAME:
            yield f"  {offcpu.PAYLOAD.name}"
            values, stop, problem = offcpu.PAYLOAD.unpack_sound(raw, self.order, None, 0, len(raw))
            yield from field_lines(offcpu.PAYLOAD, values, "    ")
            if problem is not None:
                yield f"    ! {problem}"
            else:
                yield from self._extension(raw, stop)

    def _extension(self, raw: bytes, offset: int) -> Lines:
        """Yield the fixed part of an off-cpu payload's extension as far as its size goes, then the remaining bytes."""
        head, _, _ = offcpu.fixed_part(8).unpack_sound(raw, self.order, None, offset, len(raw))
        if head.get("magic") != offcpu.EXTENSION_MAGIC:
            return
        yield f"  {offcpu.EXTENSION.name}"
        is_ours = head.get("version") == offcpu.EXTENSION_VERSION
        layout = offcpu.fixed_part(min(head["size"], offcpu.EXTENSION_SIZE) if is_ours else 8)
        yield from self._structure(layout, raw, offset, len(raw), indent="    ")

    def _other(self, kind: int, misc: int, record: bytes, evsel: int) -> Lines:
        shape = self.reader.events.specs[evsel].attr.sample_type if evsel >= 0 else None
        trailer = TRAILER.size(shape) if shape is not None else 0
        end = len(record) - trailer
        if end < HEADER_SIZE:
            problem = f"{len(record)} bytes, too short for its sample_id of {trailer}"
            yield from (f"  ! {problem}", *hex_lines(record[HEADER_SIZE:]))
            return
        yield from self._body(kind, misc, record, end)
        if trailer:
            values = TRAILER.unpack(record, self.order, shape, end)
            yield f"  {TRAILER.name}: {inline(TRAILER, values)}"

    def _body(self, kind: int, misc: int, record: bytes, end: int) -> Lines:
        layout = RECORD_LAYOUTS.get(kind)
        if kind == RecordType.HEADER_ATTR:
            yield from self._header_attr(record)
        elif kind == RecordType.HEADER_FEATURE:
            yield from self._header_feature(record)
        elif kind in COMPRESSED_TYPES:
            yield f"  data: {end - HEADER_SIZE} bytes, decompressed below"
        elif layout is None:
            yield from hex_lines(record[HEADER_SIZE:end])
        else:
            if kind == RecordType.CALLCHAIN_DEFERRED:  # of the posted form and the final one only one can fit
                v12 = CALLCHAIN_DEFERRED_V12
                _, stop, problem = v12.unpack_sound(record, self.order, None, HEADER_SIZE, end)
                layout = v12 if problem is None and HEADER_SIZE < stop == end - end % 8 else layout
            yield from self._structure(layout, record, HEADER_SIZE, end, Misc(misc))

    def _header_attr(self, record: bytes) -> Lines:
        try:
            attr = unpack_attr(record[HEADER_SIZE:], self.order)
        except LayoutError as problem:
            yield from (f"  ! {problem}", *hex_lines(record[HEADER_SIZE:]))
            return
        yield from field_lines(ATTR, attr._asdict())
        ids_at = min(HEADER_SIZE + attr.size, len(record))
        yield from self._structure(HEADER_ATTR_IDS, record, ids_at, len(record))

    def _header_feature(self, record: bytes) -> Lines:
        layout = RECORD_LAYOUTS[RecordType.HEADER_FEATURE]
        values, _, problem = layout.unpack_sound(record, self.order, None, HEADER_SIZE, len(record))
        if problem is not None:
            yield f"  ! {problem}"
            return
        bit = values["feat_id"]
        yield f"  feat_id: {bit} {_feature_name(bit)}"
        yield from self._feature(bit, values["data"])

    def _structure(
        self, layout: Layout, data: bytes, start: int, end: int, shape: Shape = None, indent: str = "  "
    ) -> Generator[str, None, dict[str, Any]]:
        """Yield lines of the fields of one structure and of the bytes after it, to `end`; return the values by name."""
        values, stop, problem = layout.unpack_sound(data, self.order, shape, start, end)
        yield from field_lines(layout, values, indent)
        if problem is not None:
            yield f"{indent}! {problem}"
        if stop < end:
            yield from (f"{indent}rest: {end - stop} bytes", *hex_lines(data[stop:end], indent + "  "))
        return values


def _event_lines(spec: EventSpec, indent: str = "  ") -> Lines:
    yield from (f"{indent}name: {encoded(spec.name)!r}", f"{indent}ids: {list(spec.ids)}")
    yield from field_lines(ATTR, spec.attr._asdict(), indent)


def _feature_name(bit: int) -> str:
    return Feature(bit).name if bit in Feature.__members__.values() else "unknown"
