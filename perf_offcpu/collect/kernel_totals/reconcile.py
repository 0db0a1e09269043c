# SPDX-License-Identifier: Apache-2.0
"""Correct budgets of threads by the kernel's own figures of their time on CPUs and in run queues.

The BPF program sees a wake-up when it begins (sched_waking), if at all; the kernel counts run-queue delay
from when the thread is in a queue, 1 to 2 us later. At a switch the program accounts some time to the other
thread. Where waits are many and short that adds up. So the totals are the kernel's, and the program's own
counts only divide them: run-queue delay by its reasons, the rest by states.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perf_offcpu.collect.bpf.last_tasks import WAITING_FOR_CPU

I64 = NDArray[np.int64]

SWITCH_NS = 5000
"""Time of a switch that may count for the thread that leaves or for the one that comes."""


def by_kernel_figures(budgets: NDArray[Any], modes: Sequence[str]) -> NDArray[Any]:
    """Return budgets whose time on CPUs and run-queue delay are those that the kernel counted.

    The time of each row stays the same. States get the time that was counted too much as run-queue delay,
    and that of switches. The remainder is unknown: time on a CPU that interrupts or the hypervisor took, and
    the making of a new thread before it first was in a queue. Threads that have not switched, and those of
    kernels without figures, keep the program's counts: the former are exact.

    Args:
        budgets: rows of `struct offcpu_budget`, of whole lives.
        modes: enumerators of `enum offcpu_mode`, which index their field `ns`.
    """
    found = budgets.copy()
    rows = np.flatnonzero((budgets["switches"] > 0) & (budgets["ran_ns"] > 0))
    number = {mode: index for index, mode in enumerate(modes)}
    queues = [number[mode] for mode in WAITING_FOR_CPU]  # the first is that of wake-ups
    others = [index for mode, index in number.items() if mode != "running" and index not in queues]
    own: I64 = budgets["ns"][rows].astype(np.int64)
    ran, queued = (
        (budgets[f"{name}_ns"][rows] - budgets[f"{name}_before_ns"][rows]).view(np.int64) for name in ("ran", "queued")
    )
    wall = own.sum(axis=1)
    ran = np.clip(ran, 0, wall)
    queued = np.clip(queued, 0, wall - ran)
    in_queues, in_others = own[:, queues].sum(axis=1), own[:, others].sum(axis=1)
    slack = np.maximum(in_queues - queued, 0) + SWITCH_NS * budgets["switches"][rows].astype(np.int64)
    rest = np.where(in_others > 0, np.minimum(wall - ran - queued, in_others + slack), 0)
    ns = np.zeros_like(own)
    ns[:, number["running"]] = ran
    exact = queues[1:]  # from switch to switch
    in_exact = np.minimum(own[:, exact].sum(axis=1), queued)
    ns[:, exact] = _divided(in_exact, own[:, exact])
    ns[:, queues[0]] = queued - in_exact
    ns[:, others] = _divided(rest, own[:, others])
    ns[:, number["unknown"]] += wall - ran - queued - rest
    found["ns"][rows] = ns.astype(np.uint64)
    return found


def _divided(totals: I64, parts: I64) -> I64:
    """Return int64[n, parts]: rows in the proportions of `parts` with these totals.

    The largest part takes the remainder.
    """
    ratio = totals / np.maximum(parts.sum(axis=1), 1)
    divided: I64 = (parts * ratio[:, None]).astype(np.int64)
    divided[np.arange(len(parts)), parts.argmax(axis=1)] += totals - divided.sum(axis=1)
    return divided
