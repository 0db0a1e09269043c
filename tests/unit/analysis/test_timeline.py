# SPDX-License-Identifier: Apache-2.0
"""Places of samples in time, their tracks, one unit for waiting and running; `--time`, exact to the ns."""

from dataclasses import replace

import numpy as np
import pytest
from builders.examples import examples
from builders.profile import ProfileBuilder
from hypothesis import given
from hypothesis import strategies as st

from perf_offcpu.abi.attr import Attr, AttrFlag
from perf_offcpu.analysis.selection.time_windows import in_windows, parse_windows
from perf_offcpu.analysis.times.timeline import Timeline, timeline_of
from perf_offcpu.analysis.times.wakeups import mark_lengths
from perf_offcpu.analysis.times.wall_clock import wall_clock
from perf_offcpu.callpaths.weights import unit_of
from perf_offcpu.errors import UsageError
from perf_offcpu.model.profile import Profile
from perf_offcpu.model.recording import Budget, SampleFlag


def test_waits_end_at_their_sample_and_moments_are_points() -> None:
    builder = ProfileBuilder()
    builder.sample("a", ["f"], 30, time_ns=1_050, tid=1)
    builder.sample("b", ["f"], 10, time_ns=1_100, tid=2, event="cpu-clock")
    builder.sample("a", ["f"], 40, time_ns=1_100, tid=1)
    timeline = timeline_of(builder.build())
    assert timeline.origin_ns == 1_020 and timeline.duration_ns == 80
    assert timeline.begin_ns.tolist() == [0, 80, 40] and timeline.end_ns.tolist() == [30, 80, 80]
    assert timeline.waits.tolist() == [True, False, True] and timeline.moments.tolist() == [False, True, False]
    tracks = {one.label: one.rows.tolist() for one in timeline.tracks}
    assert tracks == {"a (pid 100, tid 1)": [0, 2], "b (pid 100, tid 2)": [1]}


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


S = 10**9
FIRST, LAST = 100 * S, 110 * S


def chosen(text: str, *times: int) -> list[int]:
    """Return the times (ns) that are inside."""
    inside = in_windows(parse_windows(text), np.array(times, np.int64), FIRST, LAST)
    return [time for time, is_in in zip(times, inside.tolist(), strict=True) if is_in]


@pytest.mark.parametrize(("text", "inside"), examples("unit/analysis/examples.txt", "windows"))
def test_windows(text: str, inside: str) -> None:
    times = {"FIRST": FIRST, "102": 102 * S, "102+1ns": 102 * S + 1, "103": 103 * S, "LAST": LAST}
    assert chosen(text, *times.values(), -1) == [times[word] for word in inside.split()]


@pytest.mark.parametrize("text", [
    "", " ", ",", "5", "a,b", "1,2,3", "3,2", "-1,2", "1e9,", "10%-", "x%", "20%-10%", "10%/0", "10%/11", "0%",
    "100%-200%", "1.0000000001,2",
])  # fmt: skip
def test_bad_times(text: str) -> None:
    with pytest.raises(UsageError, match="--time"):
        parse_windows(text)


@given(st.integers(1, 7), st.lists(st.integers(FIRST, LAST), max_size=20))
def test_slices_are_a_partition(slices: int, times: list[int]) -> None:
    width = 100 / (1 << slices)  # exact as a decimal
    parts = [chosen(f"{width}%/{number}", *times) for number in range(1, (1 << slices) + 1)]
    assert sorted(time for part in parts for time in part) == sorted(times)


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


@pytest.mark.parametrize(("events", "weights"), [
    (("cycles", "cpu-clock"), {"cpu-clock": 12_345}), (("cycles", "faults"), {"cycles": S // 99}), ((), {}),
])  # fmt: skip
def test_one_event_next_to_waits(events: tuple[str, ...], weights: dict[str, int]) -> None:
    """An event of time comes first; samples at a frequency stand for a fixed time."""
    found = wall_clock(profile(*events))
    assert shown(found) == {"offcpu-time": 70} | weights and unit_of(found) == "ns"


def test_named_events_are_taken_all_and_refused_if_they_say_nothing_of_time() -> None:
    assert set(shown(wall_clock(profile("cycles", "cpu-clock"), ("cycles", "cpu-clock")))) == {"cycles", "cpu-clock"}
    assert len(wall_clock(ProfileBuilder().build()).samples) == 0
    with pytest.raises(UsageError, match="faults was sampled neither by time nor at a frequency"):
        wall_clock(profile("faults"))


def test_preemption_of_budgets_is_part_of_all_time() -> None:
    builder = ProfileBuilder().sample("a", ["main", "wait"], 70, tid=1, pid=1)
    for function in ("f", "g", "f"):
        builder.sample("a", ["main", function], 10, event="cpu-clock", tid=1, pid=1)
    made = builder.build()
    made.budget = Budget.filled(1, tid=[1], pid=[1], end_ns=[200], preempted_ns=[100], running_ns=[30])
    assert wall_clock(made).samples.period.tolist() == [70, 10, 10, 10]
    assert wall_clock(made, whole_lives=True).samples.period.tolist() == [70, 10, 10, 10, 34, 33, 33]


_SPANS = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3000), st.integers(0, 2000)), max_size=12)


@given(_SPANS, st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3000)), max_size=8), st.sampled_from([1, 2**61]))
def test_a_mark_ends_before_the_next_event_of_its_track(
    spans: list[tuple[int, int, int]], arrows: list[tuple[int, int]], far: int
) -> None:
    """Also where waits overlap, as in damaged recordings, and where (track, time) exceeds 63 bits."""
    late = [(3, 2**61, 5)] if far > 1 else []
    track, begin, length = (np.array(column, np.int64) for column in zip(*spans, *late, (0, 0, 0), strict=False))
    everywhere = np.ones(len(track), np.bool_)
    timeline = Timeline([], track, everywhere, ~everywhere, begin, begin + length, 0)
    queued = begin + length // 2
    edges = [edge for times in (begin, queued, begin + length) for edge in zip(track, times, strict=True)]
    marks = mark_lengths(timeline, queued, *np.array([*arrows, (2, 7)], np.int64).T)
    later = [(*arrow, number) for number, arrow in enumerate([*arrows, (2, 7)])]
    for (waker, at, number), mark in zip(later, marks.tolist(), strict=True):
        rooms = [time - at for edge, time in edges if edge == waker and time >= at]
        rooms += [time - at for other, time, order in later if other == waker and (time, order) > (at, number)]
        assert mark == min(max(min(rooms, default=1001) - 1, 0), 1000)
