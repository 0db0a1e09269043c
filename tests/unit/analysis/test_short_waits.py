# SPDX-License-Identifier: Apache-2.0
"""Summing the shortest waits changes no sum by thread, stack, class, state, system call or object."""

from __future__ import annotations

import numpy as np
import pytest
from builders.large import large_profile
from builders.profile import ProfileBuilder

from perf_offcpu.analysis.short_waits import ShortWaits
from perf_offcpu.convert.options import Options
from perf_offcpu.convert.registry import FORMATS
from perf_offcpu.convert.size import fitted, parts_of, size_of
from perf_offcpu.errors import UsageError
from perf_offcpu.model.recording import SampleFlag
from perf_offcpu.report.document import document
from perf_offcpu.report.summary import summarize

KEYS = ("class", "comm,tid", "state", "syscall", "symbol", "cgroup")
TIMED = [name for name, row in FORMATS.items() if "note" in row.options]


@pytest.mark.parametrize("number", [0, 1, 700, 2000])
def test_sums_stay(number: int) -> None:
    whole = large_profile(2000, 60)
    waits = ShortWaits(whole)
    made = waits.summed(number)
    made.check()
    assert len(made.samples) == waits.samples_left(number)
    for keys in KEYS:
        a, b = (document(summarize(one, keys=keys.split(","), verdict=False)) for one in (whole, made))
        assert a["groups"] == b["groups"] and a["stacks"] == b["stacks"] and a["threads"] == b["threads"]
    summed = made.samples.has(SampleFlag.AGGREGATED)
    assert (made.samples.count[~summed] == 1).all()
    assert int(made.samples.count.sum()) == 2000
    assert int(made.samples.longest_ns[summed].max(initial=0)) <= waits.longest_ns(number)


def test_open_waits_sums_and_cpu_samples_are_left_alone() -> None:
    builder = ProfileBuilder()
    for flags in (
        SampleFlag.STILL_BLOCKED,
        SampleFlag.BEGAN_BEFORE,
        SampleFlag.AGGREGATED,
        SampleFlag.UNTIMED,
    ):
        builder.sample("a", ["f"], 1, flags=flags).sample("a", ["f"], 2, flags=flags)
    builder.sample("a", ["f"], 1, event="cpu-clock")
    assert len(ShortWaits(builder.build()).rows) == 0


def test_waits_drawn_by_length_are_summed_by_length_with_their_weights() -> None:
    builder = ProfileBuilder()
    for length in (3, 1, 2, 9):
        builder.sample("a", ["f"], 10, flags=SampleFlag.SAMPLED, longest_ns=length, count=4)
    waits = ShortWaits(builder.build())
    assert waits.longest_ns(3) == 3
    made = waits.summed(3).samples
    is_sum = made.has(SampleFlag.AGGREGATED)
    assert (made.period[is_sum].tolist(), made.count[is_sum].tolist()) == ([30], [12])
    assert made.longest_ns[is_sum].tolist() == [3] and made.length_ns()[~is_sum].tolist() == [9]


@pytest.mark.parametrize("name", TIMED)
def test_formats_fit_and_say_what_was_summed(name: str) -> None:
    whole, format_ = large_profile(20_000, 20), FORMATS[name]
    size = size_of(format_, whole, Options())
    most = size * 4 // 5
    made, options = fitted(format_, whole, Options(), most)
    assert size_of(format_, made, options) <= most
    assert int(made.samples.period.sum()) == int(whole.samples.period.sum())
    assert "shortest waits" in options.note
    assert fitted(format_, whole, Options(), size)[0] is whole
    with pytest.raises(UsageError, match="with all single waits summed"):
        fitted(format_, whole, Options(), 100)


def test_parts_hold_each_sample_once() -> None:
    builder = ProfileBuilder().sample("a", ["f"], 5, time_ns=-1)
    for at in range(10):
        builder.sample("a", ["f"], 7, time_ns=1000 + 100 * at)
    parts = list(parts_of(builder.build(), 250))
    assert [(len(part.samples), first, last) for part, first, last in parts] == [
        (4, 1000, 1249), (2, 1250, 1499), (3, 1500, 1749), (2, 1750, 1999),
    ]  # fmt: skip
    assert np.concatenate([part.samples.period for part, _, _ in parts]).sum() == 75
