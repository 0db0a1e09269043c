# SPDX-License-Identifier: Apache-2.0
"""Budgets of threads, from `offcpu-counters` samples to the model."""

from __future__ import annotations

import numpy as np

from perf_offcpu.abi.budget import BUDGET, BUDGETS, MAGIC
from perf_offcpu.layout import Order
from perf_offcpu.model.columns import I64, U64
from perf_offcpu.model.recording import Budget

_HEAD = BUDGETS.offset("budgets")
_SAME = (
    "running_ns", "runnable_ns", "preempted_ns", "interruptible_ns", "uninterruptible_ns", "idle_ns",
    "other_ns", "switches",
)  # fmt: skip
_LIMIT = np.uint64(2**62)


def is_budget(payload: bytes, order: Order) -> bool:
    """Whether a payload of the event holds budgets."""
    return payload[:4] == MAGIC.to_bytes(4, "little" if order == "<" else "big")


def read_budgets(payload: bytes, order: Order) -> Budget | None:
    """The budgets in a payload; None if it is damaged.

    Rows that cannot be (an end before the begin, times beyond the clock's) are left out.
    """
    dtype = BUDGET.dtype(order)
    if len(payload) < _HEAD:
        return None
    number = int(np.frombuffer(payload, f"{order}u2", 1, _HEAD - 2)[0])
    if _HEAD + number * dtype.itemsize > len(payload):
        return None
    rows = np.frombuffer(payload, dtype, number, _HEAD)
    sound = (rows["begin_ns"] <= rows["end_ns"]) & (rows["end_ns"] < _LIMIT)
    for name in (*_SAME, "stopped_ns", "traced_ns"):
        sound &= rows[name] < _LIMIT
    rows = rows[sound]
    return Budget.filled(
        len(rows),
        pid=rows["pid"].astype(np.uint32).view(np.int32),
        tid=rows["tid"].astype(np.uint32).view(np.int32),
        begin_ns=_signed(rows["begin_ns"]),
        end_ns=_signed(rows["end_ns"]),
        stopped_ns=_signed(rows["stopped_ns"] + rows["traced_ns"]),
        **{name: _signed(rows[name]) for name in _SAME},
    )


def _signed(values: U64) -> I64:
    return values.astype(np.int64)


def sorted_budget(parts: list[Budget]) -> Budget:
    """All of them, by (tid, begin)."""
    budget = Budget.concat(parts)
    return budget.take(np.lexsort((budget.begin_ns, budget.tid)))
