# SPDX-License-Identifier: Apache-2.0
"""Time budgets: for each thread, running + runnable + blocked (by state) + unknown = wall.

The collector counts switches and gives exact budgets (`model.recording.Budget`). Of other recordings they are
derived from the waits: then what was no recorded wait is one number, running or not known, and said to be so.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from perf_offcpu.analysis.group import group, sum_by
from perf_offcpu.decode.tasks.lookup import rows_at
from perf_offcpu.model.columns import I32, I64, Bool
from perf_offcpu.model.profile import Profile
from perf_offcpu.model.recording import Budget
from perf_offcpu.report.totals import by_state, heaviest
from perf_offcpu.structs import frozen


@dataclass(frozen=True, slots=True)
class BudgetRow:
    """One thread's life inside the recording, ns. All columns but `wall` add up to it."""

    comm: str
    pid: int
    tid: int
    wall: int
    running: int | None
    """None: not known apart from `unknown`."""
    runnable: int
    """Waiting for a CPU: woken, preempted, or gave way."""
    blocked: dict[str, int]
    """By state letter; "" of unknown state."""
    unknown: int
    """Negative where waits reach beyond what is known of the thread's life."""


@frozen
class BudgetTable:
    """The threads, those that waited longest first."""

    rows: list[BudgetRow]
    derived: bool
    """From waits; else counted by the collector."""
    more: int
    """Threads that were cut off."""


def budget_table(profile: Profile, limit: int | None = None) -> BudgetTable | None:
    """The budgets of the threads that have samples in a profile; None where nothing tells of their lives."""
    if len(profile.budget):
        return _counted(profile, limit)
    return _derived(profile, limit)


def _counted(profile: Profile, limit: int | None) -> BudgetTable:
    budget = profile.budget.take(_shown(profile))
    columns = {
        "S": budget.interruptible_ns,
        "D": budget.uninterruptible_ns,
        "I": budget.idle_ns,
        "T": budget.stopped_ns,
        "": budget.other_ns,
    }
    blocked = np.sum(list(columns.values()), axis=0) if len(budget) else np.empty(0, np.int64)
    runnable = budget.runnable_ns + budget.preempted_ns
    wall = budget.end_ns - budget.begin_ns
    kept, (more, _) = heaviest(blocked, limit, runnable)
    comms = _comms(profile, budget)
    rows = [
        BudgetRow(
            comms[row],
            int(budget.pid[row]),
            int(budget.tid[row]),
            int(wall[row]),
            int(budget.running_ns[row]),
            int(runnable[row]),
            {letter: int(column[row]) for letter, column in columns.items() if column[row]},
            int(wall[row] - budget.running_ns[row] - runnable[row] - blocked[row]),
        )
        for row in kept.tolist()
    ]
    return BudgetTable(rows, False, more)


def _shown(profile: Profile) -> Bool:
    """bool[budget]: the rows of threads that have samples here."""
    samples, budget = profile.samples, profile.budget
    shown: Bool = np.isin(_pairs(budget.pid, budget.tid), _pairs(samples.pid, samples.tid))
    return shown


def _pairs(pid: I32, tid: I32) -> I64:
    return (pid.astype(np.int64) << 32) + tid


def _comms(profile: Profile, budget: Budget) -> list[str]:
    """The last names of the threads."""
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
    states = by_state(samples, of_waits, len(first), samples.period - runq)
    queued = sum_by(of_waits, runq, len(first)).tolist()
    rows = []
    for row in kept.tolist():
        blocked = dict(states[row])
        runnable = blocked.pop("R", 0) + queued[row]
        sample = int(first[row])
        rows.append(
            BudgetRow(
                profile.strings[samples.comm[sample]],
                int(samples.pid[sample]),
                int(samples.tid[sample]),
                int(lives[row]),
                None,
                runnable,
                blocked,
                int(lives[row]) - int(waiting[row]),
            )
        )
    return BudgetTable(rows, True, more)


def _lives(profile: Profile, tids: I32, begin: int, end: int) -> I64:
    """int64[n]: how long these threads lived between begin and end."""
    tasks = profile.tasks
    row = rows_at(tasks.tid, tasks.begin_ns, tids, np.full(len(tids), -1, np.int64))
    born = np.append(tasks.begin_ns, 0)[row]
    died = np.append(tasks.end_ns, -1)[row]
    lived: I64 = np.where(died >= 0, np.minimum(died, end), end) - np.maximum(born, begin)
    return lived
