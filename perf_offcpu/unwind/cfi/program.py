# SPDX-License-Identifier: Apache-2.0
"""Run call frame instructions for all functions at once.

Each function (FDE) is a lane with a cursor, an address and a row of rules; a step runs one instruction of
every lane, grouped by opcode. So the longest function determines the number of numpy calls.

A rule is one int64, `value << 3 | Kind`:

    SAME        the register keeps its value (the default)
    UNDEFINED   its value is gone; of the return address: this is the outermost frame
    OFFSET      it was saved at CFA + value
    VAL_OFFSET  it was CFA + value
    REGISTER    it is in register `value`; the CFA's: `offset << 8 | register`
    EXPRESSION, VAL_EXPRESSION   saved at, or is, the value of an expression: `offset << 12 | length`
    INVALID     a rule that cannot be followed
"""

import enum
from collections.abc import Callable, Iterator
from typing import Final

import numpy as np

from perf_offcpu.binary.columnar import gather
from perf_offcpu.binary.layout import U8, U16, U32, Int
from perf_offcpu.model import columns as model
from perf_offcpu.model.columns import I32, I64, distinct
from perf_offcpu.structs import mutable
from perf_offcpu.unwind.cfi.entries import Cies, Fdes, Section, read_leb128

BATCH: Final = 1 << 14  # functions that are run together
MAX_STEPS: Final = 1 << 15  # instructions of one function; the longest that compilers write have some thousand
MAX_ALL_STEPS: Final = 1 << 17  # steps of all batches: some ten seconds; the largest programs take a tenth of that
MAX_ROWS: Final = 1 << 21  # rows of one batch; a row takes 8 bytes for each register
MAX_DEPTH: Final = 8  # nested remembered states; compilers write one
MAX_EXPRESSION: Final = 256  # bytes of one expression
_MAX_VALUE: Final = 1 << 40


class Kind(enum.IntEnum):
    """Kinds of rules for the caller's value of a register, the low three bits of a rule; the others are an operand."""

    SAME, UNDEFINED, OFFSET, VAL_OFFSET, REGISTER, EXPRESSION, VAL_EXPRESSION, INVALID = range(8)


class Cfa(enum.IntEnum):
    """DW_CFA_*, the instructions (DWARF 5, 6.4 and 7.24)."""

    ADVANCE_LOC, OFFSET, RESTORE = 0x40, 0x80, 0xC0  # the high two bits, with an operand in the low six
    NOP, SET_LOC, ADVANCE_LOC1, ADVANCE_LOC2, ADVANCE_LOC4, OFFSET_EXTENDED, RESTORE_EXTENDED = range(7)
    UNDEFINED, SAME_VALUE, REGISTER, REMEMBER_STATE, RESTORE_STATE = range(0x07, 0x0C)
    DEF_CFA, DEF_CFA_REGISTER, DEF_CFA_OFFSET, DEF_CFA_EXPRESSION, EXPRESSION = range(0x0C, 0x11)
    OFFSET_EXTENDED_SF, DEF_CFA_SF, DEF_CFA_OFFSET_SF = range(0x11, 0x14)
    VAL_OFFSET, VAL_OFFSET_SF, VAL_EXPRESSION = range(0x14, 0x17)
    GNU_WINDOW_SAVE = 0x2D  # on arm64: toggles whether the return address is signed
    GNU_ARGS_SIZE, GNU_NEGATIVE_OFFSET_EXTENDED = 0x2E, 0x2F


@mutable
class Rows:
    """Hold n rows of rules, sorted by address: how to find the CFA and the caller's registers at each."""

    start: model.U64  # uint64[n], sorted: each row holds up to the start of the next
    rules: I64  # int64[n, registers + 1], the CFA's last
    fde: I32  # int32[n], the function of each row


def run_programs(section: Section, cies: Cies, fdes: Fdes, registers: int) -> Iterator[Rows]:
    """Run the instructions of all FDEs; yield the rows of BATCH FDEs at a time, none for damaged ones. `registers`:
    number of registers whose rules are kept."""
    initial = _initial_rules(section, cies, registers)
    steps = MAX_ALL_STEPS
    for first in range(0, len(fdes), BATCH):
        batch = fdes.take(slice(first, first + BATCH))
        machine = _Machine(section, cies, batch.cie, initial[batch.cie], registers)
        steps -= machine.run(batch.begin, batch.stop, batch.start, batch.end, min(steps, MAX_STEPS))
        yield machine.rows(first)


def _initial_rules(section: Section, cies: Cies, registers: int) -> I64:
    """Return int64[cies, registers + 2]: the rules (`_Machine.state`) after the initial instructions of each CIE."""
    rules = np.zeros((len(cies), registers + 2), np.int64)
    rules[:, registers] = Kind.INVALID
    machine = _Machine(section, cies, np.arange(len(cies), dtype=np.int32), rules, registers)
    everywhere = np.zeros(len(cies), np.uint64), np.full(len(cies), 2**63, np.uint64)
    machine.run(cies.begin, cies.end, *everywhere, MAX_STEPS)
    machine.state[machine.bad, registers] = Kind.INVALID
    return machine.state


class _Machine:
    """Run the instructions of n FDEs or CIEs (lanes) together. `state`, int64[n, registers + 2]: current rules of the
    registers, of the CFA, and, in the last column, of all other registers."""

    def __init__(self, section: Section, cies: Cies, cie: I32, initial: I64, registers: int) -> None:
        self.data, self.registers = section.data, registers
        self.code_align, self.data_align = cies.code_align[cie], cies.data_align[cie]
        self.initial, self.state = initial, initial.copy()
        self.bad = np.zeros(len(cie), np.bool_)
        self.depth = np.zeros(len(cie), np.int64)
        self.remembered: list[I64] = []
        self._emitted: list[tuple[I64, model.U64, I64]] = []
        self._rows = 0
        self._limit = np.int64(section.size)

    def run(self, offsets: I64, stop: I64, start: model.U64, end: model.U64, most: int) -> int:
        """Run each lane's instructions, from offset offsets[i] to stop[i] of the data; keep its rows for addresses in
        [start[i], end[i]). Returns the number of steps, at most `most`: lanes that need more count as damaged."""
        self.at, self.loc, self.end = offsets.copy(), start.copy(), end
        live = np.flatnonzero(offsets < stop)
        steps = 0
        while len(live) and steps < most and self._rows < MAX_ROWS:
            steps += 1
            code = self.data[self.at[live]].astype(np.int64)
            self.at[live] += 1
            high = code & 0xC0
            opcode = np.where(high != 0, high, code)
            for instruction in np.flatnonzero(np.bincount(opcode)).tolist():
                lane = np.flatnonzero(opcode == instruction)
                self._take(instruction, live[lane], code[lane] & 0x3F)
            self.bad[live] |= self.at[live] > stop[live]
            live = live[(self.at[live] < stop[live]) & ~self.bad[live]]
        self.bad[live] = True
        self._emit(np.arange(len(offsets)))
        return steps

    def rows(self, base: int) -> Rows:
        """Return the rows of undamaged lanes, sorted by address; lane i is FDE `base` + i."""
        lanes, starts, rules = (np.concatenate(part) for part in zip(*self._emitted, strict=True))
        order = np.argsort(starts, kind="stable")
        order = order[~self.bad[lanes[order]]]
        return Rows(starts[order], rules[order], (lanes[order] + base).astype(np.int32))

    def _emit(self, lanes: I64) -> None:
        lanes = lanes[self.loc[lanes] < self.end[lanes]]
        self._rows += len(lanes)
        self._emitted.append((lanes, self.loc[lanes], self.state[lanes, : self.registers + 1]))

    def _take(self, opcode: int, lanes: I64, low: I64) -> None:
        if opcode == Cfa.ADVANCE_LOC:
            self._advance(lanes, low)
        elif opcode == Cfa.OFFSET:
            self._set(lanes, low, Kind.OFFSET, self._operand(lanes) * self.data_align[lanes])
        elif opcode == Cfa.RESTORE:
            self._restore(lanes, low)
        elif opcode in _HANDLERS:
            _HANDLERS[opcode](self, lanes)
        elif opcode not in (Cfa.NOP, Cfa.GNU_WINDOW_SAVE):
            self.bad[lanes] = True

    # Operands

    def _operand(self, lanes: I64, signed: bool = False) -> I64:
        value, self.at[lanes] = read_leb128(self.data, np.minimum(self.at[lanes], self._limit), signed)
        return value

    def _column(self, register: I64) -> I64:
        """Return int64[n]: the column in `state` of each register; registers without kept rules share the last."""
        is_register = (register >= 0) & (register < self.registers)
        return np.where(is_register, register, self.registers + 1)

    def _set(self, lanes: I64, register: I64, kind: Kind, value: I64) -> None:
        rule = np.where(np.abs(value) < _MAX_VALUE, value << 3 | kind, Kind.INVALID)
        self.state[lanes, self._column(register)] = rule

    def _set_cfa(self, lanes: I64, register: I64, offset: I64) -> None:
        sound = (register >= 0) & (register < self.registers) & (np.abs(offset) < _MAX_VALUE)
        rule = (offset << 8 | np.where(sound, register, 0)) << 3 | Kind.REGISTER
        self.state[lanes, self.registers] = np.where(sound, rule, Kind.INVALID)

    def _cfa(self, lanes: I64) -> tuple[I64, I64]:
        """Return (registers, offsets) whose sums are the CFAs of `lanes`; register -1 where the rule is no such sum."""
        rule = self.state[lanes, self.registers]
        is_register = rule & 7 == Kind.REGISTER
        return np.where(is_register, rule >> 3 & 0xFF, -1), rule >> 11

    def _block(self, lanes: I64, kind: Kind) -> I64:
        """Skip the expression at each lane's cursor; return int64[lanes]: its rule of `kind`, INVALID if too long."""
        length = self._operand(lanes)
        begin = self.at[lanes]
        self.at[lanes] = begin + np.clip(length, 0, self._limit + 1)
        sound = (length > 0) & (length < MAX_EXPRESSION) & (self.at[lanes] <= self._limit)
        return np.where(sound, (begin << 12 | np.where(sound, length, 0)) << 3 | kind, Kind.INVALID)

    # Instructions

    def _advance(self, lanes: I64, delta: I64) -> None:
        moved = lanes[delta > 0]
        self._emit(moved)
        self.loc[moved] += (delta[delta > 0] * self.code_align[moved]).astype(np.uint64)
        # There are no rules after the end, and repeated advances must not wrap around to 0.
        self.loc[moved] = np.minimum(self.loc[moved], self.end[moved])

    def _advance_by(self, lanes: I64, form: Int) -> None:
        delta = gather(self.data, np.minimum(self.at[lanes], self._limit), form)
        self.at[lanes] += form.size
        self._advance(lanes, delta.astype(np.int64))

    def _restore(self, lanes: I64, register: I64) -> None:
        columns = self._column(register)
        self.state[lanes, columns] = self.initial[lanes, columns]

    def _remember(self, lanes: I64) -> None:
        deep = self.depth[lanes] >= MAX_DEPTH
        self.bad[lanes[deep]] = True
        lanes = lanes[~deep]
        for depth in distinct(self.depth[lanes]).tolist():
            if depth == len(self.remembered):
                self.remembered.append(np.zeros_like(self.state))
            at_depth = lanes[self.depth[lanes] == depth]
            self.remembered[depth][at_depth] = self.state[at_depth]
        self.depth[lanes] += 1

    def _restore_state(self, lanes: I64) -> None:
        empty = self.depth[lanes] <= 0
        self.bad[lanes[empty]] = True
        lanes = lanes[~empty]
        self.depth[lanes] -= 1
        for depth in distinct(self.depth[lanes]).tolist():
            at_depth = lanes[self.depth[lanes] == depth]
            self.state[at_depth] = self.remembered[depth][at_depth]

    def _offset(self, lanes: I64, kind: Kind, signed: bool = False, sign: int = 1) -> None:
        register, value = self._operand(lanes), self._operand(lanes, signed)
        self._set(lanes, register, kind, sign * value * self.data_align[lanes])

    def _simple(self, lanes: I64, kind: Kind) -> None:
        register = self._operand(lanes)
        self._set(lanes, register, kind, np.zeros_like(register))

    def _in_register(self, lanes: I64) -> None:
        register, other = self._operand(lanes), self._operand(lanes)
        is_register = (other >= 0) & (other < self.registers)
        self._set(lanes, register, Kind.REGISTER, np.where(is_register, other, _MAX_VALUE))

    def _expression(self, lanes: I64, kind: Kind) -> None:
        column = self._column(self._operand(lanes))
        self.state[lanes, column] = self._block(lanes, kind)

    def _def_cfa(self, lanes: I64, signed: bool = False) -> None:
        register, offset = self._operand(lanes), self._operand(lanes, signed)
        self._set_cfa(lanes, register, offset * (self.data_align[lanes] if signed else 1))

    def _def_cfa_register(self, lanes: I64) -> None:
        self._set_cfa(lanes, self._operand(lanes), self._cfa(lanes)[1])

    def _def_cfa_offset(self, lanes: I64, signed: bool = False) -> None:
        offset = self._operand(lanes, signed)
        self._set_cfa(lanes, self._cfa(lanes)[0], offset * (self.data_align[lanes] if signed else 1))

    def _def_cfa_expression(self, lanes: I64) -> None:
        self.state[lanes, self.registers] = self._block(lanes, Kind.VAL_EXPRESSION)


_HANDLERS: Final[dict[int, Callable[[_Machine, I64], object]]] = {
    Cfa.ADVANCE_LOC1: lambda m, lanes: m._advance_by(lanes, U8),
    Cfa.ADVANCE_LOC2: lambda m, lanes: m._advance_by(lanes, U16),
    Cfa.ADVANCE_LOC4: lambda m, lanes: m._advance_by(lanes, U32),
    Cfa.OFFSET_EXTENDED: lambda m, lanes: m._offset(lanes, Kind.OFFSET),
    Cfa.RESTORE_EXTENDED: lambda m, lanes: m._restore(lanes, m._operand(lanes)),
    Cfa.UNDEFINED: lambda m, lanes: m._simple(lanes, Kind.UNDEFINED),
    Cfa.SAME_VALUE: lambda m, lanes: m._simple(lanes, Kind.SAME),
    Cfa.REGISTER: _Machine._in_register,
    Cfa.REMEMBER_STATE: _Machine._remember,
    Cfa.RESTORE_STATE: _Machine._restore_state,
    Cfa.DEF_CFA: _Machine._def_cfa,
    Cfa.DEF_CFA_REGISTER: _Machine._def_cfa_register,
    Cfa.DEF_CFA_OFFSET: _Machine._def_cfa_offset,
    Cfa.DEF_CFA_EXPRESSION: _Machine._def_cfa_expression,
    Cfa.EXPRESSION: lambda m, lanes: m._expression(lanes, Kind.EXPRESSION),
    Cfa.OFFSET_EXTENDED_SF: lambda m, lanes: m._offset(lanes, Kind.OFFSET, signed=True),
    Cfa.DEF_CFA_SF: lambda m, lanes: m._def_cfa(lanes, signed=True),
    Cfa.DEF_CFA_OFFSET_SF: lambda m, lanes: m._def_cfa_offset(lanes, signed=True),
    Cfa.VAL_OFFSET: lambda m, lanes: m._offset(lanes, Kind.VAL_OFFSET),
    Cfa.VAL_OFFSET_SF: lambda m, lanes: m._offset(lanes, Kind.VAL_OFFSET, signed=True),
    Cfa.VAL_EXPRESSION: lambda m, lanes: m._expression(lanes, Kind.VAL_EXPRESSION),
    Cfa.GNU_ARGS_SIZE: _Machine._operand,
    Cfa.GNU_NEGATIVE_OFFSET_EXTENDED: lambda m, lanes: m._offset(lanes, Kind.OFFSET, sign=-1),
}
