# SPDX-License-Identifier: Apache-2.0
"""Unwind a batch of snapshots together: a step finds the caller of each current frame.

Nearly all rules are of one kind: the CFA is the stack or frame pointer plus a number; return address and
saved registers are at fixed offsets below it. Frames with such rules take the fast path, all at once. Others
(PLT stubs, signal frames, realigned stacks) go rule set by rule set.

A CFA that does not advance ends the walk, so circular rules cost at most as many steps as the copy has words."""

from typing import Final

import numpy as np

from perf_offcpu.binary.columnar import offsets_of
from perf_offcpu.model.callchains import Ragged
from perf_offcpu.model.columns import I64, U8, U64, Bool
from perf_offcpu.unwind.cfi.program import Kind
from perf_offcpu.unwind.expression import CannotEvaluateError, evaluate
from perf_offcpu.unwind.frame_search import RECORD
from perf_offcpu.unwind.lookup import INTERPRETER, NO_CFI, OUTSIDE, CfiLookup
from perf_offcpu.unwind.state import End, Threads, Value, WalkState

MAX_FRAMES: Final = 1024
MAX_GENERAL: Final = 1 << 14
"""Rule sets that may take the slow path, over all steps of an unwinding: real stacks need some ten in each
batch, for which `MORE_GENERAL` are added."""
MORE_GENERAL: Final = 1 << 8
_WORD: Final = np.uint64(8)
_ONE: Final = np.uint64(1)
_LOCALS, _CACHE, _METHOD, _SENDER = (np.uint64(offset) for offset in (56, 48, 24, 8))
"""Offsets below the frame pointer of HotSpot's interpreter (`interpreter_frame_*_offset`)."""
_MOST_LOCALS, _LOWEST_ADDRESS = np.uint64(16384), np.uint64(4096)  # as in bpf/copies.h


def walk_up(lookup: CfiLookup, threads: Threads, budget: list[int]) -> tuple[Ragged, U8]:
    """Walk n stacks to their roots. Returns (callchains, ends): addresses leaf first, each a return address except the
    first and those of interrupted frames; and the `End` of each (uint8[n]). `budget`: one number, counted down: the
    rule sets that may still take the slow path in all walks together (MAX_GENERAL)."""
    walk = Walk(lookup, threads, budget)
    chains, ends = walk.run()
    if walk.lost is None:
        return chains, ends
    again = np.flatnonzero(walk.lost)
    others, ends[again] = Walk(lookup, threads.take(again), budget, follow_all=True).run()
    return chains.replaced(again, others), ends


class Walk(WalkState):
    """Run n walks up the stack together, a frame at a time; arguments as for `walk_up` and `WalkState`."""

    def __init__(self, lookup: CfiLookup, threads: Threads, budget: list[int], follow_all: bool = False) -> None:
        super().__init__(lookup, threads, follow_all)
        self.budget = budget
        self.steps = 0
        self.searched = dict[int, int]()  # walk → frames before the one whose frame pointer was searched for

    def run(self) -> tuple[Ragged, U8]:
        """Step until all walks have ended; return (callchains, ends) as `walk_up`."""
        steps: list[tuple[I64, U64]] = []
        live = np.arange(len(self.spaces))
        while len(live) and len(steps) < MAX_FRAMES:
            live = self._step(live, steps)
        self.end[live] = End.EXHAUSTED
        return self._without_wrong_frames(_chains(steps, len(self.spaces))), self.end

    def _without_wrong_frames(self, chains: Ragged) -> Ragged:
        """Return the chains, cut before the caller that a searched frame pointer led to if the walk from there ended
        neither at a root nor at the end of the copy; these walks end with NO_CFI then."""
        wrong = [lane for lane in self.searched if self.end[lane] not in (End.ROOT, End.EXHAUSTED)]
        if not wrong:
            return chains
        self.end[wrong] = End.NO_CFI
        lengths = chains.lengths.copy()
        lengths[wrong] = [self.searched[lane] for lane in wrong]
        row = chains.row_of_value()
        kept = np.arange(len(chains.values)) - chains.offsets[row] < lengths[row]
        return Ragged(offsets_of(lengths), chains.values[kept])

    def _step(self, live: I64, steps: list[tuple[I64, U64]]) -> I64:
        """Append (walks under way, their pc) to `steps`, advance to their callers; return the walks with a caller."""
        rules = self.rules
        pc = self.pc.take(live)
        back = (~self.exact[live]).astype(np.uint64) if self.has_exact else _ONE
        rule = self.lookup.find(self.spaces.take(live), pc - back)
        if not self.is_first and bool((rule == OUTSIDE).any()):
            outside = np.flatnonzero(rule == OUTSIDE)
            lost = outside[~self._frame(live[outside])[3]]
            self.end[live[lost]] = End.OUTSIDE
            if len(lost):
                live, pc, rule = (np.delete(column, lost) for column in (live, pc, rule))
        steps.append((live, pc))
        self.steps = len(steps)
        simple = rules.is_simple.take(rule)
        if simple.all():
            self._simple(live, rule)
        else:
            self._name_methods(live, pc, np.flatnonzero(rule == INTERPRETER))
            self._simple(live[simple], rule[simple])
            self._not_simple(live[~simple], rule[~simple])
        self.is_first = False
        going: I64 = live[self.end.take(live) == End.UNDER_WAY]
        root = self.pc.take(going) == 0
        if root.any():
            self.end[going[root]] = End.ROOT
            going = going[~root]
        if self.lost is not None:
            going = going[~self.lost[going]]
        self.has_exact = self.has_exact and bool(self.exact[going].any())
        return going

    def _name_methods(self, live: I64, pc: U64, rows: I64) -> None:
        """Set `pc` in frames of HotSpot's interpreter (`rows`) to the address of the Method, which the frame holds
        (`interpreter_frame_method_offset`), plus 1: a return address is looked up at the byte before it. Only Methods
        by which bpf/copies.h tells copies apart are named: samples that share a copy may differ in others."""
        rows = rows[self.is_own[live[rows]] & ~self.exact[live[rows]]]  # the frame may be under construction
        trampolines, lanes = self.lookup.trampolines, live[rows]
        if trampolines is not None and len(rows):
            fp = self.fp[lanes]
            end = fp + _WORD
            words = (self.read(lanes, fp - offset).words for offset in (_LOCALS, _CACHE, _METHOD, _SENDER))
            local, cache, method, sender = words
            counts = self.read(lanes, end).known & self.read(lanes, fp - _LOCALS).known
            counts &= (local < _MOST_LOCALS) | (local - end < _MOST_LOCALS)
            counts &= (sender - end < _MOST_LOCALS) & ((cache | method | sender | end) & np.uint64(7) == 0)
            counts &= (cache >= _LOWEST_ADDRESS) & (method >= _LOWEST_ADDRESS)
            bottom, size = self.bottom[lanes], self.lengths[lanes].astype(np.uint64) * _WORD
            counts &= (cache - bottom >= size) & (method - bottom >= size)
            is_method = trampolines.are_methods(self.spaces[lanes], method) & counts
            pc[rows[is_method]] = method[is_method] + _ONE

    def _simple(self, lanes: I64, rule: I64) -> None:
        """Advance the walks `lanes` by simple rule sets (`rule`: rows of `rules`); end those without a caller."""
        if not len(lanes):
            return
        rules = self.rules
        sp = self.sp.take(lanes)
        cfa = sp + rules.cfa_offset.take(rule)
        from_fp = np.flatnonzero(rules.from_fp.take(rule))
        if self.lacks_fp and len(from_fp):
            self._search_frames(lanes[from_fp], rules.cfa_offset.take(rule[from_fp]))
        if len(from_fp):
            cfa[from_fp] += self.fp[lanes[from_fp]] - sp[from_fp]
        away = cfa - self.bottom.take(lanes)
        begins, lengths = self.begins.take(lanes), self.lengths.take(lanes)
        offset = rules.common_ra_offset
        ra, is_known = self.read_at(away + (rules.ra_offset.take(rule) if offset is None else offset), begins, lengths)
        ahead = self.advances(lanes, sp, cfa)
        good = is_known & ahead
        if self.lacks_fp:
            fp_lost = from_fp[~self.knows(lanes[from_fp], self.registers.fp)]
            ahead[fp_lost] = True
            good[fp_lost] = False
        if not good.all():
            self.end[lanes[~good]] = End.EXHAUSTED
            self.end[lanes[~ahead]] = End.NO_CFI
            lanes, rule, cfa, ra = lanes[good], rule[good], cfa[good], ra[good]
            away, begins, lengths = away[good], begins[good], lengths[good]
        for place, number in enumerate(self.registers.saved):
            if number != self.registers.fp and not self.follow_all:
                continue
            saved = np.flatnonzero(rules.is_saved[place].take(rule))
            if len(saved):
                saved_at = away[saved] + rules.saved_offset[place].take(rule[saved])
                self.restore(lanes[saved], number, *self.read_at(saved_at, begins[saved], lengths[saved]))
        self.go_on(lanes, cfa, ra, exact=False)

    def _not_simple(self, lanes: I64, rule: I64) -> None:
        """Advance the walks `lanes`, whose rule sets are OUTSIDE, NO_CFI or not simple; end walks at the root."""
        rules = self.rules
        bare = rule <= NO_CFI
        self._by_frame_pointer(lanes[bare], rule[bare])
        root = rules.is_root.take(rule)
        self.end[lanes[root]] = End.ROOT
        other = np.flatnonzero(~bare & ~root)
        for rule_row in sorted(set(rule[other].tolist())):
            with_rule = lanes[other[rule[other] == rule_row]]
            self.budget[0] -= 1
            if self.budget[0] < 0:
                self.end[with_rule] = End.NO_CFI
            else:
                _general_frames(self, with_rule, rule_row)
                self.has_exact |= bool(rules.is_signal[rule_row])

    def _search_frames(self, lanes: I64, cfa_offset: U64) -> None:
        """Set the frame pointer of walks that do not know it and whose CFA is the frame pointer + RECORD, where a
        search of the stack finds it. `cfa_offset`: uint64[lanes]."""
        frames = self.lookup.frames
        missing = lanes[~self.knows(lanes, self.registers.fp) & (cfa_offset == RECORD)]
        for lane in missing.tolist():
            if frames is None:
                return
            begin = int(self.begins[lane])
            words = self.words[begin : begin + int(self.lengths[lane])]
            pc = int(self.pc[lane]) - (not self.exact[lane])
            bottom, sp = int(self.bottom[lane]), int(self.sp[lane])
            fp = frames.frame_pointer(int(self.spaces[lane]), words, bottom, sp, pc, self.lookup.entries)
            if fp:
                self.fp[lane] = fp
                self.known[lane] |= np.uint64(1 << self.registers.fp)
                self.searched[lane] = self.steps

    # Code without rules

    def _frame(self, lanes: I64) -> tuple[U64, U64, U64, Bool]:
        """Return (frame pointer; the saved one; return address; bool[lanes]: True if both words were read above the
        stack pointer and the address is in code, or 0) of the frame records that frame pointers lead to."""
        fp = self.fp[lanes]
        below, has_below = self.read(lanes, fp)
        signed, has_ra = self.read(lanes, fp + _WORD)
        ra = self.code(signed)
        sound = has_below & has_ra & (fp >= self.sp[lanes])
        sound &= self.knows(lanes, self.registers.fp)
        code = self.lookup.find(self.spaces[lanes], ra - _ONE) != OUTSIDE
        return fp, below, ra, sound & (code | (ra == 0))

    def _by_frame_pointer(self, lanes: I64, rule: I64) -> None:
        """Advance walks in code without rules along frame pointers, as the kernel does; end those that cannot."""
        if not len(lanes):
            return
        fp, below, ra, sound = self._frame(lanes)
        has_fp = self.knows(lanes, self.registers.fp)
        outermost = ~sound & has_fp & (fp == 0) & (rule == NO_CFI)  # as the ABI marks the first frame
        self.end[lanes[~sound]] = np.where(rule[~sound] == OUTSIDE, End.OUTSIDE, End.NO_CFI)
        above = ~sound & has_fp & self._is_above(lanes, fp)
        self.end[lanes[above]] = End.EXHAUSTED
        self.end[lanes[outermost]] = End.ROOT
        going = lanes[sound]
        self.restore(going, self.registers.fp, below[sound], np.ones(len(going), np.bool_))
        self.go_on(going, fp[sound] + np.uint64(16), ra[sound], exact=False)

    def _is_above(self, lanes: I64, addresses: U64) -> Bool:
        """Return bool[lanes]: True if the address is at most 8 MB above the copied words: likely on the same stack."""
        top = self.bottom[lanes] + self.lengths[lanes].astype(np.uint64) * _WORD
        above: Bool = (addresses + _WORD >= top) & (addresses - top < np.uint64(1 << 23))
        above &= (addresses & np.uint64(7)) == 0
        return above


# Rules of any kind: few frames have them, so they are handled rule set by rule set


def _general_frames(state: WalkState, lanes: I64, rule: int) -> None:
    """Advance the walks `lanes` to their callers by one rule set (row of `rules`) with rules of any kind."""
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
        words, is_known = state.register(lanes, rule >> 3 & 0xFF)
        return Value(words + np.uint64((rule >> 11) % 2**64), is_known)
    if rule & 7 == Kind.VAL_EXPRESSION:
        return evaluate(state.rules.expressions[rule >> 3], state, lanes, None)
    raise CannotEvaluateError


def _value(state: WalkState, lanes: I64, number: int, rule: int, cfa: Value) -> Value:
    kind, value = rule & 7, rule >> 3
    if kind in (Kind.SAME, Kind.REGISTER):
        return state.register(lanes, number if kind == Kind.SAME else value)
    if kind in (Kind.OFFSET, Kind.VAL_OFFSET):
        place = Value(cfa.words + np.uint64(value % 2**64), cfa.known)
    elif kind in (Kind.EXPRESSION, Kind.VAL_EXPRESSION):
        place = evaluate(state.rules.expressions[value], state, lanes, cfa.words)
    else:
        return Value(np.zeros(len(lanes), np.uint64), np.zeros(len(lanes), np.bool_))
    if kind in (Kind.VAL_OFFSET, Kind.VAL_EXPRESSION):
        return place
    words, is_known = state.read(lanes, place.words)
    return Value(words, is_known & place.known)


def _chains(steps: list[tuple[I64, U64]], walks: int) -> Ragged:
    """Build callchains, leaf first, from the (walks, pc of each) of all steps. `walks`: number of walks."""
    lengths = np.zeros(walks, np.int64)
    for lanes, _ in steps:
        lengths[lanes] += 1
    offsets = offsets_of(lengths)
    values, offset = np.empty(offsets[-1], np.uint64), offsets[:-1].copy()
    for lanes, pcs in steps:
        place = offset.take(lanes)
        values[place] = pcs
        offset[lanes] = place + 1
    return Ragged(offsets, values)
