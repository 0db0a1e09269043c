# SPDX-License-Identifier: Apache-2.0
"""Find the wait class of wait objects: a read of a socket is network, of a pipe pipe, of a file disk. An object says
more than a system call that serves many kinds of files, and more than poll() of a single descriptor. It says less than
functions of the kernel, because a read of a file may also wait for a lock."""

import numpy as np

from perf_offcpu.abi.wait_objects import ObjectKind
from perf_offcpu.analysis.classes.wait_classes import Means, WaitClass
from perf_offcpu.model.columns import I16, U16
from perf_offcpu.model.profile import ObjectFact, Profile

_NONE = -1
_ENDERS = ObjectFact.BY_PEERS | ObjectFact.BY_OTHERS | ObjectFact.BY_STRANGERS
_CONDITION = {
    0: "a condition that nobody signalled",
    ObjectFact.BY_OTHERS: "a condition that only other threads signal",
    ObjectFact.BY_STRANGERS: "a condition that other processes signal",
}
_SEMAPHORE = {0: "a semaphore that nobody posted", ObjectFact.BY_OTHERS: "a semaphore that only other threads post"}
"""Source of work by ObjectFact of the threads that ended waits (0: no thread did); _CONDITION has the same form."""
_CONNECTED, _INWARD = 1 << 8, 1 << 9
_OF_KIND = {
    ObjectKind.FILE: WaitClass.DISK,
    ObjectKind.DIRECTORY: WaitClass.DISK,
    ObjectKind.BLOCK: WaitClass.DISK,
    ObjectKind.PIPE: WaitClass.PIPE,
    ObjectKind.MESSAGES: WaitClass.PIPE,
    ObjectKind.SOCKET: WaitClass.NETWORK,
    ObjectKind.ANONYMOUS: WaitClass.POLL,
    ObjectKind.PROCESS: WaitClass.CHILD,
    ObjectKind.KERNEL_LOCK: WaitClass.LOCK,
}
_OF_NAME = {
    (ObjectKind.ANONYMOUS, "[timerfd]"): WaitClass.SLEEP,
    (ObjectKind.ANONYMOUS, "[pidfd]"): WaitClass.CHILD,
    (ObjectKind.DESCRIPTORS, "sleep"): WaitClass.SLEEP,
    (ObjectKind.DESCRIPTORS, "signal"): WaitClass.OTHER,
}
"""Class by (kind, name before " of "). poll() of no descriptors waits only for its timeout ("sleep") or a signal."""

BY_OBJECT = frozenset({WaitClass.NETWORK, WaitClass.PIPE, WaitClass.POLL, WaitClass.SLEEP})
"""Classes by system call that the class of the object replaces: recvfrom() of a Unix socket becomes PIPE. Classes of
other system calls (flock(), fsync(), futex()) say more than the object and stay."""


def object_codes(profile: Profile) -> I16:
    """Return int16[samples]: WaitClass | _CONNECTED | _INWARD (see `objects.inward`) of each object; -1: no class."""
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
            text, _, file = strings[name].partition(" of ")
            wait_class = WaitClass.DISK if text == "[io_uring]" and file else _OF_NAME.get((kind, text), wait_class)
        if facts & ObjectFact.THREAD:
            wait_class = WaitClass.CHILD
        if wait_class is not None:
            codes[row] = int(wait_class) | (_CONNECTED if connected else 0) | (_INWARD if inward else 0)
    return codes[profile.samples.object]


def object_facts(profile: Profile) -> U16:
    """Return uint16[samples]: ObjectFact of each sample's lock or semaphore; 0 if nothing is known."""
    return np.append(profile.objects.facts, np.uint16(0))[profile.samples.object]


def work_of_lock(facts: int, means: Means | None) -> str:
    """Return what brings the next work, in words, if waits for a lock or semaphore are idle; "" if they are not.
    Condition variable: idle unless only its own waiters end its waits. Semaphore: idle if only threads that never wait
    for it end its waits, or no thread does and no other process shares it. No lock is idle if threads end each
    other's waits, by one lock each: a runtime's locks, and queues of limited length. Futex of unknown wrapper: idle
    if several threads wait for it, only other threads end the waits, and it does not look like a mutex or rwlock.
    `facts`: ObjectFact. `means`: meaning of the wrapper; None if unknown."""
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
    """Return the class in a code of `object_codes`; None for -1."""
    return WaitClass(code & ~(_CONNECTED | _INWARD)) if code >= 0 else None


def is_connected(code: int) -> bool:
    """Return True if a code of `object_codes` is that of a pipe or of a connected socket."""
    return code >= 0 and bool(code & _CONNECTED)


def answers(code: int) -> bool:
    """Return True if a code of `object_codes` says that the other end is another process, known to be no client."""
    return is_connected(code) and not code & _INWARD
