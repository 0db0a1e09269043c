# SPDX-License-Identifier: Apache-2.0
"""Budgets of threads as samples of the event `offcpu-counters` (abi/counters.py)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perf_offcpu.abi.counters import BUDGET, BUDGET_MAGIC, BUDGETS, VERSION
from perf_offcpu.abi.records import CpuMode
from perf_offcpu.collect.events.perf_event import NATIVE
from perf_offcpu.perfdata.events import EventSpec
from perf_offcpu.perfdata.write.columns import Column, pack_samples

BATCH = 256
"""Budgets in one sample: a record has room for some 500."""


def budget_samples(
    event: EventSpec, budgets: NDArray[Any], modes: Sequence[str], time_ns: int, recorder_pid: int
) -> Iterator[bytes]:
    """Records with these budgets.

    Args:
        event: offcpu-counters.
        budgets: rows of `struct offcpu_budget` (bpf/off_cpu.h).
        modes: what the buckets of their field `ns` are: `enum offcpu_mode`.
        time_ns: of the samples.
        recorder_pid: the process that perf shall show them for.
    """
    rows = _rows(budgets, modes)
    for low in range(0, len(rows), BATCH):
        part = rows[low : low + BATCH]
        head = BUDGETS.pack({"magic": BUDGET_MAGIC, "version": VERSION, "nr": 0, "budgets": []}, NATIVE)
        raw = head[:6] + np.uint16(len(part)).tobytes() + part.tobytes()
        yield account_sample(event, raw, time_ns, recorder_pid)


def _rows(budgets: NDArray[Any], modes: Sequence[str]) -> NDArray[Any]:
    """As they lie in the file. Time in which a thread was dead is none."""
    rows = np.zeros(len(budgets), BUDGET.dtype(NATIVE))
    for name in ("pid", "tid", "begin_ns", "end_ns", "switches"):
        rows[name] = budgets[name]
    for index, mode in enumerate(modes):
        if f"{mode}_ns" in (rows.dtype.names or ()):
            rows[f"{mode}_ns"] = budgets["ns"][:, index]
    return rows


def account_sample(event: EventSpec, payload: bytes, time_ns: int, recorder_pid: int) -> bytes:
    """One sample of the event in which the recorder tells of the recording itself."""
    raw = payload + bytes(4)  # as the kernel pads: size field and data end on 8 bytes
    columns: dict[str, Column] = {
        "identifier": event.ids[0],
        "ip": 0,
        "pid": recorder_pid,
        "tid": recorder_pid,
        "time": time_ns,
        "cpu": 0,
        "cpu_res": 0,
        "period": 0,
        "raw": (np.array([0, len(raw)]), np.frombuffer(raw, np.uint8)),
    }
    return pack_samples(event.shape, int(CpuMode.USER), columns, 1, NATIVE)
