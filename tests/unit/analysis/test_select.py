# SPDX-License-Identifier: Apache-2.0
"""Which samples a view shows; a selection that finds nothing is answered with what there is."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders.profile import ProfileBuilder, kernel

from perf_offcpu import losses
from perf_offcpu.analysis.classes.wait_classes import WaitClass
from perf_offcpu.analysis.selection.absent import absent_values
from perf_offcpu.analysis.selection.select import Selection, select_events, select_samples, selected_rows
from perf_offcpu.analysis.selection.time_windows import parse_windows
from perf_offcpu.errors import UsageError
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


def weight(profile: Profile, events: Any = (), **chosen: Any) -> int:
    return int(select_events(select_samples(profile, Selection(**chosen)), events).samples.period.sum())


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
        select_events(mixed(), ("cpu-clock", name))


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
    (Selection(containers=("db",), min_ns=1000), ["no sample matches --container and --min-dur at once"]),
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
