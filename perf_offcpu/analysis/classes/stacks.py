# SPDX-License-Identifier: Apache-2.0
"""Apply the rules of `wait_classes` and of programs to the functions of stacks. Each rule judges each function once; a
stack has the value of its innermost kernel function that has one, or of the first wrapper near its leaf."""

import functools
import itertools
import operator
import re
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from perf_offcpu.abi.syscalls import is_compat_entry
from perf_offcpu.analysis.classes import wait_classes as rules
from perf_offcpu.analysis.classes.program_rules import Rules
from perf_offcpu.analysis.stack_walk import innermost_node, used_frames
from perf_offcpu.model.columns import I32, I64, Bool, group
from perf_offcpu.model.profile import Profile
from perf_offcpu.text import SYMBOL_SUFFIX, frame_label

_WRAPPER_DEPTH, _LOCK_DEPTH = 4, 8
"""Number of user frames, from the leaf on, that can be wrappers: further up a `read` is the program's own. With debug
symbols, glibc 2.41 has six frames, two of them inlined, below pthread_cond_wait()."""
_NONE = -1
_NO_SUFFIX = re.compile(r"(?!)")


class Evidence(NamedTuple):
    """Facts about the waits of a stack, by names of functions, -1 unknown; stacks with equal facts share a tuple."""

    in_kernel: int  # WaitClass by functions of the kernel
    in_user: int  # WaitClass by wrappers
    file: int  # 1 if a wrapper for a system call on files is near the leaf
    fault: int  # 1 if a page fault is in the stack
    compat: int  # 1 if the stack is in a system call of a 32-bit program
    has_kernel: int  # 1 if the stack has kernel frames
    entry: int  # string: the system call by its entry function
    work_in_kernel: int  # 1 if functions of the kernel wait for work, 0 if they are at work
    means: int  # Means by wrappers
    exists: int  # 1 if there is a stack
    rules: int  # set (bits) of the rules of programs whose conditions on frames and callers the stack meets
    entry_name: str = ""  # the name of `entry`


def evidence_of_stacks(profile: Profile, programs: Rules) -> tuple[list[Evidence], I64]:
    """Return the distinct evidences of a profile's stacks, and int64[samples]: the index of each sample's evidence."""
    first, of_sample = group(profile.samples.stack)
    stacks = profile.samples.stack[first]
    there = stacks >= 0
    found_in = _Stacks(profile, stacks[there].astype(np.int64))
    strings = profile.strings.copy()  # names of system calls may be new

    def entry(function: str) -> int | None:
        return strings.intern(rules.syscall_of_function(function)) or None

    answers = (
        found_in.kernel(rules.class_of_function),
        found_in.user(rules.class_of_wrapper),
        found_in.user(_if(rules.FILE_WRAPPER)),
        found_in.kernel(_if(rules.FAULT_ENTRY)),
        found_in.kernel(lambda name: is_compat_entry(name) or None),
        found_in.kernel(lambda _: 1),
        found_in.kernel(entry),
        found_in.kernel(rules.is_for_work_in_kernel),
        found_in.user(rules.meaning_of_wrapper, _LOCK_DEPTH),
        np.ones(len(found_in.stacks), np.int32),
    )
    met_sets, met = found_in.met_rules(programs)
    columns = [np.full(len(stacks), _NONE, np.int32) for _ in (*answers, met)]
    for column, answer in zip(columns, (*answers, met), strict=True):
        column[there] = answer
    first, group_of = group(*columns)
    rows = zip(*(column[first].tolist() for column in columns), strict=True)
    evidences = (Evidence(*row) for row in rows)  # with the number of a set in place of the set
    named = [row._replace(rules=met_sets[row.rules], entry_name=strings[max(row.entry, 0)]) for row in evidences]
    return named, group_of[of_sample]


def _if(patterns: str) -> Callable[[str], int | None]:
    return lambda name: rules.matches(patterns, name) or None


class _Stacks:
    """Stacks (`stacks`: int64[n], rows in a profile's stacks), to be searched from the leaf on for known functions."""

    def __init__(self, profile: Profile, stacks: I64) -> None:
        self.profile, self.stacks = profile, stacks
        self.is_kernel, self.used = profile.frames.is_kernel(), used_frames(profile, stacks)

    def kernel(self, judge: Callable[[str], int | None]) -> I32:
        """Return int32[n]: what `judge` returns for the innermost kernel function for which it is not None; else -1."""
        return self._first(self._judged(judge, self.used & self.is_kernel, SYMBOL_SUFFIX))

    def user(self, judge: Callable[[str], int | None], depth: int = _WRAPPER_DEPTH) -> I32:
        """Return int32[n]: as `kernel`, but for the `depth` innermost user functions of each stack."""
        return self._first(self._judged(judge, self.used & ~self.is_kernel, SYMBOL_SUFFIX), depth)

    def met_rules(self, programs: Rules) -> tuple[list[int], I32]:
        """Return the rules on programs whose conditions on frames and callers each stack meets, as (sets,
        set_of_stack): distinct sets of rules (bits), the last one empty; int32[n], index in sets."""
        number_of_set: dict[int, int] = {}

        def number(rules: int) -> int:
            return number_of_set.setdefault(rules, len(number_of_set)) if rules else _NONE

        def of_function(function: str) -> int:
            return number(programs.of_function(function))

        met = self._judged(of_function, self.used, _NO_SUFFIX)[self.profile.stacks.frame]
        asks = np.array([*(bool(rules & programs.by_caller) for rules in number_of_set), False])
        if asks.any():
            nodes = np.flatnonzero(asks[met])
            sets, (allowed, caller) = list(number_of_set), self._callers(programs, nodes)
            first, pair_of_node = group(met[nodes], caller)
            pairs = zip(met[nodes[first]].tolist(), caller[first].tolist(), strict=True)
            left = [number(sets[row] & (~programs.by_caller | allowed[column])) for row, column in pairs]
            met[nodes] = np.array(left, np.int32)[pair_of_node]
        is_met = self._every(met)
        if not number_of_set:
            return [0], np.zeros(len(is_met), np.int32)
        different, set_of_stack = np.unique(is_met, axis=0, return_inverse=True)
        sets = [functools.reduce(operator.or_, itertools.compress(number_of_set, row), 0) for row in different.tolist()]
        return [*sets, 0], set_of_stack.reshape(-1).astype(np.int32)

    def _callers(self, programs: Rules, nodes: I64) -> tuple[list[int], I32]:
        """Return (sets, row): distinct sets of rules on programs (bits), the first one empty; int32[n], index in sets:
        the rules whose condition on callers the caller of each of `nodes` (rows in stacks) meets."""
        row_of_function = {0: 0}  # without a caller

        def of_caller(function: str) -> int:
            return row_of_function.setdefault(programs.of_caller(function), len(row_of_function))

        set_of_frame = np.maximum(self._judged(of_caller, self.used, _NO_SUFFIX), 0)
        parent, frame = self.profile.stacks.parent[nodes], self.profile.stacks.frame
        return list(row_of_function), np.where(parent >= 0, set_of_frame[frame[parent]], 0)

    def _judged(self, judge: Callable[[str], int | None], wanted: Bool, suffix: re.Pattern[str]) -> I32:
        frames, strings = self.profile.frames, self.profile.strings
        values = np.full(len(frames), _NONE, np.int32)
        rows = np.flatnonzero(wanted)
        symbol, dso = frames.symbol[rows], frames.dso[rows]
        first, group_of = group(symbol, np.where(symbol > 0, 0, dso))
        names = zip(symbol[first].tolist(), dso[first].tolist(), strict=True)
        judged = (judge(suffix.sub("", strings[name] or frame_label("", strings[file]))) for name, file in names)
        values[rows] = np.array([_NONE if value is None else value for value in judged], np.int32)[group_of]
        return values

    def _first(self, value_of_frame: I32, user_frames: int = 0) -> I32:
        """Return int32[n]: the value of the innermost frame of each stack whose value is >= 0; -1 none. `user_frames`:
        user frames to look at, from the leaf on; 0: all frames."""
        node = innermost_node(self.profile, self.stacks, value_of_frame >= 0, user_frames)
        value: I32 = np.full(len(node), _NONE, np.int32)
        is_node = node >= 0
        value[is_node] = value_of_frame[self.profile.stacks.frame[node[is_node]]]
        return value

    def _every(self, value_of_node: I32) -> Bool:
        """Return bool[n, v]: [i, value] is True if a node of stack i has this value; v is the greatest value + 1.
        `value_of_node`: int32, of each node of the profile's stack tree; -1 none."""
        parent = self.profile.stacks.parent
        is_there = np.zeros((len(self.stacks), int(value_of_node.max(initial=_NONE)) + 1), np.bool_)
        live, node = np.arange(len(self.stacks)), self.stacks
        while is_there.shape[1] and len(live):
            value = value_of_node[node]
            met = value >= 0
            is_there[live[met], value[met]] = True
            above = parent[node]
            on = above >= 0
            live, node = live[on], above[on].astype(np.int64)
        return is_there
