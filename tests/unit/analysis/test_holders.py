# SPDX-License-Identifier: Apache-2.0
"""Who held a lock: what is believed, what is not, and for how long, by owners at begins and wakers at ends."""

from typing import Any

import numpy as np
import pytest
from builders.examples import examples
from builders.profile import ProfileBuilder
from hypothesis import given
from hypothesis import strategies as st

from perf_offcpu.abi.wait_objects import ObjectKind
from perf_offcpu.analysis.holders import Holders, held_time, holders_of, longest_holders
from perf_offcpu.model.profile import ObjectFact
from perf_offcpu.model.recording import SampleFlag

NONE, BLOCKED = SampleFlag(0), SampleFlag.STILL_BLOCKED


def living() -> ProfileBuilder:
    return ProfileBuilder(tasks=[(10, 10, 0, -1), (11, 10, 100, 500), (12, 10, 600, -1), (20, 20, 0, -1)])


def held(holder: int, flags: SampleFlag = NONE, *, begin: int = 300, end: int = 400, shared: bool = False) -> int:
    builder = living()
    lock = builder.thing("m in a", shared=shared)
    builder.sample(
        "a", ["main"], end - begin, pid=10, tid=10, object=lock, holder_tid=holder, switch_out_ns=begin,
        time_ns=end, flags=flags,
    )  # fmt: skip
    return int(holders_of(builder.build()).held[0])


def test_a_thread_of_the_process_that_lived_is_believed() -> None:
    assert held(11) == 11 and held(11, begin=100) == 11
    assert held(11, begin=499, end=700) == 11, "at the begin of the wait it lived"
    assert held(20, shared=True) == 20 and held(99, shared=True) == -1, "of a shared lock another process's, too"


@pytest.mark.parametrize(
    ("holder", "begin"), [(-1, 300), (0, 300), (20, 300), (99, 300), (11, 99), (11, 501), (12, 300), (10, 300)]
)
def test_others_are_not(holder: int, begin: int) -> None:
    """None, another process's, one that is unknown, dead, not born yet, and the sleeper itself."""
    assert held(holder, begin=begin, end=max(begin + 1, 400)) == -1


def test_of_a_wait_that_is_not_over_the_end_counts() -> None:
    assert held(12, BLOCKED, begin=300, end=700) == 12 and held(11, BLOCKED, begin=300, end=700) == -1
    assert held(10, BLOCKED, end=700) == 10, "a thread can wait for a lock that it has itself"


def test_refused_holders_are_counted() -> None:
    builder = living()
    lock = builder.thing("m in a")
    for holder in (11, 99, 20, -1):
        builder.sample("a", [], 1, pid=10, tid=10, object=lock, holder_tid=holder, switch_out_ns=300, time_ns=400)
    assert holders_of(builder.build()).refused == 2


@pytest.mark.parametrize(("facts", "expected"), [(ObjectFact.MUTEX, [10, 10, 10, 11, -1, 11]), (0, [-1] * 6)])
def test_who_held_a_mutex_longest_is_not_who_released_it_last(facts: int, expected: list[int]) -> None:
    """Thread 10 holds the lock until 400, then each of its waiters for a moment. Who has the other one is not known
    from 320 on, when 16 gets it, to 390, when 10 releases it."""
    builder = ProfileBuilder(tasks=[(tid, 10, 0, -1) for tid in range(10, 17)])
    other, lock = builder.thing("l in a", facts=facts), builder.thing("m in a", facts=facts)
    waits = [(11, 10, 300, 400), (12, 11, 310, 405), (13, 12, 320, 410), (14, 11, 401, 405)]
    for tid, waker, begin, end in [*waits, (15, 10, 305, 390), (16, 11, 310, 320)]:
        builder.sample(
            "a", [], end - begin, pid=10, tid=tid, switch_out_ns=begin, wakeup_ns=end, time_ns=end,
            waker_pid=10, waker_tid=waker, object=other if tid > 14 else lock,
        )  # fmt: skip
    profile = builder.build()
    assert longest_holders(profile, holders_of(profile)).tolist() == expected


def released(**columns: object) -> int:
    builder = living()
    things = {
        "private": builder.thing("m in a"), "shared": builder.thing("shared /dev/shm/x+0x0", shared=True),
        "sem": builder.thing("System V semaphores 1", ObjectKind.SEMAPHORES),
        "pipe": builder.thing("pipe to xz", ObjectKind.PIPE),
    }  # fmt: skip
    values = {"pid": 10, "tid": 10, "waker_tid": 11, "waker_pid": 10, "object": "private"} | columns
    values["object"] = things.get(str(values["object"]), -1)
    builder.sample("a", ["main"], 1, **values)  # type: ignore[arg-type]
    return int(holders_of(builder.build()).released[0])


@pytest.mark.parametrize(("columns", "thread"), [
    ({}, 11), ({"object": "sem"}, 11), ({"object": "shared", "waker_pid": 20, "waker_tid": 20}, 20),
    *((columns, -1) for columns in (
        {"flags": SampleFlag.WAKER_INTERRUPT}, {"flags": BLOCKED}, {"flags": SampleFlag.AGGREGATED}, {"object": "pipe"},
        {"object": ""}, {"waker_pid": 20, "waker_tid": 20}, {"waker_tid": 0, "waker_pid": 0}, {"waker_tid": -1},
    )),
])  # fmt: skip
def test_the_waker_released_it_and_no_other_wake_up_is_a_release(columns: dict[str, object], thread: int) -> None:
    assert released(**columns) == thread


def test_a_lock_of_two_processes_is_shared_by_its_name() -> None:
    builder = living()
    lock = builder.thing("shared /q+0x0")
    for pid, waker in ((10, 20), (20, 10)):
        builder.sample("a", [], 1, pid=pid, tid=pid, object=lock, waker_tid=waker, waker_pid=waker)
    assert holders_of(builder.build()).released.tolist() == [20, 10]


def test_the_end_of_the_process_releases_nothing() -> None:
    """exit_group() and SIGKILL wake all threads; the waker is the thread that called it."""
    late = 5_000 + 20_000_000
    ends = [(10, 10, 6_000), (11, 10, 5_500), (12, 10, late), (13, 10, -1), (20, 20, late)]
    builder = ProfileBuilder(tasks=[(tid, pid, 0, end) for tid, pid, end in ends])
    lock = builder.thing("m in a")
    waits = [(10, 10, 1_000), *((10, tid, time) for tid, time in ((11, 1_000), (11, 5_000), (12, 5_000), (13, 5_000)))]
    for pid, tid, time in [*waits, (20, 20, 5_000)]:
        builder.sample("a", [], 1, pid=pid, tid=tid, object=lock, waker_tid=99, waker_pid=pid, time_ns=time)
    found = holders_of(builder.build())
    assert found.cut_off.tolist() == [True, False, True, False, False, False], "10 waited for the last time, too"
    assert found.released.tolist() == [-1, 99, -1, 99, 99, 99]


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


@pytest.mark.parametrize(("waits", "expected"), examples("unit/analysis/examples.txt", "holders"))
def test_designs(waits: str, expected: str) -> None:
    spans: list[Any] = [tuple(map(int, wait.split())) for wait in waits.split(", ")]
    assert held_by(spans) == {int(tid): (int(ns), 1) for tid, ns in (word.split("=") for word in expected.split())}


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
