# SPDX-License-Identifier: Apache-2.0
"""What counts as a wait, and what becomes of short ones.

States of a thread off the CPU go by the letters of ps and perf. What a letter means is decided in the BPF
program (`mode_of()` in bpf/facts.h): S and D include their kin, the freezable ones, D also the killable; the
raw state in the file tells those apart.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence

from perf_offcpu.errors import UsageError


class ShortWaits(enum.StrEnum):
    """What becomes of waits under the threshold."""

    STACKS = "stacks"
    """Summed by thread, state, system call, cgroup and user stack."""
    THREADS = "threads"
    """Summed likewise, without stack: they cost no stack walk."""
    DROP = "drop"
    """Left out; only their number and time are counted."""


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
    """Letters from a list such as "S,D,R".

    Raises:
        UsageError: one of them is no state, or there is none.
    """
    letters = [letter.strip() for letter in text.split(",")]
    for letter in letters:
        if letter not in MODES:
            raise UsageError(f"--switch-states {text}: {letter!r} is not one of {', '.join(MODES)}")
    return "".join(dict.fromkeys(letters))


def mode_mask(letters: str, modes: Sequence[str]) -> int:
    """The bits of these states, by the order of the enumerators `modes`."""
    return sum(1 << modes.index(MODES[letter]) for letter in set(letters))
