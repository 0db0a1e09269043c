# SPDX-License-Identifier: Apache-2.0
"""Budgets after correction by the kernel's figures: totals are the kernel's, and the wall time stays."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from perf_offcpu.collect.bpf.header import read_header
from perf_offcpu.collect.bpf.last_tasks import parse_tasks
from perf_offcpu.collect.kernel_totals.reconcile import by_kernel_figures
from perf_offcpu.resources import bpf_dir

HEADER = read_header(bpf_dir() / "off_cpu.h")
MODES = HEADER.enums["mode"]


def budget(switches: int, ran: int, queued: int, **ns: int) -> NDArray[Any]:
    row = np.zeros(1, HEADER.structs["budget"])
    row["switches"], row["begin_ns"], row["end_ns"] = switches, 1000, 1000 + sum(ns.values())
    row["ran_before_ns"], row["ran_ns"] = 500, 500 + ran
    row["queued_before_ns"], row["queued_ns"] = 70, 70 + queued
    for name, value in ns.items():
        row["ns"][0, MODES.index(name)] = value
    return row


def corrected(row: NDArray[Any]) -> dict[str, int]:
    (found,) = by_kernel_figures(row, MODES)
    assert found["ns"].sum() == found["end_ns"] - found["begin_ns"]
    return {name: int(ns) for name, ns in zip(MODES, found["ns"].tolist(), strict=False) if ns}


def test_states_get_what_was_counted_too_much_as_delay_after_wake_ups() -> None:
    row = budget(10, 600, 200, running=500, runnable=300, preempted=100, interruptible=90, idle=10)
    assert corrected(row) == {
        "running": 600, "runnable": 100, "preempted": 100, "interruptible": 180, "idle": 20,
    }  # fmt: skip


def test_delay_is_known_without_wake_ups() -> None:
    row = budget(10, 500, 200, running=500, preempted=30, interruptible=400, idle=100)
    assert corrected(row) == {
        "running": 500, "runnable": 170, "preempted": 30, "interruptible": 264, "idle": 66,
    }  # fmt: skip


def test_time_on_a_cpu_that_the_kernel_does_not_count_is_unknown() -> None:
    """Only some microseconds a switch can be those of the switch itself."""
    taken = budget(1, 700_000, 0, running=1_000_000, uninterruptible=100)
    assert corrected(taken) == {"unknown": 295_000, "running": 700_000, "uninterruptible": 5_100}
    never_blocked = budget(1, 900, 50, running=1000)
    assert corrected(never_blocked) == {"unknown": 50, "running": 900, "runnable": 50}


def test_figures_beyond_the_wall_time_are_cut() -> None:
    """The last run of a thread that runs at the end is that of the program, and may be some ns too long."""
    assert corrected(budget(3, 995, 20, running=990, runnable=10)) == {"running": 995, "runnable": 5}
    assert corrected(budget(3, 1005, 20, running=990, runnable=10)) == {"running": 1000}


def test_own_counts_stay_where_the_kernel_has_none() -> None:
    row = budget(3, 0, 0, running=990, runnable=10)
    for name in ("ran_before_ns", "ran_ns", "queued_before_ns", "queued_ns"):
        row[name] = 0
    assert corrected(row) == {"running": 990, "runnable": 10}
    assert corrected(budget(0, 5, 5, running=990, runnable=10)) == {"running": 990, "runnable": 10}


def test_threads_that_run_or_wait_for_a_cpu_at_the_end() -> None:
    """The kernel's figures go up to the last switch, and the program adds the time from there."""
    tasks = np.zeros(3, HEADER.structs["last"])
    tasks["mode"] = [MODES.index(name) for name in ("running", "preempted", "interruptible")]
    tasks["switch_out_ns"], tasks["wakeup_ns"], tasks["queued_ns"] = 1000, [0, 0, 1060], 30
    row = budget(5, 500, 0, running=600, runnable=50, interruptible=100)
    lasts = [tasks[at : at + 1].tobytes() + row.tobytes() for at in range(3)]
    row["ran_before_ns"] = row["ran_ns"] = 0
    lasts.append(tasks[:1].tobytes() + row.tobytes())
    found = parse_tasks(b"".join(lasts), HEADER, 1100, with_budget=True).budgets
    assert found["ran_ns"].tolist() == [1100, 1000, 1000, 0]
    assert found["queued_ns"].tolist() == [30, 130, 70, 30]


def test_proportions_of_long_lives_add_up_to_the_ns() -> None:
    days = 10**15 + 1
    row = budget(10**9, days // 3, days // 7, running=days // 3, runnable=7, preempted=days // 7,
                 interruptible=days // 11, idle=days // 13)  # fmt: skip
    assert corrected(row)["running"] == days // 3
