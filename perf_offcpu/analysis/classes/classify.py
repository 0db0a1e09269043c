# SPDX-License-Identifier: Apache-2.0
"""Find wait class and system call of each sample: `wait_classes` on whole columns.

The rules are applied once to each function, then to each stack, then to each distinct combination of a stack's evidence
with system call, state and flags; samples look up the result. The rules, in order:

    throttled by a quota of CPU time          throttled
    preempted, or runnable at switch-out      run queue
    stopped, by a signal or a tracer          stopped
    functions of the kernel, leaf first       the first with a class; storage below a page fault is a page
                                              fault; poll() of a single object has the object's class
    the system call                           if it has one purpose; the class of the object instead, to
                                              distinguish network, pipe, poll and sleep
    the object                                `object_codes`
    the system call                           if it is one on files, in state D
    no system call, and no kernel stack       a page fault
    a wrapper at the leaf of the user stack   if the system call is not known
    else                                      other

A sum with the class other, network or poll gets the class of similar single waits (`like_single_waits`). A rule of the
program (`program_rules`) may give the wait another class, or say that it is for work.

A wait is *for work* if another thread, or the outside, ends it with the next piece of work: poll() and similar calls,
accept(), signals, a terminal, condition variables and semaphores that only others serve (`work_of_lock`), and waits of
a kernel thread between its jobs. Waits for disks, locks, data on a socket or pipe, children and sleeps are not: the
work is under way, or only time has to pass. Documentation/wait-classes.md explains it.

A sum has neither a kernel stack nor an object, and read() alone does not tell a pipe from a file. A single wait of the
same process, in the same system call, called from the same place of the program, does. If such single waits have
several classes, the most frequent class is used. Waits for a CPU, and of stopped threads, are not considered."""

import numpy as np

from perf_offcpu.abi.counters import TASK_EVENT
from perf_offcpu.abi.offcpu import SYSCALL_NONE, SYSCALL_UNKNOWN
from perf_offcpu.abi.syscalls import syscall_names
from perf_offcpu.abi.task_state import state_letter
from perf_offcpu.abi.wait_objects import ObjectKind
from perf_offcpu.analysis.classes import wait_classes as rules
from perf_offcpu.analysis.classes.pools import waits_for_pools
from perf_offcpu.analysis.classes.program_rules import UNENDED, WORKERS, Rules
from perf_offcpu.analysis.classes.stacks import Evidence, evidence_of_stacks
from perf_offcpu.analysis.classes.wait_classes import BY_LABEL, Means, WaitClass, Work
from perf_offcpu.analysis.event_loops import held_up_waits
from perf_offcpu.analysis.stack_walk import without_nodes
from perf_offcpu.model.columns import I16, I32, I64, U8, Bool, group, sum_by
from perf_offcpu.model.profile import ObjectFact, Profile, ProgramRule
from perf_offcpu.model.recording import SUM_FLAGS, SampleFlag
from perf_offcpu.structs import mutable

_NONE = -1
_OPENS = frozenset(("open", "openat", "openat2"))
_POLLS = frozenset(WaitClass.POLL.row.syscalls.split())
_EPOLLS = frozenset(name for name in _POLLS if name.startswith("epoll_"))
"""epoll calls: the object of the wait is that one of several descriptors whose event ended it, often a client."""


@mutable
class Waits:
    """Wait class, system call and awaited work of each of n samples, as columns."""

    wait_class: U8  # uint8[n], WaitClass; OTHER for samples that are no waits
    syscall: I32  # int32[n], index into syscall_names
    syscall_names: list[str]  # "" none or unknown; in decimal if the number has no name
    purpose: I32  # int32[n], index into purposes: what brings the next piece of work
    purposes: list[str]  # "" if the wait is not for work
    rule: I32  # int32[n], index into rules: the rule of a program that decided; -1 for none
    rules: tuple[ProgramRule, ...]

    @property
    def for_work(self) -> Bool:
        """Return bool[n]: True for waits that another thread, or the outside, ends with the next piece of work."""
        for_work: Bool = self.purpose > 0
        return for_work


def classify(profile: Profile) -> Waits:
    """Return class, system call and awaited work of each sample of a profile."""
    samples = profile.samples
    programs = Rules(profile.rules)
    evidences, evidence_of = evidence_of_stacks(profile, programs)
    judge = _Judge(profile.meta.arch)
    preempted, throttled = samples.has(SampleFlag.PREEMPTED), samples.has(SampleFlag.THROTTLED)
    by_comm = np.array([programs.by_comm(evidence.rules) for evidence in evidences], np.bool_)
    comm = np.where(by_comm[evidence_of], samples.comm, np.uint32(0))
    facts = (evidence_of, samples.syscall, samples.state, preempted, throttled, profile.is_offcpu(), comm)
    object_facts = np.append(profile.objects.facts, np.uint16(0))[samples.object]
    columns = (*facts, object_codes(profile), object_facts, samples.object >= 0)
    first, group_of = group(*columns)
    classes, syscalls = np.empty(len(first), np.uint8), np.empty(len(first), np.int32)
    purpose, ruled = np.zeros(len(first), np.int32), np.full(len(first), _NONE, np.int32)
    names, purposes = {"": 0}, {"": 0}
    rows = zip(*(column[first].tolist() for column in columns), strict=True)
    for index, values in enumerate(rows):
        row, number, state, was_preempted, was_throttled, is_wait, of_comm, code, object_fact, has_object = values
        evidence = evidences[row]
        name = judge.syscall(evidence, number)
        syscalls[index] = names.setdefault(name, len(names))
        letter = state_letter(state, bool(was_preempted))
        wait_class = judge.wait_class(evidence, number, name, letter, code) if is_wait else WaitClass.OTHER
        work = judge.work(evidence, wait_class, name, letter, code, object_fact) if is_wait else ""
        rule = programs.find(evidence.rules, wait_class, name, profile.strings[of_comm]) if is_wait else None
        if was_throttled and is_wait:
            wait_class = WaitClass.THROTTLED
        elif rule and rule.wait_class:
            wait_class = BY_LABEL[rule.wait_class]
        if rule:
            ruled[index] = programs.rules.index(rule)
            unended = rule.condition == UNENDED and has_object and not object_fact & (_ENDERS | ObjectFact.SHARED)
            if rule.for_work is not None:
                work = f"{rule.program}: {rule.meaning}" if rule.for_work or unended else ""
        classes[index] = wait_class
        purpose[index] = purposes.setdefault(work, len(purposes))
    rule_of, purpose = ruled[group_of], purpose[group_of]
    of_workers = np.array([*(rule.condition == WORKERS for rule in programs.rules), False])[rule_of]
    purpose[(of_workers & (samples.tid == samples.pid)) | waits_for_pools(profile, rule_of, programs.rules)] = 0
    found_class, purpose = like_single_waits(profile, classes[group_of], purpose, rule_of == _NONE)
    if profile.loops:
        purpose[held_up_waits(profile)] = 0
    return Waits(found_class, syscalls[group_of], list(names), purpose, list(purposes), rule_of, programs.rules)


class _Judge:
    """Decides system call, class and awaited work of one wait, by its stack's `Evidence` and its sample's fields."""

    def __init__(self, arch: str) -> None:
        self._names = {compat: syscall_names(arch, compat=compat) for compat in (False, True)}

    def syscall(self, evidence: Evidence, number: int) -> str:
        """Return the name of a wait's system call: by `number` (in decimal if it has no name); by the stack if the
        number is SYSCALL_UNKNOWN; "" for no call."""
        if number == SYSCALL_UNKNOWN:
            return evidence.entry_name
        return self._names[evidence.compat >= 0].get(number, str(number)) if number >= 0 else ""

    def wait_class(self, evidence: Evidence, number: int, syscall: str, state: str, code: int) -> WaitClass:
        """Return the wait class. `number`, `syscall`: number and name of the call. `state`: task state letter. `code`:
        of the object, by `object_codes`."""
        if state == "R":
            return WaitClass.RUNQUEUE
        if state in ("T", "t"):
            return WaitClass.STOPPED
        by_object = class_of(code)
        if by_object is WaitClass.SLEEP and syscall in _EPOLLS:
            by_object = WaitClass.POLL  # a timer of an event loop
        if by_object in (WaitClass.CHILD, WaitClass.LOCK):
            # A thread to end is a futex as any other to functions, a process an event, a lock a part of a fault.
            return by_object
        if evidence.fault >= 0 and evidence.in_kernel in (_NONE, WaitClass.DISK, WaitClass.OTHER):
            return WaitClass.FAULT
        if evidence.in_kernel >= 0:
            by_function = WaitClass(evidence.in_kernel)
            return by_function if by_object is None or by_function is not WaitClass.POLL else by_object
        return self._without_kernel(evidence, number, syscall, state, by_object)

    def work(self, evidence: Evidence, wait_class: WaitClass, syscall: str, state: str, code: int, facts: int) -> str:
        """Return the work that is waited for (`the next connection`); "" for waits that are not for work. `code`: of
        the object, by `object_codes`. `facts`: ObjectFact of the object."""
        if syscall in _POLLS and wait_class in (WaitClass.NETWORK, WaitClass.PIPE):
            of_several = syscall in _EPOLLS or bool(code & _OF_SEVERAL)
            busy = answers(code) if of_several else is_connected(code)
            return "" if busy else "the next event of a descriptor"
        work = Work(wait_class.row.work)
        if work in (Work.NEVER, Work.ALWAYS):
            return "the next event of a descriptor" if work is Work.ALWAYS else ""
        if work is Work.BY_LOCK:
            return work_of_lock(facts, Means(evidence.means) if evidence.means >= 0 else None)
        in_kernel = evidence.work_in_kernel == 1
        if wait_class in (WaitClass.NETWORK, WaitClass.PIPE):
            if wait_class == WaitClass.NETWORK and code & (_INWARD | _CONNECTED) == _INWARD and code >= 0:
                return "" if syscall.startswith("send") else "the next datagram of a client"
            return "the next connection" if in_kernel or syscall in rules.WORK_SYSCALLS else ""
        is_job = evidence.work_in_kernel < 0 and wait_class == WaitClass.OTHER and state == "I"
        is_signal = syscall in rules.WORK_SYSCALLS or (syscall in _POLLS and wait_class == WaitClass.OTHER)
        is_work = in_kernel or is_job or is_signal
        return "a signal, a terminal's input, or a job of the kernel" if is_work else ""

    def _without_kernel(
        self, evidence: Evidence, number: int, syscall: str, state: str, by_object: WaitClass | None
    ) -> WaitClass:
        if syscall in rules.CLASS_OF_SYSCALL:
            by_syscall = rules.CLASS_OF_SYSCALL[syscall]
            return by_syscall if by_object is None or by_syscall not in BY_OBJECT else by_object
        if by_object is not None and number >= 0:
            # An open that can be interrupted waits for the other end of a FIFO, not for the disk.
            return WaitClass.OTHER if syscall in _OPENS and state == "S" else by_object
        if number == SYSCALL_NONE:
            in_user_mode = evidence.exists >= 0 and evidence.has_kernel < 0
            return WaitClass.FAULT if in_user_mode else WaitClass.OTHER
        unknown = syscall in ("", "restart_syscall")  # the latter goes on with a wait that a signal broke off
        if unknown and evidence.in_user >= 0:
            return WaitClass(evidence.in_user)
        on_file = syscall in rules.FILE_SYSCALLS or (unknown and evidence.file >= 0)
        return WaitClass.DISK if on_file and state == "D" else WaitClass.OTHER


_UNCERTAIN = (WaitClass.OTHER, WaitClass.LOCK, WaitClass.NETWORK, WaitClass.POLL)
_ANYWHERE = (WaitClass.RUNQUEUE, WaitClass.THROTTLED, WaitClass.STOPPED)


def like_single_waits(profile: Profile, wait_class: U8, purpose: I32, undecided: Bool) -> tuple[U8, I32]:
    """Return class and purpose of each sample. A sample that sums short waits, of class OTHER, NETWORK or POLL, takes
    the most frequent (class, purpose) of single waits with its pid, system call and innermost user frame; a sum of
    class LOCK takes it if that class is LOCK or CHILD. `wait_class`, `purpose`: so far. `undecided`: bool[samples],
    True where no rule of a program decided; other sums stay."""
    samples = profile.samples
    is_wait, is_sum = profile.is_offcpu(), samples.has(SUM_FLAGS)
    is_comparable = is_wait & (samples.syscall >= 0) & (samples.stack >= 0)
    sums = np.flatnonzero(is_comparable & is_sum & undecided & np.isin(wait_class, _UNCERTAIN))
    single = np.flatnonzero(is_comparable & ~is_sum & ~np.isin(wait_class, _ANYWHERE))
    if not len(sums) or not len(single):
        return wait_class, purpose
    rows = np.concatenate([sums, single])
    caller = _user_leaf(profile)[samples.stack[rows]]
    first, group_of = group(samples.pid[rows], samples.syscall[rows], caller)
    answer = wait_class[single].astype(np.int64) << 32 | purpose[single]
    first_of_pair, pair = group(group_of[len(sums) :], answer)
    most = np.full(len(first), -1, np.int64)
    for number in np.argsort(np.bincount(pair), kind="stable").tolist():  # the most frequent is written last
        single_row = first_of_pair[number]
        most[group_of[len(sums) + single_row]] = answer[single_row]
    answer_of_sum = np.where(caller[: len(sums)] >= 0, most[group_of[: len(sums)]], -1)
    is_lock = wait_class[sums] == WaitClass.LOCK
    answer_of_sum[is_lock & ~np.isin(answer_of_sum >> 32, (WaitClass.LOCK, WaitClass.CHILD))] = -1
    wait_class, purpose = wait_class.copy(), purpose.copy()
    is_known = answer_of_sum >= 0
    wait_class[sums[is_known]] = answer_of_sum[is_known] >> 32
    purpose[sums[is_known]] = answer_of_sum[is_known] & 0xFFFFFFFF
    return wait_class, purpose


def _user_leaf(profile: Profile) -> I64:
    """Return int64[stacks]: the innermost node of user code from each node towards the root; -1 for none. Python
    functions do not count, since sums do not have them."""
    frames, frame, parent = profile.frames, profile.stacks.frame, profile.stacks.parent.astype(np.int64)
    is_kernel = frames.is_kernel()[frame]
    leaf = np.where(is_kernel, parent, np.arange(len(parent)))
    while True:
        rows = np.flatnonzero((leaf >= 0) & np.append(is_kernel, False)[leaf])
        if not len(rows):
            break
        leaf[rows] = leaf[leaf[rows]]
    is_python = ~is_kernel & ((frames.dso == 0) & (frames.file > 0))[frame]
    if not is_python.any():
        return leaf
    return without_nodes(parent, frame.astype(np.int64), is_python)[1].astype(np.int64)[leaf]


_IDLE_PERCENT = 99


def of_idle_threads(profile: Profile, for_work: Bool) -> Bool:
    """Return bool[samples]: True for samples of idle threads: waits for work took _IDLE_PERCENT or more of their time,
    all waits and CPU samples together. The event loop of a busy server is not idle. `profile`: all samples of the
    threads, of all events. `for_work`: bool[samples], as `Waits.for_work`."""
    samples = profile.samples
    first, group_of = group(samples.tid, samples.pid)
    counts_time = np.array([*(event.unit == "ns" for event in profile.evsels), False])[samples.evsel]
    of_tasks = np.array([*(event.name == TASK_EVENT for event in profile.evsels), False])[samples.evsel]
    counts_time &= ~of_tasks
    period = samples.period if counts_time.all() else np.where(counts_time, samples.period, 0)
    all_time = sum_by(group_of, period, len(first))
    work_time = sum_by(np.where(for_work, group_of, -1), period, len(first))
    # Without products of whole sums: they could leave 63 bits.
    idle = (work_time > 0) & (all_time - work_time <= all_time // 100 * (100 - _IDLE_PERCENT))
    of_threads: Bool = idle[group_of] & ~of_tasks
    return of_threads


_ENDERS = ObjectFact.BY_PEERS | ObjectFact.BY_OTHERS | ObjectFact.BY_STRANGERS
_CONDITION = {
    0: "a condition that nobody signalled",
    ObjectFact.BY_OTHERS: "a condition that only other threads signal",
    ObjectFact.BY_STRANGERS: "a condition that other processes signal",
}
_SEMAPHORE = {0: "a semaphore that nobody posted", ObjectFact.BY_OTHERS: "a semaphore that only other threads post"}
"""Source of work by ObjectFact of the threads that ended waits (0: no thread did); _CONDITION has the same form."""
UNSIGNALLED = frozenset((_CONDITION[0], _SEMAPHORE[0]))
_CONNECTED, _INWARD, _OF_SEVERAL = 1 << 8, 1 << 9, 1 << 10
_OF_KIND = {
    **dict.fromkeys((ObjectKind.FILE, ObjectKind.DIRECTORY, ObjectKind.BLOCK), WaitClass.DISK),
    **dict.fromkeys((ObjectKind.PIPE, ObjectKind.MESSAGES), WaitClass.PIPE),
    **{ObjectKind.SOCKET: WaitClass.NETWORK, ObjectKind.ANONYMOUS: WaitClass.POLL},
    **{ObjectKind.PROCESS: WaitClass.CHILD, ObjectKind.KERNEL_LOCK: WaitClass.LOCK},
}
_OF_NAME = {
    (ObjectKind.ANONYMOUS, "[timerfd]"): WaitClass.SLEEP,
    (ObjectKind.ANONYMOUS, "[pidfd]"): WaitClass.CHILD,
    (ObjectKind.DESCRIPTORS, "sleep"): WaitClass.SLEEP,
    (ObjectKind.DESCRIPTORS, "signal"): WaitClass.OTHER,
}
"""Class by (kind, name before " of "). poll() of no descriptors waits only for its timeout ("sleep") or a signal."""
_OF_REQUESTS = {"time": WaitClass.SLEEP, "tcp ": WaitClass.NETWORK, "udp ": WaitClass.NETWORK}
"""Class by the first letters of what an io_uring waits for; other names are of files."""

BY_OBJECT = frozenset({WaitClass.NETWORK, WaitClass.PIPE, WaitClass.POLL, WaitClass.SLEEP})
"""Classes by system call that the class of the object replaces: recvfrom() of a Unix socket becomes PIPE. Classes of
other system calls (flock(), fsync(), futex()) say more than the object and stay."""


def object_codes(profile: Profile) -> I16:
    """Return int16[samples]: the object's WaitClass | _CONNECTED | _INWARD (columns of Objects), and _OF_SEVERAL for
    waits in poll() or select() of several descriptors; -1: it has no class. An object says more than a system call that
    serves many kinds of files, but less than functions of the kernel: a read of a file may also wait for a lock."""
    objects, strings = profile.objects, profile.strings
    if not len(objects):
        return np.broadcast_to(np.int16(_NONE), len(profile.samples))
    codes = np.full(len(objects) + 1, _NONE, np.int16)
    asked = ("kind", "protocol", "name", "connected", "inward", "facts")
    columns = (getattr(objects, name).tolist() for name in asked)
    for row, (kind, protocol, name, connected, inward, facts) in enumerate(zip(*columns, strict=True)):
        wait_class = _OF_KIND.get(kind)
        if kind == ObjectKind.SOCKET and strings[protocol] == "unix":
            wait_class = WaitClass.PIPE
        if kind in (ObjectKind.ANONYMOUS, ObjectKind.DESCRIPTORS):
            text, _, what = strings[name].partition(" of ")
            by_name = _OF_NAME.get((kind, text), wait_class)
            wait_class = _OF_REQUESTS.get(what[:4], WaitClass.DISK) if text == "[io_uring]" and what else by_name
        if facts & ObjectFact.THREAD:
            wait_class = WaitClass.CHILD
        if wait_class is not None:
            has_end = connected or (kind, wait_class) == (ObjectKind.ANONYMOUS, WaitClass.NETWORK)
            codes[row] = int(wait_class) | (_CONNECTED if has_end else 0) | (_INWARD if inward else 0)
    of_sample = codes[profile.samples.object]
    several = profile.samples.has(SampleFlag.OF_SEVERAL) & (of_sample >= 0)
    return np.where(several, of_sample | np.int16(_OF_SEVERAL), of_sample)


def work_of_lock(facts: int, means: Means | None) -> str:
    """Return the event that brings the next work, in words, if waits for a lock or semaphore are for work; else "".
    Condition variable: for work unless only its own waiters end its waits. Semaphore: for work if only threads that
    never wait for it end its waits, or no thread does and no other process shares it. None is for work if threads wake
    each other in a circle, each alone at its lock: a runtime's locks, queues of limited length. Futex of an unknown
    wrapper: for work if several threads wait for it, only others end the waits, and it does not look like a mutex or
    rwlock. `facts`: ObjectFact. `means`: meaning of the wrapper; None if unknown."""
    if means is None and facts & (ObjectFact.MUTEX | ObjectFact.RWLOCK):
        means = Means.LOCK
    enders = facts & _ENDERS
    if facts & ObjectFact.CIRCLE:
        return ""
    if means is Means.CONDITION:
        more = "" if enders == ObjectFact.BY_PEERS else "a condition that other threads signal, too"
        return _CONDITION.get(enders, more)
    if means is Means.SEMAPHORE:
        return _SEMAPHORE.get(enders, "") if enders or not facts & ObjectFact.SHARED else ""
    passes = means is None and enders == ObjectFact.BY_OTHERS and facts & ObjectFact.SEVERAL
    return "a futex of several threads that only others wake" if passes else ""


def class_of(code: int) -> WaitClass | None:
    """Return the wait class in a code of `object_codes`; None for code -1."""
    return WaitClass(code & ~(_CONNECTED | _INWARD | _OF_SEVERAL)) if code >= 0 else None


def is_connected(code: int) -> bool:
    """Return True if a code of `object_codes` stands for a pipe or a connected socket."""
    return code >= 0 and bool(code & _CONNECTED)


def answers(code: int) -> bool:
    """Return True if a code of `object_codes` is of a pipe or connection to another process, which is no client."""
    return is_connected(code) and not code & _INWARD
