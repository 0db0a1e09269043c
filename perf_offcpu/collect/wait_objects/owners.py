# SPDX-License-Identifier: Apache-2.0
"""Read facts about unfinished waits from the memory of processes: owners of locks, timeouts, polled descriptors. For
waits that end, the BPF program reads these, in the thread that waits: owners at the begin, because at the end the word
of the lock has changed already; timeouts and descriptors at the end."""

import contextlib
import functools
import os
import platform
import re
import struct
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from perf_offcpu.abi.offcpu import UNKNOWN_U64
from perf_offcpu.abi.syscalls import call_numbers, syscall_names
from perf_offcpu.collect.bpf.header import read_header
from perf_offcpu.collect.bpf.last_tasks import LastTasks
from perf_offcpu.collect.kernel_totals.user_stacks import Unread, arguments_of, read_by_row, read_memory, registers_of
from perf_offcpu.collect.system.hotspot import AwaitedLock
from perf_offcpu.collect.wait_objects.describe import Described, describe_java_lock, object_payloads
from perf_offcpu.files import read_kernel_if_any
from perf_offcpu.model.columns import distinct, is_among
from perf_offcpu.resources import bpf_dir

_WORDS, _TIMESPEC = struct.Struct("=5I"), struct.Struct("=2q")
_LONGEST_NS = int(np.iinfo(np.int64).max)
_NSPID: Final = re.compile(rb"^NSpid:\t([\d\t]+)$", re.MULTILINE)
_POLLFD: Final = struct.Struct("=ihh")
_WORD: Final = 8
_TIMEOUT: Final = 3  # argument of futex(2)
_MOST_DESCRIPTORS: Final = 1024  # FD_SETSIZE
_POLLS, _SELECTS = ("poll", "ppoll"), ("select", "pselect6")
_IN_OBJECT: Final = ("object_id", "object_lost", "asked_ns")


@functools.cache
def _futex() -> Mapping[str, int]:
    """Return name → value of the constants of futex(2) and of glibc's locks in the BPF headers."""
    of_calls, of_locks = (read_header(bpf_dir() / name).constants for name in ("arguments.h", "locks.h"))
    return {**of_calls, **of_locks}


def owner_in(words: tuple[int, ...], operation: int, value: int) -> int:
    """Return the tid of a lock's owner, 0 if unknown, as lock_owner() of bpf/locks.h. `words`: five u32 of the lock,
    from its futex on. `operation`: of the waiter's futex(2). `value`: that this call expected."""
    numbers = _futex()
    command = operation & numbers["FUTEX_COMMAND"]
    if command in (numbers["FUTEX_LOCK_PI"], numbers["FUTEX_LOCK_PI2"]):
        return words[0] & numbers["FUTEX_TID_MASK"]
    if command not in (numbers["FUTEX_WAIT"], numbers["FUTEX_WAIT_BITSET"]):
        return 0
    if value & numbers["FUTEX_WAITERS"]:
        return value & numbers["FUTEX_TID_MASK"]
    if value == numbers["MUTEX_CONTENDED"]:
        fits = words[3] <= numbers["MOST_USERS"] and words[4] <= numbers["MUTEX_KINDS"]
        return words[2] if words[0] == value and fits else 0
    if value != numbers["RWLOCK_CONTENDED"] or words[2]:  # padding, whichever of both words threads wait for
        return 0
    return words[4] if not words[3] else words[3] if not words[1] else 0


def timeout_in(operation: int, spec: bytes, since_ns: int) -> int:
    """Return the timeout of a wait in futex(2) from its begin on, ns, 0 to 2^63 - 1. `operation`: of futex(2). `spec`:
    bytes of the struct timespec, of any content. `since_ns`: begin of the wait, CLOCK_MONOTONIC."""
    seconds, ns = _TIMESPEC.unpack(spec)
    numbers, moment = _futex(), int(seconds) * 10**9 + int(ns)
    command = operation & numbers["FUTEX_COMMAND"]
    if command == numbers["FUTEX_WAIT"]:
        return min(max(moment, 0), _LONGEST_NS)
    if operation & numbers["FUTEX_CLOCK_REALTIME"] or command == numbers["FUTEX_LOCK_PI"]:
        moment -= time.clock_gettime_ns(time.CLOCK_REALTIME) - time.clock_gettime_ns(time.CLOCK_MONOTONIC)
    return min(max(moment - since_ns, 0), _LONGEST_NS)


def with_holders(last: LastTasks, unread: Unread) -> LastTasks:
    """Return `last` with `holder_tid` set for tasks that wait for a lock whose owner is known, and `asked_ns` for waits
    in futex(2) with a timeout. `unread`: counts the locks that cannot be read in time."""
    futexes = [nr for nr, (kind, _) in call_numbers(platform.machine()).items() if kind == "futex"]
    rows = last.waiting()
    rows = rows[is_among(last.tasks["syscall"][rows], np.sort(futexes)) & (last.tasks["object_id"][rows] != 0)]

    def read(row: int) -> tuple[int, int | None]:
        task = last.tasks[row]
        return holder_and_timeout(int(task["pid"]), int(task["tid"]), arguments_of(task), int(task["switch_out_ns"]))

    tasks = last.tasks.copy()
    for row, (tid, asked_ns) in read_by_row(last.tasks, rows.tolist(), read, unread).items():
        if tid:
            tasks["holder_tid"][row] = tid
        if asked_ns is not None:
            tasks["asked_ns"][row] = asked_ns
    return replace(last, tasks=tasks)


def holder_and_timeout(pid: int, tid: int, arguments: Sequence[int], since_ns: int) -> tuple[int, int | None]:
    """Return (tid of the owner of the lock for which a thread waits, 0 if unknown; timeout in ns, None for none).
    `arguments`: of its futex(2). `since_ns`: begin of the wait."""
    address, operation, value, timeout, *_ = arguments
    words = read_memory(tid, address, _WORDS.size)
    owner = owner_in(_WORDS.unpack(words), operation, value & 0xFFFFFFFF) if words else 0
    spec = read_memory(tid, timeout, _TIMESPEC.size) if timeout else b""
    asked_ns = timeout_in(operation, spec, since_ns) if spec else None
    return _outer(pid, owner) if owner else 0, asked_ns


AwaitedLocks = Mapping[int, Mapping[int, AwaitedLock]]
"""pid → result of `hotspot.awaited_locks`: tid in the process's own PID namespace → lock for which it waits."""


def outer_locks(pid: int, locks: Mapping[int, AwaitedLock]) -> dict[int, AwaitedLock]:
    """Convert the tids in `locks`, of the pid namespace of process `pid`, to those of the recorder's namespace; locks
    without such a thread or owner are left out. Return {} if the process has ended."""
    with contextlib.suppress(OSError):
        outer = {_inner(pid, int(tid)): int(tid) for tid in os.listdir(f"/proc/{pid}/task")}
        own = {outer.get(tid, 0): lock._replace(owner=outer.get(lock.owner, 0)) for tid, lock in locks.items()}
        return {tid: lock for tid, lock in own.items() if tid and lock.owner}
    return {}


def with_locks_of_jvms(
    last: LastTasks, locks_of: Callable[[set[int]], AwaitedLocks], again: Callable[[], LastTasks], *, named: bool
) -> LastTasks:
    """Return `last` with `holder_tid` and object set for tasks that wait for a lock of a JVM, and with descriptions of
    these objects: all tasks that wait for a lock get one object instead of a futex each. `locks_of`: reads the locks of
    the JVMs among pids. `again`: runs the iterator over tasks once more: a task that has run since `last` may wait for
    another lock and is left unchanged. At a monitor it may have run once, as HotSpot wakes a waiter after up to 1 s to
    look again; as this is no timeout of the program, `asked_ns` becomes unknown there. At other locks, tasks whose
    timeout could not be read get no holder. `named`: the objects have names."""
    tasks, rows = last.tasks.copy(), last.waiting()
    locks = locks_of({*tasks["pid"][rows].tolist()})
    if not any(locks.values()):
        return last
    later, objects = again(), dict[int, Described]()
    switches = dict(zip(later.tasks["tid"].tolist(), later.tasks["nr_switches"].tolist(), strict=True))
    for pid in distinct(tasks["pid"][rows[np.isin(tasks["pid"][rows], list(locks))]]).tolist():
        lock_of = outer_locks(pid, locks[pid])
        for row in rows[tasks["pid"][rows] == pid].tolist():
            task = tasks[row]
            lock, runs = lock_of.get(int(task["tid"])), switches.get(int(task["tid"]), -1) - int(task["nr_switches"])
            if lock is None or runs not in ((0, 1) if lock.is_monitor else (0,)):
                continue
            if lock.is_monitor:
                task["asked_ns"] = UNKNOWN_U64
            elif arguments_of(task)[_TIMEOUT] and task["asked_ns"] == UNKNOWN_U64:
                continue  # a timeout that was not read: no deadlock may be made of it
            described = describe_java_lock(pid, lock, named=named)
            task["holder_tid"], task["object_id"], task["object_lost"] = lock.owner, described["id"], 0
            objects[described["id"]] = described
    return replace(last, tasks=tasks, payloads=(*last.payloads, *object_payloads([*objects.values()])))


def _outer(pid: int, tid: int) -> int:
    """Convert a tid of the pid namespace of process `pid` to one of the recorder's namespace; 0 if no thread has it."""
    if _inner(pid, tid) == tid:  # as in most processes
        return tid
    names = map(int, os.listdir(f"/proc/{pid}/task"))
    return next((name for name in names if _inner(pid, name) == tid), 0)


def _inner(pid: int, tid: int) -> int:
    """Convert a tid of the recorder's pid namespace to one of the namespace of process `pid`; 0 if there is none."""
    ids = _NSPID.search(read_kernel_if_any(f"/proc/{pid}/task/{tid}/status", 1 << 16))
    return int(ids[1].split()[-1]) if ids else 0


def with_polled(
    last: LastTasks, note: Callable[[NDArray[Any], Sequence[int]], None], again: Callable[[], LastTasks], unread: Unread
) -> LastTasks:
    """Return `last` with the objects of tasks that wait for a single descriptor in poll() or select(). `note`:
    `ProgramMaps.set_polled`, which passes rows of `struct offcpu_last` and the descriptor of each to the BPF program.
    `again`: runs the iterator over tasks once more, which then finds the objects. `unread`: counts unread tasks."""
    names = syscall_names(platform.machine())
    calls = [number for number, name in names.items() if name in (*_POLLS, *_SELECTS)]
    is_64_bit = registers_of(last.tasks)["ip"] != 0
    rows = last.waiting()
    rows = rows[is_among(last.tasks["syscall"][rows], np.sort(calls)) & is_64_bit[rows]]

    def read(row: int) -> int:
        task = last.tasks[row]
        is_select = names[int(task["syscall"])] in _SELECTS
        return only_descriptor(int(task["tid"]), arguments_of(task), is_select)

    polled = {row: fd for row, fd in read_by_row(last.tasks, rows.tolist(), read, unread).items() if fd >= 0}
    if not polled:
        return last
    note(last.tasks[list(polled)], list(polled.values()))
    later = again()
    still = last.stand_still(later)
    later_row = {int(tid): row for row, tid in enumerate(later.tasks["tid"].tolist())}
    tasks = last.tasks.copy()
    for row in filter(still.__getitem__, polled):  # so it is among the later tasks
        for name in _IN_OBJECT:
            tasks[name][row] = later.tasks[name][later_row[int(tasks["tid"][row])]]
    return replace(last, tasks=tasks)


def only_descriptor(tid: int, arguments: Sequence[int], is_select: bool) -> int:
    """Return the only descriptor for which poll() or select() with `arguments` waits; -1 for several or none."""
    if not is_select:
        entry = read_memory(tid, arguments[0], _POLLFD.size) if arguments[1] == 1 else b""
        return int(_POLLFD.unpack(entry)[0]) if entry else -1
    number = arguments[0] & 0xFFFFFFFF
    if not 0 < number <= _MOST_DESCRIPTORS:
        return -1
    bits = 0
    for address in filter(None, arguments[1:4]):
        words = read_memory(tid, address, -(-number // (8 * _WORD)) * _WORD)
        if not words:
            return -1
        bits |= int.from_bytes(words, "little") & (1 << number) - 1
    return bits.bit_length() - 1 if bits.bit_count() == 1 else -1
