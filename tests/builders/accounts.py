# SPDX-License-Identifier: Apache-2.0
"""What a recorder says of itself, as it writes it: counters of parts of the recording, and budgets of threads."""

from typing import Any

from builders.recording import sample
from builders.wait_objects import COUNTERS

from perf_offcpu.abi import counters as abi
from perf_offcpu.binary.layout import Order

SPENT = [name for name in abi.BUDGET.dtype("<").names or () if name.endswith("_ns")][2:]
"""Names of the times of a budget, after its begin and end."""


def counters(begin_ns: int, end_ns: int, threshold_ns: int = 0, **counts: tuple[int, int]) -> bytes:
    """Return the payload of an account; `counts` are (events, ns) by the names of causes, "_" for "-"."""
    rows = [
        {"events": events, "ns": ns, "name": name.replace("_", "-").encode()} for name, (events, ns) in counts.items()
    ]
    values = {"magic": abi.MAGIC, "version": abi.VERSION, "nr": len(rows), "counters": rows}
    return abi.COUNTERS.pack(values | {"begin_ns": begin_ns, "end_ns": end_ns, "threshold_ns": threshold_ns})


def budget(tid: int, begin: int, end: int, **spent: int) -> dict[str, Any]:
    """Return the budget of a thread of process 7; `spent` are other fields."""
    ids = {"pid": 7, "tid": tid, "own_pid": 0, "own_tid": 0}
    return ids | {"begin_ns": begin, "end_ns": end, "switches": 3} | dict.fromkeys(SPENT, 0) | spent


def budgets(*rows: dict[str, Any], order: Order = "<") -> bytes:
    return abi.BUDGETS.pack({"magic": abi.BUDGET_MAGIC, "version": abi.BUDGET_VERSION, "budgets": list(rows)}, order)


def told(payload: bytes) -> bytes:
    return sample(COUNTERS, time=100, pid=1, tid=1, raw=payload + bytes(4))
