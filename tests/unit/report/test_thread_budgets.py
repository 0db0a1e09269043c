# SPDX-License-Identifier: Apache-2.0
"""Time adds up: what the collector counted, and what waits tell where it did not."""

from __future__ import annotations

from builders.profile import ProfileBuilder

from perf_offcpu.model.profile import Profile
from perf_offcpu.model.recording import Budget, Comms, SampleFlag, Tasks
from perf_offcpu.report.thread_budgets import BudgetRow, budget_table

S, D = 1, 2


def waits() -> Profile:
    builder = ProfileBuilder(meta={"begin_ns": 1000, "end_ns": 2000, "first_ns": 1100, "last_ns": 1900})
    builder.sample("a", [], 100, tid=1, pid=1, state=S, runq_ns=10)
    builder.sample("a", [], 50, tid=1, pid=1, state=D)
    builder.sample("a", [], 30, tid=1, pid=1, state=S, flags=SampleFlag.PREEMPTED, runq_ns=30)
    builder.sample("a", [], 7, tid=1, pid=1)
    builder.sample("a", [], 500, tid=1, pid=1, event="cpu-clock")
    builder.sample("b", [], 20, tid=2, pid=1, state=S)
    profile = builder.build()
    profile.tasks = Tasks.from_rows([(1, 1, 0, -1), (2, 1, 1500, 1900)])
    return profile


def test_derived_from_waits() -> None:
    table = budget_table(waits())
    assert table is not None and table.derived and table.more == 0
    assert table.rows == [
        BudgetRow("a", 1, 1, 1000, None, 40, {"S": 90, "D": 50, "": 7}, 1000 - 187),
        BudgetRow("b", 1, 2, 400, None, 0, {"S": 20}, 380),
    ]
    for row in table.rows:
        assert row.runnable + sum(row.blocked.values()) + row.unknown == row.wall


def test_counted_by_the_collector() -> None:
    profile = waits()
    profile.budget = Budget.filled(
        3,
        tid=[1, 2, 3],
        pid=[1, 1, 1],
        begin_ns=[1000, 1500, 1000],
        end_ns=[2000, 1900, 2000],
        running_ns=[600, 100, 1000],
        runnable_ns=[20, 10, 0],
        preempted_ns=[30, 0, 0],
        interruptible_ns=[250, 290, 0],
        uninterruptible_ns=[70, 0, 0],
        idle_ns=[5, 0, 0],
        stopped_ns=[3, 0, 0],
        other_ns=[1, 0, 0],
    )
    strings = profile.strings
    profile.comms = Comms.from_rows(
        [(1, 1, 0, strings.intern("first")), (1, 1, 1500, strings.intern("last"))]
    )
    table = budget_table(profile)
    assert table is not None and not table.derived
    assert table.rows == [
        BudgetRow("last", 1, 1, 1000, 600, 50, {"S": 250, "D": 70, "I": 5, "T": 3, "": 1}, 21),
        BudgetRow("", 1, 2, 400, 100, 10, {"S": 290}, 0),
    ], "threads without samples here (3) were not selected"
    for row in table.rows:
        assert (row.running or 0) + row.runnable + sum(row.blocked.values()) + row.unknown == row.wall
    cut = budget_table(profile, limit=1)
    assert cut is not None and (len(cut.rows), cut.more) == (1, 1)


def test_nothing_is_made_up() -> None:
    assert budget_table(ProfileBuilder().build()) is None
    assert budget_table(ProfileBuilder().sample("a", [], 5).build()) is None
    only_cpu = ProfileBuilder(meta={"first_ns": 0, "last_ns": 9}).sample("a", [], 5, event="cpu-clock")
    assert budget_table(only_cpu.build()) is None
