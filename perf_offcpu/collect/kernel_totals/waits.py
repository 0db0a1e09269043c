# SPDX-License-Identifier: Apache-2.0
"""Write the waits of which BPF sends no samples of the event `offcpu-time`: sums of short waits, and unfinished waits.

The BPF program adds up waits under the threshold by thread, state, system call, cgroup and user stack. In the file a
sum is a sample like that of a single wait, with the same payload: its kind is SUM, its period and `offcpu_ns` are the
total, its time is the end of the last wait. Unlike a sample from BPF, it has the sleeper in the header, too.

An iterator reports the waits that have not ended when the recording or one of its files ends (`bpf/last_tasks.py`).
Their samples end at that moment, with the kind STILL_BLOCKED: the period is the time so far within the recording."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perf_offcpu.abi import offcpu
from perf_offcpu.abi.machine import ABI_64
from perf_offcpu.abi.offcpu import PAYLOAD, UNKNOWN_U32, UNKNOWN_U64, WHOLE_EXTENSION, Kind
from perf_offcpu.abi.records import CpuMode
from perf_offcpu.abi.sample import CallchainContext
from perf_offcpu.binary.columnar import offsets_of
from perf_offcpu.binary.layout import U32, Field, Layout
from perf_offcpu.collect.bpf.last_tasks import LastTasks
from perf_offcpu.collect.events.perf_event import NATIVE
from perf_offcpu.collect.kernel_totals.user_stacks import NO_STACK, Unread, registers_of, take_user_stacks
from perf_offcpu.model.callchains import Ragged
from perf_offcpu.perfdata.events import EventSpec
from perf_offcpu.perfdata.write.columns import Column, pack_columns, pack_samples

U64 = NDArray[np.uint64]
BATCH = 8192  # sums that are packed at once: some MB

# The kernel pads raw data so that it ends on 8 bytes together with its size field of 4.
_TCP_FACTS = Field("tcp", U32, count="tcp_nr")
_RAW = Layout(
    "raw data of an offcpu-time sample", *PAYLOAD.fields, *WHOLE_EXTENSION, _TCP_FACTS, Field("raw_padding", U32)
)
_FROM_ROWS = ("pid", "tid", "cgroup", "flags", "lost", "state", "syscall")
"""Members that `struct offcpu_sum` and `struct offcpu_last` have in common with the payload."""

_TASKS_AT_ONCE = 512  # tasks whose records are packed at once: some MB of copies


def sum_samples(event: EventSpec, sums: NDArray[Any], stacks: Ragged) -> Iterator[tuple[NDArray[Any], bytes]]:
    """Yield (at most BATCH rows of `sums`; their sample records). `event`: offcpu-time; its first id is used. `sums`:
    rows with the fields of `struct offcpu_sum_key` and `struct offcpu_sum` (bpf/off_cpu.h). `stacks`: user stack of
    each row, leaf first, without markers."""
    for low in range(0, len(sums), BATCH):
        rows = sums[low : low + BATCH]
        chains = with_marker(CallchainContext.USER, stacks.take(np.arange(low, low + len(rows))))
        payload: dict[str, Column] = {
            "offcpu_ns": rows["total_ns"],
            "kind": int(Kind.SUM),
            "switch_out_ns": rows["first_switch_out_ns"],
            "count": rows["count"],
            "longest_ns": rows["longest_ns"],
            "runq_ns": np.where(rows["woken"] > 0, rows["runq_ns"], np.uint64(UNKNOWN_U64)),
            "caller": rows["caller"],
            "object_id": rows["object_id"],
        }
        yield rows, wait_samples(event, CpuMode.USER, rows, rows["last_switch_in_ns"], chains, payload)


SUM_KEY = ("tid", "pid", "state", "syscall", "flags", "cgroup", "object_id")
"""Members of `struct offcpu_sum_key` and `struct offcpu_sum` that identify a sum, apart from its stack."""
_REDUCED = {
    **dict.fromkeys(("total_ns", "count", "runq_ns", "woken"), np.add),
    **dict.fromkeys(("longest_ns", "last_switch_in_ns"), np.maximum),
    "first_switch_out_ns": np.minimum,
}


def united(sums: NDArray[Any]) -> NDArray[Any]:
    """Add up the sums with equal SUM_KEY; return one row for each key. `sums`: rows as in `sum_samples`."""
    rows = sums[np.lexsort([sums[name] for name in SUM_KEY])]
    keys = rows[[*SUM_KEY]]
    first = np.flatnonzero(np.append(True, keys[1:] != keys[:-1])[: len(rows)])
    result = rows[first]
    for name, reduce in _REDUCED.items() if len(first) else ():
        result[name] = reduce.reduceat(rows[name], first)
    return result


def wait_samples(
    event: EventSpec,
    cpumode: CpuMode,
    rows: NDArray[Any],
    time_ns: U64,
    callchains: Ragged,
    payload: dict[str, Column],
    copies: dict[str, Column] | None = None,
) -> bytes:
    """Pack one sample of offcpu-time per row. `rows`: sums or tasks; their fields `_FROM_ROWS` go into the payload.
    `time_ns`: time of each sample. `callchains`: callchain of each row, with context markers; may be empty. `payload`:
    further fields of the payload; fields that neither `rows` nor `payload` has get sentinels. `copies`: columns of user
    registers and stack bytes (`copy_columns`); None for samples without."""
    fields = {name: rows[name] for name in _FROM_ROWS}
    padding = {"padding": 0, "raw_padding": 0}
    nothing = np.zeros(len(rows) + 1, np.int64)
    no_tcp = {"tcp": (nothing, np.empty(0, np.uint32))}
    chains = {"callchain": (callchains.offsets, callchains.values)}
    raw = {**offcpu.BLANK_EXTENSION, **fields, **padding, **no_tcp, **payload, **chains}
    columns: dict[str, Column] = {
        **dict.fromkeys(("cpu", "cpu_res", "regs_user_abi", "stack_user_dyn_size"), 0),
        **dict.fromkeys(("callchain", "regs_user"), (nothing, np.empty(0, np.uint64))),
        "stack_user": (nothing, np.empty(0, np.uint8)),
        "identifier": event.ids[0],
        "ip": first_addresses(callchains),
        "pid": rows["pid"],
        "tid": rows["tid"],
        "time": time_ns,
        "period": payload["offcpu_ns"],
        "raw": pack_columns(_RAW, raw, len(rows), NATIVE),
        **(copies or {}),
    }
    return pack_samples(event.shape, int(cpumode), columns, len(rows), NATIVE)


def with_marker(marker: int, stacks: Ragged) -> Ragged:
    """Return the stacks with a context marker (CallchainContext) put before each; an empty stack stays empty."""
    offsets = offsets_of(np.sign(stacks.lengths))
    return Ragged.hstack([Ragged(offsets, np.full(offsets[-1], marker, np.uint64)), stacks])


def first_addresses(callchains: Ragged) -> U64:
    """Return uint64[n]: the leaf of each callchain, which follows its first marker; 0 if it is empty."""
    leaves: U64 = np.append(callchains.values, np.zeros(2, np.uint64))[callchains.offsets[:-1] + 1]
    return np.where(callchains.lengths > 0, leaves, np.uint64(0))


def with_user_stacks(last: LastTasks, again: Callable[[], LastTasks], copy_bytes: int, unread: Unread) -> LastTasks:
    """Return `last` with user stacks of waiting tasks: copies, and frames where the BPF program took none. The stack of
    a task that has run meanwhile is left out, as it is not that of the wait. `again`: runs the iterator over tasks once
    more. `copy_bytes`: usual size of the copies, 0 for none. `unread`: counts stacks that could not be read."""
    tasks, copies, empty = last.tasks.copy(), [b""] * len(last.tasks), last.user.lengths == 0
    wanted = (empty | (copy_bytes > 0)) & (tasks["waits"] != 0) & (registers_of(tasks)["ip"] != 0)
    stacks = take_user_stacks(tasks[wanted], copy_bytes, unread)
    sound = last.stand_still(again())
    frames: dict[int, list[int]] = {}
    for row, stack in zip(np.flatnonzero(wanted).tolist(), stacks, strict=True):
        walked, copies[row] = stack if sound[row] else NO_STACK
        if empty[row]:
            frames[row] = walked
            tasks["lost"][row] |= 0 if walked else np.uint32(offcpu.Lost.USER_STACK)
    user = last.user.replaced(np.array([*frames], np.int64), Ragged.from_lists([*frames.values()]))
    return replace(last, tasks=tasks, user=user, copies=tuple(copies))


def still_blocked_samples(event: EventSpec, last: LastTasks) -> Iterator[tuple[int, bytes]]:
    """Yield (number of samples, their records) of the waiting tasks in `last`, at most _TASKS_AT_ONCE at a time, first
    the tasks with a kernel stack. `event`: offcpu-time; its first id is used."""
    rows = last.waiting()
    in_kernel = last.kernel.lengths[rows] > 0
    for cpumode, chosen in ((CpuMode.KERNEL, rows[in_kernel]), (CpuMode.USER, rows[~in_kernel])):
        for low in range(0, len(chosen), _TASKS_AT_ONCE):
            batch = chosen[low : low + _TASKS_AT_ONCE]
            yield len(batch), _records(event, cpumode, last, batch)


def _records(event: EventSpec, cpumode: CpuMode, last: LastTasks, rows: NDArray[np.int64]) -> bytes:
    parts = {CallchainContext.KERNEL: last.kernel, CallchainContext.USER: last.user}
    callchains = Ragged.hstack([with_marker(marker, stacks.take(rows)) for marker, stacks in parts.items()])
    tasks = last.tasks[rows]
    end = np.maximum(tasks["switch_out_ns"], np.uint64(last.end_ns))
    registers = registers_of(tasks)["sampled"]
    copies = copy_columns(registers, [last.copies[row] for row in rows.tolist()]) if last.copies else None
    return wait_samples(event, cpumode, tasks, end, callchains, _payload(tasks, end), copies)


def copy_columns(registers: U64, stacks: list[bytes]) -> dict[str, Column]:
    """Return the columns of PERF_SAMPLE_REGS_USER and PERF_SAMPLE_STACK_USER for n samples. `registers`: uint64[n,
    registers]. `stacks`: stack bytes of each sample, b"" for a sample without registers and stack."""
    sizes = np.array([len(stack) for stack in stacks], np.int64)
    has_copy = sizes > 0
    padded = b"".join(stack.ljust(-(-len(stack) // 8) * 8, b"\0") for stack in stacks)
    return {
        "regs_user_abi": np.where(has_copy, ABI_64, 0),
        "regs_user": (offsets_of(np.where(has_copy, registers.shape[1], 0)), registers[has_copy].reshape(-1)),
        "stack_user": (offsets_of(-(-sizes // 8) * 8), np.frombuffer(padded, np.uint8)),
        "stack_user_dyn_size": sizes,
    }


def _payload(tasks: NDArray[Any], end: U64) -> dict[str, Column]:
    runnable = (tasks["flags"] & np.uint32(offcpu.WaitFlag.PREEMPTED)) != 0
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
        **{name: tasks[name] for name in ("object_id", "asked_ns", "holder_tid", "object_lost", "tcp_nr")},
        "tcp_offset": np.where(tasks["tcp_nr"] > 0, 8 * offcpu.EXTENSION_WORDS, 0),
        "tcp": (offsets_of(tasks["tcp_nr"].astype(np.int64)), tasks["tcp"][tasks["tcp_nr"] > 0].reshape(-1)),
    }
