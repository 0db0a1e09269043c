# SPDX-License-Identifier: Apache-2.0
"""Which samples a view shows; grouping, exact sums and walks up the stack tree, against dictionaries and loops."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders.profile import ProfileBuilder, kernel
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from perf_offcpu import losses
from perf_offcpu.analysis.absent import absent_values
from perf_offcpu.analysis.classes.wait_classes import WaitClass
from perf_offcpu.analysis.group import group, max_by, stable_order, sum_by
from perf_offcpu.analysis.select import Selection, select, select_samples, selected_rows
from perf_offcpu.analysis.stack_walk import innermost_node, outermost_node, used_frames, used_nodes
from perf_offcpu.analysis.time_windows import parse_windows
from perf_offcpu.errors import PerfOffcpuError, UsageError
from perf_offcpu.model.profile import Profile
from perf_offcpu.model.recording import Budget, Comms, SampleFlag
from perf_offcpu.symbolize.load import load_profile
from perf_offcpu.symbolize.options import SymbolizeOptions

EVENTS = {"cycles:u": "", "offcpu-time": "ns", "cpu-clock": "ns", "sched:sched_switch": ""}


def mixed() -> Profile:
    builder = ProfileBuilder(events=EVENTS, meta={"source": "x.data"})
    builder.sample("a", ["f"], 1, event="cycles:u", pid=10, tid=10)
    builder.sample("a", ["f"], 2, pid=10, tid=11)
    builder.sample("b", ["f"], 4, pid=20, tid=20)
    builder.sample("b", ["f"], 8, event="cpu-clock", pid=20, tid=21)
    return builder.sample("a b", ["f"], 16, event="sched:sched_switch", pid=20, tid=21).build()


def weight(profile: Profile, **chosen: tuple[str, ...] | tuple[int, ...]) -> int:
    return int(select(profile, Selection(**chosen)).samples.period.sum())  # type: ignore[arg-type]


@pytest.mark.parametrize(("events", "samples"), [
    ((), 2 + 4), (("offcpu-time",), 2 + 4), (("cycles",), 1), (("cycles:u",), 1),
    (("cpu-clock", "cycles"), 8 + 1), (("sched:sched_switch",), 16),
])  # fmt: skip
def test_events(events: tuple[str, ...], samples: int) -> None:
    assert weight(mixed(), events=events) == samples


@pytest.mark.parametrize("name", ["cycle", "sched", "cycles:k", "", "sched_switch"])
def test_an_unknown_event_is_reported_with_the_known_ones(name: str) -> None:
    known = "cycles:u, offcpu-time, cpu-clock, sched:sched_switch"
    with pytest.raises(UsageError, match=rf"no event '{name}' in x.data \(its events: {known}\)"):
        select(mixed(), Selection(events=("cpu-clock", name)))


@pytest.mark.parametrize(("chosen", "samples"), [
    ({"comms": ("a",)}, 2), ({"comms": ("a", "b", "never seen")}, 2 + 4), ({"comms": ("never seen",)}, 0),
    ({"pids": (20,)}, 4), ({"pids": (10, 20), "tids": (11,)}, 2), ({"pids": (20,), "tids": (11,)}, 0),
    ({"comms": ("a b",), "events": ("sched:sched_switch",)}, 16), ({"pids": (2**40,)}, 0),
])  # fmt: skip
def test_threads(chosen: dict[str, tuple[str, ...] | tuple[int, ...]], samples: int) -> None:
    assert weight(mixed(), **chosen) == samples


def test_what_is_shown_if_no_event_is_named() -> None:
    builder = ProfileBuilder(events={"dummy": "", "cycles": "", "cpu-clock": "ns"})
    builder.sample("a", ["f"], 8, event="cpu-clock").sample("a", ["f"], 1, event="cycles")
    assert weight(builder.build()) == 1
    nothing_waited = ProfileBuilder().sample("a", ["f"], 8, event="cpu-clock").build()
    assert weight(nothing_waited) == 0, "CPU samples passed for waits"
    # A file that was injected, or made from sched_switch, may have another event name: the flag tells.
    profile = mixed()
    profile.samples.flags[-1] |= 1
    assert weight(profile) == 2 + 4 + 16


def waits() -> Profile:
    """Waits of all kinds; the weights are powers of two, and so are the milliseconds that they took."""
    meta = {"arch": "x86_64", "first_ns": 0, "last_ns": 100, "source": "x.data"}
    cgroups = {7: "/", 8: "/system.slice", 9: "/system.slice/db", 10: "/system.slices"}
    builder = ProfileBuilder(meta=meta, losses={losses.BAD_SIZE: 1}, cgroups=cgroups)
    builder.sample("a", [], 1 << 20, cpu=0, state=1, syscall=202, time_ns=10, cgroup=7)
    builder.sample("a", [], 2 << 20, cpu=1, state=2, syscall=74, time_ns=20, cgroup=8)
    builder.sample("b", [], 4 << 20, cpu=2, state=1, flags=SampleFlag.PREEMPTED, time_ns=30, cgroup=9)
    summed = SampleFlag.AGGREGATED
    builder.sample("b", [], 8 << 20, flags=summed, count=4, longest_ns=3 << 20, time_ns=40, syscall=7)
    builder.sample("b", [], 16 << 20, cpu=3, flags=summed | SampleFlag.UNTIMED, time_ns=-1, cgroup=10)
    return builder.sample("b", [], 32 << 20, cpu=0, event="cpu-clock", time_ns=50).build()


CPU = 32


@pytest.mark.parametrize(("chosen", "samples"), [
    ({"cpus": (0,)}, 1 + CPU), ({"cpus": (1, 2)}, 2 + 4), ({"cgroups": ("/system.slice",)}, 2 + 4),
    ({"cgroups": ("/system.slice/", "10")}, 2 + 4 + 16), ({"cgroups": ("/",)}, 1 + 2 + 4 + 16),
    ({"windows": parse_windows("0.00000002,0.00000004")}, 2 + 4 + 8),
    ({"windows": parse_windows("0%-20%,50%-60%")}, 1 + CPU), ({"states": ("S",)}, 1 + CPU),
    ({"states": ("D", "R")}, 2 + 4 + CPU), ({"classes": (WaitClass.LOCK, WaitClass.POLL)}, 1 + 8 + CPU),
    ({"classes": (WaitClass.RUNQUEUE,)}, 4 + CPU), ({"min_ns": 2 << 20}, 2 + 4 + 8 + 16 + CPU),
    ({"min_ns": (3 << 20) + 1}, 4 + 16 + CPU), ({"min_ns": 1 << 30}, CPU),
    ({"states": ("S",), "classes": (WaitClass.DISK,)}, CPU), ({"idle": "hide"}, 63),
])  # fmt: skip
def test_more_kinds(chosen: dict[str, Any], samples: int) -> None:
    assert int(select_samples(waits(), Selection(**chosen)).samples.period.sum()) == samples << 20


@pytest.mark.parametrize(("chosen", "tids"), [
    ({}, [10, 11, 20, 30]), ({"pids": (10,)}, [10, 11]), ({"pids": (30,)}, [30]), ({"tids": (30, 20)}, [20, 30]),
    ({"comms": ("ran",)}, [30]), ({"comms": ("b",)}, [20]), ({"pids": (10,), "comms": ("ran",)}, []),
    ({"idle": "only"}, []), ({"idle": "hide"}, [10, 11, 20, 30]),
])  # fmt: skip
def test_budgets_of_the_chosen_threads_also_of_those_without_samples(chosen: dict[str, Any], tids: list[int]) -> None:
    profile = mixed()
    columns = {"tid": [10, 11, 20, 30], "pid": [10, 10, 20, 30], "begin_ns": [0] * 4, "end_ns": [9] * 4}
    profile.budget = Budget.filled(4, **columns)
    profile.comms = Comms.from_rows([(30, 30, 0, profile.strings.intern("ran"))])
    assert select_samples(profile, Selection(**chosen)).budget.tid.tolist() == tids


def test_undecidable_samples_are_counted() -> None:
    timed = select_samples(waits(), Selection(windows=parse_windows("0,1")))
    assert timed.losses == {losses.BAD_SIZE: 1, losses.UNTIMED: 1}
    assert select_samples(waits(), Selection(min_ns=2 << 20)).losses == {losses.BAD_SIZE: 1, losses.KEPT_SUMS: 2}
    assert select_samples(waits(), Selection(min_ns=1 << 30)).losses == {losses.BAD_SIZE: 1}


def test_an_unknown_cgroup_is_reported_with_the_known_ones() -> None:
    known = "/, /system.slice, /system.slice/db, /system.slices"
    for name in ("/nowhere", "6", "/system"):
        with pytest.raises(UsageError, match=rf"no cgroup '{name}' in x.data \(its cgroups: {known}\)"):
            select_samples(waits(), Selection(cgroups=(name,)))


@pytest.mark.parametrize("selection", [
    Selection(), Selection(comms=("blocker", "syncer"), states=("S",)),
    Selection(classes=(WaitClass.DISK, WaitClass.LOCK), min_ns=10**6), Selection(idle="hide"),
    Selection(idle="only", windows=parse_windows("10%-70%")),
    Selection(windows=parse_windows("10%-20%"), classes=(WaitClass.SLEEP,)),
])  # fmt: skip
def test_selected_rows_are_those_of_the_selected_samples(selection: Selection) -> None:
    profile = load_profile([str(Path(__file__).parents[2] / "data" / "perf-7.2" / "sched.data")], SymbolizeOptions())
    rows, samples = selected_rows(profile, selection), select_samples(profile, selection).samples
    found = profile.samples.take(rows)
    assert len(found) == len(samples) > 0
    for name in ("time_ns", "tid", "period", "stack"):
        assert np.array_equal(getattr(found, name), getattr(samples, name))


@pytest.mark.parametrize(("selection", "sentences"), [
    (Selection(), []), (Selection(comms=("postgres", "x")), []),
    (Selection(comms=("x", "y\n")), [r"no comm x or y\n in the recording, which has postgres, bad\nname"]),
    (Selection(comms=("burner",)), [r"no comm burner in the recording, which has postgres, bad\nname"]),
    (Selection(pids=(1,), tids=(8,)), ["no pid 1 in the recording, which has 7"]), (Selection(cpus=(3,)), []),
    (Selection(states=("T",)), ["no state T in the recording, which has S, D"]),
    (Selection(pids=(7,), cpus=(3,), states=("S",)), ["no sample matches --pid, --cpu and --state at once"]),
    (Selection(classes=(WaitClass.POLL,)), ["no class poll in the recording, which has lock, disk"]),
])  # fmt: skip
def test_absent_values(selection: Selection, sentences: list[str]) -> None:
    builder = ProfileBuilder()
    for _ in range(2):
        builder.sample("postgres", ["main", kernel("futex_wait")], 5, tid=7, pid=7, state=1)
    builder.sample("bad\nname", ["main", kernel("ext4_sync_file")], 500, tid=8, pid=7, state=2, cpu=3)
    builder.sample("burner", ["main"], 5, event="cpu-clock", tid=9)
    assert list(absent_values(builder.build(), selection)) == sentences


@pytest.mark.parametrize(("selection", "sentences"), [
    (Selection(objects=("m in",)), []),
    (Selection(objects=("m\n", "q*")), [r"no object m\n or q* in the recording, which has m in a, n in a"]),
    (Selection(locks=(0x40,)), []),
    (Selection(locks=(0x41, 2**64)), ["no lock 0x41 or 0x10000000000000000 in the recording, which has 0x40"]),
])  # fmt: skip
def test_absent_objects(selection: Selection, sentences: list[str]) -> None:
    builder = ProfileBuilder()
    one, other = builder.thing("m in a", address=0x40), builder.thing("n in a")
    for thing in (one, one, other):
        builder.sample("a", [], 1, object=thing)
    assert list(absent_values(builder.build(), selection)) == sentences
    without = list(absent_values(ProfileBuilder().sample("a", [], 1).build(), selection))
    assert without == ["no wait in the recording has an object"]


def test_the_most_frequent_are_named() -> None:
    builder = ProfileBuilder()
    assert not list(absent_values(builder.build(), Selection(comms=("x",))))
    for tid in range(20):
        for _ in range(tid):
            builder.sample("a", [], 1, tid=tid)
    (sentence,) = absent_values(builder.build(), Selection(tids=(99,)))
    assert sentence.endswith("which has 19, 18, 17, 16, 15, 14, 13, 12 and 11 more")


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
