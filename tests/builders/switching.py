# SPDX-License-Identifier: Apache-2.0
"""Recordings of the tracepoint sched_switch, as `perf record -e sched:sched_switch -g -a` writes them. Raw data is laid
out by a format text in the recording, of any age, word size and byte order."""

import struct
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from builders.recording import BASE

from perf_offcpu.abi.attr import Attr, AttrFlag, PerfType, SampleType
from perf_offcpu.abi.features import Feature
from perf_offcpu.abi.sample import SampleShape
from perf_offcpu.binary.columnar import offsets_of
from perf_offcpu.binary.layout import Order
from perf_offcpu.model.callchains import Ragged
from perf_offcpu.perfdata.events import EventSpec
from perf_offcpu.perfdata.features import event_desc_body
from perf_offcpu.perfdata.tracing_data import parse_format
from perf_offcpu.perfdata.write.columns import pack_samples
from perf_offcpu.perfdata.write.writer import FileWriter

ID = 310
SAMPLE_TYPE = BASE | SampleType.CALLCHAIN | SampleType.RAW

FORMATS = Path(__file__).resolve().parents[1] / "data" / "formats"
FORMAT = (FORMATS / "sched_switch.txt").read_text()
"""As since 4.14 on 64-bit machines."""


@dataclass
class SwitchTable:
    """n rows of sched_switch; `prev_state` as the kernel writes it."""

    time_ns: Any
    cpu: Any
    prev_pid: Any
    next_pid: Any
    prev_state: Any
    chains: Ragged = field(default_factory=Ragged)
    """A row each, or none at all."""

    def __len__(self) -> int:
        return len(self.time_ns)

    @classmethod
    def of(cls, columns: Iterable[Any], chains: Ragged) -> "SwitchTable":
        """Make a table of its columns, in their order, and callchains."""
        time_ns, cpu, prev_pid, next_pid, prev_state = (np.asarray(column) for column in columns)
        return cls(time_ns, cpu, prev_pid, next_pid, prev_state, chains)

    def part(self, rows: slice) -> "SwitchTable":
        columns = (self.time_ns, self.cpu, self.prev_pid, self.next_pid, self.prev_state)
        chains = self.chains.take(np.arange(len(self))[rows]) if len(self.chains) else self.chains
        return SwitchTable.of([np.asarray(values)[rows] for values in columns], chains)


def tracing_data(order: Order, *systems: tuple[str, list[str]]) -> bytes:
    """TRACING_DATA as perf writes it: format texts by system, page headers, an event of ftrace's own."""

    def count(number: int) -> bytes:
        return struct.pack(f"{order}I", number)

    def file(data: bytes) -> bytes:
        return struct.pack(f"{order}Q", len(data)) + data

    body = b"\x17\x08Dtracing" + b"0.6\0" + bytes([order == ">", 8]) + count(4096)
    body += b"header_page\0" + file(b"page") + b"header_event\0" + file(b"event")
    body += count(1) + file(b"name: function\nID: 1\nformat:\n") + count(len(systems))
    for name, texts in systems:
        body += name.encode() + b"\0" + count(len(texts)) + b"".join(file(text.encode()) for text in texts)
    return body + count(4) + b"syms" + count(0) + struct.pack(f"{order}Q", 0)


def write_switches(
    path: Path, table: SwitchTable, *, order: Order = "<", text: str = FORMAT, events: int = 1, piece: int = 50_000
) -> None:
    """Write a recording of one evsel, or of several that are the same; rows stay in their order."""
    attr = Attr(
        type=PerfType.TRACEPOINT, config=ID, sample_period=1, sample_type=SAMPLE_TYPE, flags=AttrFlag.SAMPLE_ID_ALL
    )
    specs = [EventSpec(attr, "sched:sched_switch", (number + 1,)) for number in range(events)]
    with path.open("w+b") as file:
        writer = FileWriter(file.fileno(), specs, str(path), order)
        for begin in range(0, len(table), piece):
            for spec in specs:
                writer.append(_records(table.part(slice(begin, begin + piece)), text, order, spec.ids[0]))
        body = tracing_data(order, ("sched", [text]))
        writer.finish({Feature.TRACING_DATA: body, Feature.EVENT_DESC: event_desc_body(specs, order)})


def _records(rows: SwitchTable, text: str, order: Order, event_id: int) -> bytes:
    chains = rows.chains if len(rows.chains) else Ragged(np.zeros(len(rows) + 1, np.int64))
    columns = {
        "identifier": event_id, "ip": 0, "pid": rows.prev_pid, "tid": rows.prev_pid, "time": rows.time_ns,
        "cpu": rows.cpu, "cpu_res": 0, "period": 1, "callchain": (chains.offsets, chains.values),
        "raw": _raw(rows, text, order),
    }  # fmt: skip
    return pack_samples(SampleShape(SAMPLE_TYPE), 1, columns, len(rows), order)


def _raw(rows: SwitchTable, text: str, order: Order) -> tuple[np.ndarray, np.ndarray]:
    """(offsets, bytes): the structures, padded to 4 mod 8 bytes as the kernel does."""
    described = parse_format("sched", text)
    assert described is not None
    end = max(place.offset + place.size for place in described.fields.values())
    size = end + (4 - end) % 8
    data = np.zeros((len(rows), size), np.uint8)
    for name in ("prev_pid", "next_pid", "prev_state"):
        place = described.fields.get(name)
        if place is None or place.type is None:
            continue
        values = np.asarray(getattr(rows, name)).astype(place.type.dtype(order))
        data[:, place.offset : place.offset + place.size] = values[:, None].view(np.uint8)
    return offsets_of(np.full(len(rows), size)), data.reshape(-1)
