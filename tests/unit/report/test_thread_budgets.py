# SPDX-License-Identifier: Apache-2.0
"""Time adds up: what the collector counted, and what waits tell where it did not."""

import numpy as np
import pytest
from builders.profile import ProfileBuilder

from perf_offcpu.model.profile import Profile
from perf_offcpu.model.recording import Budget, SampleFlag
from perf_offcpu.report.thread_budgets import BUDGETS_BY, BudgetRow, BudgetTable, budget_table

S, D = 1, 2


def waits() -> ProfileBuilder:
    builder = ProfileBuilder(meta={"begin_ns": 1000, "end_ns": 2000, "first_ns": 1100, "last_ns": 1900})
    builder.sample("a", [], 100, tid=1, pid=1, state=S, runq_ns=10)
    builder.sample("a", [], 50, tid=1, pid=1, state=D)
    builder.sample("a", [], 30, tid=1, pid=1, state=S, flags=SampleFlag.PREEMPTED, runq_ns=30)
    builder.sample("a", [], 7, tid=1, pid=1)
    builder.sample("a", [], 500, tid=1, pid=1, event="cpu-clock")
    builder.sample("b", [], 20, tid=2, pid=1, state=S)
    builder.tasks = [(1, 1, 0, -1), (2, 1, 1500, 1900)]
    return builder


def budgets(profile: Profile, limit: int | None = None, by: str = "thread") -> BudgetTable:
    table = budget_table(profile, limit, by)
    assert table and table.total
    return table


def test_derived_from_waits() -> None:
    table = budgets(waits().build())
    assert table.derived and table.more == 0
    assert table.rows == [
        BudgetRow("a", 1, 1, 1000, None, 40, {"S": 90, "D": 50, "": 7}, 1000 - 187),
        BudgetRow("b", 1, 2, 400, None, 0, {"S": 20}, 380),
    ]
    for row in table.rows:
        assert row.runnable + sum(row.blocked.values()) + row.unknown == row.wall


def test_pauses_are_no_time_of_threads() -> None:
    profile = waits().build()
    profile.meta.parts = ((1000, 1600), (1700, 2000))
    assert [row.wall for row in budgets(profile).rows] == [900, 300], "the second lives from 1500 to 1900"


def test_counted_by_the_collector() -> None:
    builder = waits()
    builder.comms = [(1, 1, 0, "first"), (1, 1, 1500, "last")]
    profile = builder.build()
    profile.budget = Budget.filled(
        3, tid=[1, 2, 3], pid=[1, 1, 1], begin_ns=[1000, 1500, 1000], end_ns=[2000, 1900, 2000],
        running_ns=[600, 100, 1000], runnable_ns=[20, 10, 0], preempted_ns=[30, 0, 0], interruptible_ns=[250, 290, 0],
        uninterruptible_ns=[70, 0, 0], idle_ns=[5, 0, 0], stopped_ns=[3, 0, 0], other_ns=[1, 0, 0],
    )  # fmt: skip
    table = budgets(profile)
    assert not table.derived
    assert table.rows == [
        BudgetRow("last", 1, 1, 1000, 600, 50, {"S": 250, "D": 70, "I": 5, "T": 3, "": 1}, 21),
        BudgetRow("", 1, 2, 400, 100, 10, {"S": 290}, 0),
        BudgetRow("", 1, 3, 1000, 1000, 0, {}, 0),
    ], "threads without samples have budgets, too"
    assert table.total == BudgetRow(
        "", 1, -1, 2400, 1700, 60, {"S": 540, "D": 70, "I": 5, "T": 3, "": 1}, 21, threads=3
    )
    for row in table.rows:
        assert (row.running or 0) + row.runnable + sum(row.blocked.values()) + row.unknown == row.wall
    cut = budgets(profile, limit=1)
    assert (len(cut.rows), cut.more) == (1, 2)
    assert cut.rest == [BudgetRow("", 1, -1, 1400, 1100, 10, {"S": 290}, 0, threads=2)]


def test_budgets_of_a_thread_between_pauses_are_one_row() -> None:
    """Unless the thread ended, and another one has its id."""
    builder = waits()
    builder.tasks = [(1, 1, 0, -1), (2, 1, 1000, 1500), (2, 1, 1700, -1)]
    builder.comms = [(1, 1, 0, "old"), (1, 1, 1900, "new")]
    profile = builder.build()
    profile.budget = Budget.filled(
        5, tid=[1, 1, 2, 2, 2], pid=[1, 1, 1, 1, 1], begin_ns=[1000, 1700, 1000, 1700, 3000],
        end_ns=[1600, 2000, 1500, 2000, 3500], running_ns=[400, 300, 500, 200, 500],
        interruptible_ns=[200, 0, 0, 90, 0],
    )  # fmt: skip
    table = budgets(profile)
    known = [BudgetRow("new", 1, 1, 900, 700, 0, {"S": 200}, 0), BudgetRow("", 1, 2, 800, 700, 0, {"S": 90}, 10)]
    assert table.rows == [*known, BudgetRow("", 1, 2, 500, 500, 0, {}, 0)]
    assert table.total and (table.total.wall, table.total.threads) == (2200, 3)
    assert [row.threads for row in budgets(profile, by="pid").rows] == [3]


def crowd() -> Profile:
    """Return a profile of 60 threads of 15 comms, one of which has samples."""
    tids = np.arange(1, 61)
    builder = ProfileBuilder(comms=[(tid, 1, 0, f"t{tid % 15}") for tid in tids.tolist()], cgroups={7: "/a"})
    profile = builder.sample("t0", [], 5, tid=1, pid=1, state=S, cgroup=7).build()
    profile.budget = Budget.filled(
        60, tid=tids, pid=tids % 4, begin_ns=[0] * 60, end_ns=[1000] * 60, running_ns=1000 - tids,
        interruptible_ns=tids,
    )  # fmt: skip
    return profile


@pytest.mark.parametrize("by", BUDGETS_BY)
@pytest.mark.parametrize("limit", [None, 1, 4, 40])
def test_rows_and_rest_add_up_to_the_total(by: str, limit: int | None) -> None:
    table = budgets(crowd(), limit, by)
    assert table.total is not None
    shown = [*table.rows, *table.rest]
    for name in ("wall", "running", "runnable", "unknown", "threads"):
        assert sum(getattr(row, name) for row in shown) == getattr(table.total, name)
    assert sum(row.blocked["S"] for row in shown) == table.total.blocked["S"] == 60 * 61 // 2
    assert (table.total.threads, table.total.wall) == (60, 60_000)
    assert bool(table.rest) == bool(table.more) == (limit is not None and limit < len(table.rows) + table.more)


def test_sums_of_threads() -> None:
    profile = crowd()

    def rows(by: str, limit: int | None = None) -> list[tuple[object, ...]]:
        return [(row.comm, row.pid, row.cgroup, row.threads) for row in budgets(profile, limit, by).rows]

    assert rows("comm")[0] == ("t0", -1, "[unknown]", 4)
    assert len(rows("comm")) == 15
    assert sorted((row[1], row[3]) for row in rows("pid")) == [(0, 15), (1, 15), (2, 15), (3, 15)]
    assert [row[1:] for row in rows("cgroup")] == [(-1, "[unknown]", 59), (1, "/a", 1)]
    rest = [(row.comm, row.threads) for row in budgets(profile, 40).rest]
    assert rest[-1] == ("", 6) and len(rest) == 10  # five comms have two
    assert [(row.comm, row.threads) for row in budgets(profile, 2).rest] == [("t1", 4), ("", 54)]


def test_nothing_is_made_up() -> None:
    assert budget_table(ProfileBuilder().build()) is None
    assert budget_table(ProfileBuilder().sample("a", [], 5).build()) is None
    only_cpu = ProfileBuilder(meta={"first_ns": 0, "last_ns": 9}).sample("a", [], 5, event="cpu-clock")
    assert budget_table(only_cpu.build()) is None
