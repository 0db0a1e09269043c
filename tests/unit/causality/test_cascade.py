# SPDX-License-Identifier: Apache-2.0
"""Cascades: known chains, wPerf's recursion as reference, conservation; threads that run as a function of time."""

from collections import Counter
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from builders.profile import ProfileBuilder
from builders.waits import Waits, random_waits, wait, waits_of, with_waits
from hypothesis import given
from hypothesis import strategies as st

from perf_offcpu.analysis.times.cpu_waits import CpuWaits
from perf_offcpu.analysis.times.timeline import Timeline, timeline_of
from perf_offcpu.causality import cascade
from perf_offcpu.causality.cascade import DEVICES, Cascade, Held, cascade_of
from perf_offcpu.causality.critical_path import Doing, critical_path
from perf_offcpu.causality.parallel import Parallelism, parallelism_of
from perf_offcpu.causality.path_rows import hop_rows, path_rows
from perf_offcpu.causality.path_stacks import chains_of
from perf_offcpu.causality.wait_table import WaitTable
from perf_offcpu.errors import PerfOffcpuError
from perf_offcpu.model.join import PID_STEP
from perf_offcpu.model.profile import Profile
from perf_offcpu.model.recording import Budget, SampleFlag
from perf_offcpu.report.bottlenecks import bottlenecks_of
from perf_offcpu.report.serial import FOR_CPU, serial_of
from perf_offcpu.symbolize.load import load_profile
from perf_offcpu.symbolize.options import SymbolizeOptions

DATA = Path(__file__).parents[2] / "data"


def cascade_of_all(profile: Profile, tid: int | None = None) -> Cascade:
    chosen = None if tid is None else profile.samples.tid == tid
    found = cascade_of(profile, timeline_of(profile), chosen)
    found.check()
    return found


def edges(found: Cascade) -> dict[tuple[str, str], int]:
    names = [*(str(track.tid) for track in found.tracks), *DEVICES]
    weights: Counter[tuple[str, str]] = Counter()
    rows = zip(found.waiter.tolist(), found.target.tolist(), found.carried_ns.tolist(), strict=True)
    for waiter, target, carried in rows:
        if target >= 0:
            weights[names[waiter], names[target]] += carried
    return dict(weights)


def held(found: Cascade) -> dict[tuple[str, str], int]:
    """(node, state) → weight, without zeros."""
    names = [*(str(track.tid) for track in found.tracks), *DEVICES]
    return {(names[node], Held(how).name): int(found.held_ns[node, how]) for node, how in np.argwhere(found.held_ns)}


def test_what_the_last_one_does_weighs_as_much_as_all_who_wait_for_it() -> None:
    """1 and 4 wait for 2, which waits for 3, which waits for a disk and then computes."""
    builder, fsync = ProfileBuilder(meta={"arch": "x86_64"}), 74
    wait(builder, 3, 100, 1100, waker=9, flags=SampleFlag.WAKER_INTERRUPT, path=["main", "fsync"], syscall=fsync)
    wait(builder, 2, 100, 1600, waker=3)
    wait(builder, 1, 200, 1900, waker=2, queued=50)
    wait(builder, 4, 300, 1800, waker=2)
    for tid, time in ((3, 1500), (2, 1700), (2, 2700)):
        builder.sample("c", ["spin"], 10, event="cpu-clock", tid=tid, pid=tid, time_ns=time)
    found = cascade_of_all(builder.build())
    to_3 = 1500 + (1600 - 200) + (1600 - 300)
    to_disk = 1000 + 1000 + (1100 - 200) + (1100 - 300)
    assert edges(found) == {
        ("1", "2"): 1650, ("4", "2"): 1500, ("2", "3"): to_3, ("3", "[disk]"): to_disk,
    }  # fmt: skip
    assert held(found) == {("[disk]", "WAITING"): to_disk, ("3", "RUNNING"): 3 * 500, ("2", "RUNNING"): 250 + 200}
    assert found.total_ns == 1000 + 1500 + 1650 + 1500
    assert found.held_up[-3:].tolist() == [3, 2, 0] and found.depth == 3


def test_only_chosen_waits_are_passed_on() -> None:
    found = cascade_of_all(waits_of((2, 100, 1600, -1), (1, 200, 1900, 2)).build(), 1)
    assert held(found) == {("2", "WAITING"): 1400, ("2", "RUNNING"): 300}


def test_a_thousand_waits_behind_one_are_one_step() -> None:
    """The number of parts is that of waits, not the number of pairs of waits that overlap."""
    builder = ProfileBuilder()
    for number in range(300):
        wait(builder, 1, 10 * number, 10 * number + 5, waker=9, flags=SampleFlag.WAKER_INTERRUPT)
    for tid in range(10, 310):
        wait(builder, tid, 0, 3000, waker=1)
    assert edges(cascade_of_all(builder.build()))["1", "[interrupt]"] == 300 * 5 * 301


def test_deep_chains_are_cut_and_said(monkeypatch: pytest.MonkeyPatch) -> None:
    profile = waits_of(*((tid, 0, 1000 - 10 * tid, tid + 1) for tid in range(1, 8))).build()
    monkeypatch.setattr(cascade, "MAX_DEPTH", 3)
    assert "CUT" in {how for _, how in held(cascade_of_all(profile))}
    monkeypatch.setattr(cascade, "MAX_PARTS", 1)
    assert {how for _, how in held(cascade_of_all(profile))} == {"CUT"}


def test_damaged_times_are_said() -> None:
    with pytest.raises(PerfOffcpuError, match="damaged"):
        cascade_of_all(waits_of((1, 0, 2**61 - 1, 2), (2, 0, 2**61 - 2, 3)).build())


def test_sums_and_still_blocked_threads() -> None:
    builder = ProfileBuilder()
    wait(builder, 1, 100, 300, waker=2, flags=SampleFlag.AGGREGATED)
    wait(builder, 1, 400, 900, waker=2, flags=SampleFlag.STILL_BLOCKED)
    wait(builder, 2, 400, 900, waker=0)
    found = cascade_of_all(builder.build())
    assert found.unplaced_ns == 200
    assert held(found) == {("1", "WAITING"): 500, ("[interrupt]", "WAITING"): 500}


def test_a_waker_that_sleeps_soon_after_it_woke_another_one() -> None:
    """The sleeper becomes runnable on another CPU only when the waker waits again."""
    builder = ProfileBuilder()
    wait(builder, 2, 195, 400, waker=9, flags=SampleFlag.WAKER_INTERRUPT)
    wait(builder, 1, 100, 200, waker=2)
    assert held(cascade_of_all(builder.build(), 1)) == {("2", "RUNNING"): 95, ("1", "WAITING"): 5}


@given(random_waits(shortest=0))
def test_edges_are_those_of_wperf_and_weight_is_conserved(waits: Waits) -> None:
    """Against a recursion over single waits; waits that overlap and wakers that sleep are damage."""
    profile = with_waits(waits).build()
    timeline = timeline_of(profile)
    found = cascade_of(profile, timeline)
    found.check()
    # The same waits as the cascade has them: (thread, begin, end), clipped to lie apart, with targets.
    steps = cascade._Steps(profile, timeline)
    begin_to_target = (steps.track, steps.begin, steps.times[steps.awake], steps.target)
    table = list(zip(*(column.tolist() for column in begin_to_target), strict=True))
    expected: Counter[tuple[int, int]] = Counter()

    def redistribute(row: int, begin: int, end: int) -> None:
        track, _, _, target = table[row]
        if target < 0:
            return
        expected[track, target] += end - begin
        for other, (thread, since, until, _) in enumerate(table):
            if thread == target and max(begin, since) < min(end, until):
                redistribute(other, max(begin, since), min(end, until))

    for row, (_, begin, end, _) in enumerate(table):
        redistribute(row, begin, end)
    shown: Counter[tuple[int, int]] = Counter()
    columns = (found.waiter, found.target, found.carried_ns)
    for waiter, target, weight in zip(*(column.tolist() for column in columns), strict=True):
        if target >= 0:
            shown[waiter, target] += weight
    assert +shown == +expected


@pytest.mark.parametrize(
    "path", [DATA / "demo.data", *sorted((DATA / "perf-7.2").glob("*.data"))], ids=lambda path: path.name
)
def test_cascades_of_recordings_conserve_weight(path: Path) -> None:
    profile = load_profile([str(path)], SymbolizeOptions())
    found = cascade_of_all(profile)
    timeline = timeline_of(profile)
    assert found.total_ns <= int(profile.samples.period[timeline.waits].sum())
    assert bool(np.isin(found.row, np.flatnonzero(timeline.waits)).all())


def count(profile: Profile, window: tuple[int, int] | None = None) -> Parallelism:
    timeline = timeline_of(profile)
    chosen = np.ones(len(timeline.tracks), np.bool_)
    table = WaitTable(profile, timeline)
    if window:
        window = (window[0] - timeline.origin_ns, window[1] - timeline.origin_ns)
    return parallelism_of(profile, timeline, table, chosen, window)


def test_two_threads_of_which_one_waits() -> None:
    """1 lives from 0 to 1000 and waits from 100 to 500; 2 lives from 200 to 600."""
    builder = ProfileBuilder()
    wait(builder, 1, 100, 500)
    builder.sample("b", ["f"], 1, event="cpu-clock", tid=2, pid=2, time_ns=300)
    profile = builder.build()
    lives = {"tid": [1, 2], "pid": [1, 2], "begin_ns": [0, 200], "end_ns": [1000, 600]}
    profile.budget = Budget.filled(2, **{name: np.array(one) for name, one in lives.items()})
    found = count(profile)
    assert found.levels().tolist() == [100, 800, 100]
    assert found.alone_by.tolist() == [500, 300] and found.weight.tolist() == [550, 350]
    assert found.numbers_at(np.array([0, 99, 100, 199, 200]) - 100).tolist() == [1, 1, 0, 0, 1]
    part = count(profile, (50, 150))
    assert part.levels().tolist() == [50, 50] and part.weight.tolist() == [50, 0]


def test_nobody() -> None:
    found = count(ProfileBuilder().sample("a", ["f"], 5, time_ns=-1).build())
    assert found.levels().tolist() == [0] and not found.weight.any()


@given(
    random_waits(),
    st.one_of(st.none(), st.tuples(st.integers(0, 60), st.integers(61, 140))),
    st.sets(st.integers(0, 140), max_size=6),
)
def test_weights_and_idle_time_sum_to_the_window(waits: Waits, window: tuple[int, int] | None, edges: set[int]) -> None:
    profile = with_waits((*one[:3], -1, 0) for one in waits).build()
    starts = [-1, *sorted(edges), 200]
    profile.meta.parts = tuple(zip(starts[::2], starts[1::2], strict=False))
    moments = count(profile, window)
    timeline, levels = timeline_of(profile), moments.levels()
    paused = {now - timeline.origin_ns for begin, end in profile.meta.pauses for now in range(begin, end)}
    assert int(levels.sum()) == len(set(range(moments.begin, moments.end)) - paused)
    assert int(moments.weight.sum()) == int(levels[1:].sum())
    assert int(moments.alone_by.sum()) == (int(levels[1]) if len(levels) > 1 else 0)
    # Nanosecond by nanosecond.
    table = WaitTable(profile, timeline)
    weight = [Fraction(0)] * len(timeline.tracks)
    for now in range(moments.begin, moments.end):
        running = []
        for row in range(len(timeline.tracks)):
            mine = table.track == row
            its = timeline.track == row
            alive = timeline.begin_ns[its].min() <= now < timeline.end_ns[its].max()
            if alive and now not in paused and not ((table.begin[mine] <= now) & (now < table.end[mine])).any():
                running.append(row)
        assert int(moments.numbers_at(np.array([now]))[0]) == len(running)
        for row in running:
            weight[row] += Fraction(1, len(running))
    assert all(abs(one - int(other)) < 1 for one, other in zip(weight, moments.weight, strict=True))


def test_threads_do_not_run_while_their_host_is_not_recorded() -> None:
    """1, of the first host, seems to live from 0 to 1000; the second host was recorded all the time."""
    builder = ProfileBuilder()
    for begin in (0, 900):
        wait(builder, 1, begin, begin + 100)
    for begin in (0, 990):
        wait(builder, PID_STEP + 1, begin, begin + 10)
    profile = builder.build()
    profile.meta.parts = ((0, 1000),)
    profile.meta.hosts = (((0, 300), (800, 1000)), ((0, 1000),))
    both = count(profile)
    assert both.weight.tolist() == [150, 830] and both.levels().tolist() == [20, 680, 300]
    timeline = timeline_of(profile)
    first = np.array([track.tid == 1 for track in timeline.tracks])
    alone = parallelism_of(profile, timeline, WaitTable(profile, timeline), first, None)
    assert alone.weight.tolist() == [300, 0] and alone.levels().tolist() == [200, 300]
    other = wait(builder, 9 * PID_STEP, 0, 1000).build()  # a damaged tid: of the last host
    other.meta = profile.meta
    assert count(other).weight.tolist() == [150, 830, 0]


def profile_with_preemption() -> tuple[Profile, Timeline]:
    """Thread 1 waits from 100 to 1700 for thread 3, which is preempted three quarters of its time."""
    builder = waits_of((1, 100, 1700, 3), (3, 0, 100, -1))
    builder.comms = [(1, 1, 0, "client"), (3, 3, 0, "disk")]
    for moment in (500, 900):
        builder.sample("disk", ["main", "sort"], 1, event="cpu-clock", tid=3, pid=3, time_ns=moment)
    profile = builder.build()
    times = {"running_ns": [100, 400], "preempted_ns": [0, 1200], "end_ns": [1700, 1700]}
    profile.budget = Budget.filled(2, tid=[1, 3], pid=[1, 3], begin_ns=[0, 0], **times)
    return profile, timeline_of(profile)


def test_shares_are_those_of_budgets() -> None:
    profile, timeline = profile_with_preemption()
    waits = CpuWaits(profile, timeline.tracks)
    assert waits.of(np.array([0, 1]), np.array([1000, 1000])).tolist() == [0, 750]
    profile.samples = profile.samples.with_columns(flags=profile.samples.flags | SampleFlag.PREEMPTED)
    assert CpuWaits(profile, timeline.tracks).share[1] < waits.share[1], "recorded ones are waits"


def test_a_critical_path() -> None:
    profile, timeline = profile_with_preemption()
    path = critical_path(profile, timeline, 0, 100, 1700)
    rows = path_rows(profile, timeline, path)
    assert [(row.comm, row.doing, row.ns) for row in sorted(rows, key=lambda row: -row.ns)] == [
        ("disk", Doing.RUNNABLE, 1200), ("disk", Doing.RUNNING, 400),
    ]  # fmt: skip
    below = hop_rows(path, chains_of(profile, path))[1]
    assert (below.own_ns[Doing.RUNNING], below.own_ns[Doing.RUNNABLE]) == (400, 1200)


def test_bottlenecks() -> None:
    profile, timeline = profile_with_preemption()
    cascade = cascade_of(profile, timeline)
    cascade.check()
    bottlenecks = bottlenecks_of(profile, timeline, cascade, profile.budget)
    by_name = {one.members[0]: one for one in bottlenecks.shown}
    assert (by_name["disk"].held[Held.RUNNING], by_name["disk"].held[Held.RUNNABLE]) == (400, 1200)
    assert (by_name["[CPU]"].held_ns, by_name["[CPU]"].behind[0]) == (1200, ("disk", 1200))
    assert bottlenecks.total_ns == sum(one.held_ns for one in bottlenecks.shown) + bottlenecks.other_ns


def test_serialization() -> None:
    profile, timeline = profile_with_preemption()
    found = serial_of(profile, timeline, np.ones(len(timeline.tracks), np.bool_), None, 10)
    assert sum(row.weight for row in found.rows) == found.total_ns - found.levels[0]
    by_name = {(row.comm, row.function): row.weight for row in found.rows}
    assert by_name["disk", FOR_CPU] == 3 * by_name["disk", "sort"] == 1200
