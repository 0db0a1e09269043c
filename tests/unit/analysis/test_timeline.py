# SPDX-License-Identifier: Apache-2.0
"""Places of samples in time, their tracks; grouping, exact sums and walks up the stack tree, against plain loops."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from builders.profile import ProfileBuilder, kernel
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from perf_offcpu.abi.attr import Attr, AttrFlag
from perf_offcpu.analysis.group import group, max_by, stable_order, sum_by
from perf_offcpu.analysis.stack_walk import innermost_node, outermost_node, used_frames, used_nodes
from perf_offcpu.analysis.time_windows import in_windows, parse_windows
from perf_offcpu.analysis.timeline import timeline_of
from perf_offcpu.analysis.wall_clock import wall_clock
from perf_offcpu.callpaths.weights import unit_of
from perf_offcpu.errors import PerfOffcpuError, UsageError
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


@pytest.mark.parametrize(("text", "inside"), [
    ("102,103", [102 * S, 102 * S + 1, 103 * S]),
    ("102.000000001,103", [102 * S + 1, 103 * S]),
    (",102", [FIRST, 102 * S]),
    ("103,", [103 * S, LAST]),
    ("100,100 110,", [FIRST, LAST]),
    ("0%-20%", [FIRST]),  # its end belongs to the next part
    ("20%-30.00000001%", [102 * S, 102 * S + 1, 103 * S]),
    ("10%/3", [102 * S, 102 * S + 1]),
    ("10%", [FIRST]),
    ("50%/2", [LAST]),
    ("90%-100%", [LAST]),
    ("0%-100%", [FIRST, 102 * S, 102 * S + 1, 103 * S, LAST]),
    ("10%/1,10%/4", [FIRST, 103 * S]),
    ("0%-10% 30%-40%", [FIRST, 103 * S]),
])  # fmt: skip
def test_windows(text: str, inside: list[int]) -> None:
    assert chosen(text, FIRST, 102 * S, 102 * S + 1, 103 * S, LAST, -1) == inside


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


def check_grouping(columns: list[NDArray[Any]]) -> None:
    keys = list(zip(*(column.tolist() for column in columns), strict=True))
    first, of = group(*columns)
    different = sorted(set(keys))
    assert [keys[row] for row in first.tolist()] == different, "groups are not in the order of their keys"
    assert [different[number] for number in of.tolist()] == keys
    assert first.tolist() == [keys.index(key) for key in different], "not the first row of its group"


@given(st.lists(st.tuples(st.integers(-1, 5), st.integers(-(2**62), 2**62), st.integers(-1, 5)), max_size=60))
def test_group_agrees_with_tuples(rows: list[tuple[int, int, int]]) -> None:
    columns = [np.array([row[at] for row in rows], np.int64) for at in range(3)]
    check_grouping(columns)
    check_grouping(columns[:1])


def test_group_of_long_keys_of_addresses_and_of_nothing() -> None:
    rng = np.random.default_rng(3)
    picked = rng.integers(0, 50, 3000)  # the packed key does not fit 64 bits
    check_grouping([rng.integers(0, 2**60, 100_000)[picked] for _ in range(4)])
    assert group(np.array([2**64 - 1, 2**64 - 4096, 7, 2**64 - 1], np.uint64))[1].tolist() == [2, 1, 0, 2]
    nothing = np.empty(0, np.int32)
    first, group_of_row = group(nothing, nothing)
    assert len(first) == len(group_of_row) == 0 and sum_by(group_of_row, nothing, 0).tolist() == []


def test_columns_of_any_integers_stay_as_they_are() -> None:
    columns = [
        np.array([2**64 - 1, 2**64 - 1, 2**64 - 3], np.uint64), np.array([True, False, True]),
        np.array([-128, 127, -128], np.int8), np.broadcast_to(np.uint32(7), 3),
    ]  # fmt: skip
    before = [column.tolist() for column in columns]
    check_grouping(columns)
    assert [column.tolist() for column in columns] == before


def test_sums_are_exact_or_refused() -> None:
    waits = np.array([10_800_000_000_000] * 1000 + [1], np.int64)  # of 1000 threads three hours, of one a nanosecond
    assert sum_by(np.zeros(1001, np.int64), waits, 1).tolist() == [10_800_000_000_000_001]
    numbers = np.array([0, 1, 0, -1, 1])
    for scale in (1, 2**40, 2**57):
        assert sum_by(numbers, np.array([3, -2, 1, 9, 1]) * scale, 3).tolist() == [4 * scale, -scale, 0]
    assert sum_by(numbers, np.array([1, 2, 3, 4, 5], np.uint64), 2).tolist() == [4, 7]
    assert max_by(np.array([0, -1, 2]), np.array([5, 7, 9]), 3).tolist() == [5, -1, 9]
    with pytest.raises(PerfOffcpuError, match="damaged"):
        sum_by(np.zeros(4, np.int64), np.full(4, 2**62, np.int64), 1)


@given(st.lists(st.tuples(st.integers(-1, 3), st.integers(0, 2**56)), max_size=60))
def test_sums_and_maxima_agree_with_a_loop(rows: list[tuple[int, int]]) -> None:
    of, values = (np.array([row[at] for row in rows], np.int64) for at in range(2))
    mine = [[value for number, value in rows if number == wanted] for wanted in range(4)]
    assert sum_by(of, values, 4).tolist() == [sum(found) for found in mine]
    assert max_by(of, values, 4).tolist() == [max(found, default=-1) for found in mine]
    assert stable_order(values).tolist() == sorted(range(len(rows)), key=values.tolist().__getitem__)
    narrow = values % 70_001
    assert stable_order(narrow).tolist() == sorted(range(len(rows)), key=narrow.tolist().__getitem__)


def test_long_columns_are_summed_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perf_offcpu.analysis.group._ROW_LIMIT", 7)
    of, values = np.arange(40) % 3, np.arange(40) + 2**55
    assert sum_by(of, values, 3).tolist() == [sum(values[of == number].tolist()) for number in range(3)]


STACKS = st.lists(st.lists(st.sampled_from("abcdkl"), max_size=6), min_size=1, max_size=8)


def way_up(profile: Profile, leaf: int) -> list[int]:
    return [leaf, *way_up(profile, int(profile.stacks.parent[leaf]))] if leaf >= 0 else []


@given(STACKS, st.sets(st.sampled_from("abcdkl")), st.integers(0, 3))
def test_walks_are_those_of_each_stack(stacks: list[list[str]], names: set[str], user_frames: int) -> None:
    builder = ProfileBuilder()
    for stack in stacks:
        builder.sample("comm", [kernel(name) if name in "kl" else name for name in stack], 1)
    profile = builder.build()
    frame_of = profile.stacks.frame.tolist()
    leaves = profile.samples.stack.astype(np.int64)
    wanted = np.array([profile.strings[one] in names for one in profile.frames.symbol.tolist()], np.bool_)
    is_kernel = profile.frames.is_kernel()
    ways = [way_up(profile, leaf) for leaf in leaves.tolist()]

    assert np.flatnonzero(used_nodes(profile, leaves)).tolist() == sorted(set().union(*ways))
    used = {frame_of[node] for way in ways for node in way}
    assert set(np.flatnonzero(used_frames(profile, leaves)).tolist()) == used

    hits = [[node for node in way if wanted[frame_of[node]]] for way in ways]
    assert outermost_node(profile, leaves, wanted).tolist() == [(found or [-1])[-1] for found in hits]
    for way, found, node in zip(ways, hits, innermost_node(profile, leaves, wanted, user_frames).tolist(), strict=True):
        users = np.cumsum([not is_kernel[frame_of[one]] for one in way]).tolist()
        is_near = [not user_frames or number < user_frames for number in [0, *users]]
        assert node == next((one for one, near in zip(way, is_near, strict=False) if near and one in found), -1)
