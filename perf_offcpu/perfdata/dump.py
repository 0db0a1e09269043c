# SPDX-License-Identifier: Apache-2.0
"""Print a recording as text: every byte that has a meaning, in the order of the file.

    0x368 [0x30]: PERF_RECORD_COMM misc 0x2000 (COMM_EXEC)
      pid: 9016
      tid: 9016
      comm: b'ls'
      sample_id: {pid: 9016, tid: 9016, time: 4323278205115, cpu: 0, cpu_res: 0, identifier: 4094}

The layouts have the fields and their order. This module adds how some of them look: numbers in hex, flags and enums,
bytes that are a name. Names are shown as Python writes bytes (`b'blo\\x1bcker'`): exact and harmless to a terminal.

It resembles `perf script -D`, reads files that perf refuses, too, and does not re-type, merge, order or repair
anything. A record that does not fit its layout is shown as far as it does, with a line that begins with `!`. Offsets
are those of the file; records out of compressed ones are marked `zstd`, with offsets in the decompressed stream."""

import enum
from collections import Counter
from collections.abc import Generator, Iterator, Mapping
from typing import Any

import numpy as np

from perf_offcpu.abi import counters, offcpu
from perf_offcpu.abi.attr import ATTR, AttrFlag, ReadFormat, SampleType, unpack_attr
from perf_offcpu.abi.features import FEATURE_LAYOUTS, FILE_HEADER, FILE_HEADER_SIZE, FILE_HEADER_SIZE_OLD, Feature
from perf_offcpu.abi.records import CALLCHAIN_DEFERRED_V12, HEADER_ATTR_IDS, RECORD_LAYOUTS, CpuMode, Misc, RecordType
from perf_offcpu.abi.sample import SAMPLE, TRAILER, CallchainContext
from perf_offcpu.binary.layout import U32, U64, Field, Layout, Shape, Special
from perf_offcpu.errors import LayoutError
from perf_offcpu.losses import LossCause, Losses, by_text
from perf_offcpu.perfdata.events import UNKNOWN, EventSpec, owners_of
from perf_offcpu.perfdata.features import Features, encoded
from perf_offcpu.perfdata.reader import COMPRESSED_TYPES, PerfDataReader
from perf_offcpu.perfdata.scan import HEADER_SIZE, Chunk

Lines = Iterator[str]
_HEX = frozenset((
    "addr", "branch_sample_type", "callchain", "config", "config1", "config2", "config3", "config4",
    "cookie", "data_src", "features", "flags", "from", "hw_id", "ip", "ips", "len", "magic", "pgoff",
    "phys_addr", "priv", "prot", "regs_intr", "regs_user", "sample_regs_intr", "sample_regs_user",
    "sig_data", "state", "to", "transaction",
))  # fmt: skip
"""Numbers that are shown in hex; all others are decimal."""

_NAMES = frozenset({"comm", "key", "msg", "name", "prog_name", "value"})  # arrays of bytes that are a NUL-padded text
_ADDRESSES = frozenset({"callchain", "ips"})  # arrays of addresses and context markers

_ENUMS: dict[tuple[str, str], type[enum.IntEnum | enum.IntFlag]] = {
    (ATTR.name, "sample_type"): SampleType,
    (ATTR.name, "read_format"): ReadFormat,
    (ATTR.name, "flags"): AttrFlag,
    (offcpu.EXTENSION.name, "kind"): offcpu.Kind,
    (offcpu.EXTENSION.name, "flags"): offcpu.WaitFlag,
    (offcpu.EXTENSION.name, "lost"): offcpu.Lost,
}

_MAP_BITS = ("PROC_MAP_PARSE_TIMEOUT", "MMAP_DATA")
_SWITCH_BITS = ("SWITCH_OUT", "SWITCH_OUT_PREEMPT")
_MISC_BITS: dict[int, tuple[str, ...]] = {
    RecordType.MMAP: _MAP_BITS,
    RecordType.MMAP2: (*_MAP_BITS, "MMAP_BUILD_ID"),
    RecordType.COMM: ("COMM_EXEC",),
    RecordType.FORK: ("FORK_EXEC",),
    RecordType.SWITCH: _SWITCH_BITS,
    RecordType.SWITCH_CPU_WIDE: _SWITCH_BITS,
    RecordType.SAMPLE: ("EXACT_IP",),
    RecordType.LOST_SAMPLES: ("LOST_SAMPLES_BPF",),
    RecordType.HEADER_BUILD_ID: ("BUILD_ID_SIZE",),
}
"""Members of Misc that a type of record can have: bits 12 to 15 mean different things by type."""

_INLINE_BYTES = 24
_BYTES_A_LINE = 16


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
        """Yield all lines about the recording, as `dump`."""
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
        yield from _field_lines(FILE_HEADER, values)

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
            yield from _hex_lines(body)

    # Records.

    def _records(self, chunk: Chunk) -> Lines:
        samples = (chunk.types == RecordType.SAMPLE).nonzero()[0]
        evsels = owners_of(chunk, np.arange(len(chunk)), self.reader.events)
        evsels[evsels == UNKNOWN] = 0  # laid out most likely as the first event's
        evsels[samples] = self.reader.events.of_samples(chunk, samples)
        columns = (chunk.starts, chunk.types, chunk.miscs, evsels)
        origin = f"{chunk.origin} " if chunk.origin else ""
        for row, (start, kind, misc, evsel) in enumerate(zip(*(column.tolist() for column in columns), strict=True)):
            record, name = bytes(chunk.record(row)), _record_name(kind)
            self.types[name] += 1
            place = f"{origin}{chunk.file_offset + start:#x} [{len(record):#x}]"
            yield f"{place}: {name} misc {_describe_misc(kind, misc)}"
            if kind == RecordType.SAMPLE:
                yield from self._sample(record, evsel)
            else:
                yield from self._other(kind, misc, record, evsel)

    def _sample(self, record: bytes, evsel: int) -> Lines:
        if evsel < 0:
            yield from ("  ! its id belongs to no event", *_hex_lines(record[HEADER_SIZE:]))
            return
        spec = self.reader.events.specs[evsel]
        yield f"  event: {evsel} {encoded(spec.name)!r}"
        values = yield from self._structure(SAMPLE, record, HEADER_SIZE, len(record), spec.shape)
        if "raw" in values:
            yield from self._payload(spec, values["raw"])

    def _payload(self, spec: EventSpec, raw: bytes) -> Lines:
        """Yield lines for the raw bytes of a sample of off-cpu time (upstream's, too) or of the recorder's own."""
        if spec.name in (counters.EVENT_NAME, counters.TASK_EVENT):
            layout = counters.payload_layout(raw, self.order)
            yield f"  {layout.name}"
            yield from self._structure(layout, raw, 0, len(raw), indent="    ")
        elif spec.name == offcpu.EVENT_NAME:
            yield f"  {offcpu.PAYLOAD.name}"
            values, stop, problem = offcpu.PAYLOAD.unpack_sound(raw, self.order, None, 0, len(raw))
            yield from _field_lines(offcpu.PAYLOAD, values, "    ")
            if problem is not None:
                yield f"    ! {problem}"
            else:
                yield from self._extension(raw, stop)

    def _extension(self, raw: bytes, offset: int) -> Lines:
        """Yield lines for the fixed part of the extension at byte `offset` of an off-cpu payload, then for its rest."""
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
            yield from (f"  ! {problem}", *_hex_lines(record[HEADER_SIZE:]))
            return
        yield from self._body(kind, misc, record, end)
        if trailer:
            values = TRAILER.unpack(record, self.order, shape, end)
            yield f"  {TRAILER.name}: {_inline(TRAILER, values)}"

    def _body(self, kind: int, misc: int, record: bytes, end: int) -> Lines:
        layout = RECORD_LAYOUTS.get(kind)
        if kind == RecordType.HEADER_ATTR:
            yield from self._header_attr(record)
        elif kind == RecordType.HEADER_FEATURE:
            yield from self._header_feature(record)
        elif kind in COMPRESSED_TYPES:
            yield f"  data: {end - HEADER_SIZE} bytes, decompressed below"
        elif layout is None:
            yield from _hex_lines(record[HEADER_SIZE:end])
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
            yield from (f"  ! {problem}", *_hex_lines(record[HEADER_SIZE:]))
            return
        yield from _field_lines(ATTR, attr._asdict())
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
        """Yield lines for the fields of one structure, and for the bytes after it up to `end`; return name → value."""
        values, stop, problem = layout.unpack_sound(data, self.order, shape, start, end)
        yield from _field_lines(layout, values, indent)
        if problem is not None:
            yield f"{indent}! {problem}"
        if stop < end:
            yield from (f"{indent}rest: {end - stop} bytes", *_hex_lines(data[stop:end], indent + "  "))
        return values


def _event_lines(spec: EventSpec, indent: str = "  ") -> Lines:
    yield from (f"{indent}name: {encoded(spec.name)!r}", f"{indent}ids: {list(spec.ids)}")
    yield from _field_lines(ATTR, spec.attr._asdict(), indent)


def _feature_name(bit: int) -> str:
    return Feature(bit).name if bit in Feature.__members__.values() else "unknown"


def _record_name(kind: int) -> str:
    """Return the name of a type of records as perf prints it, `PERF_RECORD_COMM`; unknown types by number."""
    has_name = kind in RecordType.__members__.values()
    return f"PERF_RECORD_{RecordType(kind).name}" if has_name else f"record of unknown type {kind}"


def _describe_misc(kind: int, misc: int) -> str:
    """Return the misc of a record header in hex, with names of its cpumode and of the bits that its type can have."""
    mode = misc & Misc.CPUMODE_MASK
    words = [CpuMode(mode).name] if 0 < mode <= max(CpuMode) else []
    words += [name for name in _MISC_BITS.get(kind, ()) if misc & Misc[name]]
    return f"{misc:#x} ({', '.join(words)})" if words else f"{misc:#x}"


def _field_lines(layout: Layout, values: Mapping[str, Any], indent: str = "  ") -> Lines:
    """Yield a line for each field, in wire order; more for arrays of structures, addresses, and many bytes. `values`
    are as `Layout.unpack` returns them; missing fields are left out."""
    for field in layout.fields:
        if field.name not in values:
            continue
        value = values[field.name]
        is_blob = field.type is Special.BYTE and field.name not in _NAMES
        if is_blob and len(value) > _INLINE_BYTES:
            yield f"{indent}{field.name}: {len(value)} bytes"
            yield from _hex_lines(value, indent + "  ")
        elif isinstance(value, list) and (field.name in _ADDRESSES or isinstance(field.type, Layout)):
            for number, item in enumerate(value):
                yield f"{indent}{field.name}[{number}]: {_item(layout, field, item)}"
        else:
            yield f"{indent}{field.name}: {_text(layout, field, value)}"


def _inline(layout: Layout, values: Mapping[str, Any]) -> str:
    """Return all fields on one line: `{pid: 126, tid: 126}`."""
    fields = [field for field in layout.fields if field.name in values]
    return "{" + ", ".join(f"{field.name}: {_text(layout, field, values[field.name])}" for field in fields) + "}"


def _hex_lines(data: bytes, indent: str = "    ") -> Lines:
    """Yield bytes in hex and ASCII, 16 a line, as perf prints raw events."""
    for index in range(0, len(data), _BYTES_A_LINE):
        line = data[index : index + _BYTES_A_LINE]
        text = "".join(chr(byte) if 0x20 <= byte < 0x7F else "." for byte in line)
        yield f"{indent}{index:04x}:  {line.hex(' '):<47}  {text}"


def _address(word: int) -> str:
    """Return a word of a callchain in hex; context markers with their name."""
    if word in CallchainContext.__members__.values():
        return f"{word:#x} PERF_CONTEXT_{CallchainContext(word).name}"
    return f"{word:#x}"


def _text(layout: Layout, field: Field, value: Any) -> str:
    if isinstance(value, bytes) and (field.type is not Special.BYTE or field.name in _NAMES):
        return repr(value.rstrip(b"\0"))
    if isinstance(value, bytes):
        return value.hex() or "none"
    if isinstance(value, list):
        return "[" + ", ".join(_item(layout, field, item) for item in value) + "]"
    return _item(layout, field, value)


def _item(layout: Layout, field: Field, value: Any) -> str:
    if isinstance(field.type, Layout):
        return _inline(field.type, value)
    if field.name in _ADDRESSES:
        return _address(value)
    if meaning := _ENUMS.get((layout.name, field.name)):
        return _enum(meaning, value)
    if field.name in _HEX:
        return f"{value:#x}"
    # All bits set are "none", also where the header says unsigned.
    is_none = (field.type, value) in ((U32, 2**32 - 1), (U64, 2**64 - 1))
    return "-1" if is_none else str(value)


def _enum(meaning: type[enum.IntEnum | enum.IntFlag], value: int) -> str:
    is_flag = issubclass(meaning, enum.IntFlag)
    names = [str(member.name) for member in meaning if (value & member if is_flag else value == member)]
    return f"{int(value):#x} {'|'.join(names)}".rstrip() if is_flag else f"{int(value)} {''.join(names)}".rstrip()
