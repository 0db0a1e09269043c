# SPDX-License-Identifier: Apache-2.0
"""A recording as a machine of the other byte order would have written it: all numbers turned, by layouts.

    (tmp_path / "big.data").write_bytes(big_endian("perf.data"))

File form in, file form out. Text and opaque bytes stay. What has no layout cannot be turned and is left out (the
features CPU_TOPOLOGY, MEM_TOPOLOGY, BPF_PROG_INFO, BPF_BTF). Raw data is the producer's: off-cpu payloads and our
counters are turned by their layouts, fields of tracepoints by their formats in TRACING_DATA, which is turned itself."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from perf_offcpu.abi import counters as counters_abi
from perf_offcpu.abi import offcpu
from perf_offcpu.abi.attr import PerfType
from perf_offcpu.abi.features import (
    FEATURE_BITS,
    FEATURE_LAYOUTS,
    FILE_HEADER,
    FILE_HEADER_SIZE,
    MAGIC,
    SECTION,
    Feature,
)
from perf_offcpu.abi.records import FIRST_USER_TYPE, RECORD_HEADER, RECORD_LAYOUTS, Misc, RecordType
from perf_offcpu.abi.sample import SAMPLE, TRAILER, SampleShape
from perf_offcpu.binary.layout import Layout
from perf_offcpu.losses import Losses
from perf_offcpu.perfdata.events import EventSpec, read_trailers
from perf_offcpu.perfdata.features import Features, build_id_body, event_desc_body
from perf_offcpu.perfdata.reader import PerfDataReader
from perf_offcpu.perfdata.scan import HEADER_SIZE, Chunk
from perf_offcpu.perfdata.tracing_data import MAGIC as TRACING_MAGIC
from perf_offcpu.perfdata.tracing_data import TracepointFormat, tracepoint_formats


def big_endian(path: str | Path) -> bytes:
    """The little-endian recording at `path`, turned."""
    with PerfDataReader.open(path) as reader:
        assert reader.order == "<"
        records = [record for chunk in reader.chunks() for record in _turned_records(chunk, reader)]
        return _file(reader.events.specs, b"".join(records), _turned_features(reader.features))


def _file(events: list[EventSpec], data: bytes, features: dict[int, bytes]) -> bytes:
    ids = b"".join(one.to_bytes(8, "big") for event in events for one in event.ids)
    attrs, at = b"", FILE_HEADER_SIZE
    for event in events:
        section = {"offset": at, "size": 8 * len(event.ids)}
        attrs += event.attr.pack(event.attr.size, ">") + SECTION.pack(section, ">")
        at += section["size"]
    bits = sorted(features)
    bitmap, data_at = sum(1 << bit for bit in bits), FILE_HEADER_SIZE + len(ids) + len(attrs)
    header = FILE_HEADER.pack({
        "magic": int.from_bytes(MAGIC, "little"), "size": FILE_HEADER_SIZE,
        "attr_size": events[0].attr.size + SECTION.size(), "event_types": {"offset": 0, "size": 0},
        "attrs": {"offset": FILE_HEADER_SIZE + len(ids), "size": len(attrs)},
        "data": {"offset": data_at, "size": len(data)},
        "features": [bitmap >> low & (1 << 64) - 1 for low in range(0, FEATURE_BITS, 64)],
    }, ">")  # fmt: skip
    table, body_at = b"", data_at + len(data) + len(bits) * SECTION.size()
    for bit in bits:
        table += SECTION.pack({"offset": body_at, "size": len(features[bit])}, ">")
        body_at += len(features[bit])
    return header + ids + attrs + data + table + b"".join(features[bit] for bit in bits)


def _turned_features(features: Features) -> dict[int, bytes]:
    turned = {}
    for bit, body in features.bodies.items():
        if bit == Feature.EVENT_DESC:
            turned[bit] = event_desc_body(features.event_specs(), ">")
        elif bit == Feature.BUILD_ID:
            turned[bit] = build_id_body(features.build_ids(), ">")
        elif bit == Feature.TRACING_DATA:
            turned[bit] = turned_tracing_data(body)
        elif bit in FEATURE_LAYOUTS and bit != Feature.COMPRESSED:
            turned[bit] = _turned(FEATURE_LAYOUTS[bit], body)
    return turned


def _turned(layout: Layout, data: bytes, shape: Any = None) -> bytes:
    return layout.pack(layout.unpack(data, "<", shape), ">", shape)


def _turned_records(chunk: Chunk, reader: PerfDataReader) -> Iterator[bytes]:
    rows = np.arange(len(chunk))
    trailers = read_trailers(chunk, rows, reader.events)
    samples, evsel = np.flatnonzero(chunk.types == RecordType.SAMPLE), np.full(len(chunk), -1)
    evsel[samples] = reader.events.of_samples(chunk, samples)
    formats = tracepoint_formats(reader.features.bodies.get(Feature.TRACING_DATA, b""), Losses())
    for row in rows.tolist():
        kind, misc = int(chunk.types[row]), int(chunk.miscs[row])
        record = bytes(chunk.record(row))
        if kind == RecordType.SAMPLE:
            payload = _turned_sample(record[HEADER_SIZE:], reader.events.specs[evsel[row]], formats)
        elif kind in RECORD_LAYOUTS:
            end = len(record) - int(trailers.size[row])
            owner = reader.events.specs[trailers.evsel[row]] if kind < FIRST_USER_TYPE else None
            payload = _turned_payload(kind, misc, record[HEADER_SIZE:end])
            if owner is not None:
                payload += _turned(TRAILER, record[end:], owner.attr.sample_type)
        else:
            continue
        assert len(payload) + HEADER_SIZE == len(record), RecordType(kind)
        yield RECORD_HEADER.pack({"type": kind, "misc": misc, "size": len(record)}, ">") + payload


def _turned_payload(kind: int, misc: int, payload: bytes) -> bytes:
    layout = RECORD_LAYOUTS[kind]
    turned = _turned(layout, payload, Misc(misc))
    # Names are padded as their producer liked; what else follows the known fields is u64 words.
    missing = payload[len(turned) :]
    if layout.fields and layout.fields[-1].name in ("filename", "comm", "name", "path"):
        return turned + bytes(len(missing))
    return turned + _turned_words(missing)


def _turned_words(data: bytes) -> bytes:
    return b"".join(data[at : at + 8][::-1] for at in range(0, len(data), 8))


def _turned_sample(payload: bytes, spec: EventSpec, formats: dict[int, TracepointFormat]) -> bytes:
    shape = SampleShape.of(spec.attr)
    values = SAMPLE.unpack(payload, "<", shape)
    if spec.name == offcpu.EVENT_NAME and "raw" in values:
        values["raw"] = _turned_offcpu(values["raw"])
    elif spec.name == counters_abi.EVENT_NAME:
        turned = _turned(counters_abi.COUNTERS, values["raw"])
        values["raw"] = turned + values["raw"][len(turned) :]
    elif spec.attr.type == PerfType.TRACEPOINT and "raw" in values:
        values["raw"] = turned_tracepoint(values["raw"], formats[spec.attr.config])
    return SAMPLE.pack(values, ">", shape)


def turned_tracepoint(raw: bytes, one: TracepointFormat) -> bytes:
    """The structure of a tracepoint, each number turned; arrays of bytes stay. A __data_loc leads to text."""
    data = bytearray(raw)
    for field in one.fields.values():
        if field.type is not None:
            data[field.offset : field.offset + field.size] = raw[field.offset : field.offset + field.size][::-1]
    return bytes(data)


def turned_tracing_data(body: bytes) -> bytes:
    """The container of formats as a machine of the other byte order writes it."""
    at = body.index(b"\0", len(TRACING_MAGIC)) + 1
    out = bytearray(body[:at])
    assert body[at : at + 1] == b"\0", "little-endian"

    def take(size: int) -> bytes:
        nonlocal at
        at += size
        return body[at - size : at]

    def number(size: int) -> int:
        data = take(size)
        out.extend(data[::-1])
        return int.from_bytes(data, "little")

    def text() -> None:
        out.extend(take(body.index(b"\0", at) + 1 - at))

    out += b"\1" + body[at + 1 : at + 2]
    at += 2
    number(4)  # page size
    for _ in range(2):  # header_page, header_event
        text()
        out.extend(take(number(8)))
    for _ in range(number(4)):
        out.extend(take(number(8)))
    for _ in range(number(4)):
        text()
        for _ in range(number(4)):
            out.extend(take(number(8)))
    for size in (4, 4, 8):  # kallsyms, printk formats, comms
        if at < len(body):
            out.extend(take(number(size)))
    return bytes(out)


def _turned_offcpu(raw: bytes) -> bytes:
    values, at = offcpu.PAYLOAD.unpack_from(raw, "<", None, 0, len(raw))
    turned = offcpu.PAYLOAD.pack(values, ">")
    if raw[at : at + 4] == offcpu.EXTENSION_MAGIC.to_bytes(4, "little"):
        turned += _turned(offcpu.EXTENSION, raw[at:])
    return turned + _turned_words(raw[len(turned) : -4]) + raw[-4:]  # the waker's callchain, padding
