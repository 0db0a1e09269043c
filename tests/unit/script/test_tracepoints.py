# SPDX-License-Identifier: Apache-2.0
"""What tracepoints say, by recipes of the kernel's. tests/kernel/test_script_as_perf.py has real ones."""

from __future__ import annotations

import struct
from typing import Literal

import pytest

from perf_offcpu.perfdata.tracing_data import TracingData, parse_format
from perf_offcpu.script.tracepoints.parse import NotUnderstood, parse_print_fmt
from perf_offcpu.script.tracepoints.text import FAILED, kernel_addresses, reader_of, remembered, text_maker

FIELDS = """name: made_up
ID: 7
format:
\tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;
\tfield:int code;\toffset:4;\tsize:4;\tsigned:1;
\tfield:unsigned long flags;\toffset:8;\tsize:8;\tsigned:0;
\tfield:char comm[8];\toffset:16;\tsize:8;\tsigned:0;
\tfield:__data_loc char[] name;\toffset:24;\tsize:4;\tsigned:0;
\tfield:u8 addr[4];\toffset:28;\tsize:4;\tsigned:0;
\tfield:unsigned int list[2];\toffset:32;\tsize:8;\tsigned:0;
\tfield:void * function;\toffset:40;\tsize:8;\tsigned:0;
\tfield:const char * text;\toffset:48;\tsize:8;\tsigned:0;

print fmt: """
FUNCTION, STRING = 0xFFFFFFFF81000120, 0xFFFFFFFF82000000


def shown(recipe: str, order: Literal["<", ">"] = "<", code: int = -2, flags: int = 5) -> str:
    """The text of one record by a recipe."""
    event = parse_format("test", FIELDS + recipe)
    assert event is not None
    record = struct.pack(
        f"{order}HHiQ8sI4sIIQQ", 7, 0, code, flags, b"a b\0junk", 5 << 16 | 56,
        bytes([127, 0, 0, 1]), 10, 11, FUNCTION, STRING,
    ) + b"file\0"  # fmt: skip
    tracing = TracingData(order=order, formats={7: event}, strings={STRING: "Start tick"})
    names = {FUNCTION: ("schedule", 0x20)}
    return text_maker(reader_of(tracing, event), names.get)(record)


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize(
    ("recipe", "text"),
    [
        ('"code=%d", REC->code', "code=-2"),
        ('"%u %x %lu", REC->code, REC->code, REC->code', "4294967294 fffffffe 4294967294"),
        ('"%5d|%-5d|%05d|%+d", REC->flags, REC->flags, REC->flags, REC->flags', "    5|5    |00005|+5"),
        ('"%#x %#x", REC->flags, 0', "0x5 0"),
        ('"%c%%", 65', "A%"),
        ('"%s/%.2s/%6s", REC->comm, __get_str(name), __get_str(name)', "a b/fi/  file"),
        ('"%*d", 4, REC->flags', "   5"),
        ('"%s", __print_flags(REC->flags, "|", { 1, "A" }, { 2, "B" }, { (1UL << 2), "C" })', "A|C"),
        ('"%s", __print_flags(REC->flags, "", { 1, "A" })', "A0x4"),
        ('"%s", __print_symbolic(REC->flags, { 1, "ONE" }, { 5, "FI" "VE" })', "FIVE"),
        ('"%s", __print_symbolic(REC->flags, { SOME_ENUM, "ONE" })', "0x5"),
        ('"%s", REC->flags & 1 ? "odd" : "even"', "odd"),
        ('"%d", ((int)(REC->flags) + 3) * 2 - 16 / 4 % 3', "15"),
        ('"%d", REC->flags > 4 && !(REC->flags == 6) || 0', "1"),
        ('"%llu", (unsigned long long)((u8)0x1ff)', "255"),
        ('"%u %u", REC->list[0], REC->list[1]', "10 11"),
        ('"%s", __print_array(REC->list, 2, 4)', "10 11"),
        ('"%s", __print_hex(REC->addr, 3)', "7f 00 00"),
        ('"%pI4", REC->addr', "127.0.0.1"),
        ('"%ps %pS %p", REC->function, (void *)REC->function, REC->function',
         "schedule schedule+0x20 0xffffffff81000120"),
        ('"%s", REC->text', "Start tick"),
        ('"%d", __get_dynamic_array_len(name)', "5"),
    ],
)  # fmt: skip
def test_recipes(recipe: str, text: str, order: Literal["<", ">"]) -> None:
    assert shown(recipe, order) == text


@pytest.mark.parametrize(
    "recipe",
    [
        "",
        "nonsense",
        '"%d"',
        '"%d", REC->nothing',
        '"%s", jiffies_to_msecs(REC->flags)',
        '"%999999999d", REC->code',
        '"%n", REC->code',
        '"%d", ' + "(" * 5000 + "1" + ")" * 5000,
        '"%d", ' + "~" * 5000 + "1",
        '"%d", 1 ' + "+ 1" * 100_000,
        '"unfinished',
    ],
)
def test_what_cannot_be_followed_is_shown_field_by_field(recipe: str) -> None:
    """As perf does; nothing is raised, and nothing takes long."""
    assert shown(recipe) == (
        f"{FAILED} code=-2 flags=0x5 comm=a b name=file addr=ARRAY[7f, 00, 00, 01] "
        f"list=ARRAY[{', '.join(f'{byte:02x}' for byte in struct.pack('<II', 10, 11))}] "
        f"function=0x{FUNCTION:x} text=0x{STRING:x}"
    )


def test_records_that_are_too_short_and_hostile_widths() -> None:
    event = parse_format(
        "test", FIELDS + '"%*d %s %s %u", REC->code, 1, REC->comm, __get_str(name), REC->list[1]'
    )
    assert event is not None
    make = text_maker(reader_of(TracingData(), event), lambda _: None)
    assert make(b"") == "1   0"
    assert len(make(bytes(4) + b"\xff\xff\xff\x7f")) < 5000


def test_addresses_to_look_up() -> None:
    event = parse_format("test", FIELDS + '"%d %pS", REC->code, REC->function')
    assert event is not None
    (make,) = kernel_addresses(reader_of(TracingData(), event))
    assert make(bytes(40) + FUNCTION.to_bytes(8, "little")) == FUNCTION


def test_the_shape_of_what_is_not_understood() -> None:
    with pytest.raises(NotUnderstood):
        parse_print_fmt("REC->x")
    template, arguments = parse_print_fmt('"a\\n" "b\\x41", (REC->x)')
    assert template == "a\nbA" and [node.kind for node in arguments] == ["field"]


@pytest.mark.parametrize(
    ("recipe", "records", "made"),
    [
        ('"%d", REC->code', [(1, 5), (2, 5), (1, 6)], 2),  # what is in front of an event's own fields
        ('"%d/%d", REC->code, REC->common_type', [(1, 5), (2, 5), (1, 6)], 3),
        ('"%d", REC->code', [(code % 7, code) for code in range(50)], 7),
    ],
)
def test_a_text_is_made_once_for_what_says_the_same(
    recipe: str, records: list[tuple[int, int]], made: int
) -> None:
    event = parse_format("test", FIELDS + recipe)
    assert event is not None
    plain = text_maker(reader_of(TracingData(order="<", formats={7: event}), event), lambda _: None)
    calls: list[bytes] = []

    def counted(data: bytes) -> str:
        calls.append(data)
        return plain(data)

    data = [struct.pack("<HHiQ", common, 0, code, 0) + bytes(40) for code, common in records]
    make = remembered(counted, event)
    assert [make(one) for one in data] == [plain(one) for one in data]
    assert len(calls) == made
