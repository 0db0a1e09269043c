# SPDX-License-Identifier: Apache-2.0
"""Unwinding a batch of snapshots together: a step finds the caller of each one's frame.

Nearly all rules are of one kind: the CFA is the stack or frame pointer plus a number; return address and
saved registers lie at fixed places below it. Frames with such rules take the fast way, all at once. The rest
(PLT stubs, signal frames, realigned stacks) goes rule set by rule set through `_general`.

A step can only lead up the stack: a CFA that does not advance ends the walk, so rules in a circle cost no
more steps than the copy has words.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Final

import numpy as np

from perf_offcpu.abi.cfi import Registers
from perf_offcpu.model.callchains import Ragged, offsets_of
from perf_offcpu.model.columns import I32, I64, U8, U64, Bool
from perf_offcpu.symbolize.cfi_expression import CannotEvaluateError, Value, evaluate
from perf_offcpu.symbolize.cfi_lookup import NO_CFI, OUTSIDE, CfiLookup
from perf_offcpu.symbolize.cfi_program import Kind

MAX_FRAMES: Final = 1024
MAX_GENERAL: Final = 1 << 14
"""Rule sets that take the slow way, counted over all steps of an unwinding: real ones need some hundred."""
_WORD: Final = np.uint64(8)
_ONE: Final = np.uint64(1)


class End(enum.IntEnum):
    """How a walk ended."""

    UNDER_WAY = 0
    ROOT = 1
    EXHAUSTED = 2
    NO_CFI = 3
    OUTSIDE = 4


@dataclass(slots=True)
class Stacks:
    """n stacks: `words[begins[i]:begins[i] + lengths[i]]`, lowest address first."""

    words: U64
    begins: I64
    lengths: I64


class Walk:
    """n walks up the stack.

    Args:
        lookup: finds frame rules.
        spaces: int32[n], address spaces.
        values: uint64[registers, n], by DWARF number.
        known: uint64[n], which of them are known, bit by number.
        stacks: their words, each from its stack pointer on.
        budget: what is left of MAX_GENERAL, in a list of one; shared by all walks of an unwinding.
    """

    def __init__(
        self,
        lookup: CfiLookup,
        registers: Registers,
        spaces: I32,
        values: U64,
        known: U64,
        stacks: Stacks,
        budget: list[int],
    ) -> None:
        self.lookup, self.registers, self.spaces, self.budget = lookup, registers, spaces, budget
        self.values, self.known = values, known
        self.words, self.begins, self.lengths = stacks.words, stacks.begins, stacks.lengths
        self.bottom, self.pc = values[registers.sp].copy(), values[registers.pc].copy()
        self.exact = np.ones(len(spaces), np.bool_)
        self.end = np.zeros(len(spaces), np.uint8)
        self._saved_bits = np.array([1 << number for number in registers.saved], np.uint64)
        self._kept = np.uint64(sum(1 << number for number in (*registers.saved, registers.sp)))

    def run(self) -> tuple[Ragged, U8]:
        """Walk until every walk has ended.

        Returns:
            (callchains, ends): addresses leaf first, each but the first and those of interrupted frames a
            return address; and `End` of each.
        """
        steps: list[tuple[I64, U64]] = []
        live = np.arange(len(self.spaces))
        while len(live) and len(steps) < MAX_FRAMES:
            live = self._step(live, len(steps) == 0, steps)
        self.end[live] = End.EXHAUSTED
        return _chains(steps, len(self.spaces)), self.end

    def _step(self, live: I64, is_first: bool, steps: list[tuple[I64, U64]]) -> I64:
        """Note the current frame of each walk and go on to its caller; the walks that have one."""
        pc = self.pc[live]
        back = (~self.exact[live]).astype(np.uint64)
        rule = self.lookup.find(self.spaces[live], pc - back)
        if not is_first:
            outside = np.flatnonzero(rule == OUTSIDE)
            lost = outside[~self._frame(live[outside])[3]]
            self.end[live[lost]] = End.OUTSIDE
            if len(lost):
                live, pc, rule = (np.delete(column, lost) for column in (live, pc, rule))
        steps.append((live, pc))
        known_rule = rule > NO_CFI
        simple = self.lookup.rules.is_simple[rule]
        self._simple(live[simple], rule[simple])
        self._by_frame_pointer(live[~known_rule], rule[~known_rule])
        other = np.flatnonzero(known_rule & ~simple)
        for one in np.unique(rule[other]).tolist():
            self._general(live[other[rule[other] == one]], one)
        going: I64 = live[self.end[live] == End.UNDER_WAY]
        root = self.pc[going] == 0
        self.end[going[root]] = End.ROOT
        going = going[~root]
        return going

    def _read(self, lanes: I64, addresses: U64) -> tuple[U64, Bool]:
        """(words, known): the words at addresses of these walks' stacks; 0 where the copy has none."""
        away = addresses - self.bottom[lanes]
        index = (away >> np.uint64(3)).astype(np.int64)
        known: Bool = (index < self.lengths[lanes]) & ((away & np.uint64(7)) == 0)
        place = np.where(known, self.begins[lanes] + index, 0)
        return np.where(known, self.words[place], np.uint64(0)), known

    def _simple(self, lanes: I64, rule: I32) -> None:
        """The fast way."""
        if not len(lanes):
            return
        rules, registers = self.lookup.rules, self.registers
        from_fp = rules.from_fp[rule]
        sp = self.values[registers.sp, lanes]
        cfa = np.where(from_fp, self.values[registers.fp, lanes], sp) + rules.cfa_offset[rule]
        fp_lost = from_fp & ((self.known[lanes] >> np.uint64(registers.fp) & _ONE) == 0)
        ra, has_ra = self._read(lanes, cfa + rules.ra_offset[rule])
        ahead = self._advances(lanes, cfa)
        self.end[lanes[~ahead]] = End.NO_CFI
        self.end[lanes[(ahead & ~has_ra) | fp_lost]] = End.EXHAUSTED
        good = has_ra & ahead & ~fp_lost
        lanes, rule, cfa = lanes[good], rule[good], cfa[good]
        for place, number in enumerate(registers.saved):
            saved = np.flatnonzero(rules.is_saved[place][rule])
            if len(saved):
                offset = rules.saved_offset[place][rule[saved]]
                self._restore(lanes[saved], number, *self._read(lanes[saved], cfa[saved] + offset))
        self._go_on(lanes, cfa, ra[good], exact=False)

    def _restore(self, lanes: I64, number: int, words: U64, known: Bool) -> None:
        bit = np.uint64(1 << number)
        self.values[number, lanes] = words
        self.known[lanes] = np.where(known, self.known[lanes] | bit, self.known[lanes] & ~bit)

    def _advances(self, lanes: I64, cfa: U64) -> Bool:
        """Whether the frame's end lies above its begin; equal will do for where a thread was interrupted."""
        sp = self.values[self.registers.sp, lanes]
        ahead: Bool = (cfa > sp) | ((cfa == sp) & self.exact[lanes])
        return ahead

    def _go_on(self, lanes: I64, sp: U64, pc: U64, exact: bool) -> None:
        self.values[self.registers.sp, lanes] = sp
        if not exact:
            self.known[lanes] &= self._kept
        mask = np.uint64((1 << self.registers.code_bits) - 1)
        self.pc[lanes] = pc & mask
        self.exact[lanes] = exact

    # Code without rules

    def _frame(self, lanes: I64) -> tuple[U64, U64, U64, Bool]:
        """(frame pointer, what it points to, return address, whether that is one)."""
        registers = self.registers
        fp = self.values[registers.fp, lanes]
        below, has_below = self._read(lanes, fp)
        ra, has_ra = self._read(lanes, fp + _WORD)
        sound = has_below & has_ra & (fp >= self.values[registers.sp, lanes])
        sound &= (self.known[lanes] >> np.uint64(registers.fp) & _ONE) != 0
        code = self.lookup.find(self.spaces[lanes], ra - _ONE) != OUTSIDE
        return fp, below, ra, sound & (code | (ra == 0))

    def _by_frame_pointer(self, lanes: I64, rule: I32) -> None:
        """As the kernel walks: the frame pointer leads to the caller's and to the return address."""
        if not len(lanes):
            return
        fp, below, ra, sound = self._frame(lanes)
        has_fp = (self.known[lanes] >> np.uint64(self.registers.fp) & _ONE) != 0
        outermost = ~sound & has_fp & (fp == 0) & (rule == NO_CFI)  # as the ABI marks the first frame
        self.end[lanes[~sound]] = np.where(rule[~sound] == OUTSIDE, End.OUTSIDE, End.NO_CFI)
        above = ~sound & has_fp & self._is_above(lanes, fp)
        self.end[lanes[above]] = End.EXHAUSTED
        self.end[lanes[outermost]] = End.ROOT
        going = lanes[sound]
        self._restore(going, self.registers.fp, below[sound], np.ones(len(going), np.bool_))
        self._go_on(going, fp[sound] + np.uint64(16), ra[sound], exact=False)

    def _is_above(self, lanes: I64, addresses: U64) -> Bool:
        """Whether addresses lie just above the copy: on the same stack, as far as one can tell."""
        top = self.bottom[lanes] + self.lengths[lanes].astype(np.uint64) * _WORD
        above: Bool = (addresses + _WORD >= top) & (addresses - top < np.uint64(1 << 23))
        above &= (addresses & np.uint64(7)) == 0
        return above

    # Any rules

    def _general(self, lanes: I64, rule: int) -> None:
        """Frames of one rule set, whatever its rules are."""
        self.budget[0] -= 1
        registers, words = self.registers, self.lookup.rules.words[rule]
        if words[registers.ra] & 7 == Kind.UNDEFINED:
            self.end[lanes] = End.ROOT
            return
        if words[registers.ra] & 7 == Kind.SAME:
            # The return address is still in its register: on arm64 where a thread is in a leaf function.
            callers = ~self.exact[lanes] | (registers.ra == registers.pc)
            self.end[lanes[callers]] = End.NO_CFI
            lanes = lanes[~callers]
        if self.budget[0] < 0:
            self.end[lanes] = End.NO_CFI
            return
        try:
            cfa = self._cfa(lanes, int(words[registers.count]))
            after = {
                number: self._value(lanes, number, int(words[number]), cfa)
                for number in range(registers.count)
                if words[number] & 7 != Kind.SAME or number == registers.ra
            }
        except CannotEvaluateError:
            self.end[lanes] = End.NO_CFI
            return
        self._apply(lanes, cfa, after, bool(words[-1]))

    def _apply(self, lanes: I64, cfa: Value, after: dict[int, Value], is_signal: bool) -> None:
        """Put in the caller's registers."""
        registers = self.registers
        ra = after[registers.ra]
        sp = after.get(registers.sp, cfa)
        has = cfa.known & ra.known & sp.known
        ahead = self._advances(lanes, sp.words)
        self.end[lanes[~ahead]] = End.NO_CFI
        self.end[lanes[~has]] = End.EXHAUSTED
        good = has & ahead
        lanes = lanes[good]
        for number, value in after.items():
            if number not in (registers.pc, registers.sp):
                self._restore(lanes, number, value.words[good], value.known[good])
        self._go_on(lanes, sp.words[good], ra.words[good], exact=is_signal)

    def _register(self, lanes: I64, number: int) -> tuple[U64, Bool]:
        if number == self.registers.pc:
            return self.pc[lanes], np.ones(len(lanes), np.bool_)
        return self.values[number, lanes], (self.known[lanes] >> np.uint64(number) & _ONE) != 0

    def _evaluate(self, lanes: I64, number: int, first: U64 | None) -> Value:
        return evaluate(
            self.lookup.rules.expressions[number],
            len(lanes),
            lambda register: self._register(lanes, register),
            lambda addresses: self._read(lanes, addresses),
            first,
        )

    def _cfa(self, lanes: I64, rule: int) -> Value:
        if rule & 7 == Kind.REGISTER:
            words, known = self._register(lanes, rule >> 3 & 0xFF)
            return Value(words + np.uint64((rule >> 11) % 2**64), known)
        if rule & 7 == Kind.VAL_EXPRESSION:
            return self._evaluate(lanes, rule >> 3, None)
        raise CannotEvaluateError

    def _value(self, lanes: I64, number: int, rule: int, cfa: Value) -> Value:
        """The caller's value of a register."""
        kind, value = rule & 7, rule >> 3
        if kind == Kind.SAME:
            return Value(*self._register(lanes, number))
        if kind == Kind.REGISTER:
            return Value(*self._register(lanes, value))
        if kind in (Kind.OFFSET, Kind.VAL_OFFSET):
            place = Value(cfa.words + np.uint64(value % 2**64), cfa.known)
        elif kind in (Kind.EXPRESSION, Kind.VAL_EXPRESSION):
            place = self._evaluate(lanes, value, cfa.words)
        else:
            return Value(np.zeros(len(lanes), np.uint64), np.zeros(len(lanes), np.bool_))
        if kind in (Kind.VAL_OFFSET, Kind.VAL_EXPRESSION):
            return place
        words, known = self._read(lanes, place.words)
        return Value(words, known & place.known)


def _chains(steps: list[tuple[I64, U64]], walks: int) -> Ragged:
    """The callchains from what each step noted."""
    lengths = np.zeros(walks, np.int64)
    for lanes, _ in steps:
        lengths[lanes] += 1
    offsets = offsets_of(lengths)
    values = np.empty(offsets[-1], np.uint64)
    for depth, (lanes, pcs) in enumerate(steps):
        values[offsets[lanes] + depth] = pcs
    return Ragged(offsets, values)
