# SPDX-License-Identifier: Apache-2.0
"""Unwind a batch of snapshots together: a step finds the caller of each current frame.

Nearly all rules are of one kind: the CFA is the stack or frame pointer plus a number; return address and
saved registers are at fixed offsets below it. Frames with such rules take the fast path, all at once. The
others (PLT stubs, signal frames, realigned stacks) go rule set by rule set through `general`.

A step can only lead up the stack: a CFA that does not advance ends the walk, so circular rules cost no more
steps than the copy has words.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from perf_offcpu.binary.gather import offsets_of
from perf_offcpu.model.callchains import Ragged
from perf_offcpu.model.columns import I32, I64, U8, U64, Bool
from perf_offcpu.model.snapshots import StackWords
from perf_offcpu.unwind.general import general_frames
from perf_offcpu.unwind.lookup import NO_CFI, OUTSIDE, CfiLookup
from perf_offcpu.unwind.state import End, WalkState

MAX_FRAMES: Final = 1024
MAX_GENERAL: Final = 1 << 14
"""Rule sets that may take the slow path, over all steps of an unwinding: real stacks need some ten in each
batch, for which `MORE_GENERAL` are added."""
MORE_GENERAL: Final = 1 << 8
_WORD: Final = np.uint64(8)
_ONE: Final = np.uint64(1)


def walk_up(
    lookup: CfiLookup, spaces: I32, values: U64, known: U64, stacks: StackWords, budget: list[int]
) -> tuple[Ragged, U8]:
    """Walk n stacks to their roots.

    Args:
        lookup: looks up frame rules.
        spaces: int32[n], address spaces.
        values: uint64[registers, n], by DWARF number.
        known: uint64[n], bit by number for each known register.
        stacks: the words of each stack, from its stack pointer on.
        budget: the rest of MAX_GENERAL, in a list of one; shared by all walks of an unwinding.

    Returns:
        (callchains, ends): addresses leaf first, each a return address except the first and those of
        interrupted frames; and the `End` of each.
    """
    walk = Walk(lookup, spaces, values, known, stacks, budget)
    chains, ends = walk.run()
    if walk.state.lost is None:
        return chains, ends
    again = np.flatnonzero(walk.state.lost)
    some = StackWords(stacks.words, stacks.begins[again], stacks.lengths[again])
    rest = (spaces[again], values[:, again], known[again], some, budget)
    others, ends[again] = Walk(lookup, *rest, follow_all=True).run()
    row = np.arange(len(chains))
    row[again] = len(chains) + np.arange(len(again))
    return Ragged.concat([chains, others]).take(row), ends


class Walk:
    """n walks up the stack; see `walk_up`.

    Args:
        follow_all: follow all registers, so that no walk is lost (`WalkState`).
    """

    def __init__(
        self,
        lookup: CfiLookup,
        spaces: I32,
        values: U64,
        known: U64,
        stacks: StackWords,
        budget: list[int],
        follow_all: bool = False,
    ) -> None:
        self.lookup, self.registers, self.spaces, self.budget = lookup, lookup.rules.registers, spaces, budget
        self.state = WalkState(lookup, spaces, values, known, stacks, follow_all)

    def run(self) -> tuple[Ragged, U8]:
        """Walk until all walks have ended; return (callchains, ends)."""
        steps: list[tuple[I64, U64]] = []
        live = np.arange(len(self.spaces))
        while len(live) and len(steps) < MAX_FRAMES:
            live = self._step(live, steps)
        self.state.end[live] = End.EXHAUSTED
        return _chains(steps, len(self.spaces)), self.state.end

    def _step(self, live: I64, steps: list[tuple[I64, U64]]) -> I64:
        """Note the current frame of each walk and advance to its caller; return the walks that have one."""
        state, rules = self.state, self.lookup.rules
        pc = state.pc.take(live)
        back = (~state.exact[live]).astype(np.uint64) if state.has_exact else _ONE
        rule = self.lookup.find(self.spaces.take(live), pc - back)
        if not state.is_first and bool((rule == OUTSIDE).any()):
            outside = np.flatnonzero(rule == OUTSIDE)
            lost = outside[~self._frame(live[outside])[3]]
            state.end[live[lost]] = End.OUTSIDE
            if len(lost):
                live, pc, rule = (np.delete(column, lost) for column in (live, pc, rule))
        steps.append((live, pc))
        simple = rules.is_simple.take(rule)
        if simple.all():
            self._simple(live, rule)
        else:
            self._simple(live[simple], rule[simple])
            self._not_simple(live[~simple], rule[~simple])
        state.is_first = False
        going: I64 = live[state.end.take(live) == End.UNDER_WAY]
        root = state.pc.take(going) == 0
        if root.any():
            state.end[going[root]] = End.ROOT
            going = going[~root]
        if state.lost is not None:
            going = going[~state.lost[going]]
        state.has_exact = state.has_exact and bool(state.exact[going].any())
        return going

    def _simple(self, lanes: I64, rule: I64) -> None:
        """Advance walks at frames with rules of the usual kind."""
        if not len(lanes):
            return
        state, rules = self.state, self.lookup.rules
        sp = state.sp.take(lanes)
        cfa = sp + rules.cfa_offset.take(rule)
        from_fp = np.flatnonzero(rules.from_fp.take(rule))
        if len(from_fp):
            cfa[from_fp] += state.fp[lanes[from_fp]] - sp[from_fp]
        away = cfa - state.bottom.take(lanes)
        begins, lengths = state.begins.take(lanes), state.lengths.take(lanes)
        offset = rules.common_ra_offset
        ra, known = state.read_at(
            away + (rules.ra_offset.take(rule) if offset is None else offset), begins, lengths
        )
        ahead = state.advances(lanes, sp, cfa)
        good = known & ahead
        if state.lacks_fp:
            fp_lost = from_fp[~state.knows(lanes[from_fp], self.registers.fp)]
            ahead[fp_lost] = True
            good[fp_lost] = False
        if not good.all():
            state.end[lanes[~good]] = End.EXHAUSTED
            state.end[lanes[~ahead]] = End.NO_CFI
            lanes, rule, cfa, ra = lanes[good], rule[good], cfa[good], ra[good]
            away, begins, lengths = away[good], begins[good], lengths[good]
        for place, number in enumerate(self.registers.saved):
            if number != self.registers.fp and not state.follow_all:
                continue
            saved = np.flatnonzero(rules.is_saved[place].take(rule))
            if len(saved):
                at = away[saved] + rules.saved_offset[place].take(rule[saved])
                state.restore(lanes[saved], number, *state.read_at(at, begins[saved], lengths[saved]))
        state.go_on(lanes, cfa, ra, exact=False)

    def _not_simple(self, lanes: I64, rule: I64) -> None:
        """Advance walks in code without rules and with rules of any kind; end those at the root."""
        state, rules = self.state, self.lookup.rules
        bare = rule <= NO_CFI
        self._by_frame_pointer(lanes[bare], rule[bare])
        root = rules.is_root.take(rule)
        state.end[lanes[root]] = End.ROOT
        other = np.flatnonzero(~bare & ~root)
        for one in sorted(set(rule[other].tolist())):
            mine = lanes[other[rule[other] == one]]
            self.budget[0] -= 1
            if self.budget[0] < 0:
                state.end[mine] = End.NO_CFI
            else:
                general_frames(state, mine, one)
                state.has_exact |= bool(rules.is_signal[one])

    # Code without rules

    def _frame(self, lanes: I64) -> tuple[U64, U64, U64, Bool]:
        """Return (frame pointer, the word there, return address, True if that is in code)."""
        state = self.state
        fp = state.fp[lanes]
        below, has_below = state.read(lanes, fp)
        ra, has_ra = state.read(lanes, fp + _WORD)
        sound = has_below & has_ra & (fp >= state.sp[lanes])
        sound &= state.knows(lanes, self.registers.fp)
        code = self.lookup.find(self.spaces[lanes], ra - _ONE) != OUTSIDE
        return fp, below, ra, sound & (code | (ra == 0))

    def _by_frame_pointer(self, lanes: I64, rule: I64) -> None:
        """Advance as the kernel does, along frame pointers, which lead to the return addresses."""
        if not len(lanes):
            return
        state = self.state
        fp, below, ra, sound = self._frame(lanes)
        has_fp = state.knows(lanes, self.registers.fp)
        outermost = ~sound & has_fp & (fp == 0) & (rule == NO_CFI)  # as the ABI marks the first frame
        state.end[lanes[~sound]] = np.where(rule[~sound] == OUTSIDE, End.OUTSIDE, End.NO_CFI)
        above = ~sound & has_fp & self._is_above(lanes, fp)
        state.end[lanes[above]] = End.EXHAUSTED
        state.end[lanes[outermost]] = End.ROOT
        going = lanes[sound]
        state.restore(going, self.registers.fp, below[sound], np.ones(len(going), np.bool_))
        state.go_on(going, fp[sound] + np.uint64(16), ra[sound], exact=False)

    def _is_above(self, lanes: I64, addresses: U64) -> Bool:
        """Return bool[n]: the address is just above the copy, so probably on the same stack."""
        state = self.state
        top = state.bottom[lanes] + state.lengths[lanes].astype(np.uint64) * _WORD
        above: Bool = (addresses + _WORD >= top) & (addresses - top < np.uint64(1 << 23))
        above &= (addresses & np.uint64(7)) == 0
        return above


def _chains(steps: list[tuple[I64, U64]], walks: int) -> Ragged:
    """Build callchains from the frames that each step noted."""
    lengths = np.zeros(walks, np.int64)
    for lanes, _ in steps:
        lengths[lanes] += 1
    offsets = offsets_of(lengths)
    values, at = np.empty(offsets[-1], np.uint64), offsets[:-1].copy()
    for lanes, pcs in steps:
        place = at.take(lanes)
        values[place] = pcs
        at[lanes] = place + 1
    return Ragged(offsets, values)
