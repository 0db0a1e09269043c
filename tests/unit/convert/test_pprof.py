# SPDX-License-Identifier: Apache-2.0
"""pprof files, read with the published messages, and by pprof itself."""

import gzip
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from builders.converted import converted_bytes
from builders.large import large_profile
from builders.profile import Code, ProfileBuilder, kernel
from builders.push.published import parse
from builders.push.rules import Profile as PublishedProfile

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
        self.functions = {row.id: row for row in self.message.function}
        self.mappings = {row.id: row for row in self.message.mapping}
        self.locations: dict[int, tuple[int, list[tuple[str, int]]]] = {}
        for row in self.message.location:
            assert row.id > 0 and row.id not in self.locations and row.mapping_id in {0, *self.mappings}
            lines = [(strings[self.functions[line.function_id].name], line.line) for line in row.line]
            self.locations[row.id] = row.address, lines
        self.samples = [self._sample(row) for row in self.message.sample]

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
    pprof = Read(sample_profile())
    assert pprof.types == [
        "off_cpu/nanoseconds", "off_cpu_events/count", "runqueue/nanoseconds", "cycles/count", "cpu/nanoseconds",
    ]  # fmt: skip
    assert {(sample.labels["comm"], sample.stack): list(sample.values.values()) for sample in pprof.samples} == {
        ("a", "main;read;schedule"): [42, 4, 4, 0, 0], ("a", "main;read;[missed kernel stack]"): [5, 1, 0, 0, 0],
        ("a", "main"): [0, 0, 0, 0, 100], ("b", "main"): [0, 0, 0, 10_000, 0], ("b", "[missed stack]"): [9, 1, 0, 0, 0],
    }  # fmt: skip
    waits = next(sample for sample in pprof.samples if sample.stack.endswith("schedule"))
    assert waits.labels == {"comm": "a", "state": "interruptible sleep", "pid": 100, "tid": 7}
    woken = next(sample for sample in pprof.samples if sample.stack == "[missed stack]")
    assert woken.labels["woken by"] == "a (pid 100, tid 7)" and pprof.total("cpu/nanoseconds") == 100


def test_tables_build_ids_and_times() -> None:
    pprof = Read(sample_profile())
    assert 0x1234 in {address for address, _ in pprof.locations.values()}
    mappings = {pprof.strings[mapping.filename]: pprof.strings[mapping.build_id] for mapping in pprof.mappings.values()}
    assert mappings["/lib/libc.so.6"] == "c0ffee"
    assert (pprof.message.time_nanos, pprof.message.duration_nanos) == (10**18 + 1_000, 8_000)
    assert pprof.strings[pprof.message.default_sample_type] == "off_cpu"
    # As Parca demands (pkg/normalizer/validate.go), and without entries that no sample uses:
    for table in (pprof.locations, pprof.mappings, pprof.functions):
        assert list(table) == list(range(1, len(table) + 1))
    names = {lines[0][0] for _, lines in pprof.locations.values()}
    assert names == {"main", "read", "schedule", "[missed kernel stack]", "[missed stack]"}


def test_inlined_functions_are_lines_of_one_location() -> None:
    chain = [
        Code("main", "/bin/x", 0x10, file="x.c", line=3),
        Code("outer", "/bin/x", 0x20, file="x.c", line=7),
        Code("inlined", "/bin/x", 0x20, file="y.h", line=9, inline_depth=1),
        Code("deepest", "/bin/x", 0x20, file="z.h", line=11, inline_depth=2),
    ]
    pprof = Read(ProfileBuilder().sample("a", [*chain], 5).sample("a", chain[:1], 2).build())
    locations = {address: lines for address, lines in pprof.locations.values() if address}
    assert locations == {0x10: [("main", 3)], 0x20: [("deepest", 11), ("inlined", 9), ("outer", 7)]}
    assert {one.stack for one in pprof.samples} == {"main", "main;outer;inlined;deepest"}
    sources = {pprof.strings[one.name]: pprof.strings[one.filename] for one in pprof.functions.values()}
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
