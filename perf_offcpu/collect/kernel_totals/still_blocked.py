# SPDX-License-Identifier: Apache-2.0
"""Write waits that have not ended when the recording or one of its files ends, as samples of `offcpu-time`.

BPF sends samples of waits that end. An iterator reports the others (`bpf/last_tasks.py`), and user space writes the
sample of a wait that ends at that moment, with the kind STILL_BLOCKED: its period is the time so far, or since the
recording began if the switch-out was earlier.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perf_offcpu.abi.machine import ABI_64
from perf_offcpu.abi.offcpu import UNKNOWN_U32, UNKNOWN_U64, Kind, Lost, WaitFlag
from perf_offcpu.abi.records import CpuMode
from perf_offcpu.abi.sample import CallchainContext
from perf_offcpu.binary.gather import offsets_of
from perf_offcpu.collect.bpf.last_tasks import LastTasks
from perf_offcpu.collect.kernel_totals.memory import Unread
from perf_offcpu.collect.kernel_totals.sums import Stacks, wait_samples
from perf_offcpu.collect.kernel_totals.user_stacks import UserStack, registers_of, take_user_stacks
from perf_offcpu.perfdata.events import EventSpec
from perf_offcpu.perfdata.write.columns import Column

U64 = NDArray[np.uint64]

_KERNEL = np.array([CallchainContext.KERNEL], np.uint64)
_USER = np.array([CallchainContext.USER], np.uint64)

BATCH = 512
"""Tasks whose records are packed at once: some MB of copies."""


def with_user_stacks(last: LastTasks, again: Callable[[], LastTasks], copy_bytes: int, unread: Unread) -> LastTasks:
    """Add the user stacks of waiting tasks: copies, and frames where the BPF program took none.

    The stack of a task that has run meanwhile belongs to something else, and is not taken.

    Args:
        again: runs the iterator once more.
        copy_bytes: usual size of the copies, 0 for none.
        unread: as of `take_user_stacks`.
    """
    tasks, user, copies = last.tasks.copy(), list(last.user), [b""] * len(last.tasks)
    empty = np.array([not len(stack) for stack in user], np.bool_)
    wanted = (empty | (copy_bytes > 0)) & (tasks["waits"] != 0) & (registers_of(tasks)["ip"] != 0)
    stacks = take_user_stacks(tasks[wanted], copy_bytes, unread)
    sound = last.stand_still(again())
    for row, stack in zip(np.flatnonzero(wanted).tolist(), stacks, strict=True):
        taken = stack if sound[row] else UserStack()
        copies[row] = taken.copy
        if empty[row]:
            user[row] = np.array(taken.frames, np.uint64)
            tasks["lost"][row] |= 0 if taken.frames else np.uint32(Lost.USER_STACK)
    return replace(last, tasks=tasks, user=tuple(user), copies=tuple(copies))


def still_blocked_samples(event: EventSpec, last: LastTasks) -> Iterator[tuple[int, bytes]]:
    """Yield number and records of all waiting tasks, first of those that have a kernel stack. `event`: offcpu-time; its
    first id is used. `last`: all tasks, with their user stacks."""
    rows = last.waiting().tolist()
    in_kernel = [row for row in rows if len(last.kernel[row])]
    in_user = [row for row in rows if not len(last.kernel[row])]
    for cpumode, some in ((CpuMode.KERNEL, in_kernel), (CpuMode.USER, in_user)):
        for low in range(0, len(some), BATCH):
            batch = some[low : low + BATCH]
            yield len(batch), _records(event, cpumode, last, batch)


def _records(event: EventSpec, cpumode: CpuMode, last: LastTasks, rows: list[int]) -> bytes:
    chains = [_chain(last.kernel[row], last.user[row]) for row in rows]
    callchains = offsets_of(np.array([len(chain) for chain in chains])), np.concatenate(chains)
    tasks = last.tasks[rows]
    end = np.maximum(tasks["switch_out_ns"], np.uint64(last.end_ns))
    copies = _copies(tasks, [last.copies[row] for row in rows]) if last.copies else None
    return wait_samples(event, cpumode, tasks, end, callchains, _payload(tasks, end), copies)


def _copies(tasks: NDArray[Any], stacks: list[bytes]) -> dict[str, Column]:
    """Return the fields of PERF_SAMPLE_REGS_USER and PERF_SAMPLE_STACK_USER; empty without a copy."""
    sizes = np.array([len(stack) for stack in stacks], np.int64)
    has_copy = sizes > 0
    registers = registers_of(tasks)["sampled"]
    padded = b"".join(stack.ljust(-(-len(stack) // 8) * 8, b"\0") for stack in stacks)
    words: Stacks = (offsets_of(np.where(has_copy, registers.shape[1], 0)), registers[has_copy].reshape(-1))
    return {
        "regs_user_abi": np.where(has_copy, ABI_64, 0),
        "regs_user": words,
        "stack_user": (offsets_of(-(-sizes // 8) * 8), np.frombuffer(padded, np.uint8)),
        "stack_user_dyn_size": sizes,
    }


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
        **{name: tasks[name] for name in ("object_id", "asked_ns", "holder_tid", "object_lost")},
    }
