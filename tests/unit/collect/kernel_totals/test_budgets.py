# SPDX-License-Identifier: Apache-2.0
"""Budgets of threads: what each of several files gets, what is sure, what the kernel's figures correct."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from perf_offcpu.collect.bpf.header import read_header
from perf_offcpu.collect.bpf.last_tasks import LastTasks, parse_tasks
from perf_offcpu.collect.kernel_totals.budgets import BudgetShares, by_kernel_figures
from perf_offcpu.resources import bpf_dir

HEADER = read_header(bpf_dir() / "off_cpu.h")
MODES = HEADER.enums["mode"]
RUNNING, RUNNABLE, ASLEEP = (MODES.index(name) for name in ("running", "runnable", "interruptible"))


def budget(tid: int, begin: int, end: int, **spent: int) -> NDArray[Any]:
    """What is not said of its time it slept."""
    row = np.zeros(1, HEADER.structs["budget"])
    row["pid"], row["tid"], row["begin_ns"], row["end_ns"] = 7, tid, begin, end
    row["switches"] = end - begin
    for name, value in spent.items():
        row["ns"][0, MODES.index(name)] = value
    row["ns"][0, ASLEEP] += np.uint64(end - begin - sum(spent.values()))
    return row


def rows(*several: NDArray[Any]) -> NDArray[Any]:
    return np.concatenate(several)


def told(shares: NDArray[Any]) -> list[tuple[int, ...]]:
    """(tid, begin, end, running, asleep, switches) of each."""
    columns = (shares["ns"][:, RUNNING], shares["ns"][:, ASLEEP], shares["switches"])
    names = (shares[name] for name in ("tid", "begin_ns", "end_ns"))
    return list(zip(*(column.tolist() for column in (*names, *columns)), strict=True))


def test_files_share_a_life_without_gap_or_overlap() -> None:
    shares = BudgetShares(MODES)
    first = rows(budget(8, 5, 100, running=15), budget(9, 50, 100))
    assert told(shares.share(first)) == [(8, 5, 100, 15, 80, 95), (9, 50, 100, 0, 50, 50)]
    shares.note(first)
    second = rows(budget(8, 5, 200, running=25), budget(9, 150, 200))  # 9 ended, and another has its number
    assert told(shares.share(second)) == [(8, 100, 200, 10, 90, 100), (9, 150, 200, 0, 50, 50)]
    shares.note(second)
    ended = rows(budget(9, 50, 120, running=7), budget(8, 5, 230, running=30))
    assert told(shares.share(ended)) == [(9, 100, 120, 7, 13, 20), (8, 200, 230, 5, 25, 30)]
    assert first["ns"][0, RUNNING] == 15, "what the kernel gave stays as it was"


def test_what_is_known_better_later_makes_nothing_negative() -> None:
    """The wait seemed to be over at 60; a second wake-up showed that it was not."""
    shares = BudgetShares(MODES)
    shares.note(budget(8, 0, 100, runnable=40))
    share = shares.share(budget(8, 0, 110, runnable=5))
    assert share["ns"][0, RUNNABLE] == 0 and share["ns"][0].sum() == 10
    ended_before_the_look = shares.share(budget(8, 0, 99, runnable=40))
    assert ended_before_the_look["end_ns"] == 100 and ended_before_the_look["ns"].sum() == 0


def look(*waits: tuple[int, int, int]) -> LastTasks:
    """Waits (tid, since, mode) and a budget for each."""
    tasks = np.zeros(len(waits), HEADER.structs["last"])
    tasks["tid"], tasks["switch_out_ns"], tasks["mode"] = np.array(waits).T
    tasks["waits"] = tasks["mode"] > RUNNABLE
    nothing = (np.empty(0, np.uint64),) * len(waits)
    return LastTasks(100, tasks, nothing, nothing, rows(*(budget(tid, 0, 100) for tid, _, _ in waits)))


def test_only_what_stood_still_is_sure() -> None:
    now = look((1, 50, ASLEEP), (2, 50, ASLEEP), (3, 60, RUNNING), (4, 50, ASLEEP), (5, 50, ASLEEP))
    later = look((1, 50, ASLEEP), (2, 99, ASLEEP), (3, 99, ASLEEP), (5, 50, RUNNING))
    now.budgets["ns"][1, RUNNING] += np.uint64(1)  # changed between the header and the budget
    sure = now.unless_disturbed(later, drained_ns=55)
    assert sure.tasks["tid"][sure.waiting()].tolist() == [1]
    assert sure.budgets["tid"].tolist() == [1, 3, 4, 5, 2]
    assert sure.budgets["ns"][4, RUNNING] == 0, "of the later look"
    assert len(now.waiting()) == 4


def test_what_began_after_the_end_is_no_wait() -> None:
    """Not even one of 0 ns: the iterator looks at tasks while they go on."""
    tasks = np.zeros(4, HEADER.structs["last"])
    tasks["tid"], tasks["waits"], tasks["switch_out_ns"] = [1, 2, 3, 4], 1, [98, 99, 100, 101]
    last = parse_tasks(tasks.tobytes(), HEADER, 100, False)
    assert last.tasks["tid"].tolist() == [1, 2, 3, 4]
    assert last.tasks["tid"][last.waiting()].tolist() == [1, 2]


def test_what_began_after_the_rings_were_emptied_is_for_the_next_file() -> None:
    """The records that name a thread born since are still in the rings."""
    now = look((1, 50, ASLEEP), (2, 56, ASLEEP))
    now.budgets["begin_ns"][1], now.budgets["ns"][1] = 56, 0
    now.budgets["ns"][1, ASLEEP] = 44
    sure = now.unless_disturbed(now, drained_ns=55)
    assert sure.tasks["tid"][sure.waiting()].tolist() == [1]
    assert sure.budgets["tid"].tolist() == [1]


def test_tasks_stand_still_if_they_have_not_been_switched() -> None:
    tasks = np.zeros(3, HEADER.structs["last"])
    tasks["tid"], tasks["nr_switches"] = [1, 2, 3], [7, 8, 9]
    later = tasks[:2].copy()
    later["nr_switches"][1] += 1
    first, second = (parse_tasks(rows.tobytes(), HEADER, 100, with_budget=False) for rows in (tasks, later))
    assert first.stand_still(second).tolist() == [True, False, False]


def switched(switches: int, ran: int, queued: int, **ns: int) -> NDArray[Any]:
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
    row = switched(10, 600, 200, running=500, runnable=300, preempted=100, interruptible=90, idle=10)
    assert corrected(row) == {
        "running": 600, "runnable": 100, "preempted": 100, "interruptible": 180, "idle": 20,
    }  # fmt: skip


def test_delay_is_known_without_wake_ups() -> None:
    row = switched(10, 500, 200, running=500, preempted=30, interruptible=400, idle=100)
    assert corrected(row) == {
        "running": 500, "runnable": 170, "preempted": 30, "interruptible": 264, "idle": 66,
    }  # fmt: skip


def test_time_on_a_cpu_that_the_kernel_does_not_count_is_unknown() -> None:
    """Only some microseconds a switch can be those of the switch itself."""
    taken = switched(1, 700_000, 0, running=1_000_000, uninterruptible=100)
    assert corrected(taken) == {"unknown": 295_000, "running": 700_000, "uninterruptible": 5_100}
    never_blocked = switched(1, 900, 50, running=1000)
    assert corrected(never_blocked) == {"unknown": 50, "running": 900, "runnable": 50}


def test_figures_beyond_the_wall_time_are_cut() -> None:
    """The last run of a thread that runs at the end is that of the program, and may be some ns too long."""
    assert corrected(switched(3, 995, 20, running=990, runnable=10)) == {"running": 995, "runnable": 5}
    assert corrected(switched(3, 1005, 20, running=990, runnable=10)) == {"running": 1000}


def test_own_counts_stay_where_the_kernel_has_none() -> None:
    row = switched(3, 0, 0, running=990, runnable=10)
    for name in ("ran_before_ns", "ran_ns", "queued_before_ns", "queued_ns"):
        row[name] = 0
    assert corrected(row) == {"running": 990, "runnable": 10}
    assert corrected(switched(0, 5, 5, running=990, runnable=10)) == {"running": 990, "runnable": 10}


def test_threads_that_run_or_wait_for_a_cpu_at_the_end() -> None:
    """The kernel's figures go up to the last switch, and the program adds the time from there."""
    tasks = np.zeros(3, HEADER.structs["last"])
    tasks["mode"] = [MODES.index(name) for name in ("running", "preempted", "interruptible")]
    tasks["switch_out_ns"], tasks["wakeup_ns"], tasks["queued_ns"] = 1000, [0, 0, 1060], 30
    row = switched(5, 500, 0, running=600, runnable=50, interruptible=100)
    lasts = [tasks[at : at + 1].tobytes() + row.tobytes() for at in range(3)]
    row["ran_before_ns"] = row["ran_ns"] = 0
    lasts.append(tasks[:1].tobytes() + row.tobytes())
    found = parse_tasks(b"".join(lasts), HEADER, 1100, with_budget=True).budgets
    assert found["ran_ns"].tolist() == [1100, 1000, 1000, 0]
    assert found["queued_ns"].tolist() == [30, 130, 70, 30]


def test_proportions_of_long_lives_add_up_to_the_ns() -> None:
    days = 10**15 + 1
    row = switched(10**9, days // 3, days // 7, running=days // 3, runnable=7, preempted=days // 7,
                   interruptible=days // 11, idle=days // 13)  # fmt: skip
    assert corrected(row)["running"] == days // 3
