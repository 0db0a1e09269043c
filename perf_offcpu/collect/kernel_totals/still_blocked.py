# SPDX-License-Identifier: Apache-2.0
"""Write waits that have not ended when the recording or one of its files ends, as samples of `offcpu-time`.

BPF sends samples of waits that end. An iterator reports the others (`bpf/last_tasks.py`), and user space
writes the sample of a wait that ends at that moment, with the kind STILL_BLOCKED: its period is the time so
far, or since the recording began if the switch-out was earlier.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perf_offcpu.abi.offcpu import UNKNOWN_U32, UNKNOWN_U64, Kind, Lost, WaitFlag
from perf_offcpu.abi.records import CpuMode
from perf_offcpu.abi.sample import CallchainContext
from perf_offcpu.binary.gather import offsets_of
from perf_offcpu.collect.bpf.last_tasks import LastTasks
from perf_offcpu.collect.kernel_totals.sums import wait_samples
from perf_offcpu.collect.kernel_totals.user_walk import walk_user_stacks
from perf_offcpu.perfdata.events import EventSpec
from perf_offcpu.perfdata.write.columns import Column

U64 = NDArray[np.uint64]

_KERNEL = np.array([CallchainContext.KERNEL], np.uint64)
_USER = np.array([CallchainContext.USER], np.uint64)


def with_user_stacks(last: LastTasks) -> LastTasks:
    """Add the user stacks of waiting tasks whose stack the BPF program did not take."""
    tasks, user = last.tasks.copy(), list(last.user)
    empty = np.array([not len(stack) for stack in user], np.bool_)
    missing = empty & (tasks["waits"] != 0) & (tasks["ip"] != 0)
    for row, stack in zip(np.flatnonzero(missing).tolist(), walk_user_stacks(tasks[missing]), strict=True):
        user[row] = stack
        tasks["lost"][row] |= 0 if len(stack) else np.uint32(Lost.USER_STACK)
    return replace(last, tasks=tasks, user=tuple(user))


def still_blocked_samples(event: EventSpec, last: LastTasks) -> bytes:
    """Return the records of all waiting tasks, first of those that have a kernel stack.

    Args:
        event: offcpu-time; its first id is used.
        last: all tasks, with their user stacks.
    """
    rows = last.waiting().tolist()
    in_kernel = [row for row in rows if len(last.kernel[row])]
    in_user = [row for row in rows if not len(last.kernel[row])]
    return _records(event, CpuMode.KERNEL, last, in_kernel) + _records(event, CpuMode.USER, last, in_user)


def _records(event: EventSpec, cpumode: CpuMode, last: LastTasks, rows: list[int]) -> bytes:
    if not rows:
        return b""
    chains = [_chain(last.kernel[row], last.user[row]) for row in rows]
    callchains = offsets_of(np.array([len(chain) for chain in chains])), np.concatenate(chains)
    tasks = last.tasks[rows]
    end = np.maximum(tasks["switch_out_ns"], np.uint64(last.end_ns))
    return wait_samples(event, cpumode, tasks, end, callchains, _payload(tasks, end))


def _chain(kernel: U64, user: U64) -> U64:
    """Return the callchain, with markers for the parts that are not empty."""
    return np.concatenate([_KERNEL[: len(kernel)], kernel, _USER[: len(user)], user])


def _payload(tasks: NDArray[Any], end: U64) -> dict[str, Column]:
    runnable = (tasks["flags"] & np.uint32(WaitFlag.PREEMPTED)) != 0
    woken = (tasks["wakeup_ns"] != 0) & ~runnable
    wakeup = np.maximum(tasks["wakeup_ns"], tasks["switch_out_ns"])
    waited = end - tasks["switch_out_ns"]
    delay = np.where(woken, end - np.minimum(wakeup, end), np.uint64(UNKNOWN_U64))
    return {
        "offcpu_ns": waited,
        "kind": int(Kind.STILL_BLOCKED),
        "waker_pid": np.where(woken, tasks["waker_pid"], np.uint32(UNKNOWN_U32)),
        "waker_tid": np.where(woken, tasks["waker_tid"], np.uint32(UNKNOWN_U32)),
        "wakeup_ns": np.where(woken, wakeup, np.uint64(UNKNOWN_U64)),
        "switch_out_ns": tasks["switch_out_ns"],
        "longest_ns": waited,
        "runq_ns": np.where(runnable, waited, delay),
    }
