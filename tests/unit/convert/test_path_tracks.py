# SPDX-License-Identifier: Apache-2.0
"""A critical path on a track of its own, in each format with a time axis."""

from __future__ import annotations

import json
from collections import Counter
from decimal import Decimal

import pytest
from builders.converted import converted
from builders.perfetto import read
from builders.profile import ProfileBuilder
from builders.waits import wait

from perf_offcpu.analysis.select import Selection
from perf_offcpu.analysis.timeline import timeline_of
from perf_offcpu.causality.critical_path import critical_path
from perf_offcpu.causality.path_rows import PathTrack, path_track
from perf_offcpu.causality.window import choose_thread
from perf_offcpu.model.profile import Profile
from perf_offcpu.model.recording import SampleFlag

Segment = tuple[str, int, int, str]
EXPECTED: list[Segment] = [
    ("client: running", 50, 100, "client"), ("disk: other wait in nap", 100, 1100, "client, server, disk"),
    ("disk: running", 1100, 1600, "client, server, disk"), ("server: running", 1600, 1850, "client, server"),
    ("client: runnable", 1850, 1900, "client"), ("client: running", 1900, 2000, "client"),
]  # fmt: skip


@pytest.fixture
def profile() -> Profile:
    builder = ProfileBuilder()
    wait(builder, 3, 100, 1100, waker=9, flags=SampleFlag.WAKER_INTERRUPT, path=["main", "nap"])
    wait(builder, 2, 100, 1600, waker=3)
    return wait(builder, 1, 100, 1900, waker=2, queued=50).build()


@pytest.fixture
def track(profile: Profile) -> PathTrack:
    """The path begins before the first wait."""
    timeline = timeline_of(profile)
    thread = choose_thread(timeline, Selection(tids=(1,)))
    return path_track(profile, critical_path(profile, timeline, thread, 50, 2000))


def test_the_track_itself(track: PathTrack) -> None:
    columns = (track.name, track.begin_ns, track.end_ns, track.chain)
    rows = zip(*(column.tolist() for column in columns), strict=True)
    assert [
        (track.names[name], begin, end, track.chains[chain]) for name, begin, end, chain in rows
    ] == EXPECTED
    assert track.title == "critical path of client (pid 1, tid 1)"


def test_perfetto(profile: Profile, track: PathTrack) -> None:
    found = [one for one in read(profile, path=track).slices if one.track == track.title]
    assert [(one.name, one.begin, one.end, one.details["through"]) for one in found] == EXPECTED
    assert {(one.depth, one.weight) for one in found} == {(0, None)}, "segments lie side by side"


def test_chrome_trace(profile: Profile, track: PathTrack) -> None:
    parsed = json.loads(converted("chrome-trace", profile, path=track), parse_float=Decimal)
    origin = int(parsed["otherData"]["origin_ns"])
    found = [
        (one["name"], int(one["ts"] * 1000) + origin, one["dur"] * 1000, one["args"]["through"])
        for one in parsed["traceEvents"]
        if one.get("cat") == "critical path"
    ]
    assert [(name, begin, begin + int(ns), through) for name, begin, ns, through in found] == EXPECTED
    assert min(one["ts"] for one in parsed["traceEvents"] if "ts" in one) == 0
    waits = [one for one in parsed["traceEvents"] if one.get("cat") == "offcpu"]
    assert sum(one["dur"] * 1000 for one in waits) == int(profile.samples.period.sum())


def test_firefox(profile: Profile, track: PathTrack) -> None:
    parsed = json.loads(converted("firefox", profile, path=track), parse_float=Decimal)
    thread = parsed["threads"][-1]
    assert (
        thread["name"] == track.title
        and len(parsed["threads"]) - 1 in parsed["meta"]["initialVisibleThreads"]
    )
    markers, strings = thread["markers"], parsed["shared"]["stringArray"]
    rows = zip(markers["name"], markers["startTime"], markers["endTime"], markers["data"], strict=True)
    found = [
        (strings[name], int(begin * 10**6) + 50, int(end * 10**6) + 50, strings[data["through"]])
        for name, begin, end, data in rows
    ]
    assert found == EXPECTED
    assert "Critical path" in {one["name"] for one in parsed["meta"]["markerSchema"]}
    kinds = Counter(len(values) for key, values in markers.items() if key != "length")
    assert kinds == {markers["length"]: 6}


def test_without_a_path_nothing_changes(profile: Profile) -> None:
    assert "ritical path" not in converted("firefox", profile)
