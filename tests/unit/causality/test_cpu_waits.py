# SPDX-License-Identifier: Apache-2.0
"""Preemption that only budgets know is no running time where threads are followed; sums stay whole."""

import numpy as np
from builders.waits import waits_of

from perf_offcpu.analysis.cpu_waits import CpuWaits
from perf_offcpu.analysis.timeline import Timeline, timeline_of
from perf_offcpu.causality.cascade import Held, cascade_of
from perf_offcpu.causality.critical_path import Doing, critical_path
from perf_offcpu.causality.path_rows import hop_rows, path_rows
from perf_offcpu.causality.path_stacks import chains_of
from perf_offcpu.model.profile import Profile
from perf_offcpu.model.recording import Budget, SampleFlag
from perf_offcpu.report.bottlenecks import bottlenecks_of
from perf_offcpu.report.serial import FOR_CPU, serial_of


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
