# SPDX-License-Identifier: Apache-2.0
"""Deadlocks: circles of holders among threads that are still blocked; lengths of queues."""

import networkx
import numpy as np
import pytest
from builders.profile import ProfileBuilder
from hypothesis import given
from hypothesis import strategies as st

from perf_offcpu.analysis.classes.classify import classify
from perf_offcpu.analysis.holders import holders_of
from perf_offcpu.locks import DeadThread, circles_of, deadlocks_of, longest_queues, sentence_of, waiters
from perf_offcpu.model.recording import SampleFlag, Tasks
from perf_offcpu.report.document import deadlock_fields

BLOCKED = SampleFlag.STILL_BLOCKED


def sentences(*waits: tuple[str, int, str, int, SampleFlag]) -> list[str]:
    """Comm, tid, lock, holder and flags of waits at the end."""
    builder = ProfileBuilder()
    locks = {name: builder.thing(f"{name} in bank") for _, _, name, _, _ in waits}
    for comm, tid, lock, holder, flags in waits:
        path = ["main", f"take_{lock}", "pthread_mutex_lock"]
        builder.sample(
            comm, path, 5, pid=10, tid=tid, object=locks[lock], holder_tid=holder, flags=flags, time_ns=900,
            switch_out_ns=100,
        )  # fmt: skip
    profile = builder.build()
    profile.tasks = Tasks.from_rows([(tid, 10, 0, -1) for tid in range(11, 30)])
    found = deadlocks_of(profile, classify(profile), holders_of(profile))
    return list(map(sentence_of, found))


def test_abba() -> None:
    waits = ("transfer", 11, "b", 12, BLOCKED), ("audit", 12, "a", 11, BLOCKED)
    assert sentences(*waits) == [
        "Deadlock of 2 threads: transfer 11 waits in take_b for b in bank, held by audit 12; "
        "audit 12 waits in take_a for a in bank, held by transfer 11."
    ]


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
    builder = ProfileBuilder()
    lock = builder.thing("a in bank")
    timer = SampleFlag.WAKER_INTERRUPT if is_timed else SampleFlag(0)
    for tid, holder, end, flags in ((11, 12, 3 * 10**9, timer), (12, 11, 3 * 10**9 + 5, SampleFlag(0))):
        builder.sample(
            "t", [], 5, pid=10, tid=tid, object=lock, holder_tid=holder, switch_out_ns=0, wakeup_ns=end,
            time_ns=end + 9, flags=flags,
        )  # fmt: skip
    profile = builder.build()
    profile.tasks = Tasks.from_rows([(tid, 10, 0, -1) for tid in (10, 11, 12)])
    found = list(map(sentence_of, deadlocks_of(profile, classify(profile), holders_of(profile))))
    assert [one[:47] for one in found] == ["A circle of timed waits, which ended after 3.0 "] * is_timed


def test_those_who_wait_for_a_deadlock_are_not_in_it() -> None:
    waits = [("t", 11, "b", 12, BLOCKED), ("t", 12, "a", 11, BLOCKED), ("t", 13, "a", 11, BLOCKED)]
    (found,) = sentences(*waits)
    assert found.startswith("Deadlock of 2 threads")
    assert " 13 " not in found


def test_a_lock_taken_twice() -> None:
    assert sentences(("t", 11, "a", 11, BLOCKED)) == [
        "Deadlock: t 11 waits in take_a for a in bank, which it holds itself."
    ]


def test_two_circles_are_two() -> None:
    circle = [("t", tid, "a", 11 + (tid - 10) % 3, BLOCKED) for tid in (11, 12, 13)]
    other = [("u", 21, "b", 22, BLOCKED), ("u", 22, "c", 21, BLOCKED)]
    found = sentences(*other, *circle)
    assert [one[:23] for one in found] == ["Deadlock of 3 threads: ", "Deadlock of 2 threads: "]


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
    builder = ProfileBuilder()
    lock = builder.thing("a in bank")
    for tid, holder, since, woken in ((11, 12, 100, 900), (12, 11, begin, 1000)):
        builder.sample(
            "t", [], 5, pid=10, tid=tid, object=lock, holder_tid=holder, switch_out_ns=since, wakeup_ns=woken,
            time_ns=1001,
        )  # fmt: skip
    profile = builder.build()
    profile.tasks = Tasks.from_rows([(10, 10, 0, 1500), (11, 10, 0, 1200), (12, 10, 0, 1200)])
    assert len(deadlocks_of(profile, classify(profile), holders_of(profile))) == found
    profile.tasks.end_ns[:] = -1  # they lived on
    assert deadlocks_of(profile, classify(profile), holders_of(profile)) == []


def test_what_a_thread_waited_for_before_does_not_count() -> None:
    """A thread waits for one thing at the end, even where a joined recording ended earlier."""
    builder = ProfileBuilder()
    lock = builder.thing("a in bank")
    for time, tid, holder in ((100, 12, 11), (900, 11, 12), (900, 12, 13)):
        builder.sample("t", [], 5, pid=10, tid=tid, object=lock, holder_tid=holder, flags=BLOCKED, time_ns=time)
    profile = builder.build()
    profile.tasks = Tasks.from_rows([(tid, 10, 0, -1) for tid in range(11, 14)])
    assert deadlocks_of(profile, classify(profile), holders_of(profile)) == []


@given(st.dictionaries(st.integers(0, 12), st.integers(0, 12)))
def test_circles_are_those_of_networkx(successor: dict[int, int]) -> None:
    graph = networkx.DiGraph(list(successor.items()))
    expected = {frozenset(circle) for circle in networkx.simple_cycles(graph)}
    found = circles_of(successor)
    assert {frozenset(circle) for circle in found} == expected
    assert len(found) == len(expected)
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
    expected = [
        max(
            (sum(g == group and begin <= at < begin + length for g, begin, length, _ in waits) for at in range(30)),
            default=0,
        )
        for group in range(3)
    ]
    assert longest_queues(samples, of, 3).tolist() == expected
    threads = [len({tid for g, _, _, tid in waits if g == group}) for group in range(3)]
    assert waiters(samples, of, 3).tolist() == threads


def test_sums_and_waits_without_a_time_queue_nowhere() -> None:
    builder = ProfileBuilder()
    builder.sample("a", [], 50, time_ns=100, flags=SampleFlag.AGGREGATED)
    builder.sample("a", [], 50, time_ns=-1)
    builder.sample("a", [], 50, time_ns=100)  # its begin follows from its length
    assert longest_queues(builder.build().samples, np.zeros(3, np.int64), 1).tolist() == [1]
