# SPDX-License-Identifier: Apache-2.0
"""Read who holds the locks for which threads are still blocked, from the locks' words, and the timeouts.

The layouts are those of bpf/lock_owner.h. At the end of a wait the word has changed already, so that this is
for waits that have not ended.
"""

from __future__ import annotations

import os
import platform
import re
import struct
import time
from dataclasses import replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from perf_offcpu.abi.syscalls import call_numbers
from perf_offcpu.collect.bpf.last_tasks import LastTasks
from perf_offcpu.collect.kernel_totals.memory import Unread, of_each, read_memory
from perf_offcpu.collect.kernel_totals.user_stacks import arguments_of
from perf_offcpu.files import read_kernel

_WORDS, _TIMESPEC = struct.Struct("=5I"), struct.Struct("=2q")
_REALTIME, _LONGEST_NS = 256, int(np.iinfo(np.int64).max)
_COMMAND, _WAIT, _LOCK_PI, _WAIT_BITSET, _LOCK_PI2 = 0x7F, 0, 6, 9, 13  # include/uapi/linux/futex.h
_TID_MASK, _WAITERS = 0x3FFFFFFF, 0x80000000
_MUTEX, _RWLOCK = 2, 3  # values of contended locks
_MUTEX_KINDS, _MOST_USERS = 0x1FF, 1 << 20
_NSPID: Final = re.compile(rb"^NSpid:\t([\d\t]+)$", re.MULTILINE)


def owner_in(words: tuple[int, ...], operation: int, value: int) -> int:
    """Return the thread id in the words of a lock that begin with its futex; 0 unknown.

    Args:
        operation: of futex(2).
        value: the value that the caller expected in the futex.
    """
    command = operation & _COMMAND
    if command in (_LOCK_PI, _LOCK_PI2):
        return words[0] & _TID_MASK
    if command not in (_WAIT, _WAIT_BITSET):
        return 0
    if value & _WAITERS:
        return value & _TID_MASK
    if value == _RWLOCK:
        return _writer_in(words)
    is_mutex = words[0] == value == _MUTEX and words[3] <= _MOST_USERS and words[4] <= _MUTEX_KINDS
    return words[2] if is_mutex else 0


def _writer_in(words: tuple[int, ...]) -> int:
    """Return the writer of a pthread_rwlock_t, of which threads wait for one of two words."""
    if words[2]:  # padding, whichever of both it is
        return 0
    if words[3]:
        return 0 if words[1] else words[3]
    return words[4]


def timeout_in(operation: int, spec: bytes, since_ns: int) -> int:
    """Return the time after which a wait in futex(2) ends by itself, ns; at most that of an int64.

    Args:
        spec: struct timespec, of the memory of any process.
        since_ns: begin of the wait, CLOCK_MONOTONIC.
    """
    seconds, ns = _TIMESPEC.unpack(spec)
    command, moment = operation & _COMMAND, seconds * 10**9 + ns
    if command == _WAIT:
        return int(min(max(moment, 0), _LONGEST_NS))
    if operation & _REALTIME or command == _LOCK_PI:
        moment -= time.clock_gettime_ns(time.CLOCK_REALTIME) - time.clock_gettime_ns(time.CLOCK_MONOTONIC)
    return int(min(max(moment - since_ns, 0), _LONGEST_NS))


def with_holders(last: LastTasks, unread: Unread) -> LastTasks:
    """Set `holder_tid` of tasks that wait for a lock whose owner is known, and `asked_ns` of timed waits.

    Args:
        unread: counts the locks for which there is no time.
    """
    futexes = [nr for nr, (what, _) in call_numbers(platform.machine()).items() if what == "futex"]
    rows = last.waiting()
    rows = rows[np.isin(last.tasks["syscall"][rows], futexes) & (last.tasks["object_id"][rows] != 0)]
    pids = last.tasks["pid"][rows].tolist()
    found = of_each(rows.tolist(), pids, lambda row: _holder_and_timeout(last.tasks[row]), unread)
    tasks = last.tasks.copy()
    for row, (tid, asked_ns) in found.items():
        if tid:
            tasks["holder_tid"][row] = tid
        if asked_ns is not None:
            tasks["asked_ns"][row] = asked_ns
    return replace(last, tasks=tasks)


def _holder_and_timeout(task: NDArray[Any]) -> tuple[int, int | None]:
    """Return the thread that holds the lock of a task, 0 unknown, and the timeout, None for none."""
    pid, tid = int(task["pid"]), int(task["tid"])
    address, operation, value, timeout, *_ = arguments_of(task)
    words = read_memory(tid, address, _WORDS.size)
    owner = owner_in(_WORDS.unpack(words), operation, value & 0xFFFFFFFF) if words else 0
    spec = read_memory(tid, timeout, _TIMESPEC.size) if timeout else b""
    asked_ns = timeout_in(operation, spec, int(task["switch_out_ns"])) if spec else None
    return _outer(pid, owner) if owner else 0, asked_ns


def _outer(pid: int, tid: int) -> int:
    """Return the id here of a thread of a process that knows it as `tid`; 0 if there is none."""
    for name in os.listdir(f"/proc/{pid}/task"):
        try:
            ids = _NSPID.search(read_kernel(f"/proc/{pid}/task/{name}/status", 1 << 16))
        except OSError:
            continue
        if ids and int(ids[1].split()[-1]) == tid:
            return int(name)
    return 0
