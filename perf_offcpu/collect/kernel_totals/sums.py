# SPDX-License-Identifier: Apache-2.0
"""Write sums of short waits as samples of the event `offcpu-time`.

The kernel side adds up waits under the threshold by thread, state, system call, cgroup and user stack. In the file a
sum is a sample like that of a single wait, with the same payload: its kind is SUM, its period and `offcpu_ns` are the
total, its time is the end of the last wait. Unlike a sample from BPF, it has the sleeper in the header, too, because
user space writes it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perf_offcpu.abi.offcpu import BLANK_EXTENSION, PAYLOAD, UNKNOWN_U64, WHOLE_EXTENSION, Kind
from perf_offcpu.abi.records import CpuMode
from perf_offcpu.abi.sample import CallchainContext
from perf_offcpu.binary.fields import U32, Field
from perf_offcpu.binary.gather import offsets_of
from perf_offcpu.binary.layout import Layout
from perf_offcpu.collect.events.perf_event import NATIVE
from perf_offcpu.perfdata.events import EventSpec
from perf_offcpu.perfdata.write.columns import Column, pack_columns, pack_samples

U64 = NDArray[np.uint64]
Stacks = tuple[NDArray[np.int64], U64]
"""offsets int64[n + 1] and words: those of row i are words[offsets[i]:offsets[i + 1]], leaf first."""

BATCH = 8192
"""Sums that are packed at once: some MB."""

# The kernel pads raw data so that it ends on 8 bytes together with its size field of 4.
_RAW = Layout("raw data of an offcpu-time sample", *PAYLOAD.fields, *WHOLE_EXTENSION, Field("raw_padding", U32))
_FROM_ROWS = ("pid", "tid", "cgroup", "flags", "lost", "state", "syscall")
"""Members that `struct offcpu_sum` and `struct offcpu_last` have in common with the payload."""


def sum_samples(event: EventSpec, sums: NDArray[Any], stacks: Stacks) -> Iterator[bytes]:
    """Yield the records of sums, `BATCH` at a time.

    Args:
        event: offcpu-time; its first id is used.
        sums: rows of `struct offcpu_sum_key` and `struct offcpu_sum` (bpf/off_cpu.h), by field name.
        stacks: user addresses of each row, maybe none.
    """
    offsets, ips = stacks
    for low in range(0, len(sums), BATCH):
        rows = sums[low : low + BATCH]
        ends = offsets[low : low + len(rows) + 1]
        chains = with_user_marker((ends - ends[0], ips[ends[0] : ends[-1]]))
        payload: dict[str, Column] = {
            "offcpu_ns": rows["total_ns"],
            "kind": int(Kind.SUM),
            "switch_out_ns": rows["first_switch_out_ns"],
            "count": rows["count"],
            "longest_ns": rows["longest_ns"],
            "runq_ns": np.where(rows["woken"] > 0, rows["runq_ns"], np.uint64(UNKNOWN_U64)),
            "caller": rows["caller"],
        }
        yield wait_samples(event, CpuMode.USER, rows, rows["last_switch_in_ns"], chains, payload)


def wait_samples(
    event: EventSpec,
    cpumode: CpuMode,
    rows: NDArray[Any],
    time_ns: U64,
    callchains: Stacks,
    payload: dict[str, Column],
    copies: dict[str, Column] | None = None,
) -> bytes:
    """Pack one sample of offcpu-time per row.

    Args:
        rows: sums or tasks, of which the payload takes `_FROM_ROWS`.
        callchains: of each row, with context markers, maybe empty.
        payload: further fields of the payload; others are unknown.
        copies: fields of user registers and stack bytes; without them no sample has any.
    """
    taken = {name: rows[name] for name in _FROM_ROWS}
    padding = {"padding": 0, "raw_padding": 0}
    raw = {**BLANK_EXTENSION, **taken, **padding, **payload, "callchain": callchains}
    nothing = np.zeros(len(rows) + 1, np.int64)
    columns: dict[str, Column] = {
        "identifier": event.ids[0],
        "ip": first_addresses(callchains),
        "pid": rows["pid"],
        "tid": rows["tid"],
        "time": time_ns,
        "cpu": 0,
        "cpu_res": 0,
        "period": payload["offcpu_ns"],
        "callchain": (nothing, np.empty(0, np.uint64)),
        "raw": pack_columns(_RAW, raw, len(rows), NATIVE),
        "regs_user_abi": 0,
        "regs_user": (nothing, np.empty(0, np.uint64)),
        "stack_user": (nothing, np.empty(0, np.uint8)),
        "stack_user_dyn_size": 0,
        **(copies or {}),
    }
    return pack_samples(event.shape, int(cpumode), columns, len(rows), NATIVE)


def with_user_marker(stacks: Stacks) -> Stacks:
    """Insert PERF_CONTEXT_USER before the addresses of each stack; a stack without any stays empty."""
    offsets, ips = stacks
    counts = np.diff(offsets)
    marked = offsets_of(counts + (counts > 0))
    words = np.full(int(marked[-1]), int(CallchainContext.USER), np.uint64)
    words[np.repeat(marked[1:] - offsets[1:], counts) + np.arange(len(ips))] = ips
    return marked, words


def first_addresses(callchains: Stacks) -> U64:
    """Return the leaf of each callchain, which follows its first marker; 0 if it is empty."""
    offsets, words = callchains
    leaves: U64 = np.append(words, np.zeros(2, np.uint64))[offsets[:-1] + 1]
    return np.where(np.diff(offsets) > 0, leaves, np.uint64(0))
