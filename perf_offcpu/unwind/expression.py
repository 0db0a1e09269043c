# SPDX-License-Identifier: Apache-2.0
"""Evaluate DWARF expressions of frame rules for many frames at once. Compilers and linkers write few of them: for PLT
stubs that have pushed their argument, for realigned frames that keep the caller's stack pointer, for signal frames.
Operations of such rules are supported; an expression with another one has no value. Source: DWARF 5, 2.5."""

import enum
from collections.abc import Callable
from functools import partial
from typing import Final

import numpy as np

from perf_offcpu.binary.layout import Int
from perf_offcpu.model.columns import I64, U64, Bool
from perf_offcpu.unwind.cfi.entries import leb128
from perf_offcpu.unwind.state import Value, WalkState

MAX_STACK: Final = 32


class Op(enum.IntEnum):
    """DW_OP_*: the operations that rules of frames use (DWARF 5, 7.7.1)."""

    ADDR, DEREF = 0x03, 0x06
    CONST1U, CONST1S, CONST2U, CONST2S, CONST4U, CONST4S, CONST8U, CONST8S, CONSTU, CONSTS = range(0x08, 0x12)
    DUP, DROP, OVER, PICK, SWAP, ROT = range(0x12, 0x18)
    AND, MINUS, MUL, NEG, NOT, OR, PLUS = 0x1A, 0x1C, 0x1E, 0x1F, 0x20, 0x21, 0x22
    PLUS_UCONST, SHL, SHR, SHRA, XOR = range(0x23, 0x28)
    EQ, GE, GT, LE, LT, NE = range(0x29, 0x2F)
    LIT0, LIT31, BREG0, BREG31, BREGX, NOP = 0x30, 0x4F, 0x70, 0x8F, 0x92, 0x96


_CONSTANTS: Final[dict[int, Int]] = {Op.ADDR: Int(8)} | {
    op: Int(1 << (op - Op.CONST1U) // 2, signed=bool((op - Op.CONST1U) % 2)) for op in range(Op.CONST1U, Op.CONST8S + 1)
}
"""Operations that push the constant after them, with its type: unsigned and signed in turn, of 1, 2, 4, 8 bytes."""


class CannotEvaluateError(Exception):
    """Raised for an expression that is damaged or has an operation that is not supported."""


def evaluate(code: bytes, state: WalkState, lanes: I64, first: U64 | None) -> Value:
    """Evaluate an expression in the current frames of the walks `lanes`; CannotEvaluateError if it has no value.
    `first` (uint64[lanes]) is the initial content of the expression's stack (the CFA, for registers); None: empty."""
    machine = _Evaluation(code, state, lanes)
    try:
        if first is not None:
            machine.push(first)
        machine.run()
        return machine.stack.pop()
    except IndexError:
        raise CannotEvaluateError from None


class _Evaluation:
    def __init__(self, code: bytes, state: WalkState, lanes: I64) -> None:
        self.size, self.code = len(code), code + bytes(16)
        self.state, self.lanes = state, lanes
        self.stack: list[Value] = []
        self.at = 0

    def push(self, words: U64, is_known: Bool | None = None) -> None:
        if len(self.stack) >= MAX_STACK:
            raise CannotEvaluateError
        self.stack.append(Value(words, np.ones(len(self.lanes), np.bool_) if is_known is None else is_known))

    def run(self) -> None:
        while self.at < self.size:
            self.at += 1
            self._do(self.code[self.at - 1])
        if self.at != self.size:
            raise CannotEvaluateError

    def _constant(self, value: int) -> None:
        self.push(np.full(len(self.lanes), value % 2**64, np.uint64))

    def _number(self, signed: bool = False) -> int:
        value, self.at = leb128(self.code, self.at, signed)
        return value

    def _do(self, op: int) -> None:
        if Op.LIT0 <= op <= Op.LIT31:
            self._constant(op - Op.LIT0)
        elif Op.BREG0 <= op <= Op.BREG31:
            self._based(op - Op.BREG0)
        elif op == Op.BREGX:
            self._based(self._number())
        elif op in _CONSTANTS:
            form = _CONSTANTS[op]
            data = self.code[self.at : self.at + form.size]
            self._constant(int.from_bytes(data, "little", signed=form.signed))
            self.at += form.size
        elif op in (Op.CONSTU, Op.CONSTS):
            self._constant(self._number(op == Op.CONSTS))
        elif op == Op.PLUS_UCONST:
            top = self.stack.pop()
            self.push(top.words + np.uint64(self._number() % 2**64), top.known)
        elif op == Op.DEREF:
            top = self.stack.pop()
            words, is_known = self.state.read(self.lanes, top.words)
            self.push(words, is_known & top.known)
        elif op in _BINARY:
            right, left = self.stack.pop(), self.stack.pop()
            self.push(_BINARY[op](left.words, right.words), left.known & right.known)
        elif op in _UNARY:
            top = self.stack.pop()
            self.push(_UNARY[op](top.words), top.known)
        else:
            self._shuffle(op)

    def _based(self, number: int) -> None:
        offset = self._number(signed=True)
        words, is_known = self.state.register(self.lanes, number)
        self.push(words + np.uint64(offset % 2**64), is_known)

    def _shuffle(self, op: int) -> None:
        stack = self.stack
        if op in (Op.DUP, Op.OVER, Op.PICK):
            depth = {Op.DUP: 1, Op.OVER: 2}.get(Op(op)) or self.code[self.at] + 1
            self.at += op == Op.PICK
            self.push(stack[-depth].words, stack[-depth].known)
        elif op == Op.DROP:
            self.stack.pop()
        elif op == Op.SWAP:
            stack[-1], stack[-2] = stack[-2], stack[-1]
        elif op == Op.ROT:
            top, second, third = self.stack.pop(), self.stack.pop(), self.stack.pop()
            stack += [top, third, second]
        elif op != Op.NOP:
            raise CannotEvaluateError


def _compared(test: Callable[[I64, I64], Bool], left: U64, right: U64) -> U64:
    return test(left.view(np.int64), right.view(np.int64)).astype(np.uint64)


def _shifted(shift: Callable[[U64, U64], U64], left: U64, right: U64) -> U64:
    return np.where(right < np.uint64(64), shift(left, np.minimum(right, np.uint64(63))), np.uint64(0))


def _arithmetic_shift(left: U64, right: U64) -> U64:
    return (left.view(np.int64) >> np.minimum(right, np.uint64(63)).astype(np.int64)).view(np.uint64)


_BINARY: Final[dict[int, Callable[[U64, U64], U64]]] = {
    **{Op.PLUS: np.add, Op.MINUS: np.subtract, Op.MUL: np.multiply},
    **{Op.AND: np.bitwise_and, Op.OR: np.bitwise_or, Op.XOR: np.bitwise_xor},
    **{Op.SHL: partial(_shifted, np.left_shift), Op.SHR: partial(_shifted, np.right_shift)},
    Op.SHRA: _arithmetic_shift,
    **{Op.EQ: partial(_compared, np.equal), Op.NE: partial(_compared, np.not_equal)},
    **{Op.GE: partial(_compared, np.greater_equal), Op.GT: partial(_compared, np.greater)},
    **{Op.LE: partial(_compared, np.less_equal), Op.LT: partial(_compared, np.less)},
}

_UNARY: Final[dict[int, Callable[[U64], U64]]] = {Op.NOT: np.bitwise_not, Op.NEG: np.negative}
