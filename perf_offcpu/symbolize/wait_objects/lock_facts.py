# SPDX-License-Identifier: Apache-2.0
"""Derive facts (`ObjectFact`) about locks and semaphores from recorded waits, without names of functions.

By the enders of waits: threads that end each other's waits share a lock; an object passes work if only threads that
never wait for it end the waits. A wait that ended when its own thread exited does not count: the exit of a process
wakes all of its threads.

By the words of futexes: the kernel clears the word of a thread that exits, and wakes threads that wait for
it without FUTEX_PRIVATE_FLAG; the word has the thread's id until then (set_tid_address(2)). Mutexes and rwlocks of
glibc have fixed values while threads wait (sysdeps/nptl/lowlevellock.h, nptl/pthread_rwlock_common.c). Its rwlocks use
FUTEX_WAIT_BITSET only; FUTEX_WAIT with their value is a counter, such as a std::latch of 3."""

import re

import numpy as np

from perf_offcpu.abi.wait_objects import ObjectKind
from perf_offcpu.model.columns import I32, I64, U16, Bool, Strings, distinct, group, is_among, is_one_of
from perf_offcpu.model.lookup import rows_at
from perf_offcpu.model.profile import ObjectFact, Objects
from perf_offcpu.model.recording import SUM_FLAGS, Recording, SampleFlag

_NOT_ENDED = SampleFlag.WAKER_INTERRUPT | SampleFlag.STILL_BLOCKED | SUM_FLAGS
_KINDS = (ObjectKind.FUTEX, ObjectKind.SEMAPHORES)
_EXIT_NS = 1_000_000
RARE = 8  # fewer than one wait in so many does not tell who ends them
_INEXACT_NS = 10_000  # of wake-ups in samples by length (bpf/sampling.h)
_PRIVATE, _COMMAND = 128, 0x7F  # include/uapi/linux/futex.h
_WAITS, _WAIT_BITSET, _LOCKS_PI = (0, 9), 9, (6, 13)
_WAITERS, _TID_MASK = 0x80000000, 0x3FFFFFFF
_MUTEX, _RWLOCK = 2, 3
_ADDRESS = re.compile(r"(?<=0x)[0-9a-f]+")


def facts_by_enders(recording: Recording, entry: I64, row: I64, objects: Objects, strings: Strings) -> U16:
    """Return uint16[objects]: ObjectFact of futexes and semaphores, by the threads that ended the waits; else 0.
    `entry`: int64[samples], row in `objects`; -1 none. `row`: int64[objects], row in `recording.objects`; -1 none."""
    samples, is_lock = recording.samples, np.isin(objects.kind, _KINDS)
    rows = np.flatnonzero((entry >= 0) & np.append(is_lock, False)[entry] & ~samples.has(SUM_FLAGS))
    entry = entry[rows]
    # Processes that share a word have an object each, of one name. Condition variables and rwlocks have two
    # words, next to each other.
    shared = objects.shared | (objects.kind == ObjectKind.SEMAPHORES)
    word = (objects.address >> np.uint64(3)).astype(np.int64)
    # The process has ended before its maps were read: children inherit the address.
    may_wake = (recording.objects.operation & _PRIVATE == 0) & (recording.objects.number != -1)
    is_public = ~shared & (objects.kind == ObjectKind.FUTEX) & np.append(may_wake, False)[row]
    number_of_name: dict[str, int] = {}
    for index in np.flatnonzero(shared).tolist():
        name = _ADDRESS.sub(lambda address: f"{int(address[0], 16) >> 3:x}", strings[int(objects.name[index])])
        word[index] = number_of_name.setdefault(name, len(number_of_name))
    first, number = group(np.where(shared | is_public, -1, objects.pid), word)
    groups = len(first)
    thing = number[entry]
    waits = distinct(thing.astype(np.int64) << 32 | samples.tid[rows] & np.int64(2**32 - 1))
    several = np.bincount(waits >> 32, minlength=groups) > 1
    ended = ~samples.has(_NOT_ENDED)[rows] & (samples.waker_tid[rows] > 0)
    ended &= ~_exits(recording, samples.tid[rows], samples.time_ns[rows])
    is_recorded = is_one_of(samples.waker_pid[rows], samples.pid)
    is_own = samples.waker_pid[rows] == samples.pid[rows]
    ended &= shared[entry] | (is_public[entry] & is_recorded) | is_own  # else it was a signal
    waker_tid, tid, thing = samples.waker_tid[rows][ended], samples.tid[rows][ended], thing[ended]
    is_peer = is_among(thing.astype(np.int64) << 32 | waker_tid, waits)
    is_stranger = ~is_peer & ~is_recorded[ended]
    is_other = ~is_peer & ~is_stranger
    by = [is_peer, is_other, is_stranger]
    peers, others, strangers = (np.bincount(thing[is_ender], minlength=groups) for is_ender in by)
    # The first user of a lock may never have to wait for it.
    others = np.where(others * RARE >= peers, others, 0)
    is_alone = ~several[thing] & is_other
    circles = np.bincount(thing[is_alone][in_circle(waker_tid[is_alone], tid[is_alone])], minlength=groups)
    facts = (
        np.where(several, ObjectFact.SEVERAL, 0)
        | np.where(peers > 0, ObjectFact.BY_PEERS, 0)
        | np.where(others > 0, ObjectFact.BY_OTHERS, 0)
        | np.where(strangers > 0, ObjectFact.BY_STRANGERS, 0)
        | np.where(circles > 0, ObjectFact.CIRCLE, 0)
    )
    facts = facts[number] | np.where(shared, ObjectFact.SHARED, 0)
    return np.where(is_lock, facts, 0).astype(np.uint16)


def facts_by_words(recording: Recording, row: I32) -> U16:
    """Return uint16[objects of the recording]: ObjectFact THREAD, MUTEX or RWLOCK of a futex, as its value and
    operation tell; else 0. `row`: int32[samples], row in objects; -1 none."""
    samples, tasks, words = recording.samples, recording.tasks, recording.objects
    rows = np.flatnonzero((row >= 0) & ~samples.has(_NOT_ENDED) & (samples.wakeup_ns >= 0))
    command, value = words.operation & _COMMAND, words.number.astype(np.int64) & 0xFFFFFFFF
    is_known = (words.kind == ObjectKind.FUTEX) & (words.number != -1)
    waits = is_known & np.isin(command, _WAITS)
    is_id = waits & (words.operation & _PRIVATE == 0) & (value > 0) & (value <= _TID_MASK)
    is_thread = is_one_of(words.pid.astype(np.int64) << 32 | value, tasks.pid.astype(np.int64) << 32 | tasks.tid)
    # In a pid namespace the program has other ids: there, an exit ended the wait.
    ended = (samples.waker_tid[rows] > 0) & (samples.waker_pid[rows] == samples.pid[rows])
    ended &= _exits(recording, samples.waker_tid[rows], samples.wakeup_ns[rows])
    is_thread[row[rows[ended]]] |= value[row[rows[ended]]] > _RWLOCK
    is_thread &= is_id
    owned = (value & _WAITERS > 0) & (value & _TID_MASK > 0)
    is_mutex = waits & ((value == _MUTEX) | owned) | is_known & np.isin(command, _LOCKS_PI)
    kinds = [is_thread, is_mutex, waits & (command == _WAIT_BITSET) & (value == _RWLOCK)]
    return np.select(kinds, [ObjectFact.THREAD, ObjectFact.MUTEX, ObjectFact.RWLOCK], 0).astype(np.uint16)


def in_circle(waker: I32 | I64, sleeper: I32 | I64) -> Bool:
    """Return bool[n], for wake-ups of sleeper[i] by waker[i]: True in a circle, or on a path from circle to circle. The
    waker of such a wake-up is the sleeper of one, and its sleeper is the waker of one."""
    inside = np.ones(len(waker), np.bool_)
    while True:
        still = inside & is_one_of(waker, sleeper[inside]) & is_one_of(sleeper, waker[inside])
        if (still == inside).all():
            return inside
        inside = still


def ended_by_exit(recording: Recording, rows: Bool) -> Bool:
    """Return bool[n], for the samples in mask `rows`: True if the exit of another process's thread ended the wait."""
    samples, tasks = recording.samples.take(rows), recording.tasks
    end_ns = np.append(tasks.end_ns, -1)[rows_at(tasks.tid, tasks.begin_ns, samples.waker_tid, samples.wakeup_ns)]
    exits: Bool = (end_ns >= 0) & (end_ns <= samples.wakeup_ns + _INEXACT_NS) & (samples.waker_pid != samples.pid)
    return exits & ~samples.has(_NOT_ENDED)


def _exits(recording: Recording, tid: I32, time_ns: I64) -> Bool:
    """Return bool[n]: True if thread tid[i] exited within _EXIT_NS of time_ns[i]."""
    tasks = recording.tasks
    end_ns = np.append(tasks.end_ns, -1)[rows_at(tasks.tid, tasks.begin_ns, tid, time_ns)]
    exits: Bool = (end_ns >= 0) & (np.abs(end_ns - time_ns) <= _EXIT_NS)
    return exits
