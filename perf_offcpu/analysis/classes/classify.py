# SPDX-License-Identifier: Apache-2.0
"""Find wait class and system call of each sample, and idle threads: `wait_classes` on whole columns.

The rules are applied once to each function, then to each stack, then to each distinct combination of a
stack's evidence with system call, state and flags; samples look up the result. The rules, in order:

    throttled by a quota of CPU time          throttled
    preempted, or runnable at switch-out      run queue
    functions of the kernel, leaf first       the first that means a class; storage below a page fault is
                                              a page fault; of poll() the object's, if it is a single one
    the system call                           if it has one purpose; the object's class instead, where it
                                              tells network, pipe, poll and sleep apart
    the object                                `analysis.evidence.objects`
    the system call                           if it is of a file, in state D
    no system call, and no kernel stack       a page fault
    a wrapper at the leaf of the user stack   if the system call is not known
    else                                      other

A sum that is left with other gets the class of single waits like it (`analysis.evidence.sums`).
A rule of the program (`program_rules`) may give the wait another class, or say that it is for work.

A wait is *for work* if another thread, or the outside, ends it by handing in the next piece: poll and its
like, accept(), signals, a terminal, condition variables and semaphores, and what a kernel thread does between
its jobs. Disks, locks, data on a socket or pipe, children and sleeps are not: something is under way, or
only time has to pass. A thread is *idle* if at least 99 % of its time, waits and CPU samples together, were
waits for work; the event loop of a busy server is not. Documentation/wait-classes.md explains both.
"""

from __future__ import annotations

import functools
import itertools
import operator
import re
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from perf_offcpu.abi.offcpu import SYSCALL_NONE, SYSCALL_UNKNOWN
from perf_offcpu.abi.syscalls import is_compat_entry, syscall_names
from perf_offcpu.abi.task_state import state_letter
from perf_offcpu.analysis.classes import wait_classes as rules
from perf_offcpu.analysis.classes.program_rules import Rules
from perf_offcpu.analysis.classes.wait_classes import BY_LABEL, WaitClass, Work
from perf_offcpu.analysis.evidence.objects import BY_OBJECT, answers, class_of, is_connected, object_codes
from perf_offcpu.analysis.evidence.sums import like_single_waits
from perf_offcpu.analysis.group import distinct, group, sum_by
from perf_offcpu.model.columns import I32, I64, U8, Bool
from perf_offcpu.model.profile import Profile
from perf_offcpu.model.program_rule import ProgramRule
from perf_offcpu.model.recording import SampleFlag
from perf_offcpu.structs import mutable
from perf_offcpu.text import frame_label

_WRAPPER_DEPTH = 4
"""Number of user frames, from the leaf on, that can be wrappers: further up a `read` is the program's own."""
_NONE = -1
_POLLS = frozenset(WaitClass.POLL.row.syscalls.split())
_EPOLLS = frozenset(name for name in _POLLS if name.startswith("epoll_"))
"""Their object is the one of several descriptors that ended the wait: often a client."""
_NO_SUFFIX = re.compile(r"(?!)")
_IDLE_PERCENT = 99


@mutable
class Waits:
    """Classes and system calls of the waits of n samples."""

    wait_class: U8  # uint8[n], WaitClass; OTHER for samples that are no waits
    syscall: I32  # int32[n], index into syscall_names
    syscall_names: list[str]  # "" if it is not known; a number without a name as text
    for_work: Bool  # bool[n], waits for the next piece of work
    rule: I32  # int32[n], index into rules: the rule of a program that decided; -1 for none
    rules: tuple[ProgramRule, ...]


def classify(profile: Profile) -> Waits:
    """Return class and system call of every sample of a profile."""
    samples = profile.samples
    programs = Rules(profile.rules)
    evidences, evidence_of = _evidences(profile, programs)
    judge = _Judge(profile.meta.arch)
    preempted, throttled = samples.has(SampleFlag.PREEMPTED), samples.has(SampleFlag.THROTTLED)
    comm = samples.comm if programs.by_comm else np.broadcast_to(np.uint32(0), len(samples))
    facts = (evidence_of, samples.syscall, samples.state, preempted, throttled, profile.is_offcpu(), comm)
    columns = (*facts, object_codes(profile))
    first, of = group(*columns)
    classes, syscalls = np.empty(len(first), np.uint8), np.empty(len(first), np.int32)
    for_work, ruled = np.zeros(len(first), np.bool_), np.full(len(first), _NONE, np.int32)
    names: dict[str, int] = {"": 0}
    rows = zip(*(column[first].tolist() for column in columns), strict=True)
    for at, (row, number, state, was_preempted, was_throttled, is_wait, of_comm, thing) in enumerate(rows):
        evidence = evidences[row]
        name = judge.syscall(evidence, number)
        syscalls[at] = names.setdefault(name, len(names))
        letter = state_letter(state, bool(was_preempted))
        found = judge.wait_class(evidence, number, name, letter, thing) if is_wait else WaitClass.OTHER
        is_for_work = is_wait and judge.is_for_work(evidence, found, name, letter, thing)
        rule = programs.find(evidence.rules, found, name, profile.strings[of_comm]) if is_wait else None
        if was_throttled and is_wait:
            found = WaitClass.THROTTLED
        elif rule and rule.wait_class:
            found = BY_LABEL[rule.wait_class]
        if rule:
            ruled[at] = programs.rules.index(rule)
        classes[at] = found
        for_work[at] = is_for_work if rule is None or rule.for_work is None else rule.for_work
    found_class, purpose = like_single_waits(profile, classes[of], for_work[of], ruled[of] == _NONE)
    return Waits(found_class, syscalls[of], list(names), purpose, ruled[of], programs.rules)


def of_idle_threads(profile: Profile, for_work: Bool) -> Bool:
    """Return bool[samples]: the samples of idle threads.

    Args:
        profile: all samples of the threads, of all events.
        for_work: bool[samples], see `Waits`.
    """
    samples = profile.samples
    first, of = group(samples.tid, samples.pid)
    counts_time = np.array([*(event.unit == "ns" for event in profile.evsels), False])[samples.evsel]
    period = np.where(counts_time, samples.period, 0)
    all_time = sum_by(of, period, len(first))
    work_time = sum_by(np.where(for_work, of, -1), period, len(first))
    # Without products of whole sums: they could leave 63 bits.
    idle: Bool = (work_time > 0) & (all_time - work_time <= all_time // 100 * (100 - _IDLE_PERCENT))
    return idle[of]


class _Evidence(NamedTuple):
    """Values that the functions of a stack have by the rules, shared by many stacks; -1: none."""

    in_kernel: int  # WaitClass by functions of the kernel
    in_user: int  # WaitClass by wrappers
    file: int  # 1 if a wrapper for a system call on files is at the leaf
    fault: int  # 1 if a page fault is in it
    compat: int  # 1 if it is in a system call of a 32-bit program
    has_kernel: int  # 1 if it has kernel frames
    entry: int  # string: the system call by its entry function
    work_in_kernel: int  # 1 if functions of the kernel wait for work, 0 if they have some
    work_in_user: int  # 1 if a wrapper waits for work
    exists: int  # 1 if there is a stack
    rules: int  # rules of programs whose condition on frames the stack meets, a bit each
    entry_name: str = ""  # the name of `entry`


def _evidences(profile: Profile, programs: Rules) -> tuple[list[_Evidence], I64]:
    """Return the distinct evidences of all stacks, and int64[samples], the one of each sample."""
    first, of_sample = group(profile.samples.stack)
    stacks = profile.samples.stack[first]
    there = stacks >= 0
    walk = _Walk(profile, stacks[there].astype(np.int64))
    strings = profile.strings.copy()  # names of system calls may be new

    def entry(function: str) -> int | None:
        return strings.intern(rules.syscall_of_function(function)) or None

    answers = (
        walk.kernel(rules.class_of_function),
        walk.user(rules.class_of_wrapper),
        walk.user(_if(rules.FILE_WRAPPER)),
        walk.kernel(_if(rules.FAULT_ENTRY)),
        walk.kernel(lambda name: is_compat_entry(name) or None),
        walk.kernel(lambda _: 1),
        walk.kernel(entry),
        walk.kernel(rules.is_for_work_in_kernel),
        walk.user(_if(rules.WORK_WRAPPERS)),
        np.ones(len(walk.stacks), np.int32),
    )
    met_sets, met = walk.met_rules(programs)
    columns = [np.full(len(stacks), _NONE, np.int32) for _ in (*answers, met)]
    for column, answer in zip(columns, (*answers, met), strict=True):
        column[there] = answer
    first, of = group(*columns)
    rows = zip(*(column[first].tolist() for column in columns), strict=True)
    found = [_Evidence(*row)._replace(rules=met_sets[row[-1]]) for row in rows]
    found = [one._replace(entry_name=strings[one.entry]) if one.entry > 0 else one for one in found]
    return found, of[of_sample]


def _if(patterns: str) -> Callable[[str], int | None]:
    return lambda name: rules.matches(patterns, name) or None


class _Judge:
    """Weigh the evidence of a stack with what the sample holds."""

    def __init__(self, arch: str) -> None:
        self._names = {compat: syscall_names(arch, compat=compat) for compat in (False, True)}

    def syscall(self, evidence: _Evidence, number: int) -> str:
        """Return the name of the system call; "" outside of system calls, and if it is unknown."""
        if number == SYSCALL_UNKNOWN:
            return evidence.entry_name
        return self._names[evidence.compat >= 0].get(number, str(number)) if number >= 0 else ""

    def wait_class(self, evidence: _Evidence, number: int, syscall: str, state: str, thing: int) -> WaitClass:
        """Return the class of waits with such a stack, in this system call and state, for such an object."""
        if state == "R":
            return WaitClass.RUNQUEUE
        by_object = class_of(thing)
        if by_object is WaitClass.SLEEP and syscall in _EPOLLS:
            by_object = WaitClass.POLL  # a timer of an event loop
        if evidence.fault >= 0 and evidence.in_kernel in (_NONE, WaitClass.DISK, WaitClass.OTHER):
            return WaitClass.FAULT
        if evidence.in_kernel >= 0:
            found = WaitClass(evidence.in_kernel)
            return by_object or found if found is WaitClass.POLL else found
        return self._without_kernel(evidence, number, syscall, state, by_object)

    def is_for_work(
        self, evidence: _Evidence, wait_class: WaitClass, syscall: str, state: str, thing: int
    ) -> bool:
        """Return True if such waits end when there is something to do."""
        if syscall in _POLLS and wait_class in (WaitClass.NETWORK, WaitClass.PIPE):
            return not (answers(thing) if syscall in _EPOLLS else is_connected(thing))
        work = wait_class.row.work
        if work in (Work.NEVER, Work.ALWAYS):
            return work is Work.ALWAYS
        if work is Work.BY_WRAPPER:
            return evidence.work_in_user >= 0
        if syscall in rules.WORK_SYSCALLS:
            return True
        if evidence.work_in_kernel >= 0:
            return evidence.work_in_kernel == 1
        return wait_class == WaitClass.OTHER and state == "I"

    def _without_kernel(
        self, evidence: _Evidence, number: int, syscall: str, state: str, by_object: WaitClass | None
    ) -> WaitClass:
        if syscall in rules.CLASS_OF_SYSCALL:
            found = rules.CLASS_OF_SYSCALL[syscall]
            return by_object or found if found in BY_OBJECT else found
        if by_object is not None and number >= 0:
            return by_object
        if number == SYSCALL_NONE:
            in_user_mode = evidence.exists >= 0 and evidence.has_kernel < 0
            return WaitClass.FAULT if in_user_mode else WaitClass.OTHER
        unknown = syscall in ("", "restart_syscall")  # the latter goes on with a wait that a signal broke off
        if unknown and evidence.in_user >= 0:
            return WaitClass(evidence.in_user)
        on_file = syscall in rules.FILE_SYSCALLS or (unknown and evidence.file >= 0)
        return WaitClass.DISK if on_file and state == "D" else WaitClass.OTHER


class _Walk:
    """Walk up from the leaves of some stacks, all at once.

    Args:
        stacks: int64[n], rows in the profile's stacks.
    """

    def __init__(self, profile: Profile, stacks: I64) -> None:
        self.profile, self.stacks = profile, stacks
        self.is_kernel, self.used = profile.frames.is_kernel(), self._frames()

    def kernel(self, judge: Callable[[str], int | None]) -> I32:
        """Return int32[n]: the value of the innermost kernel function that has one; -1 for none."""
        return self._first(self._judged(judge, self.used & self.is_kernel, rules.COMPILER_SUFFIX), 0)

    def user(self, judge: Callable[[str], int | None]) -> I32:
        """Return int32[n]: the value of the first user function near the leaf that has one; -1 for none."""
        return self._first(
            self._judged(judge, self.used & ~self.is_kernel, rules.SYMBOL_VERSION), _WRAPPER_DEPTH
        )

    def met_rules(self, programs: Rules) -> tuple[list[int], I32]:
        """Return distinct sets of rules (bits), the last of them empty, and int32[n]: the one of each."""
        known: dict[int, int] = {}

        def number(met: int) -> int:
            return known.setdefault(met, len(known)) if met else _NONE

        def of_function(function: str) -> int:
            return number(programs.of_function(function))

        met = self._judged(of_function, self.used, _NO_SUFFIX)[self.profile.stacks.frame]
        asks = np.array([*(bool(one & programs.by_caller) for one in known), False])
        if asks.any():
            nodes = np.flatnonzero(asks[met])
            sets, (allowed, caller) = list(known), self._callers(programs, nodes)
            first, of = group(met[nodes], caller)
            pairs = zip(met[nodes[first]].tolist(), caller[first].tolist(), strict=True)
            left = [number(sets[one] & (~programs.by_caller | allowed[other])) for one, other in pairs]
            met[nodes] = np.array(left, np.int32)[of]
        found = self._every(met)
        if not known:
            return [0], np.zeros(len(found), np.int32)
        different, of = np.unique(found, axis=0, return_inverse=True)
        sets = [
            functools.reduce(operator.or_, itertools.compress(known, row), 0) for row in different.tolist()
        ]
        return [*sets, 0], of.reshape(-1).astype(np.int32)

    def _callers(self, programs: Rules, nodes: I64) -> tuple[list[int], I32]:
        """Return distinct sets of rules (bits) that callers allow, and int32[nodes]: the one of each node."""
        known = {0: 0}  # without a caller

        def of_caller(function: str) -> int:
            return known.setdefault(programs.of_caller(function), len(known))

        set_of_frame = np.maximum(self._judged(of_caller, self.used, _NO_SUFFIX), 0)
        parent, frame = self.profile.stacks.parent[nodes], self.profile.stacks.frame
        return list(known), np.where(parent >= 0, set_of_frame[frame[parent]], 0)

    def _judged(self, judge: Callable[[str], int | None], wanted: Bool, suffix: re.Pattern[str]) -> I32:
        frames, strings = self.profile.frames, self.profile.strings
        values = np.full(len(frames), _NONE, np.int32)
        rows = np.flatnonzero(wanted)
        symbol, dso = frames.symbol[rows], frames.dso[rows]
        first, of = group(symbol, np.where(symbol > 0, 0, dso))
        names = zip(symbol[first].tolist(), dso[first].tolist(), strict=True)
        judged = (
            judge(suffix.sub("", strings[one] or frame_label("", strings[file]))) for one, file in names
        )
        values[rows] = np.array([_NONE if value is None else value for value in judged], np.int32)[of]
        return values

    def _first(self, value_of_frame: I32, user_depth: int) -> I32:
        """Return the first value of each stack, leaf first, within `user_depth` user frames (0: all)."""
        found = np.full(len(self.stacks), _NONE, np.int32)
        parent, frame = self.profile.stacks.parent, self.profile.stacks.frame
        live, at, seen = np.arange(len(self.stacks)), self.stacks, np.zeros(len(self.stacks), np.int32)
        if not bool((value_of_frame >= 0).any()):
            return found
        while len(live):
            found[live] = value_of_frame[frame[at]]
            seen[live] += ~self.is_kernel[frame[at]]
            above = parent[at]
            on = (above >= 0) & (found[live] < 0)
            if user_depth:
                on &= seen[live] < user_depth
            live, at = live[on], above[on].astype(np.int64)
        return found

    def _every(self, value_of_node: I32) -> Bool:
        """Return bool[n, values]: the values (0, 1, …) that some frame of each stack has."""
        parent = self.profile.stacks.parent
        found = np.zeros((len(self.stacks), int(value_of_node.max(initial=_NONE)) + 1), np.bool_)
        live, at = np.arange(len(self.stacks)), self.stacks
        while found.shape[1] and len(live):
            value = value_of_node[at]
            met = value >= 0
            found[live[met], value[met]] = True
            above = parent[at]
            on = above >= 0
            live, at = live[on], above[on].astype(np.int64)
        return found

    def _frames(self) -> Bool:
        """Return bool[frames]: the frames that some of the stacks have."""
        parent = self.profile.stacks.parent
        node = np.zeros(len(parent), np.bool_)
        at = self.stacks
        while len(at):
            node[at] = True
            above = parent[at]
            above = above[above >= 0]
            at = distinct(above[~node[above]], len(parent))
        used = np.zeros(len(self.profile.frames), np.bool_)
        used[self.profile.stacks.frame[node]] = True
        return used
