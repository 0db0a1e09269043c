# SPDX-License-Identifier: Apache-2.0
"""What each wait waits for, and in which system call: `analysis.wait_rules` applied to whole columns.

Names of functions are judged once each, stacks once each, then the different combinations of what a stack
says with system call and state; samples only look their combination up. The rules, in order:

    preempted, or runnable at switch-out      run queue
    functions of the kernel, leaf first       the first that names a class; storage below a page fault is
                                              a page fault
    the system call                           where it has one purpose; of a file, where it waits in state D
    no system call, and no kernel's stack     a page fault
    a wrapper at the leaf of the user's part  where the system call is not known
    else                                      other
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from perf_offcpu.abi.offcpu import SYSCALL_NONE, SYSCALL_UNKNOWN
from perf_offcpu.abi.syscalls import is_compat_entry, syscall_names
from perf_offcpu.abi.task_state import state_letter
from perf_offcpu.analysis import wait_rules as rules
from perf_offcpu.analysis.frames import is_kernel
from perf_offcpu.analysis.group import distinct, group
from perf_offcpu.analysis.wait_rules import WaitClass
from perf_offcpu.model.columns import I32, I64, U8, Bool
from perf_offcpu.model.profile import Profile
from perf_offcpu.model.recording import SampleFlag

_WRAPPER_DEPTH = 4
"""User frames at the leaf that are looked at: beyond libc's own a function named `read` is the program's."""
_NONE = -1


@dataclass(slots=True)
class Waits:
    """What is known of n samples besides their columns.

    Args:
        wait_class: uint8[n], WaitClass; of samples that are no waits, OTHER.
        syscall: int32[n], index into syscall_names.
        syscall_names: names; "" where none is known. A number without a name is its text.
    """

    wait_class: U8
    syscall: I32
    syscall_names: list[str]
    for_work: Bool
    """bool[n]: waits for the next piece of work, see `analysis.idle`."""


def classify(profile: Profile) -> Waits:
    """Class and system call of every sample of a profile."""
    samples = profile.samples
    kinds, kind_of = _evidence(profile)
    judge = _Judge(profile.meta.arch)
    preempted = (samples.flags & np.uint32(SampleFlag.PREEMPTED)) != 0
    columns = [kind_of, samples.syscall, samples.state, preempted, profile.is_offcpu()]
    columns = [column.astype(np.int64) for column in columns]
    first, of = group(*columns)
    classes, syscalls = np.empty(len(first), np.uint8), np.empty(len(first), np.int32)
    for_work = np.zeros(len(first), np.bool_)
    names: dict[str, int] = {"": 0}
    rows = zip(*(column[first].tolist() for column in columns), strict=True)
    for at, (kind, number, state, was_preempted, is_wait) in enumerate(rows):
        name = judge.syscall(kinds[kind], number)
        syscalls[at] = names.setdefault(name, len(names))
        letter = state_letter(state, bool(was_preempted))
        found = judge.wait_class(kinds[kind], number, name, letter) if is_wait else WaitClass.OTHER
        classes[at] = found
        for_work[at] = is_wait and judge.is_for_work(kinds[kind], found, name, letter)
    return Waits(classes[of], syscalls[of], list(names), for_work[of])


class _Kind(NamedTuple):
    """What a stack says; many stacks say the same."""

    in_kernel: int = _NONE
    """WaitClass by functions of the kernel; -1 none."""
    in_user: int = _NONE
    """WaitClass by wrappers; -1 none."""
    file: int = _NONE
    """Not -1: a wrapper for a system call on files is at the leaf."""
    fault: int = _NONE
    """Not -1: a page fault is in it."""
    compat: int = _NONE
    """Not -1: the system call of a 32-bit program."""
    has_kernel: int = _NONE
    """Not -1: a part of it is the kernel's."""
    entry: int = _NONE
    """String: the system call by its entry function; -1 none."""
    work_in_kernel: int = _NONE
    """1: functions of the kernel wait for work; 0: they are at work; -1: they do not tell."""
    work_in_user: int = _NONE
    """Not -1: a wrapper waits for work."""
    is_there: int = _NONE
    """Not -1: there is a stack."""
    entry_name: str = ""


def _evidence(profile: Profile) -> tuple[list[_Kind], I64]:
    """What the stacks say: the different answers, and int64[samples], which of them holds for each."""
    first, of_sample = group(profile.samples.stack)
    stacks = profile.samples.stack[first]
    there = stacks >= 0
    climb = _Climb(profile, stacks[there].astype(np.int64))
    frames = _FrameValues(profile, climb.frames())
    strings = profile.strings.copy()  # names of system calls may be new

    def entry(function: str) -> int | None:
        return strings.intern(rules.syscall_of_function(function)) or None

    answers = (
        climb.first(frames.kernel(rules.class_of_function)),
        climb.first(frames.user(rules.class_of_wrapper), _WRAPPER_DEPTH),
        climb.first(frames.user(lambda name: 0 if rules.is_file_wrapper(name) else None), _WRAPPER_DEPTH),
        climb.first(frames.kernel(lambda name: 0 if rules.is_fault_entry(name) else None)),
        climb.first(frames.kernel(lambda name: 0 if is_compat_entry(name) else None)),
        climb.first(frames.kernel(lambda _: 0)),
        climb.first(frames.kernel(entry)),
        climb.first(frames.kernel(rules.is_for_work_in_kernel)),
        climb.first(frames.user(lambda name: 0 if rules.is_for_work_wrapper(name) else None), _WRAPPER_DEPTH),
        np.zeros(len(climb.stacks), np.int32),
    )
    columns = [np.full(len(stacks), _NONE, np.int32) for _ in answers]
    for column, answer in zip(columns, answers, strict=True):
        column[there] = answer
    first, of = group(*columns)
    rows = zip(*(column[first].tolist() for column in columns), strict=True)
    kinds = [_Kind(*row) for row in rows]
    kinds = [kind._replace(entry_name=strings[kind.entry]) if kind.entry > 0 else kind for kind in kinds]
    return kinds, of[of_sample]


class _Judge:
    """Weighs what is known of a wait."""

    def __init__(self, arch: str) -> None:
        self._names = {compat: syscall_names(arch, compat=compat) for compat in (False, True)}

    def syscall(self, kind: _Kind, number: int) -> str:
        """The name of the system call; "" if there was none or it is not known."""
        if number == SYSCALL_UNKNOWN:
            return kind.entry_name
        return self._names[kind.compat >= 0].get(number, str(number)) if number >= 0 else ""

    def wait_class(self, kind: _Kind, number: int, syscall: str, state: str) -> WaitClass:
        """The class of waits with such a stack, in this system call and state."""
        if state == "R":
            return WaitClass.RUNQUEUE
        if kind.fault >= 0 and kind.in_kernel in (_NONE, WaitClass.DISK, WaitClass.OTHER):
            return WaitClass.FAULT
        if kind.in_kernel >= 0:
            return WaitClass(kind.in_kernel)
        return self._without_kernel(kind, number, syscall, state)

    def is_for_work(self, kind: _Kind, wait_class: WaitClass, syscall: str, state: str) -> bool:
        """Whether such waits end when there is something to do."""
        if wait_class in (WaitClass.RUNQUEUE, WaitClass.FAULT, WaitClass.DISK, WaitClass.CHILD):
            return False
        if wait_class == WaitClass.LOCK:
            return kind.work_in_user >= 0
        if wait_class == WaitClass.POLL or rules.is_for_work_syscall(syscall):
            return True
        if kind.work_in_kernel >= 0:
            return kind.work_in_kernel == 1
        return wait_class == WaitClass.OTHER and state == "I"

    def _without_kernel(self, kind: _Kind, number: int, syscall: str, state: str) -> WaitClass:
        if syscall in rules.CLASS_OF_SYSCALL:
            return rules.CLASS_OF_SYSCALL[syscall]
        if number == SYSCALL_NONE:
            return WaitClass.FAULT if kind.is_there >= 0 and kind.has_kernel < 0 else WaitClass.OTHER
        if not syscall and kind.in_user >= 0:
            return WaitClass(kind.in_user)
        on_file = syscall in rules.FILE_SYSCALLS or (not syscall and kind.file >= 0)
        return WaitClass.DISK if on_file and state == "D" else WaitClass.OTHER


@dataclass(slots=True)
class _FrameValues:
    """Turns functions into values, one int32 a frame, -1 where there is nothing to say."""

    profile: Profile
    used: Bool

    def kernel(self, judge: Callable[[str], int | None]) -> I32:
        """The judgement of each frame of the kernel."""
        return self._judged(judge, self.used & is_kernel(self.profile.frames))

    def user(self, judge: Callable[[str], int | None]) -> I32:
        """The judgement of each frame of programs."""
        return self._judged(judge, self.used & ~is_kernel(self.profile.frames))

    def _judged(self, judge: Callable[[str], int | None], wanted: Bool) -> I32:
        frames, strings = self.profile.frames, self.profile.strings
        values = np.full(len(frames), _NONE, np.int32)
        rows = np.flatnonzero(wanted)
        symbols, of = np.unique(frames.symbol[rows], return_inverse=True)
        judged = (judge(strings[symbol]) for symbol in symbols.tolist())
        values[rows] = np.array([_NONE if value is None else value for value in judged], np.int32)[of]
        return values


@dataclass(slots=True)
class _Climb:
    """Walks up from the leaves of some stacks, all at once.

    Args:
        stacks: int64[n], rows in the profile's stacks.
    """

    profile: Profile
    stacks: I64

    def first(self, value_of_frame: I32, user_depth: int = 0) -> I32:
        """int32[n]: the value of the first frame, leaf first, that has one; -1 for stacks without.

        Args:
            user_depth: give up after so many frames of the user's part; 0: never.
        """
        found = np.full(len(self.stacks), _NONE, np.int32)
        parent, frame = self.profile.stacks.parent, self.profile.stacks.frame
        user = ~is_kernel(self.profile.frames)
        live, at, seen = np.arange(len(self.stacks)), self.stacks, np.zeros(len(self.stacks), np.int32)
        if not bool((value_of_frame >= 0).any()):
            return found
        while len(live):
            found[live] = value_of_frame[frame[at]]
            seen[live] += user[frame[at]]
            above = parent[at]
            on = (above >= 0) & (found[live] < 0)
            if user_depth:
                on &= seen[live] < user_depth
            live, at = live[on], above[on].astype(np.int64)
        return found

    def frames(self) -> Bool:
        """bool[frames]: those that some of the stacks have."""
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
