# SPDX-License-Identifier: Apache-2.0
"""Threads that have not come back when the recording or a file of it ends, as samples of `offcpu-time`.

Their waits have not ended, so BPF sends nothing of them. An iterator shows them (`bpf_last`), and user space
writes what a wait that ends at that moment would be, with the kind STILL_BLOCKED: its period is the time so
far, or since the recording began if that is all that is known.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perf_offcpu.abi.offcpu import BLANK_EXTENSION, UNKNOWN_U32, UNKNOWN_U64, Kind, Lost, WaitFlag
from perf_offcpu.abi.records import CpuMode
from perf_offcpu.abi.sample import CallchainContext
from perf_offcpu.collect.events.perf_event import NATIVE
from perf_offcpu.collect.kernel_totals.last_states import LastTasks
from perf_offcpu.collect.kernel_totals.sums import NO_PADDING, RAW, no_snapshots
from perf_offcpu.perfdata.events import EventSpec
from perf_offcpu.perfdata.write.columns import Column, pack_columns, pack_samples

U64 = NDArray[np.uint64]

UserWalk = Callable[[NDArray[Any]], list[U64]]
"""Walks the user stacks of tasks (rows of `struct offcpu_last`); an empty stack is one that failed."""

_KERNEL = np.array([CallchainContext.KERNEL], np.uint64)
_USER = np.array([CallchainContext.USER], np.uint64)
_NONE = np.empty(0, np.uint64)


def with_user_stacks(last: LastTasks, walk: UserWalk) -> LastTasks:
    """With the user stacks of tasks that wait and whose stack the program did not take.

    Args:
        last: all tasks.
        walk: takes them.
    """
    tasks, user = last.tasks.copy(), list(last.user)
    empty = np.array([not len(stack) for stack in user], np.bool_)
    missing = empty & (tasks["waits"] != 0) & (tasks["ip"] != 0)
    for row, stack in zip(np.flatnonzero(missing).tolist(), walk(tasks[missing]), strict=True):
        user[row] = stack
        tasks["lost"][row] |= 0 if len(stack) else np.uint32(Lost.USER_STACK)
    return replace(last, tasks=tasks, user=tuple(user))


def still_blocked_samples(event: EventSpec, last: LastTasks) -> bytes:
    """Records of all that wait.

    Args:
        event: offcpu-time; its first id is used.
        last: all tasks, with their user stacks.
    """
    rows = last.waiting()
    tasks = last.tasks[rows]
    if not len(rows):
        return b""
    chains = [_chain(last.kernel[row], last.user[row]) for row in rows]
    in_kernel = np.array([len(last.kernel[row]) > 0 for row in rows])
    parts = []
    for cpumode, mask in ((CpuMode.KERNEL, in_kernel), (CpuMode.USER, ~in_kernel)):
        mine = np.flatnonzero(mask)
        if len(mine):
            some = [chains[at] for at in mine.tolist()]
            parts.append(_records(event, tasks[mine], some, last.end_ns, int(cpumode)))
    return b"".join(parts)


def _chain(kernel: U64, user: U64) -> U64:
    parts = [_KERNEL if len(kernel) else _NONE, kernel, _USER if len(user) else _NONE, user]
    return np.concatenate(parts)


def _records(event: EventSpec, tasks: NDArray[Any], chains: list[U64], end_ns: int, cpumode: int) -> bytes:
    offsets = np.cumsum([0, *map(len, chains)])
    end = np.maximum(tasks["switch_out_ns"], np.uint64(end_ns))
    raw = _payload(tasks, (offsets, np.concatenate(chains)), end)
    columns: dict[str, Column] = {
        "identifier": event.ids[0],
        "ip": np.array([int(chain[1]) if len(chain) else 0 for chain in chains], np.uint64),
        "pid": tasks["pid"],
        "tid": tasks["tid"],
        "time": end,
        "cpu": 0,
        "cpu_res": 0,
        "period": raw["offcpu_ns"],
        "raw": pack_columns(RAW, raw, len(tasks), NATIVE),
        **no_snapshots(len(tasks)),
    }
    return pack_samples(event.shape, cpumode, columns, len(tasks), NATIVE)


def _payload(tasks: NDArray[Any], chains: tuple[NDArray[np.int64], U64], end: U64) -> dict[str, Any]:
    flags = tasks["flags"]
    runnable = (flags & np.uint32(WaitFlag.PREEMPTED)) != 0
    woken = (tasks["wakeup_ns"] != 0) & ~runnable
    wakeup = np.maximum(tasks["wakeup_ns"], tasks["switch_out_ns"])
    waited = end - tasks["switch_out_ns"]
    delay = np.where(woken, end - np.minimum(wakeup, end), np.uint64(UNKNOWN_U64))
    return {
        "pid": tasks["pid"],
        "tid": tasks["tid"],
        "offcpu_ns": waited,
        "callchain": chains,
        "cgroup": tasks["cgroup"],
        **BLANK_EXTENSION,
        "kind": int(Kind.STILL_BLOCKED),
        "flags": flags,
        "lost": tasks["lost"],
        "state": tasks["state"],
        "syscall": tasks["syscall"],
        "waker_pid": np.where(woken, tasks["waker_pid"], np.uint32(UNKNOWN_U32)),
        "waker_tid": np.where(woken, tasks["waker_tid"], np.uint32(UNKNOWN_U32)),
        "wakeup_ns": np.where(woken, wakeup, np.uint64(UNKNOWN_U64)),
        "switch_out_ns": tasks["switch_out_ns"],
        "longest_ns": waited,
        "runq_ns": np.where(runnable, waited, delay),
        **NO_PADDING,
    }
