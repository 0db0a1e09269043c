# SPDX-License-Identifier: Apache-2.0
"""Decode the budgets of threads in `offcpu-counters` samples."""

from __future__ import annotations

import numpy as np

from perf_offcpu.abi.budget import BUDGET, BUDGETS, MAGIC
from perf_offcpu.binary.fields import Order
from perf_offcpu.model.columns import I32, I64, U64
from perf_offcpu.model.recording import Budget
from perf_offcpu.structs import frozen

_HEAD = BUDGETS.offset("budgets")
_ADDED_UP = (
    "running_ns", "runnable_ns", "preempted_ns", "interruptible_ns", "uninterruptible_ns", "idle_ns",
    "other_ns", "switches",
)  # fmt: skip
_LIMIT = np.uint64(2**62)


def is_budget(payload: bytes, order: Order) -> bool:
    """Return whether a payload of the event holds budgets."""
    return payload[:4] == MAGIC.to_bytes(4, "little" if order == "<" else "big")


def read_budgets(payload: bytes, order: Order) -> Budget | None:
    """Return the budgets in a payload; None if it is damaged.

    Impossible rows (an end before the begin, times beyond the clock's) are left out.
    """
    dtype = BUDGET.dtype(order)
    if len(payload) < _HEAD:
        return None
    number = int(np.frombuffer(payload, f"{order}u2", 1, _HEAD - 2)[0])
    if _HEAD + number * dtype.itemsize > len(payload):
        return None
    rows = np.frombuffer(payload, dtype, number, _HEAD)
    sound = (rows["begin_ns"] <= rows["end_ns"]) & (rows["end_ns"] < _LIMIT)
    for name in (*_ADDED_UP, "stopped_ns", "traced_ns"):
        sound &= rows[name] < _LIMIT
    rows = rows[sound]
    return Budget.filled(
        len(rows),
        pid=rows["pid"].astype(np.uint32).view(np.int32),
        tid=rows["tid"].astype(np.uint32).view(np.int32),
        begin_ns=_signed(rows["begin_ns"]),
        end_ns=_signed(rows["end_ns"]),
        stopped_ns=_signed(rows["stopped_ns"] + rows["traced_ns"]),
        **{name: _signed(rows[name]) for name in _ADDED_UP},
    )


def _signed(values: U64) -> I64:
    return values.astype(np.int64)


@frozen
class Borders:
    """Moments at which the budgets of threads go on from one file of a recording to the next.

    Args:
        tid: int32[n].
        time_ns: int64[n].
    """

    tid: I32
    time_ns: I64


def joined_budget(parts: list[Budget]) -> tuple[Budget, Borders]:
    """Return all budgets, by (tid, begin); rows that several files have of one life of a thread are added.

    Such rows begin at the very ns at which the row before ended; rows of separate recordings do not.
    """
    budget = Budget.concat(parts)
    budget = budget.take(np.lexsort((budget.end_ns, budget.begin_ns, budget.tid)))
    goes_on = np.zeros(len(budget), np.bool_)
    goes_on[1:] = budget.begin_ns[1:] == budget.end_ns[:-1]
    for column in (budget.tid, budget.pid):
        goes_on[1:] &= column[1:] == column[:-1]
    borders = Borders(budget.tid[goes_on], budget.begin_ns[goes_on])
    if not goes_on.any():
        return budget, borders
    first = np.flatnonzero(~goes_on)
    last = np.append(first[1:], len(budget)) - 1
    sums = {name: np.add.reduceat(getattr(budget, name), first) for name in (*_ADDED_UP, "stopped_ns")}
    return budget.take(first).with_columns(end_ns=budget.end_ns[last], **sums), borders
