# SPDX-License-Identifier: Apache-2.0
"""Work in the background: who begins it does not wait until its thread has got a CPU."""

from __future__ import annotations

import _thread
import sys
from collections.abc import Iterator
from functools import partial

import pytest

from perf_offcpu.collect.system.background import in_background, side_by_side, stepping_until


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
    assert in_background(lambda: 7).result(0) == 7
