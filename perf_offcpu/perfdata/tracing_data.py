# SPDX-License-Identifier: Apache-2.0
"""Read and write the feature TRACING_DATA: the layouts of the recorded kernel's tracepoints.

A tracepoint's raw data is a C structure that differs between kernels, architectures and configurations, so perf
stores the kernel's description: the files events/SYSTEM/NAME/format of tracefs at that time. They lie in a container
of trace-cmd (trace.dat(5)), written by tools/perf/util/trace-event-info.c. Numbers are in the byte order that the
container names, texts are those of the kernel:

    23 8 68 "tracing" | version, NUL | u8 big-endian, u8 long size, u32 page size
    "header_page", NUL, file | "header_event", NUL, file
    u32 n, n × file                                          ftrace's own events
    u32 systems × { name, NUL | u32 events, events × file }  the formats
    u32 size, symbols (perf writes none) | u32 size, printk formats | u64 size, comms: not read here

where a file is {u64 size, bytes}. Pipes carry the same bytes after a HEADER_TRACING_DATA record."""

import mmap
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from perf_offcpu import losses
from perf_offcpu.binary.layout import BYTE, U8, U32, U64, Field, Int, Layout, Order
from perf_offcpu.errors import LayoutError
from perf_offcpu.losses import Losses

MAGIC = b"\x17\x08Dtracing"
_VERSION = b"0.6\0"
MACHINE = Layout(
    "tracing data machine",
    ("big_endian long_size", U8),
    ("page_size", U32),
    source="tools/perf/util/trace-event-info.c: tracing_data_header()",
)
COUNT = Layout("tracing data count", ("count", U32))
FILE = Layout("tracing data file", ("size", U64), Field("data", BYTE, count="size"))

# No pattern repeats without bound in two places: a hostile text takes linear time.
_ID = re.compile(r"^ID: (\d{1,9})$", re.MULTILINE)
_NAME = re.compile(r"^name: (\S{1,200})$", re.MULTILINE)
_FIELD = re.compile(
    # field:pid_t prev_pid;	offset:24;	size:4;	signed:1;
    r"^\tfield:(?P<declaration>[^;\n]{1,200});\toffset:(?P<offset>\d{1,9});\tsize:(?P<size>\d{1,9});"
    r"(?:\tsigned:(?P<signed>[01]);)?",
    re.MULTILINE,
)
_DECLARED = re.compile(r"(\w+)(?:\[[^\]]*\])?$")
_PRINT_FMT = re.compile(r"^print fmt:(.*)", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class TracepointField:
    """Describes a field of a tracepoint's raw data: `size` bytes at `offset`."""

    offset: int
    size: int
    signed: bool = False

    @property
    def type(self) -> Int | None:
        """Return the integer type of the field; None for a comm or another array."""
        return Int(self.size, self.signed) if self.size in (1, 2, 4, 8) else None


@dataclass(frozen=True, slots=True)
class TracepointFormat:
    """Describes a tracepoint as its format file in tracefs does."""

    system: str
    name: str
    id: int  # attr.config of its events
    fields: dict[str, TracepointField] = field(default_factory=dict)
    print_fmt: str = ""  # the kernel's format for a line of text, in C; the only place with names of flags


def tracepoint_formats(body: bytes, counters: Losses) -> dict[int, TracepointFormat]:
    """Return id (attr.config) → tracepoint of the body of TRACING_DATA (b"": none); damage is counted and ends it."""
    formats: dict[int, TracepointFormat] = {}
    try:
        if body:
            _read(_Cursor(body), formats)
    except LayoutError:
        counters.add(losses.BAD_FEATURE)
    return formats


def parse_format(system: str, text: str) -> TracepointFormat | None:
    """Parse a `format` file of tracefs; None if it names no event."""
    name, number = _NAME.search(text), _ID.search(text)
    if name is None or number is None:
        return None
    fields = {
        declared[1]: TracepointField(int(match["offset"]), int(match["size"]), match["signed"] == "1")
        for match in _FIELD.finditer(text)
        if (declared := _DECLARED.search(match["declaration"]))
    }
    print_fmt = _PRINT_FMT.search(text)
    return TracepointFormat(system, name[1], int(number[1]), fields, print_fmt[1].strip() if print_fmt else "")


class _Cursor:
    """Reads the parts of a TRACING_DATA body in order; raises LayoutError where the body ends too early."""

    def __init__(self, body: bytes) -> None:
        self.body, self.at = body, 0
        self.order: Order = "<"

    def read(self, layout: Layout) -> dict[str, Any]:
        values, self.at = layout.unpack_from(self.body, self.order, None, self.at, len(self.body))
        return values

    def repeated(self) -> range:
        return range(self.read(COUNT)["count"])

    def file(self) -> bytes:
        data: bytes = self.read(FILE)["data"]
        return data

    def text(self) -> str:
        end = self.body.find(b"\0", self.at)
        if end < 0:
            raise LayoutError(f"tracing data: text at {self.at} does not end")
        begin, self.at = self.at, end + 1
        return self.body[begin:end].decode("latin-1")

    def expect(self, literal: bytes) -> None:
        read = self.body[self.at : self.at + len(literal)]
        if read != literal:
            raise LayoutError(f"tracing data: {read!r} at {self.at}, expected {literal!r}")
        self.at += len(literal)


def _read(cursor: _Cursor, formats: dict[int, TracepointFormat]) -> None:
    cursor.expect(MAGIC)
    cursor.text()  # version
    cursor.order = ">" if cursor.body[cursor.at : cursor.at + 1] == b"\1" else "<"
    cursor.read(MACHINE)
    for name in (b"header_page\0", b"header_event\0"):
        cursor.expect(name)
        cursor.file()
    for _ in cursor.repeated():
        cursor.file()
    for _ in cursor.repeated():
        system = cursor.text()
        for _ in cursor.repeated():
            format_read = parse_format(system, cursor.file().decode("latin-1"))
            if format_read is not None:
                formats.setdefault(format_read.id, format_read)


def tracing_data_body(headers: tuple[bytes, bytes], systems: Mapping[bytes, Sequence[bytes]], order: Order) -> bytes:
    """Return the body of TRACING_DATA for a machine with 8-byte longs. `headers`: contents of events/header_page and
    events/header_event in tracefs. `systems`: name of a system → contents of its tracepoints' `format` files."""
    machine = {"big_endian": int(order == ">"), "long_size": 8, "page_size": mmap.PAGESIZE}
    parts = [MAGIC, _VERSION, MACHINE.pack(machine, order)]
    for name, header in zip((b"header_page\0", b"header_event\0"), headers, strict=True):
        parts += [name, _file(header, order)]
    parts += [_count(0, order), _count(len(systems), order)]  # none of ftrace's own events
    for system, formats in systems.items():
        parts += [system + b"\0", _count(len(formats), order)]
        parts += [_file(text, order) for text in formats]
    # No symbols, printk formats and comms: maps, build-ids and COMM records say more.
    return b"".join([*parts, _count(0, order), _count(0, order), _file(b"", order)])


def _count(number: int, order: Order) -> bytes:
    return COUNT.pack({"count": number}, order)


def _file(data: bytes, order: Order) -> bytes:
    return FILE.pack({"size": len(data), "data": data}, order)
