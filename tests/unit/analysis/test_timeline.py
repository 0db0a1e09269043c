# SPDX-License-Identifier: Apache-2.0
"""Places of samples in time and their tracks."""

from __future__ import annotations

import numpy as np
from builders.profile import ProfileBuilder

from perf_offcpu.analysis.timeline import timeline_of
from perf_offcpu.model.recording import SampleFlag


def test_waits_end_at_their_sample_and_moments_are_points() -> None:
    builder = ProfileBuilder()
    builder.sample("a", ["f"], 30, time_ns=1_050, tid=1)
    builder.sample("b", ["f"], 10, time_ns=1_100, tid=2, event="cpu-clock")
    builder.sample("a", ["f"], 40, time_ns=1_100, tid=1)
    timeline = timeline_of(builder.build())
    assert timeline.origin_ns == 1_020 and timeline.duration_ns == 80
    assert timeline.begin_ns.tolist() == [0, 80, 40] and timeline.end_ns.tolist() == [30, 80, 80]
    assert timeline.waits.tolist() == [True, False, True] and timeline.moments.tolist() == [
        False,
        True,
        False,
    ]
    assert [(one.label, one.rows.tolist()) for one in timeline.tracks] == [
        ("a (pid 100, tid 1)", [0, 2]),
        ("b (pid 100, tid 2)", [1]),
    ]


def test_sums_and_untimed_samples_have_no_place() -> None:
    builder = ProfileBuilder()
    builder.sample("a", ["f"], 10**9, time_ns=5_000, flags=SampleFlag.AGGREGATED)
    builder.sample("a", ["f"], 7, time_ns=-1)
    builder.sample("a", ["f"], 9, time_ns=2**62, flags=SampleFlag.UNTIMED)
    builder.sample("a\x1b", ["f"], 100, time_ns=6_000)
    timeline = timeline_of(builder.build())
    assert timeline.placed.tolist() == [False, False, False, True]
    assert (timeline.origin_ns, timeline.duration_ns) == (5_900, 100)
    assert timeline.tracks[0].label == "a\\x1b (pid 100, tid 100)"


def test_nothing_and_nothing_placed() -> None:
    empty = timeline_of(ProfileBuilder().build())
    assert (empty.tracks, empty.origin_ns, empty.duration_ns) == ([], 0, 0)
    untimed = timeline_of(ProfileBuilder().sample("a", [], 5, time_ns=-1, tid=-1, pid=-1).build())
    assert (untimed.origin_ns, untimed.duration_ns) == (0, 0)
    assert [one.label for one in untimed.tracks] == ["a (pid ?, tid ?)"]
    assert np.array_equal(untimed.track, [0])
