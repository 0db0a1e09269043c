# SPDX-License-Identifier: Apache-2.0
"""Deadlocks: circles of holders among threads that are still blocked; lengths of queues."""

from typing import Any

import networkx
import numpy as np
import pytest
from builders.profile import ProfileBuilder
from hypothesis import given
from hypothesis import strategies as st

from perf_offcpu.analysis.classes.classify import classify
from perf_offcpu.analysis.holders import holders_of
from perf_offcpu.causality.locks import DeadThread, circles_of, deadlocks_of, longest_queues, sentence_of, waiters
from perf_offcpu.model.profile import Profile
from perf_offcpu.model.recording import SampleFlag
from perf_offcpu.report.document import deadlock_fields

BLOCKED = SampleFlag.STILL_BLOCKED


def found_in(profile: Profile) -> list[str]:
    return list(map(sentence_of, deadlocks_of(profile, classify(profile), holders_of(profile))))


def in_process_10(lives: dict[int, int], *waits: dict[str, Any]) -> Profile:
    """Waits for a lock, of threads whose ends are given (-1: they live on)."""
    builder = ProfileBuilder(tasks=[(tid, 10, 0, end) for tid, end in lives.items()])
    lock = builder.thing("a in bank")
    for wait in waits:
        builder.sample("t", [], 5, pid=10, object=lock, **wait)
    return builder.build()


def sentences(*waits: tuple[str, int, str, int, SampleFlag]) -> list[str]:
    """Comm, tid, lock, holder and flags of waits at the end."""
    builder = ProfileBuilder(tasks=[(tid, 10, 0, -1) for tid in range(11, 30)])
    locks = {name: builder.thing(f"{name} in bank") for _, _, name, _, _ in waits}
    for comm, tid, lock, holder, flags in waits:
        columns: dict[str, Any] = {"object": locks[lock], "holder_tid": holder, "time_ns": 900, "switch_out_ns": 100}
        builder.sample(comm, ["main", f"take_{lock}", "pthread_mutex_lock"], 5, pid=10, tid=tid, flags=flags, **columns)
    return found_in(builder.build())


def test_those_who_wait_for_a_deadlock_are_not_in_it() -> None:
    waits = ("transfer", 11, "b", 12, BLOCKED), ("audit", 12, "a", 11, BLOCKED)
    (found,) = sentences(*waits)
    assert found == (
        "Deadlock of 2 threads: transfer 11 waits in take_b for b in bank, held by audit 12; "
        "audit 12 waits in take_a for a in bank, held by transfer 11."
    )
    assert sentences(*waits, ("t", 13, "a", 11, BLOCKED)) == [found]


def test_a_circle_with_a_timeout_is_no_deadlock() -> None:
    threads = [DeadThread("t", 10, tid, "x", "", 5, False, asked) for tid, asked in ((11, -1), (12, 3 * 10**9))]
    assert sentence_of(threads) == (
        "A circle of timed waits, which ends after 3.0 s and is no deadlock: "
        "t 11 waits for x, held by t 12; t 12 waits for x, held by t 11."
    )
    fields = deadlock_fields([threads, threads[:1]])
    assert [len(fields[name]) for name in ("deadlocks", "timed_circles")] == [1, 1]


@pytest.mark.parametrize("is_timed", [True, False])
def test_a_circle_that_a_timer_ended_is_told(is_timed: bool) -> None:
    timer, end = SampleFlag.WAKER_INTERRUPT if is_timed else SampleFlag(0), 3 * 10**9
    profile = in_process_10(
        {10: -1, 11: -1, 12: -1},
        {"tid": 11, "holder_tid": 12, "switch_out_ns": 0, "wakeup_ns": end, "time_ns": end + 9, "flags": timer},
        {"tid": 12, "holder_tid": 11, "switch_out_ns": 0, "wakeup_ns": end + 5, "time_ns": end + 14},
    )
    assert [one[:47] for one in found_in(profile)] == (["A circle of timed waits, which ended after 3.0 "] * is_timed)


def test_a_lock_taken_twice_and_two_circles() -> None:
    assert sentences(("t", 11, "a", 11, BLOCKED)) == [
        "Deadlock: t 11 waits in take_a for a in bank, which it holds itself."
    ]
    circle = [("t", tid, "a", 11 + (tid - 10) % 3, BLOCKED) for tid in (11, 12, 13)]
    other = [("u", 21, "b", 22, BLOCKED), ("u", 22, "c", 21, BLOCKED)]
    assert [one[:23] for one in sentences(*other, *circle)] == ["Deadlock of 3 threads: ", "Deadlock of 2 threads: "]


@pytest.mark.parametrize("waits", [
    [("t", 11, "b", 12, BLOCKED)],  # the holder is not blocked
    [("t", 11, "b", 12, BLOCKED), ("t", 12, "a", 11, SampleFlag(0))],  # it was, but went on
    [("t", 11, "b", 12, BLOCKED), ("t", 12, "a", -1, BLOCKED)],  # the holder of its lock is unknown
    [("t", 11, "b", 12, BLOCKED), ("t", 12, "a", 99, BLOCKED)],  # or not believed
])  # fmt: skip
def test_chains_that_end_are_none(waits: list[tuple[str, int, str, int, SampleFlag]]) -> None:
    assert sentences(*waits) == []


@pytest.mark.parametrize(("begin", "found"), [(100, 1), (500, 1), (899, 1), (900, 0), (950, 0)])
def test_a_process_that_ended_in_a_deadlock(begin: int, found: int) -> None:
    """Its end woke both. But if the first was woken before the second one waited, the lock changed hands."""
    profile = in_process_10(
        {10: 1500, 11: 1200, 12: 1200},
        {"tid": 11, "holder_tid": 12, "switch_out_ns": 100, "wakeup_ns": 900, "time_ns": 1001},
        {"tid": 12, "holder_tid": 11, "switch_out_ns": begin, "wakeup_ns": 1000, "time_ns": 1001},
    )
    assert len(found_in(profile)) == found
    profile.tasks.end_ns[:] = -1  # they lived on
    assert found_in(profile) == []


def test_what_a_thread_waited_for_before_does_not_count() -> None:
    """A thread waits for one thing at the end, even where a joined recording ended earlier."""
    rows = (100, 12, 11), (900, 11, 12), (900, 12, 13)
    waits = [{"time_ns": time, "tid": tid, "holder_tid": holder, "flags": BLOCKED} for time, tid, holder in rows]
    assert found_in(in_process_10({11: -1, 12: -1, 13: -1}, *waits)) == []


@given(st.dictionaries(st.integers(0, 12), st.integers(0, 12)))
def test_circles_are_those_of_networkx(successor: dict[int, int]) -> None:
    expected = {frozenset(circle) for circle in networkx.simple_cycles(networkx.DiGraph(list(successor.items())))}
    found = circles_of(successor)
    assert {frozenset(circle) for circle in found} == expected and len(found) == len(expected)
    for circle in found:
        assert [successor[node] for node in circle] == [*circle[1:], circle[0]]


WAITS = st.lists(st.tuples(st.integers(-1, 2), st.integers(0, 20), st.integers(1, 9), st.integers(1, 4)))


@given(WAITS)
def test_queues_and_waiters(waits: list[tuple[int, int, int, int]]) -> None:
    builder = ProfileBuilder()
    for _, begin, length, tid in waits:
        builder.sample("a", [], length, tid=tid, time_ns=begin + length, switch_out_ns=begin)
    samples = builder.build().samples
    of = np.array([group for group, *_ in waits], np.int64)
    queues, threads = [], []
    for group in range(3):
        own = [(begin, begin + length, tid) for g, begin, length, tid in waits if g == group]
        queues.append(max(sum(begin <= at < end for begin, end, _ in own) for at in range(30)))
        threads.append(len({tid for *_, tid in own}))
    assert longest_queues(samples, of, 3).tolist() == queues and waiters(samples, of, 3).tolist() == threads


def test_sums_and_waits_without_a_time_queue_nowhere() -> None:
    builder = ProfileBuilder().sample("a", [], 50, time_ns=100, flags=SampleFlag.AGGREGATED)
    builder.sample("a", [], 50, time_ns=-1).sample("a", [], 50, time_ns=100)  # its begin follows from its length
    assert longest_queues(builder.build().samples, np.zeros(3, np.int64), 1).tolist() == [1]
