# SPDX-License-Identifier: Apache-2.0
"""Sums of short waits, as samples of the event `offcpu-time`.

Waits under the threshold are added up in the kernel, by thread, state, system call, cgroup and user stack.
In the file a sum is a sample like that of a single wait, with the same payload: its kind is SUM, its period
and `offcpu_ns` are the total, its time is the end of the last wait. Unlike a sample that BPF sends, it
carries the sleeper in the header too, because user space writes it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perf_offcpu.abi.offcpu import (
    BLANK_EXTENSION,
    PAYLOAD,
    UNKNOWN_U64,
    WHOLE_EXTENSION,
    Kind,
)
from perf_offcpu.abi.records import CpuMode
from perf_offcpu.abi.sample import CallchainContext
from perf_offcpu.binary.fields import U32, Field
from perf_offcpu.binary.gather import offsets_of
from perf_offcpu.binary.layout import Layout
from perf_offcpu.collect.events.perf_event import NATIVE
from perf_offcpu.perfdata.events import EventSpec
from perf_offcpu.perfdata.write.columns import Column, pack_columns, pack_samples

I64 = NDArray[np.int64]
U64 = NDArray[np.uint64]

BATCH = 8192
"""Sums that are turned into records at once: some MB."""

# The kernel pads raw data so that it ends on 8 bytes together with its size field of 4.
RAW = Layout(
    "raw data of an offcpu-time sample", *PAYLOAD.fields, *WHOLE_EXTENSION, Field("raw_padding", U32)
)
NO_PADDING = {"padding": 0, "raw_padding": 0}


def sum_samples(event: EventSpec, sums: NDArray[Any], stacks: tuple[I64, U64]) -> Iterator[bytes]:
    """Records of some thousand sums at a time.

    Args:
        event: offcpu-time; its first id is used.
        sums: rows of `struct offcpu_sum_key` and `struct offcpu_sum` (bpf/off_cpu.h), by field name.
        stacks: (offsets int64[n + 1], user addresses), leaf first, the stack of each row; may be empty.
    """
    offsets, ips = stacks
    for low in range(0, len(sums), BATCH):
        high = min(low + BATCH, len(sums))
        part = (offsets[low : high + 1] - offsets[low], ips[offsets[low] : offsets[high]])
        yield _records(event, sums[low:high], part)


def _records(event: EventSpec, sums: NDArray[Any], stacks: tuple[I64, U64]) -> bytes:
    columns: dict[str, Column] = {
        "identifier": event.ids[0],
        "ip": first_addresses(stacks),
        "pid": sums["pid"],
        "tid": sums["tid"],
        "time": sums["last_switch_in_ns"],
        "cpu": 0,
        "cpu_res": 0,
        "period": sums["total_ns"],
        "raw": pack_columns(RAW, _payload(sums, stacks), len(sums), NATIVE),
        **no_snapshots(len(sums)),
    }
    return pack_samples(event.shape, int(CpuMode.USER), columns, len(sums), NATIVE)


def no_snapshots(count: int) -> dict[str, Column]:
    """What the event's samples have of a user stack beside the payload, where there is none."""
    nothing = np.zeros(count + 1, np.int64)
    return {
        "callchain": (nothing, np.empty(0, np.uint64)),
        "regs_user_abi": 0,
        "regs_user": (nothing, np.empty(0, np.uint64)),
        "stack_user": (nothing, np.empty(0, np.uint8)),
        "stack_user_dyn_size": 0,
    }


def _payload(sums: NDArray[Any], stacks: tuple[I64, U64]) -> dict[str, Column]:
    return {
        "pid": sums["pid"],
        "tid": sums["tid"],
        "offcpu_ns": sums["total_ns"],
        "callchain": with_user_marker(stacks),
        "cgroup": sums["cgroup"],
        **BLANK_EXTENSION,
        "kind": int(Kind.SUM),
        "flags": sums["flags"],
        "lost": sums["lost"],
        "state": sums["state"],
        "syscall": sums["syscall"],
        "switch_out_ns": sums["first_switch_out_ns"],
        "count": sums["count"],
        "longest_ns": sums["longest_ns"],
        "runq_ns": np.where(sums["woken"] > 0, sums["runq_ns"], np.uint64(UNKNOWN_U64)),
        "caller": sums["caller"],
        **NO_PADDING,
    }


def with_user_marker(stacks: tuple[I64, U64]) -> tuple[I64, U64]:
    """Callchains from plain user stacks: PERF_CONTEXT_USER first; a stack without frames stays empty."""
    offsets, ips = stacks
    counts = np.diff(offsets)
    marked = offsets_of(counts + (counts > 0))
    words = np.full(int(marked[-1]), int(CallchainContext.USER), np.uint64)
    words[np.repeat(marked[1:] - offsets[1:], counts) + np.arange(len(ips))] = ips
    return marked, words


def first_addresses(stacks: tuple[I64, U64]) -> U64:
    """uint64[n]: the leaf of each stack, 0 where it has none."""
    offsets, ips = stacks
    leaves: U64 = np.append(ips, np.uint64(0))[offsets[:-1]]
    return np.where(np.diff(offsets) > 0, leaves, np.uint64(0))
