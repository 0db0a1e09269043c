# SPDX-License-Identifier: Apache-2.0
"""Text for the values of any layout, as `perf-offcpu dump` prints them. The layouts have the fields and their order.
This module adds how some of them look: numbers in hex, flags and enums, bytes that are a name. Names are shown as
Python writes bytes (`b'blo\\x1bcker'`): exact, on one line, harmless to a terminal."""

import enum
from collections.abc import Iterator, Mapping
from typing import Any

from perf_offcpu.abi import offcpu
from perf_offcpu.abi.attr import ATTR, AttrFlag, ReadFormat, SampleType
from perf_offcpu.abi.records import CpuMode, Misc, RecordType
from perf_offcpu.abi.sample import CallchainContext
from perf_offcpu.binary.fields import U32, U64, Field, Special
from perf_offcpu.binary.layout import Layout

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


def record_name(kind: int) -> str:
    """Return `PERF_RECORD_COMM`, as perf prints it; unknown types by number."""
    has_name = kind in RecordType.__members__.values()
    return f"PERF_RECORD_{RecordType(kind).name}" if has_name else f"record of unknown type {kind}"


def describe_misc(kind: int, misc: int) -> str:
    """Return the misc of a record header in hex, with names of its cpumode and of the bits that its type can have."""
    mode = misc & Misc.CPUMODE_MASK
    words = [CpuMode(mode).name] if 0 < mode <= max(CpuMode) else []
    words += [name for name in _MISC_BITS.get(kind, ()) if misc & Misc[name]]
    return f"{misc:#x} ({', '.join(words)})" if words else f"{misc:#x}"


def field_lines(layout: Layout, values: Mapping[str, Any], indent: str = "  ") -> Iterator[str]:
    """Yield a line for each field, in wire order; more for arrays of structures, addresses, and many bytes. `values`
    are as `Layout.unpack` returns them; missing fields are left out."""
    for field in layout.fields:
        if field.name not in values:
            continue
        value = values[field.name]
        is_blob = field.type is Special.BYTE and field.name not in _NAMES
        if is_blob and len(value) > _INLINE_BYTES:
            yield f"{indent}{field.name}: {len(value)} bytes"
            yield from hex_lines(value, indent + "  ")
        elif isinstance(value, list) and (field.name in _ADDRESSES or isinstance(field.type, Layout)):
            for number, item in enumerate(value):
                yield f"{indent}{field.name}[{number}]: {_item(layout, field, item)}"
        else:
            yield f"{indent}{field.name}: {_text(layout, field, value)}"


def inline(layout: Layout, values: Mapping[str, Any]) -> str:
    """Return all fields on one line: `{pid: 126, tid: 126}`."""
    fields = [field for field in layout.fields if field.name in values]
    return "{" + ", ".join(f"{field.name}: {_text(layout, field, values[field.name])}" for field in fields) + "}"


def hex_lines(data: bytes, indent: str = "    ") -> Iterator[str]:
    """Yield bytes in hex and ASCII, 16 a line, as perf prints raw events."""
    for index in range(0, len(data), _BYTES_A_LINE):
        line = data[index : index + _BYTES_A_LINE]
        text = "".join(chr(byte) if 0x20 <= byte < 0x7F else "." for byte in line)
        yield f"{indent}{index:04x}:  {line.hex(' '):<47}  {text}"


def address(word: int) -> str:
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
        return inline(field.type, value)
    if field.name in _ADDRESSES:
        return address(value)
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
