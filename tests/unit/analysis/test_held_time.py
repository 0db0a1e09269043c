# SPDX-License-Identifier: Apache-2.0
"""Who held a lock while others waited, by what was seen of it: owners at begins, wakers at ends."""

import numpy as np
import pytest
from builders.profile import ProfileBuilder
from hypothesis import given
from hypothesis import strategies as st

from perf_offcpu.analysis.held_time import held_time
from perf_offcpu.analysis.holders import Holders
from perf_offcpu.model.recording import SampleFlag

Wait = tuple[int, int, int, int, int]
"""Thread, begin, end, owner at the begin, waker; -1 not known."""


def held_by(waits: list[Wait]) -> dict[int, tuple[int, int]]:
    """Return thread → (ns, times)."""
    builder = ProfileBuilder()
    lock = builder.thing("m in bank")
    for tid, begin, end, *_ in waits:
        times = {"switch_out_ns": begin, "time_ns": end, "wakeup_ns": end}
        builder.sample("a", ["main"], end - begin, tid=tid, object=lock, **times)  # type: ignore[arg-type]
    owner, waker = (np.array([wait[column] for wait in waits], np.int32) for column in (3, 4))
    holders = Holders(owner, waker, np.zeros(len(waits), np.bool_), 0)
    time = held_time(builder.build(), holders, np.ones(len(waits), np.bool_))
    columns = (time.tid.tolist(), time.weight.tolist(), time.times.tolist())
    return {tid: (ns, times) for tid, ns, times in zip(*columns, strict=True)}


@pytest.mark.parametrize(("waits", "expected"), [
    ([(1, 0, 100, 9, 9)], {9: (100, 1)}),
    ([(1, 0, 100, -1, 9)], {9: (100, 1)}),
    ([(1, 0, 100, 9, -1)], {9: (100, 1)}),
    ([(1, 0, 100, 9, 8)], {-1: (100, 1)}),
    ([(1, 0, 100, -1, -1)], {-1: (100, 1)}),
    # A broadcast wakes three threads: the caller holds the mutex for 10 ns, then each of them for 100.
    ([(1, 0, 10, 9, 9), (2, 0, 110, 9, 1), (3, 0, 210, 9, 2)], {9: (30, 1), 1: (200, 1), 2: (100, 1)}),
    # Thread 1 is woken and overtaken by 9, who released the lock and has it again.
    ([(1, 0, 50, 9, 9), (2, 10, 90, 9, 9), (1, 51, 120, 9, 2)], {9: (169, 1), 2: (30, 1)}),
    # Between two queues anybody may have had it.
    ([(1, 0, 10, 9, 9), (2, 50, 60, -1, 8)], {9: (10, 1), 8: (10, 1)}),
])  # fmt: skip
def test_designs(waits: list[Wait], expected: dict[int, tuple[int, int]]) -> None:
    assert held_by(waits) == expected


@given(st.lists(
    st.tuples(st.integers(1, 4), st.integers(0, 30), st.integers(1, 20), *[st.integers(-1, 5)] * 2),
    min_size=1,
))  # fmt: skip
def test_all_time_is_of_a_holder_or_not_known(waits: list[Wait]) -> None:
    spans = [(tid, begin, begin + length, owner, waker) for tid, begin, length, owner, waker in waits]
    held = held_by(spans)
    assert sum(ns for ns, _ in held.values()) == sum(wait[2] for wait in waits)
    assert set(held) <= {-1} | {id_ for tid, *_, owner, waker in spans for id_ in (tid, owner, waker)}


def test_a_thread_that_is_blocked_at_the_end_knows_the_holder_of_that_moment() -> None:
    builder = ProfileBuilder()
    lock = builder.thing("m in bank")
    for tid, begin, flags in ((1, 0, SampleFlag(0)), (2, 50, SampleFlag.STILL_BLOCKED)):
        builder.sample("a", [], 100 - begin, tid=tid, object=lock, switch_out_ns=begin, time_ns=100, flags=flags)
    holders = Holders(np.array([-1, 9], np.int32), np.array([-1, -1], np.int32), np.zeros(2, np.bool_), 0)
    time = held_time(builder.build(), holders, np.ones(2, np.bool_))
    assert dict(zip(time.tid.tolist(), time.weight.tolist(), strict=True)) == {9: 150}
