# SPDX-License-Identifier: Apache-2.0
"""Find wait class and system call of each sample: `wait_classes` on whole columns.

The rules are applied once to each function, then to each stack, then to each distinct combination of a
stack's evidence with system call, state and flags; samples look up the result. The rules, in order:

    throttled by a quota of CPU time          throttled
    preempted, or runnable at switch-out      run queue
    stopped, by a signal or a tracer          stopped
    functions of the kernel, leaf first       the first with a class; storage below a page fault is a page
                                              fault; poll() of a single object has the object's class
    the system call                           if it has one purpose; the class of the object instead, to
                                              distinguish network, pipe, poll and sleep
    the object                                `analysis.classes.objects`
    the system call                           if it is one on files, in state D
    no system call, and no kernel stack       a page fault
    a wrapper at the leaf of the user stack   if the system call is not known
    else                                      other

A sum with the class other gets the class of similar single waits (`like_single_waits`).
A rule of the program (`program_rules`) may give the wait another class, or say that it is for work.

A wait is *for work* if another thread, or the outside, ends it with the next piece of work: poll() and
similar calls, accept(), signals, a terminal, condition variables and semaphores that only others serve
(`objects.passes_work`), and waits of a kernel thread between its jobs. Waits for disks, locks, data on a
socket or pipe, children and sleeps are not: the work is under way, or only time has to pass.
Documentation/wait-classes.md explains it.

A sum has neither a kernel stack nor an object, and read() alone does not tell a pipe from a file. A single
wait of the same process, in the same system call, called from the same place of the program, does. If such
single waits have several classes, the most frequent class is used. Waits for a CPU are not considered.
"""

from __future__ import annotations

import numpy as np

from perf_offcpu.abi.offcpu import SYSCALL_NONE, SYSCALL_UNKNOWN
from perf_offcpu.abi.syscalls import syscall_names
from perf_offcpu.abi.task_state import state_letter
from perf_offcpu.analysis.classes import wait_classes as rules
from perf_offcpu.analysis.classes.objects import (
    BY_OBJECT,
    answers,
    class_of,
    is_connected,
    object_codes,
    object_facts,
    passes_work,
)
from perf_offcpu.analysis.classes.program_rules import Rules
from perf_offcpu.analysis.classes.stacks import Evidence, evidence_of_stacks
from perf_offcpu.analysis.classes.wait_classes import BY_LABEL, Means, WaitClass, Work
from perf_offcpu.analysis.group import group
from perf_offcpu.model.columns import I32, I64, U8, Bool
from perf_offcpu.model.profile import Profile, ProgramRule
from perf_offcpu.model.recording import SUM_FLAGS, SampleFlag
from perf_offcpu.structs import mutable

_NONE = -1
_POLLS = frozenset(WaitClass.POLL.row.syscalls.split())
_EPOLLS = frozenset(name for name in _POLLS if name.startswith("epoll_"))
"""The object of these waits is the descriptor, of several, that ended the wait: often a client."""


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
    evidences, evidence_of = evidence_of_stacks(profile, programs)
    judge = _Judge(profile.meta.arch)
    preempted, throttled = samples.has(SampleFlag.PREEMPTED), samples.has(SampleFlag.THROTTLED)
    comm = samples.comm if programs.by_comm else np.broadcast_to(np.uint32(0), len(samples))
    facts = (evidence_of, samples.syscall, samples.state, preempted, throttled, profile.is_offcpu(), comm)
    columns = (*facts, object_codes(profile), object_facts(profile))
    first, group_of = group(*columns)
    classes, syscalls = np.empty(len(first), np.uint8), np.empty(len(first), np.int32)
    for_work, ruled = np.zeros(len(first), np.bool_), np.full(len(first), _NONE, np.int32)
    names: dict[str, int] = {"": 0}
    rows = zip(*(column[first].tolist() for column in columns), strict=True)
    for index, values in enumerate(rows):
        row, number, state, was_preempted, was_throttled, is_wait, of_comm, thing, known = values
        evidence = evidences[row]
        name = judge.syscall(evidence, number)
        syscalls[index] = names.setdefault(name, len(names))
        letter = state_letter(state, bool(was_preempted))
        wait_class = judge.wait_class(evidence, number, name, letter, thing) if is_wait else WaitClass.OTHER
        is_for_work = is_wait and judge.is_for_work(evidence, wait_class, name, letter, thing, known)
        rule = programs.find(evidence.rules, wait_class, name, profile.strings[of_comm]) if is_wait else None
        if was_throttled and is_wait:
            wait_class = WaitClass.THROTTLED
        elif rule and rule.wait_class:
            wait_class = BY_LABEL[rule.wait_class]
        if rule:
            ruled[index] = programs.rules.index(rule)
        classes[index] = wait_class
        for_work[index] = is_for_work if rule is None or rule.for_work is None else rule.for_work
    found_class, purpose = like_single_waits(
        profile, classes[group_of], for_work[group_of], ruled[group_of] == _NONE
    )
    return Waits(found_class, syscalls[group_of], list(names), purpose, ruled[group_of], programs.rules)


class _Judge:
    """Judge a wait by the evidence of its stack and by the fields of its sample."""

    def __init__(self, arch: str) -> None:
        self._names = {compat: syscall_names(arch, compat=compat) for compat in (False, True)}

    def syscall(self, evidence: Evidence, number: int) -> str:
        """Return the name of the system call; "" outside of system calls, and if it is unknown."""
        if number == SYSCALL_UNKNOWN:
            return evidence.entry_name
        return self._names[evidence.compat >= 0].get(number, str(number)) if number >= 0 else ""

    def wait_class(self, evidence: Evidence, number: int, syscall: str, state: str, thing: int) -> WaitClass:
        """Return the class of waits by the evidence of their stack, system call, task state and object."""
        if state == "R":
            return WaitClass.RUNQUEUE
        if state in ("T", "t"):
            return WaitClass.STOPPED
        by_object = class_of(thing)
        if by_object is WaitClass.SLEEP and syscall in _EPOLLS:
            by_object = WaitClass.POLL  # a timer of an event loop
        if by_object is WaitClass.CHILD:
            return by_object  # a thread to end is a futex as any other to functions, a process an event
        if evidence.fault >= 0 and evidence.in_kernel in (_NONE, WaitClass.DISK, WaitClass.OTHER):
            return WaitClass.FAULT
        if evidence.in_kernel >= 0:
            by_function = WaitClass(evidence.in_kernel)
            return by_object or by_function if by_function is WaitClass.POLL else by_function
        return self._without_kernel(evidence, number, syscall, state, by_object)

    def is_for_work(
        self, evidence: Evidence, wait_class: WaitClass, syscall: str, state: str, thing: int, facts: int
    ) -> bool:
        """Return True if waits with this evidence are for the next piece of work."""
        if syscall in _POLLS and wait_class in (WaitClass.NETWORK, WaitClass.PIPE):
            return not (answers(thing) if syscall in _EPOLLS else is_connected(thing))
        work = wait_class.row.work
        if work in (Work.NEVER, Work.ALWAYS):
            return work is Work.ALWAYS
        if work is Work.BY_LOCK:
            return passes_work(facts, Means(evidence.means) if evidence.means >= 0 else None)
        if syscall in rules.WORK_SYSCALLS:
            return True
        if evidence.work_in_kernel >= 0:
            return evidence.work_in_kernel == 1
        return wait_class == WaitClass.OTHER and state == "I"

    def _without_kernel(
        self, evidence: Evidence, number: int, syscall: str, state: str, by_object: WaitClass | None
    ) -> WaitClass:
        if syscall in rules.CLASS_OF_SYSCALL:
            by_syscall = rules.CLASS_OF_SYSCALL[syscall]
            return by_object or by_syscall if by_syscall in BY_OBJECT else by_syscall
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


_UNCERTAIN = (WaitClass.OTHER, WaitClass.LOCK)
_FOR_CPU = (WaitClass.RUNQUEUE, WaitClass.THROTTLED)


def like_single_waits(profile: Profile, wait_class: U8, for_work: Bool, undecided: Bool) -> tuple[U8, Bool]:
    """Return class and purpose of each sample; sums of class OTHER get those of similar single waits.

    Those of class LOCK may get another purpose, or CHILD: who ended waits is known of single ones only.

    Args:
        wait_class, for_work: class and purpose of each sample so far.
        undecided: bool[samples], True where no rule of a program has decided.
    """
    samples = profile.samples
    is_wait, is_sum = profile.is_offcpu(), samples.has(SUM_FLAGS)
    is_comparable = is_wait & (samples.syscall >= 0) & (samples.stack >= 0)
    sums = np.flatnonzero(is_comparable & is_sum & undecided & np.isin(wait_class, _UNCERTAIN))
    single = np.flatnonzero(is_comparable & ~is_sum & ~np.isin(wait_class, _FOR_CPU))
    if not len(sums) or not len(single):
        return wait_class, for_work
    rows = np.concatenate([sums, single])
    caller = _user_leaf(profile)[samples.stack[rows]]
    first, group_of = group(samples.pid[rows], samples.syscall[rows], caller)
    answer = wait_class[single].astype(np.int64) * 2 + for_work[single]
    first_of_pair, pair = group(group_of[len(sums) :], answer)
    most = np.full(len(first), -1, np.int64)
    for number in np.argsort(np.bincount(pair), kind="stable").tolist():  # the most frequent is written last
        single_row = first_of_pair[number]
        most[group_of[len(sums) + single_row]] = answer[single_row]
    answer_of_sum = np.where(caller[: len(sums)] >= 0, most[group_of[: len(sums)]], -1)
    is_lock = wait_class[sums] == WaitClass.LOCK
    answer_of_sum[is_lock & ~np.isin(answer_of_sum // 2, (WaitClass.LOCK, WaitClass.CHILD))] = -1
    wait_class, for_work = wait_class.copy(), for_work.copy()
    wait_class[sums[answer_of_sum >= 0]] = answer_of_sum[answer_of_sum >= 0] // 2
    for_work[sums[answer_of_sum >= 0]] = answer_of_sum[answer_of_sum >= 0] % 2 == 1
    return wait_class, for_work


def _user_leaf(profile: Profile) -> I64:
    """Return int64[stacks]: the innermost node of the user's part of each stack; -1 for none."""
    parent = profile.stacks.parent.astype(np.int64)
    is_kernel = profile.frames.is_kernel()[profile.stacks.frame]
    leaf = np.where(is_kernel, parent, np.arange(len(parent)))
    while True:
        rows = np.flatnonzero((leaf >= 0) & np.append(is_kernel, False)[leaf])
        if not len(rows):
            return leaf
        leaf[rows] = leaf[leaf[rows]]
