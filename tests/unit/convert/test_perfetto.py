# SPDX-License-Identifier: Apache-2.0
"""Perfetto traces, read with Perfetto's published messages."""

from collections import Counter
from typing import Any

import numpy as np
import pytest
from builders.large import large_profile
from builders.perfetto import Read, read
from builders.profile import Code, ProfileBuilder, kernel
from hypothesis import given
from hypothesis import strategies as st

from perf_offcpu.convert.perfetto import trace
from perf_offcpu.model.recording import SampleFlag


@pytest.fixture
def found() -> Read:
    meta = {"wall_clock_ns": 1_700_000_000_000_000_000, "wall_clock_at_ns": 4_000_000, "first_ns": 4_500_000}
    builder = ProfileBuilder(meta=meta)
    builder.sample("main", ["main", kernel("futex")], 1_000_001, time_ns=5_000_001, state=1, cpu=1)
    columns: dict[str, Any] = {"waker_tid": 100, "waker_pid": 100, "wakeup_ns": 5_019_000, "runq_ns": 1_000}
    builder.sample("wk", ["main", Code("f", "/lib/x.so")], 9_000, time_ns=5_020_000, tid=102, state=2, cpu=0, **columns)
    builder.sample("wk", ["main"], 400, time_ns=5_030_000, tid=102, cpu=1, flags=SampleFlag.PREEMPTED, runq_ns=400)
    builder.sample("wk", ["main"], 77, time_ns=5_031_000, tid=102, flags=SampleFlag.AGGREGATED, count=9)
    builder.sample("wk", ["main", "run"], 11, time_ns=5_032_000, tid=102, event="cpu-clock")
    return read(builder.build())


def test_waits_and_their_run_queue(found: Read) -> None:
    sums = "sums of short waits: no time"
    assert [(one.track, one.category, one.name, one.begin, one.end, one.depth, one.weight) for one in found.slices] == [
        ("main", "offcpu", "futex", 4_000_000, 5_000_001, 0, 1_000_001),
        (sums, "offcpu", "main", 4_000_000, 4_000_077, 0, 77),
        ("wk", "offcpu", "f", 5_011_000, 5_020_000, 0, 9_000),
        ("main", "wakeup", "wakes wk-102", 5_019_000, 5_020_000, 0, None),
        ("wk", "runqueue", "run queue", 5_019_000, 5_020_000, 1, None),
        ("wk", "offcpu", "main", 5_029_600, 5_030_000, 0, 400),
        ("wk", "runqueue", "run queue", 5_029_600, 5_030_000, 1, None),
        ("wk", "cpu", "cpu-clock", 5_032_000, 5_032_000, 0, 11),
    ]
    assert found.flows == [("wakes wk-102", "wk", 5_019_000)]


def test_stacks_details_and_clocks(found: Read) -> None:
    wait = next(one for one in found.slices if one.name == "f")
    assert wait.stack == "main;f"
    texts = {"state": "uninterruptible sleep", "woken by": "main (pid 100, tid 100)"}
    assert wait.details == texts | {"blocked_ns": 8_000, "runq_ns": 1_000}
    assert found.clocks == {3: 4_000_000, 1: 1_700_000_000_000_000_000}


def test_thread_states_and_counters(found: Read) -> None:
    sleep, deep, runnable, running = 4, 5, 2, 3
    assert sorted(found.states, key=lambda state: state[1]) == [
        (100, 4_000_000, sleep, 1), (100, 5_000_001, running, 1), (102, 5_011_000, deep, 0),
        (102, 5_019_000, runnable, 0), (102, 5_020_000, running, 0), (102, 5_029_600, runnable, 0),
        (102, 5_030_000, running, 1),
    ]  # fmt: skip
    assert found.counters["threads blocked"] == [(4_000_000, 1), (5_000_001, 0), (5_011_000, 1), (5_019_000, 0)]
    assert [value for _, value in found.counters["threads runnable"]] == [1, 0, 1, 0]


def test_large_totals_are_exact_and_slices_nest() -> None:
    profile = large_profile(20_000, 1_000)
    found = read(profile)
    assert found.weight == sum(profile.samples.period.tolist())
    depths = Counter(one.depth for one in found.slices if one.category == "offcpu")
    assert len(found.flows) > 10_000 and sum(depths.values()) == 20_000
    assert sum(one.end - one.begin for one in found.slices if one.category == "offcpu") == found.weight
    queued = sum(one.end - one.begin for one in found.slices if one.category == "runqueue")
    assert queued == sum(profile.samples.runq_ns.tolist()) and found.counters["threads blocked"][-1][1] == 0
    assert read(ProfileBuilder().build()).slices == []


@given(st.lists(st.tuples(st.integers(0, 3000), st.integers(1, 900)), min_size=1, max_size=40), st.integers(1, 700))
def test_mean_counts_keep_all_time(intervals: list[tuple[int, int]], step: int) -> None:
    since = np.array([begin for begin, _ in intervals], np.int64)
    until = since + np.array([length for _, length in intervals])
    times, means = trace.mean_counts(since, until, step)
    assert (
        means.sum() * step == pytest.approx((until - since).sum()) and means[-1] == 0 and (np.diff(times) == step).all()
    )
    changes, exact = trace.counts(since, until)
    each = exact[np.searchsorted(changes, np.arange(since.min(), until.max()), "right") - 1]
    assert means[:-1] == pytest.approx(
        [each[at : at + step].sum() / step for at in range(0, len(each), step)]
        + [0] * (len(means) - 1 - -(-len(each) // step))
    )


def test_counters_of_a_large_recording_are_means(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace, "MOST_CHANGES", 1000)
    profile = large_profile(2_000, 100)
    found = read(profile)
    name, values = next((name, values) for name, values in found.counters.items() if name.startswith("threads blocked"))
    step_ns = values[1][0] - values[0][0]
    assert name == f"threads blocked, mean of each {step_ns / 1000:.1f} us" and len(values) <= 2**16 + 2
    blocked = sum(profile.samples.period.tolist()) - sum(profile.samples.runq_ns.tolist())
    assert sum(value for _, value in values) * step_ns == pytest.approx(blocked)
