# SPDX-License-Identifier: Apache-2.0
"""Sleeps that took longer than asked."""

import dataclasses

from builders.profile import ProfileBuilder

from perf_offcpu.abi.wait_objects import ObjectKind
from perf_offcpu.model.profile import Profile
from perf_offcpu.model.recording import SampleFlag
from perf_offcpu.report.document import document
from perf_offcpu.report.style import Style
from perf_offcpu.report.summary import summarize
from perf_offcpu.report.terminal import render

NANOSLEEP, POLL = 35, 7


def sleeps(*waits: tuple[int, int], flags: SampleFlag | None = None, syscall: int = NANOSLEEP) -> Profile:
    """Sleeps of (asked, slept) ns."""
    builder = ProfileBuilder(meta={"arch": "x86_64"})
    thing = builder.thing("sleep", ObjectKind.UNKNOWN)
    for asked, slept in waits:
        builder.sample("a", ["main"], slept, asked_ns=asked, syscall=syscall, state=1, object=thing, flags=flags)
    return builder.build()


def found(profile: Profile) -> tuple[int, ...]:
    oversleep = summarize(profile).oversleep
    assert oversleep
    return dataclasses.astuple(oversleep)


def test_median_longest_and_interrupted() -> None:
    profile = sleeps((1000, 1010), (1000, 3_001_000), (1000, 1050), (1000, 400), (-1, 9))
    assert found(profile) == (3, 50, 3_000_000, 1)
    assert document(summarize(profile))["oversleep"]["longest"] == 3_000_000
    text = "\n".join(render(summarize(profile), Style()))
    assert "# 3 sleeps took longer than asked: 0.000 ms in the median, 3.000 ms at most" in text


def test_what_is_usual_is_not_said() -> None:
    assert "longer than asked" not in "\n".join(render(summarize(sleeps((1000, 900_000))), Style()))


def test_only_sleeps_with_a_time_count() -> None:
    assert summarize(sleeps((-1, 5))).oversleep is None
    assert summarize(sleeps((5, 9), syscall=POLL)).oversleep is None, "a timeout of poll"
    assert summarize(sleeps((5, 9), flags=SampleFlag.AGGREGATED)).oversleep is None
    assert summarize(sleeps((5, 9), flags=SampleFlag.BEGAN_BEFORE)).oversleep is None
    assert found(sleeps((5, 9), flags=SampleFlag.STILL_BLOCKED)) == (0, 0, 0, 1)
