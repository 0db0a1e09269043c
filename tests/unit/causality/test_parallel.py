# SPDX-License-Identifier: Apache-2.0
"""Threads that run as a function of time, against counting each ns; preemption that only budgets know; sums."""

from fractions import Fraction

import numpy as np
from builders.profile import ProfileBuilder
from builders.waits import Waits, random_waits, wait, waits_of, with_waits
from hypothesis import given
from hypothesis import strategies as st

from perf_offcpu.analysis.cpu_waits import CpuWaits
from perf_offcpu.analysis.timeline import Timeline, timeline_of
from perf_offcpu.causality.cascade import Held, cascade_of
from perf_offcpu.causality.critical_path import Doing, critical_path
from perf_offcpu.causality.parallel import Parallelism, parallelism_of
from perf_offcpu.causality.path_rows import hop_rows, path_rows
from perf_offcpu.causality.path_stacks import chains_of
from perf_offcpu.causality.wait_table import WaitTable
from perf_offcpu.model.join import PID_STEP
from perf_offcpu.model.profile import Profile
from perf_offcpu.model.recording import Budget, SampleFlag
from perf_offcpu.report.bottlenecks import bottlenecks_of
from perf_offcpu.report.serial import FOR_CPU, serial_of


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
    found = count(profile, window)
    timeline, levels = timeline_of(profile), found.levels()
    paused = {at - timeline.origin_ns for begin, end in profile.meta.pauses for at in range(begin, end)}
    assert int(levels.sum()) == len(set(range(found.begin, found.end)) - paused)
    assert int(found.weight.sum()) == int(levels[1:].sum())
    assert int(found.alone_by.sum()) == (int(levels[1]) if len(levels) > 1 else 0)
    # Nanosecond by nanosecond.
    table = WaitTable(profile, timeline)
    weight = [Fraction(0)] * len(timeline.tracks)
    for at in range(found.begin, found.end):
        running = []
        for row in range(len(timeline.tracks)):
            mine = table.track == row
            its = timeline.track == row
            alive = timeline.begin_ns[its].min() <= at < timeline.end_ns[its].max()
            if alive and at not in paused and not ((table.begin[mine] <= at) & (at < table.end[mine])).any():
                running.append(row)
        assert int(found.numbers_at(np.array([at]))[0]) == len(running)
        for row in running:
            weight[row] += Fraction(1, len(running))
    assert all(abs(one - int(other)) < 1 for one, other in zip(weight, found.weight, strict=True))


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
    found = bottlenecks_of(profile, timeline, cascade, profile.budget)
    by_name = {one.members[0]: one for one in found.shown}
    assert (by_name["disk"].held[Held.RUNNING], by_name["disk"].held[Held.RUNNABLE]) == (400, 1200)
    assert (by_name["[CPU]"].held_ns, by_name["[CPU]"].behind[0]) == (1200, ("disk", 1200))
    assert found.total_ns == sum(one.held_ns for one in found.shown) + found.other_ns


def test_serialization() -> None:
    profile, timeline = profile_with_preemption()
    found = serial_of(profile, timeline, np.ones(len(timeline.tracks), np.bool_), None, 10)
    assert sum(row.weight for row in found.rows) == found.total_ns - found.levels[0]
    by_name = {(row.comm, row.function): row.weight for row in found.rows}
    assert by_name["disk", FOR_CPU] == 3 * by_name["disk", "sort"] == 1200
