# SPDX-License-Identifier: Apache-2.0
"""pprof files, read by the field numbers of profile.proto, and by pprof itself."""

from __future__ import annotations

import gzip
import io
import shutil
import subprocess
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from builders.large import large_profile
from builders.profile import Code, ProfileBuilder, kernel
from builders.protobuf import read, read_packed

from perf_offcpu.convert.options import Options
from perf_offcpu.convert.registry import FORMATS
from perf_offcpu.model.profile import Profile
from perf_offcpu.model.recording import SampleFlag

NAMES = {
    "sample_type": 1, "sample": 2, "mapping": 3, "location": 4, "function": 5, "string_table": 6,
    "time_nanos": 9, "duration_nanos": 10, "default_sample_type": 14,
}  # fmt: skip


@dataclass
class Sample:
    stack: str
    values: dict[str, int]
    labels: dict[str, str | int]


class Read:
    """A file as pprof sees it; `CheckValid` of its profile.go is in the assertions."""

    def __init__(self, profile: Profile, options: Options | None = None) -> None:
        out = io.BytesIO()
        FORMATS["pprof"].write(profile, out, options)
        self.fields: dict[str, list[Any]] = defaultdict(list)
        by_number = {number: name for name, number in NAMES.items()}
        for number, value in read(gzip.decompress(out.getvalue())):
            self.fields[by_number[number]].append(value)
        self.strings = [text.decode() for text in self.fields["string_table"]]
        assert self.strings[0] == "" and len(set(self.strings)) == len(self.strings)
        self.types = [self._pair(one) for one in self.fields["sample_type"]]
        self.functions = {one[1]: one for one in map(self._message, self.fields["function"])}
        self.mappings = {one[1]: one for one in map(self._message, self.fields["mapping"])}
        self.locations: dict[int, Any] = {}
        for one in self.fields["location"]:
            self._add_location(read(one))
        self.samples = [self._sample(read(one)) for one in self.fields["sample"]]

    def _message(self, data: bytes) -> dict[int, Any]:
        return dict(read(data))

    def _pair(self, data: bytes) -> str:
        one = self._message(data)
        return f"{self.strings[one[1]]}/{self.strings[one[2]]}"

    def _add_location(self, fields: list[tuple[int, Any]]) -> None:
        scalars = {number: value for number, value in fields if number != 4}
        lines = [self._message(value) for number, value in fields if number == 4]
        assert scalars[1] > 0 and scalars[1] not in self.locations
        assert scalars.get(2, 0) in {0, *self.mappings}
        self.locations[scalars[1]] = (
            scalars.get(3),
            [(self.strings[self.functions[line[1]][2]], line.get(2, 0)) for line in lines],
        )

    def _sample(self, fields: list[tuple[int, Any]]) -> Sample:
        stack = [location for number, value in fields if number == 1 for location in read_packed(value)]
        values = [value for number, packed in fields if number == 2 for value in read_packed(packed)]
        assert len(values) == len(self.types)
        labels = {}
        for number, value in fields:
            if number == 3:
                label = self._message(value)
                labels[self.strings[label[1]]] = self.strings[label[2]] if 2 in label else label[3]
        names = [name for location in stack for name, _ in self.locations[location][1]]
        return Sample(";".join(reversed(names)), dict(zip(self.types, values, strict=True)), labels)

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
        "off_cpu/nanoseconds", "off_cpu_events/count", "runqueue/nanoseconds", "cycles/count",
        "cpu/nanoseconds",
    ]  # fmt: skip
    assert {(one.labels["comm"], one.stack): list(one.values.values()) for one in found.samples} == {
        ("a", "main;read;schedule"): [42, 4, 4, 0, 0],
        ("a", "main;read;[missed kernel stack]"): [5, 1, 0, 0, 0],
        ("a", "main"): [0, 0, 0, 0, 100],
        ("b", "main"): [0, 0, 0, 10_000, 0],
        ("b", "[missed stack]"): [9, 1, 0, 0, 0],
    }
    waits = next(one for one in found.samples if one.stack.endswith("schedule"))
    assert waits.labels == {"comm": "a", "state": "interruptible sleep", "pid": 100, "tid": 7}
    woken = next(one for one in found.samples if one.stack == "[missed stack]")
    assert woken.labels["woken by"] == "a (pid 100, tid 7)"
    assert found.total("cpu/nanoseconds") == 100


def test_addresses_build_ids_and_times() -> None:
    found = Read(sample_profile())
    assert 0x1234 in {address for address, _ in found.locations.values()}
    mappings = {found.strings[one[5]]: found.strings[one[6]] for one in found.mappings.values()}
    assert mappings["/lib/libc.so.6"] == "c0ffee"
    assert found.fields["time_nanos"] == [10**18 + 1_000] and found.fields["duration_nanos"] == [8_000]
    assert found.strings[found.fields["default_sample_type"][0]] == "off_cpu"


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
    sources = {found.strings[one[2]]: found.strings[one[4]] for one in found.functions.values()}
    assert sources["deepest"] == "z.h" and sources["main"] == "x.c"


def test_ids_are_dense_and_in_order() -> None:
    """As Parca demands (pkg/normalizer/validate.go), and without entries that no sample uses."""
    found = Read(sample_profile())
    for table in (found.locations, found.mappings, found.functions):
        assert list(table) == list(range(1, len(table) + 1))
    names = {lines[0][0] for _, lines in found.locations.values()}
    assert names == {"main", "read", "schedule", "[missed kernel stack]", "[missed stack]"}


def test_large_totals_are_exact() -> None:
    profile = large_profile(50_000, 2_000)
    found = Read(profile)
    assert found.total("off_cpu/nanoseconds") == sum(profile.samples.period.tolist())
    assert found.total("off_cpu_events/count") == 50_000
    assert found.total("runqueue/nanoseconds") == sum(profile.samples.runq_ns.tolist())


def test_nothing_to_show_is_a_file() -> None:
    assert Read(ProfileBuilder().build()).samples == []


@pytest.mark.skipif(shutil.which("go") is None, reason="no go here (Debian: golang-go)")
def test_pprof_itself(tmp_path: Path) -> None:
    path = tmp_path / "x.pb.gz"
    with path.open("wb") as out:
        FORMATS["pprof"].write(sample_profile(), out)

    def pprof(*options: str) -> str:
        command: list[str | Path] = ["go", "tool", "pprof", *options, path]
        return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout

    top = pprof("-top", "-unit=ns", "-nodefraction=0")
    assert "Type: off_cpu" in top and "56ns total" in top
    assert any(
        line.split()[:2] == ["42ns", "75.00%"] and line.endswith("schedule") for line in top.splitlines()
    )
    assert "100ns total" in pprof("-top", "-unit=ns", "-sample_index=cpu")
    assert "interruptible sleep" in pprof("-tags")
