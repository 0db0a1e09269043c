# SPDX-License-Identifier: Apache-2.0
"""Hold snapshots of user stacks, which are unwound later.

A snapshot is the thread's user registers and the bytes of its stack from the stack pointer upwards. The bytes
can be anything that the program had on its stack, secrets included, and are dropped once they are unwound.
"""

from __future__ import annotations

from dataclasses import field
from typing import Protocol

import numpy as np

from perf_offcpu.model.callchains import Ragged
from perf_offcpu.model.columns import I32, I64, U64
from perf_offcpu.structs import mutable


@mutable
class StackWords:
    """n stacks: `words[begins[i]:begins[i] + lengths[i]]`, lowest address first."""

    words: U64
    begins: I64
    lengths: I64


class StoredStacks(Protocol):
    """Words of stacks that are not in memory."""

    @property
    def lengths(self) -> I64:
        """Return the number of words of each stack: int64[n]."""

    def read_stacks(self, rows: I64) -> StackWords:
        """Read some stacks, which are valid until the next call."""


@mutable
class Snapshots:
    """n snapshots of 64-bit tasks.

    Args:
        mask: uint64[n], the registers of each, a bit for each of perf's numbers (attr.sample_regs_user).
        registers: their values, lowest number first.
        stack: words of the stack, lowest address first.
    """

    mask: U64 = field(default_factory=lambda: np.empty(0, np.uint64))
    registers: Ragged = field(default_factory=Ragged)
    stack: Ragged | StoredStacks = field(default_factory=Ragged)

    def __len__(self) -> int:
        return len(self.mask)

    def read_stacks(self, rows: I64 | I32) -> StackWords:
        """Read the stacks of some snapshots, which are valid until the next call."""
        rows = rows.astype(np.int64, copy=False)
        if not isinstance(self.stack, Ragged):
            return self.stack.read_stacks(rows)
        begins = self.stack.offsets[rows]
        return StackWords(self.stack.values, begins, self.stack.offsets[1:][rows] - begins)

    def check(self) -> None:
        """Raise AssertionError unless every snapshot has the registers that its mask names."""
        self.registers.check()
        if isinstance(self.stack, Ragged):
            self.stack.check()
        assert len(self.mask) == len(self.registers) == len(self.stack.lengths)
        assert [int(mask).bit_count() for mask in self.mask.tolist()] == self.registers.lengths.tolist()
