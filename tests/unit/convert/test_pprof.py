# SPDX-License-Identifier: Apache-2.0
"""Encoders of columns, to protobuf and JSON, against plain ones; pprof files, read with the published messages."""

import gzip
import json
import shutil
import subprocess
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders.converted import converted_bytes
from builders.large import large_profile
from builders.profile import Code, ProfileBuilder, kernel
from builders.push.published import classes, parse
from builders.push.rules import Profile as PublishedProfile
from hypothesis import given
from hypothesis import strategies as st

from perf_offcpu.convert.encode import protobuf as pb
from perf_offcpu.convert.encode.text_columns import array_items
from perf_offcpu.model.profile import Profile
from perf_offcpu.model.recording import SampleFlag


@dataclass
class Sample:
    stack: str
    values: dict[str, int]
    labels: dict[str, str | int]


class Read:
    """A file as pprof sees it; `CheckValid` of its profile.go is in the assertions."""

    def __init__(self, profile: Profile) -> None:
        self.message = parse(PublishedProfile, gzip.decompress(converted_bytes("pprof", profile)))
        strings = self.strings = list(self.message.string_table)
        assert strings[0] == "" and len(set(strings)) == len(strings)
        self.types = [f"{strings[kind.type]}/{strings[kind.unit]}" for kind in self.message.sample_type]
        self.functions = {one.id: one for one in self.message.function}
        self.mappings = {one.id: one for one in self.message.mapping}
        self.locations: dict[int, tuple[int, list[tuple[str, int]]]] = {}
        for one in self.message.location:
            assert one.id > 0 and one.id not in self.locations and one.mapping_id in {0, *self.mappings}
            lines = [(strings[self.functions[line.function_id].name], line.line) for line in one.line]
            self.locations[one.id] = one.address, lines
        self.samples = [self._sample(one) for one in self.message.sample]

    def _sample(self, one: Any) -> Sample:
        assert len(one.value) == len(self.types)
        names = [name for location in one.location_id for name, _ in self.locations[location][1]]
        labels = {self.strings[label.key]: self.strings[label.str] or label.num for label in one.label}
        return Sample(";".join(reversed(names)), dict(zip(self.types, one.value, strict=True)), labels)

    def total(self, type_: str) -> int:
        return sum(one.values[type_] for one in self.samples)


def sample_profile() -> Profile:
    builder = ProfileBuilder(
        meta={"wall_clock_ns": 10**18, "wall_clock_at_ns": 500, "first_ns": 1_500, "last_ns": 9_500},
        build_ids={"/lib/libc.so.6": "c0ffee"},
        events={"offcpu-time": "ns", "cpu-clock": "ns", "cycles": ""},
    )
    code = Code("read", "/lib/libc.so.6", 0x1234)
    for weight in (30, 12):
        builder.sample("a", ["main", code, kernel("schedule")], weight, state=1, runq_ns=2, tid=7, count=2)
    builder.sample("a", ["main", code], 5, flags=SampleFlag.NO_KERNEL_STACK, tid=7)
    builder.sample("a", ["main"], 100, event="cpu-clock", tid=7)
    builder.sample("b", [], 9, tid=8, flags=SampleFlag.NO_USER_STACK, waker_tid=7, waker_pid=100)
    builder.sample("b", ["main"], 10_000, event="cycles", tid=8)
    return builder.build()


def test_types_values_and_labels() -> None:
    found = Read(sample_profile())
    assert found.types == [
        "off_cpu/nanoseconds", "off_cpu_events/count", "runqueue/nanoseconds", "cycles/count", "cpu/nanoseconds",
    ]  # fmt: skip
    assert {(one.labels["comm"], one.stack): list(one.values.values()) for one in found.samples} == {
        ("a", "main;read;schedule"): [42, 4, 4, 0, 0], ("a", "main;read;[missed kernel stack]"): [5, 1, 0, 0, 0],
        ("a", "main"): [0, 0, 0, 0, 100], ("b", "main"): [0, 0, 0, 10_000, 0], ("b", "[missed stack]"): [9, 1, 0, 0, 0],
    }  # fmt: skip
    waits = next(one for one in found.samples if one.stack.endswith("schedule"))
    assert waits.labels == {"comm": "a", "state": "interruptible sleep", "pid": 100, "tid": 7}
    woken = next(one for one in found.samples if one.stack == "[missed stack]")
    assert woken.labels["woken by"] == "a (pid 100, tid 7)" and found.total("cpu/nanoseconds") == 100


def test_tables_build_ids_and_times() -> None:
    found = Read(sample_profile())
    assert 0x1234 in {address for address, _ in found.locations.values()}
    mappings = {found.strings[one.filename]: found.strings[one.build_id] for one in found.mappings.values()}
    assert mappings["/lib/libc.so.6"] == "c0ffee"
    assert (found.message.time_nanos, found.message.duration_nanos) == (10**18 + 1_000, 8_000)
    assert found.strings[found.message.default_sample_type] == "off_cpu"
    # As Parca demands (pkg/normalizer/validate.go), and without entries that no sample uses:
    for table in (found.locations, found.mappings, found.functions):
        assert list(table) == list(range(1, len(table) + 1))
    names = {lines[0][0] for _, lines in found.locations.values()}
    assert names == {"main", "read", "schedule", "[missed kernel stack]", "[missed stack]"}


def test_inlined_functions_are_lines_of_one_location() -> None:
    chain = [
        Code("main", "/bin/x", 0x10, file="x.c", line=3),
        Code("outer", "/bin/x", 0x20, file="x.c", line=7),
        Code("inlined", "/bin/x", 0x20, file="y.h", line=9, inline_depth=1),
        Code("deepest", "/bin/x", 0x20, file="z.h", line=11, inline_depth=2),
    ]
    found = Read(ProfileBuilder().sample("a", [*chain], 5).sample("a", chain[:1], 2).build())
    locations = {address: lines for address, lines in found.locations.values() if address}
    assert locations == {0x10: [("main", 3)], 0x20: [("deepest", 11), ("inlined", 9), ("outer", 7)]}
    assert {one.stack for one in found.samples} == {"main", "main;outer;inlined;deepest"}
    sources = {found.strings[one.name]: found.strings[one.filename] for one in found.functions.values()}
    assert sources["deepest"] == "z.h" and sources["main"] == "x.c"


def test_large_totals_are_exact() -> None:
    profile = large_profile(50_000, 2_000)
    found = Read(profile)
    assert found.total("off_cpu/nanoseconds") == sum(profile.samples.period.tolist())
    assert found.total("off_cpu_events/count") == 50_000
    assert found.total("runqueue/nanoseconds") == sum(profile.samples.runq_ns.tolist())
    assert Read(ProfileBuilder().build()).samples == []


@pytest.mark.skipif(shutil.which("go") is None, reason="no go here (Debian: golang-go)")
def test_pprof_itself(tmp_path: Path) -> None:
    path = tmp_path / "x.pb.gz"
    path.write_bytes(converted_bytes("pprof", sample_profile()))

    def pprof(*options: str) -> str:
        command: list[str | Path] = ["go", "tool", "pprof", *options, path]
        return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout

    top = pprof("-top", "-unit=ns", "-nodefraction=0")
    assert "Type: off_cpu" in top and "56ns total" in top
    assert any(line.split()[:2] == ["42ns", "75.00%"] and line.endswith("schedule") for line in top.splitlines())
    assert "100ns total" in pprof("-top", "-unit=ns", "-sample_index=cpu")
    assert "interruptible sleep" in pprof("-tags")


TABLE_OF_ROWS = """
Table: 1 rows Row*
Row: 3 number uint64, 7 seven string, 8 real double, 200 name string
"""
MESSAGES = classes("test", TABLE_OF_ROWS)
TABLE, ROW = MESSAGES["Table"], MESSAGES["Row"]
NUMBERS = st.lists(st.integers(0, 2**64 - 1), max_size=20)


@given(NUMBERS)
def test_columns_of_numbers_are_single_numbers_in_a_row(values: list[int]) -> None:
    rows = pb.varints(np.array(values, np.uint64))
    assert rows.flat() == b"".join(map(pb.varint, values))
    assert rows.lengths.tolist() == [len(pb.varint(value)) for value in values]


@given(NUMBERS, st.data())
def test_messages_of_messages(values: list[int], data: st.DataObject) -> None:
    present = np.array(data.draw(st.lists(st.booleans(), min_size=len(values), max_size=len(values))), np.bool_)
    column = np.array(values, np.uint64)
    names = pb.from_bytes([b"", b"x" * 200, "größe".encode()])
    pick = np.arange(len(values)) % 3
    body = pb.joined(
        pb.numbers(3, column).where(present), pb.messages(200, names.take(pick)),
        pb.constant(pb.field(7, "seven"), len(values)), pb.fixed64(8, column.astype(np.float64)),
    )  # fmt: skip
    rows = parse(TABLE, pb.messages(1, body).flat()).rows
    assert len(rows) == len(values)
    for row, value, there, name in zip(rows, values, present.tolist(), pick.tolist(), strict=True):
        text = ["", "x" * 200, "größe"][name]
        assert (row.number, row.name, row.seven, row.real) == (value if there else 0, text, "seven", float(value))


@given(
    st.lists(st.lists(st.binary(max_size=20), min_size=3, max_size=3), max_size=8), st.binary(max_size=20), st.data()
)
def test_strings_of_any_lengths_side_by_side(texts: list[list[bytes]], same: bytes, data: st.DataObject) -> None:
    """Short strings, long strings, and mixtures of both, whose last words reach into the strings after them."""
    columns = [pb.from_bytes(list(column)) for column in zip(*texts, strict=True)] if texts else [pb.from_bytes([])]
    present = np.array(data.draw(st.lists(st.booleans(), min_size=len(texts), max_size=len(texts))), np.bool_)
    place = data.draw(st.integers(0, len(columns)))
    masked = [columns[0].where(present), *columns[1:]]
    rows = pb.joined(*masked[:place], pb.constant(same, len(texts)), *masked[place:])
    expected = [[text[0] if there else b"", *text[1:]] for text, there in zip(texts, present.tolist(), strict=True)]
    for text in expected:
        text.insert(place, same)
    assert rows.flat() == b"".join(part for text in expected for part in text)
    assert rows.lengths.tolist() == [sum(map(len, text)) for text in expected]


def test_ranges_of_rows() -> None:
    rows = pb.numbers(1, np.array([1, 300, 2, 70_000]))
    assert pb.ragged(rows, np.array([0, 2, 2, 4])) == [
        pb.field(1, 1) + pb.field(1, 300),
        b"",
        pb.field(1, 2) + pb.field(1, 70_000),
    ]


def test_negative_numbers_and_bytes_that_are_no_text() -> None:
    assert parse(ROW, pb.field(3, -1)).number == 2**64 - 1 and parse(ROW, pb.field(7, "a\udcff")).seven == "a?"


def written(values: list[int], decimals: int = 0, null: list[bool] | None = None) -> list[object]:
    parts = array_items(np.array(values, np.int64), decimals, None if null is None else np.array(null))
    parsed: list[object] = json.loads(f"[{''.join(parts)}]", parse_float=Decimal)
    return parsed


EDGES = [0, 1, 9, 10, 999_999, 1_000_000, 1_000_001, 2**53 + 1, 2**63 - 1]


@pytest.mark.parametrize("decimals", [0, 3, 6])
def test_every_number_is_exact(decimals: int) -> None:
    rng = np.random.default_rng(7)
    values = [*EDGES, *(rng.integers(0, 2**62, 40_000) >> rng.integers(0, 62, 40_000)).tolist()]
    assert written(values, decimals) == [Decimal(value).scaleb(-decimals) for value in values]


def test_decimals_null_and_negative_numbers() -> None:
    assert "".join(array_items(np.array([1_500, 7, 0]), 3)) == "1.500,0.007,0.000"
    with pytest.raises(ValueError, match="negative"):
        list(array_items(np.array([3, -1])))
    assert written([5, -1, 12_345_678, -1], null=[False, True, False, True]) == [5, None, 12_345_678, None]
    assert written([-1], null=[True]) == [None] and written([]) == []
    assert written([-1] * 20_000, null=[True] * 20_000) == [None] * 20_000
