# SPDX-License-Identifier: Apache-2.0
"""Snapshots of user stacks: what samples bring along for whoever unwinds them later.

A snapshot is the thread's user registers and the bytes of its stack from the stack pointer upwards. They can
hold anything that the program had on its stack, secrets included, and are dropped once they are unwound.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from perf_offcpu.model.callchains import Ragged
from perf_offcpu.model.columns import U64


@dataclass(slots=True)
class Snapshots:
    """n snapshots of 64-bit tasks.

    Args:
        mask: uint64[n], which registers there are, a bit for each of perf's numbers (attr.sample_regs_user).
        registers: their values, lowest number first.
        stack: words of the stack, lowest address first; the values may lie in a temporary file.
    """

    mask: U64 = field(default_factory=lambda: np.empty(0, np.uint64))
    registers: Ragged = field(default_factory=Ragged)
    stack: Ragged = field(default_factory=Ragged)

    def __len__(self) -> int:
        return len(self.mask)

    def check(self) -> None:
        """Raise AssertionError unless every snapshot has the registers that its mask names."""
        self.registers.check()
        self.stack.check()
        assert len(self.mask) == len(self.registers) == len(self.stack)
        assert [int(mask).bit_count() for mask in self.mask.tolist()] == self.registers.lengths.tolist()
