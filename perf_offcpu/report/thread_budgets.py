# SPDX-License-Identifier: Apache-2.0
"""Make the time budgets of threads: running + runnable + blocked (by state) + unknown = wall.

The collector counts switches and yields exact budgets (`model.recording.Budget`). For other recordings they
are derived from the waits: then the time outside recorded waits, running or unknown, is one number.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from perf_offcpu.analysis.group import group, sum_by
from perf_offcpu.decode.tasks.lookup import rows_at
from perf_offcpu.model.columns import I32, I64, distinct, is_among
from perf_offcpu.model.profile import Profile
from perf_offcpu.model.recording import Budget
from perf_offcpu.report.totals import heaviest, sums_by_state
from perf_offcpu.structs import frozen


@dataclass(frozen=True, slots=True)
class BudgetRow:
    """One thread's life inside the recording, ns. All other columns add up to `wall`."""

    comm: str
    pid: int
    tid: int
    wall: int
    running: int | None  # None: part of `unknown`
    runnable: int  # waiting for a CPU: woken, preempted, or yielding
    blocked: dict[str, int]  # by state letter; "" unknown
    unknown: int  # negative where waits reach beyond the known life of the thread


@frozen
class BudgetTable:
    """The budgets of threads, the longest waiting first."""

    rows: list[BudgetRow]
    derived: bool  # derived from waits; else counted by the collector
    more: int  # number of threads over the limit


def budget_table(profile: Profile, limit: int | None = None) -> BudgetTable | None:
    """Return the budgets of the threads that have samples in a profile; None if their lives are unknown."""
    return _counted(profile, limit) if len(profile.budget) else _derived(profile, limit)


_BLOCKED = {
    "S": "interruptible_ns",
    "D": "uninterruptible_ns",
    "I": "idle_ns",
    "T": "stopped_ns",
    "": "other_ns",
}
"""State letter → column of Budget."""


def _counted(profile: Profile, limit: int | None) -> BudgetTable:
    samples, budget = profile.samples, profile.budget
    shown = distinct(_pairs(samples.pid, samples.tid))
    budget = budget.take(is_among(_pairs(budget.pid, budget.tid), shown))
    blocked: I64 = np.stack([getattr(budget, name) for name in _BLOCKED.values()]).sum(axis=0)
    kept, (more, _) = heaviest(blocked, limit, budget.runnable_ns + budget.preempted_ns)
    budget, blocked = budget.take(kept), blocked[kept]
    runnable, wall = budget.runnable_ns + budget.preempted_ns, budget.end_ns - budget.begin_ns
    unknown = wall - budget.running_ns - runnable - blocked
    rows = []
    for at, comm in enumerate(_comms(profile, budget)):
        states = {letter: int(getattr(budget, name)[at]) for letter, name in _BLOCKED.items()}
        ids = int(budget.pid[at]), int(budget.tid[at])
        times = int(wall[at]), int(budget.running_ns[at]), int(runnable[at])
        states = {letter: ns for letter, ns in states.items() if ns}
        rows.append(BudgetRow(comm, *ids, *times, states, int(unknown[at])))
    return BudgetTable(rows, False, more)


def _pairs(pid: I32, tid: I32) -> I64:
    return (pid.astype(np.int64) << 32) + tid


def _comms(profile: Profile, budget: Budget) -> list[str]:
    at = rows_at(profile.comms.tid, profile.comms.begin_ns, budget.tid, budget.end_ns)
    return [profile.strings[profile.comms.comm[row]] if row >= 0 else "" for row in at.tolist()]


def _derived(profile: Profile, limit: int | None) -> BudgetTable | None:
    samples, meta = profile.samples, profile.meta
    begin, end = meta.begin_ns or meta.first_ns, meta.end_ns or meta.last_ns
    offcpu = profile.is_offcpu()
    if end <= begin or begin < 0 or not offcpu.any():
        return None
    first, of = group(samples.tid, samples.pid)
    waiting = sum_by(np.where(offcpu, of, -1), samples.period, len(first))
    kept, (more, _) = heaviest(waiting, limit)
    lives = _lives(profile, samples.tid[first], begin, end)
    of_waits = np.where(offcpu, of, -1)
    runq = np.maximum(samples.runq_ns, 0)
    states = sums_by_state(samples, of_waits, samples.period - runq, len(first))
    queued = sum_by(of_waits, runq, len(first)).tolist()
    rows = []
    for row in kept.tolist():
        blocked = dict(states[row])
        runnable = blocked.pop("R", 0) + queued[row]
        sample = int(first[row])
        comm = profile.strings[samples.comm[sample]]
        ids, life = (int(samples.pid[sample]), int(samples.tid[sample])), int(lives[row])
        rows.append(BudgetRow(comm, *ids, life, None, runnable, blocked, life - int(waiting[row])))
    return BudgetTable(rows, True, more)


def _lives(profile: Profile, tids: I32, begin: int, end: int) -> I64:
    """Return int64[n], the time that these threads lived between begin and end."""
    tasks = profile.tasks
    row = rows_at(tasks.tid, tasks.begin_ns, tids, np.full(len(tids), -1, np.int64))
    born = np.append(tasks.begin_ns, 0)[row]
    died = np.append(tasks.end_ns, -1)[row]
    lived: I64 = np.where(died >= 0, np.minimum(died, end), end) - np.maximum(born, begin)
    return lived
