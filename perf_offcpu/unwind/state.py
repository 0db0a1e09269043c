# SPDX-License-Identifier: Apache-2.0
"""State of walks up the stack: registers, program counter and end of each, one lane per walk. Frames locate all saved
registers, but nearly all callers' frames are found by the stack and the frame pointer. So walks usually follow only
these. If a rule uses another register, whose value may have changed since the thread was interrupted, the lane is
marked in `lost`: it must be walked again with all registers followed (`step.walk_up`)."""

import enum
from typing import NamedTuple, Self

import numpy as np

from perf_offcpu.model.callchains import StackWords
from perf_offcpu.model.columns import I32, I64, U64, Bool
from perf_offcpu.structs import mutable
from perf_offcpu.unwind.lookup import CfiLookup

_ONE = np.uint64(1)
_THREE = np.uint64(3)
_IN_WORD = np.uint64(7)


class End(enum.IntEnum):
    """States of a walk: under way, or ended at the root, beyond the copied stack, without CFI, outside mapped code."""

    UNDER_WAY, ROOT, EXHAUSTED, NO_CFI, OUTSIDE = range(5)


class Value(NamedTuple):
    """Holds one word for each of n frames: `words` uint64[n]; `known` bool[n], False where it could not be read."""

    words: U64
    known: Bool


@mutable
class Threads:
    """Hold registers and stack copies of n interrupted threads, from which walks begin."""

    spaces: I32  # int32[n], address spaces
    values: U64  # uint64[registers, n], by DWARF number
    known: U64  # uint64[n], bit by number for each known register
    stacks: StackWords  # the words of each stack, from its stack pointer on
    is_own: Bool  # bool[n], True if no other wait has this copy (`step.Walk._name_methods`)

    def take(self, rows: I64) -> Self:
        """Return the threads with these row numbers; the words of the stacks are shared."""
        stacks = StackWords(self.stacks.words, self.stacks.begins[rows], self.stacks.lengths[rows])
        return type(self)(self.spaces[rows], self.values[:, rows], self.known[rows], stacks, self.is_own[rows])


class WalkState:
    """Hold the current frames of n walks (lanes). Only sp, fp and the return address are followed from frame to frame:
    a walk that needs another register is marked in `lost`. With `follow_all` all are followed, and no walk is lost."""

    def __init__(self, lookup: CfiLookup, threads: Threads, follow_all: bool) -> None:
        self.lookup, self.rules, self.follow_all = lookup, lookup.rules, follow_all
        registers = self.registers = lookup.rules.registers
        spaces, values, stacks = threads.spaces, threads.values, threads.stacks
        self.spaces, self.is_own = spaces, threads.is_own
        self.words, self.begins, self.lengths = stacks.words, stacks.begins, stacks.lengths
        always = {registers.sp, registers.fp, registers.ra}
        # By DWARF number; registers that are not followed keep the value of the interrupted frame.
        self.values = list(values)
        for number in range(registers.count) if follow_all else always:
            self.values[number] = values[number].copy()
        self.sp, self.fp = self.values[registers.sp], self.values[registers.fp]
        self.bottom, self.pc = values[registers.sp], values[registers.pc].copy()
        self.known = threads.known.copy()
        # True where the thread was interrupted at `pc`; False where `pc` is a return address.
        self.exact = np.ones(len(spaces), np.bool_)
        self.end = np.zeros(len(spaces), np.uint8)
        self.is_first = True
        self.has_exact = True  # any walk may be at an exact pc
        # Any walk may not know its frame pointer.
        self.lacks_fp = not self.knows(np.arange(len(spaces)), registers.fp).all()
        self.lost: Bool | None = None  # bool[n]: walks that used a register that was not followed; None: no walk
        self.followed = frozenset(range(registers.count)) if follow_all else frozenset(always)
        self._kept = np.uint64(sum(1 << number for number in (*registers.saved, registers.sp)))
        self._code_mask = lookup.code_mask

    def read(self, lanes: I64, addresses: U64) -> Value:
        """Return a word for each walk of `lanes`, at `addresses`; unknown and 0 if outside of its copy or unaligned."""
        return self.read_at(addresses - self.bottom.take(lanes), self.begins.take(lanes), self.lengths.take(lanes))

    def read_at(self, away: U64, begins: I64, lengths: I64) -> Value:
        """Return for each walk the word at byte away[i] of its copy, which is lengths[i] words of `self.words` from
        begins[i] on; unknown and 0 outside of the copy, or if away[i] is no multiple of 8."""
        index = (away >> _THREE).view(np.int64)  # 61 bits
        is_known: Bool = index < lengths
        is_known &= (away & _IN_WORD) == 0
        if is_known.all():
            return Value(self.words.take(index + begins), is_known)
        if not len(self.words):  # take() raises where there is nothing to take
            return Value(np.zeros(len(away), np.uint64), is_known)
        place = np.where(is_known, begins + index, 0)
        return Value(np.where(is_known, self.words.take(place), np.uint64(0)), is_known)

    def knows(self, lanes: I64, number: int) -> Bool:
        """Return bool[lanes]: True if the value of register `number` (DWARF) is known in the current frame."""
        is_known: Bool = (self.known[lanes] >> np.uint64(number) & _ONE) != 0
        return is_known

    def register(self, lanes: I64, number: int) -> Value:
        """Return the values of register `number` (DWARF) in the current frames of `lanes`; mark these walks in `lost`
        if it is not followed. Raises IndexError: no such register."""
        if number == self.registers.pc:
            return Value(self.pc[lanes], np.ones(len(lanes), np.bool_))
        if number >= len(self.values):
            raise IndexError(number)
        is_followed = number in self.followed
        if number == self.registers.ra:  # callers' are not restored: they are their callees' pc
            is_followed = bool(self.exact[lanes].all())
        if not (self.is_first or self.follow_all or is_followed):
            self.lost = np.zeros(len(self.spaces), np.bool_) if self.lost is None else self.lost
            self.lost[lanes] = True
        return Value(self.values[number][lanes], self.knows(lanes, number))

    def restore(self, lanes: I64, number: int, words: U64, is_known: Bool) -> None:
        """Set register `number` of the walks `lanes` to its value in the caller: words[i], known where is_known[i]."""
        bit = np.uint64(1 << number)
        self.values[number][lanes] = words
        before = self.known[lanes]
        self.known[lanes] = np.where(is_known, before | bit, before & ~bit)
        if number == self.registers.fp and not is_known.all():
            self.lacks_fp = True

    def advances(self, lanes: I64, sp: U64, cfa: U64) -> Bool:
        """Return bool[lanes]: True if the CFA is above the stack pointer, or equal to it in an interrupted frame."""
        ahead: Bool = cfa > sp
        if self.has_exact:
            ahead |= (cfa == sp) & self.exact[lanes]
        return ahead

    def code(self, words: U64) -> U64:
        """Strip the signatures (arm64's pointer authentication codes) from return addresses."""
        return words if self.registers.code_bits == 64 else words & self._code_mask

    def go_on(self, lanes: I64, sp: U64, pc: U64, exact: bool) -> None:
        """Advance the walks `lanes` to callers with these `sp` and `pc` (uint64[lanes]); `exact`: they were interrupted
        at `pc`, which is no return address."""
        self.sp[lanes] = sp
        if self.has_exact and not exact:
            self.known[lanes] &= self._kept
        self.pc[lanes] = self.code(pc)
        if self.has_exact or exact:
            self.exact[lanes] = exact
