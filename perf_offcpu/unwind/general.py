# SPDX-License-Identifier: Apache-2.0
"""Find the callers of frames with rules of any kind: PLT stubs, signal frames, realigned stacks.

Such frames are few, so they are handled rule set by rule set.
"""

from __future__ import annotations

import numpy as np

from perf_offcpu.model.columns import I64
from perf_offcpu.unwind.cfi.expression import CannotEvaluateError, evaluate
from perf_offcpu.unwind.cfi.program import Kind
from perf_offcpu.unwind.state import End, Value, WalkState


def general_frames(state: WalkState, lanes: I64, rule: int) -> None:
    """Advance walks at frames of one rule set, with rules of any kind, to the callers."""
    registers, words = state.registers, state.rules.words[rule]
    if words[registers.ra] & 7 == Kind.SAME:
        # The return address is still in its register: on arm64 where a thread is in a leaf function.
        callers = ~state.exact[lanes] | (registers.ra == registers.pc)
        state.end[lanes[callers]] = End.NO_CFI
        lanes = lanes[~callers]
    try:
        cfa = _cfa(state, lanes, int(words[registers.count]))
        after = {
            number: _value(state, lanes, number, int(words[number]), cfa)
            for number in sorted(state.followed)
            if words[number] & 7 != Kind.SAME or number == registers.ra
        }
    except CannotEvaluateError:
        state.end[lanes] = End.NO_CFI
        return
    _apply(state, lanes, cfa, after, bool(words[-1]))


def _apply(state: WalkState, lanes: I64, cfa: Value, after: dict[int, Value], is_signal: bool) -> None:
    """Set the caller's registers."""
    registers = state.registers
    ra = after[registers.ra]
    sp = after.get(registers.sp, cfa)
    has = cfa.known & ra.known & sp.known
    ahead = state.advances(lanes, state.sp[lanes], sp.words)
    state.end[lanes[~ahead]] = End.NO_CFI
    state.end[lanes[~has]] = End.EXHAUSTED
    good = has & ahead
    lanes = lanes[good]
    for number, value in after.items():
        if number not in (registers.pc, registers.sp):
            state.restore(lanes, number, value.words[good], value.known[good])
    state.go_on(lanes, sp.words[good], ra.words[good], exact=is_signal)


def _cfa(state: WalkState, lanes: I64, rule: int) -> Value:
    if rule & 7 == Kind.REGISTER:
        words, known = state.register(lanes, rule >> 3 & 0xFF)
        return Value(words + np.uint64((rule >> 11) % 2**64), known)
    if rule & 7 == Kind.VAL_EXPRESSION:
        return evaluate(state.rules.expressions[rule >> 3], state, lanes, None)
    raise CannotEvaluateError


def _value(state: WalkState, lanes: I64, number: int, rule: int, cfa: Value) -> Value:
    """Return the caller's value of a register."""
    kind, value = rule & 7, rule >> 3
    if kind == Kind.SAME:
        return state.register(lanes, number)
    if kind == Kind.REGISTER:
        return state.register(lanes, value)
    if kind in (Kind.OFFSET, Kind.VAL_OFFSET):
        place = Value(cfa.words + np.uint64(value % 2**64), cfa.known)
    elif kind in (Kind.EXPRESSION, Kind.VAL_EXPRESSION):
        place = evaluate(state.rules.expressions[value], state, lanes, cfa.words)
    else:
        return Value(np.zeros(len(lanes), np.uint64), np.zeros(len(lanes), np.bool_))
    if kind in (Kind.VAL_OFFSET, Kind.VAL_EXPRESSION):
        return place
    words, known = state.read(lanes, place.words)
    return Value(words, known & place.known)
