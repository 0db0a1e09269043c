# SPDX-License-Identifier: Apache-2.0
"""Folded stacks: what a line says, and that every nanosecond is in one."""

import re
from collections import Counter
from typing import Any

import numpy as np
import pytest
from builders.converted import converted
from builders.large import large_profile
from builders.profile import Code, ProfileBuilder, kernel
from hypothesis import given
from hypothesis import strategies as st

from perf_offcpu.errors import UsageError
from perf_offcpu.model.profile import Profile
from perf_offcpu.model.recording import SampleFlag


def folded(profile: Profile, **options: Any) -> list[str]:
    return converted("folded", profile, **options).splitlines()


def read(lines: list[str]) -> Counter[str]:
    """The strictest reader: speedscope's and Perfetto's expression."""
    totals: Counter[str] = Counter()
    for line in lines:
        stack, weight = re.fullmatch(r"(.*) (\d+)", line).groups()  # type: ignore[union-attr]
        totals[stack] += int(weight)
    return totals


@pytest.fixture
def profile() -> Profile:
    builder = ProfileBuilder()
    builder.sample("web server", ["main", Code("read", "libc", 16), kernel("schedule")], 5, tid=101)
    builder.sample("web server", ["main", Code("read", "libc", 32), kernel("schedule")], 7, tid=102)
    builder.sample("web server", [], 11, flags=SampleFlag.NO_USER_STACK)
    builder.sample("db", ["f;g", Code(dso="/lib/libx.so", address=0x1234)], 13, flags=SampleFlag.TRUNCATED, pid=-1)
    builder.sample("db", [kernel("io_schedule")], 17, flags=SampleFlag.NO_USER_STACK, pid=-1)
    builder.sample("db", ["f;g"], 19, flags=SampleFlag.NO_KERNEL_STACK, pid=-1)
    return builder.build()


def test_lines(profile: Profile) -> None:
    assert folded(profile) == [
        "db;[missed user stack];io_schedule 17", "db;[truncated];f:g;[libx.so] 13",
        "db;f:g;[missed kernel stack] 19", "web_server;[missed stack] 11", "web_server;main;read;schedule 12",
    ]  # fmt: skip


def test_options(profile: Profile) -> None:
    assert folded(profile, kernel=True, tid=True, addrs=True) == [
        "db-?/100;[missed user stack];io_schedule_[k] 17", "db-?/100;[truncated];f:g;[libx.so <1234>] 13",
        "db-?/100;f:g;[missed kernel stack] 19", "web_server-100/100;[missed stack] 11",
        "web_server-100/101;main;read;schedule_[k] 5", "web_server-100/102;main;read;schedule_[k] 7",
    ]  # fmt: skip
    assert folded(profile, pid=True)[-1] == "web_server-100;main;read;schedule 12"


def test_names_that_become_the_same_text_share_a_line() -> None:
    builder = ProfileBuilder()
    builder.sample("a b", ["x;y"], 1).sample("a_b", ["x:y"], 2).sample("a_b", [Code("x:y", "other.so")], 4)
    assert folded(builder.build()) == ["a_b;x:y 7"]
    assert folded(ProfileBuilder().build()) == folded(ProfileBuilder().sample("a", ["f"], 0).build()) == []


@pytest.mark.parametrize(("unit", "lines"), [("us", ["a;f 1", "a;g 2"]), ("ms", []), ("ns", ["a;f 1400", "a;g 1500"])])
def test_units_round_by_line_and_keep_the_total(unit: str, lines: list[str]) -> None:
    """1400 + 1500 ns are 3 us: the line that lost more of its fraction has the third."""
    builder = ProfileBuilder().sample("a", ["g"], 1500)
    for _ in range(14):  # not rounded one by one
        builder.sample("a", ["f"], 100)
    assert folded(builder.build(), unit=unit) == lines


def test_a_unit_of_time_needs_an_event_of_time() -> None:
    builder = ProfileBuilder(events={"cycles": "", "cpu-clock": "ns"}).sample("a", ["f"], 5, event="cycles")
    assert folded(builder.build()) == ["a;f 5"]
    with pytest.raises(UsageError, match="cycles is not counted in time: --unit us does not apply"):
        folded(builder.build(), unit="us")


def test_weights_of_different_units_are_not_added() -> None:
    builder = ProfileBuilder(events={"cycles": "", "cpu-clock": "ns"})
    builder.sample("a", ["f"], 5, event="cycles").sample("a", ["f"], 5, event="cpu-clock")
    for format_ in ("folded", "flamegraph"):
        with pytest.raises(UsageError, match=r"cycles \(events\) and cpu-clock \(ns\) do not add up"):
            converted(format_, builder.build())


SIZES = {"ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9}


@given(st.lists(st.tuples(st.sampled_from("fgh"), st.integers(0, 2**50)), max_size=30), st.sampled_from([*SIZES]))
def test_totals_survive(samples: list[tuple[str, int]], unit: str) -> None:
    builder, size = ProfileBuilder(), SIZES[unit]
    exact: Counter[str] = Counter()
    for symbol, weight in samples:
        builder.sample("a", [symbol], weight)
        exact[f"a;{symbol}"] += weight
    totals = read(folded(builder.build(), unit=unit))
    assert all(abs(totals[stack] * size - exact[stack]) < size for stack in exact)
    assert 2 * abs(totals.total() * size - exact.total()) <= size


def test_large_and_deterministic() -> None:
    profile = large_profile(200_000, 5_000)
    lines = folded(profile)
    assert read(lines).total() == sum(profile.samples.period.tolist()) and lines == sorted(lines)
    assert folded(profile.select(np.random.default_rng(5).permutation(len(profile.samples)))) == lines
