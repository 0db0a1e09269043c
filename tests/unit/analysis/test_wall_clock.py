# SPDX-License-Identifier: Apache-2.0
"""Waiting and running in one unit."""

from __future__ import annotations

from dataclasses import replace

import pytest
from builders.profile import ProfileBuilder

from perf_offcpu.abi.attr import Attr, AttrFlag
from perf_offcpu.analysis.wall_clock import wall_clock
from perf_offcpu.callpaths.weights import unit_of
from perf_offcpu.errors import UsageError
from perf_offcpu.model.profile import Profile

SAMPLED = {"cycles": Attr(sample_period=99, flags=AttrFlag.FREQ), "faults": Attr(sample_period=1)}


def profile(*events: str) -> Profile:
    builder = ProfileBuilder(events={"offcpu-time": "ns", "cpu-clock": "ns", "cycles": "", "faults": ""})
    builder.sample("a", ["f"], 70)
    for event in events:
        builder.sample("a", ["g"], 12_345, event=event)
    built = builder.build()
    built.evsels = [replace(one, attr=SAMPLED.get(one.name, one.attr)) for one in built.evsels]
    return built


def shown(found: Profile) -> dict[str, int]:
    names = [found.evsels[row].name for row in found.samples.evsel.tolist()]
    return dict(zip(names, found.samples.period.tolist(), strict=True))


def test_an_event_of_time_comes_first() -> None:
    found = wall_clock(profile("cycles", "cpu-clock"))
    assert shown(found) == {"offcpu-time": 70, "cpu-clock": 12_345} and unit_of(found) == "ns"


def test_samples_at_a_frequency_stand_for_a_fixed_time() -> None:
    found = wall_clock(profile("cycles", "faults"))
    assert shown(found) == {"offcpu-time": 70, "cycles": 10**9 // 99} and unit_of(found) == "ns"


def test_named_events_are_taken_all() -> None:
    assert set(shown(wall_clock(profile("cycles", "cpu-clock"), ("cycles", "cpu-clock")))) == {
        "cycles",
        "cpu-clock",
    }


def test_events_that_say_nothing_of_time_are_refused() -> None:
    with pytest.raises(UsageError, match="faults was sampled neither by time nor at a frequency"):
        wall_clock(profile("faults"))


def test_waits_alone_and_nothing() -> None:
    assert shown(wall_clock(profile())) == {"offcpu-time": 70}
    assert len(wall_clock(ProfileBuilder().build()).samples) == 0
