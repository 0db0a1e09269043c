# SPDX-License-Identifier: Apache-2.0
"""States that count as waits, and the choices for short waits.

States of a thread off the CPU have the letters of ps and perf. The BPF program defines them (`mode_of()` in
bpf/facts.h): S and D include the freezable states, D also the killable ones; the raw state in the file tells
these apart.
"""

from __future__ import annotations

import enum

from perf_offcpu.errors import UsageError


class ShortWaits(enum.StrEnum):
    """Choices for waits under the threshold."""

    STACKS = "stacks"
    """Sum them by thread, state, system call, cgroup and user stack."""
    THREADS = "threads"
    """Sum them without stack: they cost no stack walk."""
    DROP = "drop"
    """Leave them out; count only their number and time."""


MODES = {
    "S": "interruptible",
    "D": "uninterruptible",
    "I": "idle",
    "T": "stopped",
    "t": "traced",
    "R": "preempted",
    "P": "other",
}
"""Letter → enumerator of `enum offcpu_mode` (bpf/off_cpu.h)."""

DEFAULT_STATES = "SDI"


def parse_states(text: str) -> str:
    """Parse a list such as "S,D,R"; return its letters.

    Raises:
        UsageError: one of them is no state, or the list is empty.
    """
    letters = [letter.strip() for letter in text.split(",")]
    for letter in letters:
        if letter not in MODES:
            raise UsageError(f"--switch-states {text}: {letter!r} is not one of {', '.join(MODES)}")
    return "".join(dict.fromkeys(letters))
