# SPDX-License-Identifier: Apache-2.0
"""The flags of a branch (struct perf_branch_entry of linux/perf_event.h), as perf 6.1 prints them."""

from __future__ import annotations

_TYPES = (
    *("", "COND", "UNCOND", "IND", "CALL", "IND_CALL", "RET", "SYSCALL", "SYSRET", "COND_CALL", "COND_RET"),
    *("ERET", "IRQ", "SERROR", "NO_TX"),
)
_EXTENDED = len(_TYPES)
_NEW_TYPES = ("FAULT_ALGN", "FAULT_DATA", "FAULT_INST", "ARCH_1", "ARCH_2", "ARCH_3", "ARCH_4", "ARCH_5")
"""Of those whose type is 15: of field new_type."""


def branch_flags_text(flags: int) -> str:
    """`/P/-/-/12/CALL`: predicted or mispredicted, in a transaction, aborted, cycles, type ("" unknown)."""
    predicted = "P" if flags & 2 else "M" if flags & 1 else "-"
    kind = flags >> 20 & 0xF
    if kind == _EXTENDED:
        new = flags >> 26 & 0xF
        name = _NEW_TYPES[new] if new < len(_NEW_TYPES) else "(null)"
    else:
        name = _TYPES[kind]
    transaction, aborted = "X" if flags & 4 else "-", "A" if flags & 8 else "-"
    return f"/{predicted}/{transaction}/{aborted}/{flags >> 4 & 0xFFFF}/{name}"
