# SPDX-License-Identifier: Apache-2.0
"""The letters of task states."""

import pytest

from perf_offcpu.abi.task_state import TaskState, state_letter


@pytest.mark.parametrize(("state", "letter"), [
    (0, "R"),
    (TaskState.INTERRUPTIBLE, "S"),
    (TaskState.UNINTERRUPTIBLE, "D"),
    (TaskState.UNINTERRUPTIBLE | TaskState.NOLOAD, "I"),
    (TaskState.UNINTERRUPTIBLE | 0x100, "D"),  # killable
    (TaskState.STOPPED | 0x100, "T"),
    (TaskState.TRACED, "t"),
    (TaskState.EXIT_DEAD, "X"),
    (TaskState.EXIT_ZOMBIE, "Z"),
    (TaskState.PARKED, "P"),
    (TaskState.RTLOCK_WAIT, "D"),
    (TaskState.FROZEN, "D"),
    (-1, ""),
])  # fmt: skip
def test_letters(state: int, letter: str) -> None:
    assert state_letter(state) == letter


def test_a_preempted_task_is_runnable_whatever_its_state() -> None:
    assert state_letter(TaskState.INTERRUPTIBLE, preempted=True) == "R"
