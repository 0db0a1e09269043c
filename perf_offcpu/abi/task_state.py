# SPDX-License-Identifier: Apache-2.0
"""Task states as the kernel keeps them, and the letters that ps and perf show for them. Source: include/linux/sched.h
(TASK_*, `__task_state_index()`) and fs/proc/array.c."""

import enum


class TaskState(enum.IntFlag):
    """State bits of a task that does not run: of `task_struct.__state`, but EXIT_… of `task_struct.exit_state`."""

    INTERRUPTIBLE, UNINTERRUPTIBLE, STOPPED, TRACED = 0x1, 0x2, 0x4, 0x8
    EXIT_DEAD, EXIT_ZOMBIE, PARKED, NOLOAD = 0x10, 0x20, 0x40, 0x400
    RTLOCK_WAIT = 0x1000  # since 5.15; shown as D
    FROZEN = 0x8000  # since 6.1; shown as D


STATE_NAMES = {
    "R": "runnable (preempted or yielding)",
    "S": "interruptible sleep",
    "D": "uninterruptible sleep",
    "I": "idle (uninterruptible, no load)",
    "T": "stopped",
    "t": "traced",
    "X": "dead",
    "Z": "zombie",
    "P": "parked",
}
"""Letters that `state_letter` returns, with their meaning."""

_IDLE = TaskState.UNINTERRUPTIBLE | TaskState.NOLOAD
_LIKE_UNINTERRUPTIBLE = TaskState.RTLOCK_WAIT | TaskState.FROZEN
_REPORTED = 0x7F
_LETTERS = "RSDTtXZP"  # by the number of the highest reported bit, R for none


def state_letter(state: int, preempted: bool = False) -> str:
    """Return the letter of a raw task state at switch-out, "" for -1 (unknown); a preempted task is runnable, "R"."""
    if preempted:
        return "R"
    if state < 0:
        return ""
    if state & _IDLE == _IDLE:
        return "I"
    if state & _LIKE_UNINTERRUPTIBLE:
        return "D"
    return _LETTERS[(state & _REPORTED).bit_length()]
