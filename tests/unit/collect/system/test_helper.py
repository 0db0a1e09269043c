# SPDX-License-Identifier: Apache-2.0
"""System CPUs that go and come while a recording goes on; work elsewhere: a helper that answers, hangs or dies."""

import _thread
import os
import signal
import sys
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from perf_offcpu.collect.session import changed_cpus
from perf_offcpu.collect.system import helper
from perf_offcpu.collect.system.background import in_background, side_by_side, stepping_until
from perf_offcpu.collect.system.cpus import online_cpus, online_since, parse_cpu_list, present_cpus
from perf_offcpu.collect.system.helper import Avoided, Helper, ask_each

HANG, DIE, RAISE, OTHER = "hang", "die", "raise", "other"
OWN = os.getpid()


def work(item: tuple[Any, ...]) -> Any:
    if item[1] == HANG:
        time.sleep(1000)
    if item[1] == DIE:
        os.kill(os.getpid() if os.getpid() != OWN else 0, signal.SIGKILL)
    if item[1] == RAISE:
        raise RecursionError("too deep")
    return object() if item[1] == OTHER else item[1:]


@pytest.fixture
def asked() -> Any:
    made = Helper(work, patience_s=0.2)
    yield made
    made.close()


def test_each_item_is_answered_or_not_on_its_own(asked: Helper) -> None:
    items = [(1, b"a"), (2, HANG), (2, b"b"), (3, RAISE), (4, DIE), (5, OTHER), (6, bytes(1 << 20)), (4, b"c")]
    steps: list[int] = []
    answers = {item: answer for item, answer in ask_each(asked, items, Avoided(), lambda: steps.append(1))}
    assert len(answers) == len(items) and steps
    assert {item[0] for item, answer in answers.items() if answer.is_stuck} == {2, 4}, "with their other items"
    assert answers[1, b"a"].value == (b"a",) and answers[6, bytes(1 << 20)].value == (bytes(1 << 20),)
    assert answers[3, RAISE].problem == "RecursionError: too deep" and answers[5, OTHER].problem


def test_who_did_not_answer_is_not_asked_again(asked: Helper) -> None:
    avoided = Avoided()
    answers = list(ask_each(asked, [(number, HANG) for number in range(9)], avoided))
    assert all(answer.is_stuck for _, answer in answers)
    (_, answer), (_, other) = ask_each(asked, [(3, b"x"), (9, b"x")], avoided)
    assert answer.is_stuck and other.value == (b"x",)


def test_time_ends_for_all(asked: Helper) -> None:
    list(asked.each([(1, b"a")]))  # its process is there
    asked.until = time.monotonic() + 0.1
    items = [(number, HANG if number == 2 else number) for number in range(1000)]
    answers = [answer for _, answer in ask_each(asked, items, Avoided())]
    assert [answer.is_stuck for answer in answers[:3]] == [False, False, True]
    assert all(answer.is_stuck for answer in answers[2:]) and len(answers) == 1000


def test_it_has_no_descriptor_of_the_recorder_and_no_signal_ends_it() -> None:
    def links(_: object) -> list[str]:
        os.kill(os.getpid(), signal.SIGINT)
        paths = [f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd")]
        return sorted(os.readlink(path).split(":")[0] for path in paths if os.path.lexists(path))

    mine = Helper(links)
    (answer,) = mine.each([0])
    mine.close()
    assert answer.value == ["/dev/null"] * 3 + ["socket"], answer


def test_without_a_process_to_be_had_the_work_is_done_here(asked: Helper, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> int:
        raise BlockingIOError

    monkeypatch.setattr(os, "fork", refuse)
    first, second = asked.each([(1, b"a"), (2, RAISE)])
    assert first.value == (b"a",) and second.problem


def test_no_more_than_some_are_left_behind(asked: Helper, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(helper, "_left", [0] * helper.MOST_LEFT)
    assert [answer.is_stuck for _, answer in ask_each(asked, [(1, b"a")], Avoided())] == [True]


@pytest.fixture
def no_other_thread_runs() -> Iterator[None]:
    """Let a thread run until it waits, as if the others had no CPU."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(100)
    yield
    sys.setswitchinterval(before)


def test_beginning_does_not_wait_for_the_thread(no_other_thread_runs: None) -> None:
    begun: list[int] = []
    futures = [in_background(partial(begun.append, number)) for number in range(5)]
    assert begun == []
    for future in futures:
        stepping_until(future, lambda: None)
    assert sorted(begun) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("failing", [0, 1])
def test_side_by_side_both_end_before_the_error_of_one(failing: int) -> None:
    ended: list[int] = []

    def work(number: int) -> None:
        if number == failing:
            raise OSError(number)
        ended.append(number)

    with pytest.raises(OSError, match=str(failing)):
        side_by_side(lambda: work(0), lambda: work(1))
    assert ended == [1 - failing]


def test_without_a_thread_to_be_had_the_work_is_done_here(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(_thread, "start_new_thread", refuse)
    assert in_background(lambda: 7).result() == 7


def test_kernel_lists() -> None:
    for text, cpus in {"0-3,8,10-11": (0, 1, 2, 3, 8, 10, 11), "0": (0,), "0,2-3,8": (0, 2, 3, 8), "": ()}.items():
        assert parse_cpu_list(f"{text}\n") == cpus
    assert set(online_cpus()) <= set(present_cpus())


def test_each_cpu_that_goes_or_comes_is_reported() -> None:
    """One that went and came back between two looks, by another number, or, where there are none, by its lost ring."""
    two, four = {0: 5, 1: 6}, {0: 5, 1: 6, 2: 7, 3: 8}
    assert changed_cpus(two, two) == ([], []) and changed_cpus(two, {0: 5}) == ([1], [])
    assert changed_cpus({0: 5}, {0: 5, 1: 6, 3: 7, 2: 8}) == ([], [1, 2, 3])
    assert changed_cpus(four, four | {1: 9}) == ([], [1])
    assert changed_cpus(four, four, without_ring=[1, 99]) == ([], [1])
    assert changed_cpus(four, {3: 8}, without_ring=[2]) == ([0, 1], [])
    assert changed_cpus(four, {2: 9, 3: 8}, without_ring=[2]) == ([0, 1], [2])


def test_the_kernel_numbers_all_cpus_and_keeps_the_numbers() -> None:
    assert tuple(online_since()) == online_cpus()
    assert online_since() == online_since() and 0 not in online_since().values()
