# SPDX-License-Identifier: Apache-2.0
"""Make the time budgets of threads: running + runnable + blocked (by state) + unknown = wall.

The collector counts switches and yields exact budgets (`model.recording.Budget`), also of threads without any sample.
For other recordings they are derived from the waits: then the time outside of recorded waits, running or unknown, is
one number. Rows are threads, or sums of threads by comm, process or cgroup. Together with the rows of `rest`, the sums
of all rows over the limit, they sum to `total`."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from perf_offcpu.callpaths.keys import cgroup_label
from perf_offcpu.model.columns import I32, I64, Bool, group, max_by, sum_by
from perf_offcpu.model.join import host_of
from perf_offcpu.model.lookup import rows_at
from perf_offcpu.model.profile import Profile
from perf_offcpu.report.totals import heaviest, places_of, sums_by_state
from perf_offcpu.structs import frozen
from perf_offcpu.text import UNKNOWN

BUDGETS_BY = ("thread", "comm", "pid", "cgroup")
_REST_ROWS = 10


@dataclass(frozen=True, slots=True)
class BudgetRow:
    """Time of a thread, or of several, inside the recording, by state, ns. The other times add up to `wall`."""

    comm: str  # "" unknown, and for threads of several comms
    pid: int  # -1 for threads of several processes
    tid: int  # -1 for several threads
    wall: int
    running: int | None  # None: part of `unknown`
    runnable: int  # waiting for a CPU: woken, preempted, or yielding
    blocked: dict[str, int]  # by state letter; "Q" throttled, "" unknown
    unknown: int  # negative where waits reach beyond the known life of the thread
    threads: int = 1
    cgroup: str = UNKNOWN  # path, else id


@frozen
class BudgetTable:
    """Budgets of threads, or of groups of threads (`by`), the longest waiting first."""

    rows: list[BudgetRow]
    derived: bool  # derived from waits; else counted by the collector
    by: str  # one of BUDGETS_BY: what a row sums
    more: int  # number of rows over the limit
    rest: list[BudgetRow]  # threads over the limit, a row a comm; the smallest comms share a row, with comm ""
    total: BudgetRow | None  # of all threads; None if there is no thread


class Lives(NamedTuple):
    """Budgets of threads as columns, a row each; times int64, ns."""

    pid: I32
    tid: I32
    comm: I64  # row in strings
    wall: I64
    running: I64 | None  # None if derived from waits
    runnable: I64
    blocked: dict[str, I64]  # by state letter
    cgroup: I64

    def blocked_ns(self) -> I64:
        """Return int64[threads]: the time blocked, in any state."""
        return sum(self.blocked.values(), np.zeros(len(self.tid), np.int64))


def budget_table(profile: Profile, limit: int | None = None, by: str = "thread") -> BudgetTable | None:
    """Return the budgets of a profile's threads, a row for each value of `by` (BUDGETS_BY), at most `limit`; None if
    neither budgets nor waits are known."""
    lives = counted_lives(profile) if len(profile.budget) else _derived(profile)
    if lives is None:
        return None
    each: I64 = np.arange(len(lives.tid))
    first, group_of = group(each if by == "thread" else getattr(lives, by))
    waiting, runnable = (sum_by(group_of, column, len(first)) for column in (lives.blocked_ns(), lives.runnable))
    kept, (more, _) = heaviest(waiting, limit, runnable)
    row_of = places_of(kept, len(first))[group_of]
    return BudgetTable(
        rows=_rows(profile, lives, row_of, len(kept)),
        derived=lives.running is None,
        by=by,
        more=more,
        rest=_rest(profile, lives, row_of < 0, min(limit or _REST_ROWS, _REST_ROWS)),
        total=next(iter(_rows(profile, lives, np.zeros(len(group_of), np.int64), min(1, len(group_of)))), None),
    )


def _rest(profile: Profile, lives: Lives, cut: Bool, limit: int) -> list[BudgetRow]:
    """Return at most `limit` sums by comm of the threads in `cut` (bool[threads]), the largest `wall` first; if there
    are more comms, the last row is of all further comms."""
    first, group_of = group(lives.comm)
    weight = sum_by(np.where(cut, group_of, -1), lives.wall, len(first))
    has_rest = np.bincount(group_of[cut], minlength=len(first)) > 0
    order, _ = heaviest(np.where(has_rest, weight, -1), int(has_rest.sum()))
    rank = np.full(len(first), limit - 1, np.int64)
    shown = len(order) if len(order) <= limit else limit - 1
    rank[order[:shown]] = np.arange(shown)
    return _rows(profile, lives, np.where(cut, rank[group_of], -1), min(len(order), limit))


def _rows(profile: Profile, lives: Lives, row_of: I64, number: int) -> list[BudgetRow]:
    """Return `number` sums of threads, none empty. `row_of`: int64[threads], the sum of each thread; -1 none."""

    def sums(column: I64) -> list[int]:
        return list(sum_by(row_of, column, number).tolist())

    def same(column: I32 | I64, other: int) -> list[int]:
        """Return for each row the value that all its threads have, or `other` if they differ."""
        last = np.zeros(number, np.int64)
        last[row_of[inside]] = column[inside]
        differs = np.bincount(row_of[inside], column[inside] != last[row_of[inside]], number) > 0
        return list(np.where(differs, other, last).tolist())

    inside = row_of >= 0
    threads = np.bincount(row_of[inside], minlength=number).tolist()
    ids = same(lives.pid, -1), same(lives.tid, -1), same(lives.comm, 0), same(lives.cgroup, 0)
    running = [None] * number if lives.running is None else sums(lives.running)
    times = sums(lives.wall), running, sums(lives.runnable)
    blocked = {letter: sums(column) for letter, column in lives.blocked.items()}
    rows = []
    for index, (pid, tid, comm, cgroup, wall, ran, runnable) in enumerate(zip(*ids, *times, strict=True)):
        states = {letter: column[index] for letter, column in blocked.items() if column[index]}
        unknown = wall - (ran or 0) - runnable - sum(states.values())
        row = (profile.strings[comm], pid, tid, wall, ran, runnable, states, unknown, threads[index])
        rows.append(BudgetRow(*row, cgroup_label(profile, cgroup)))
    return rows


BLOCKED = {"S": "interruptible_ns", "D": "uninterruptible_ns", "I": "idle_ns", "T": "stopped_ns"}
BLOCKED |= {"Q": "throttled_ns", "": "other_ns"}
"""State letter → column of Budget."""


def counted_lives(profile: Profile) -> Lives:
    """Return the recorded budgets summed by thread, which has one for each time between pauses."""
    budget, tasks = profile.budget, profile.tasks
    life = rows_at(tasks.tid, tasks.begin_ns, budget.tid, budget.end_ns)
    first, group_of = group(budget.tid, budget.pid, life)

    def sums(column: I64) -> I64:
        return sum_by(group_of, column, len(first))

    tid = budget.tid[first]
    comm = profile.comms_at(tid, max_by(group_of, budget.end_ns, len(first)))
    wall, running = sums(budget.end_ns - budget.begin_ns), sums(budget.running_ns)
    runnable = sums(budget.runnable_ns + budget.preempted_ns)
    blocked = {letter: sums(getattr(budget, name)) for letter, name in BLOCKED.items()}
    return Lives(budget.pid[first], tid, comm, wall, running, runnable, blocked, _cgroups(profile, tid))


def _cgroups(profile: Profile, tids: I32) -> I64:
    """Return int64[n]: the cgroup id of a sample of each thread; 0 for threads without samples."""
    samples = profile.samples
    first, _ = group(samples.tid)
    slot = np.searchsorted(samples.tid[first], tids)
    known_tids, cgroup = np.append(samples.tid[first], -1), np.append(samples.cgroup[first].view(np.int64), 0)
    cgroups: I64 = np.where(known_tids[slot] == tids, cgroup[slot], 0)
    return cgroups


def _derived(profile: Profile) -> Lives | None:
    samples, meta = profile.samples, profile.meta
    begin, end = meta.begin_ns or meta.first_ns, meta.end_ns or meta.last_ns
    offcpu = profile.is_offcpu()
    if end <= begin or begin < 0 or not offcpu.any():
        return None
    first, of_waits = group(samples.tid, samples.pid)
    of_waits[~offcpu] = -1
    queued = sum_by(of_waits, np.maximum(samples.runq_ns, 0), len(first))
    states = sums_by_state(samples, of_waits, samples.period - np.maximum(samples.runq_ns, 0), len(first))
    letters = dict.fromkeys(letter for row in states for letter in row)

    def column(letter: str) -> I64:
        return np.array([row.get(letter, 0) for row in states], np.int64)

    pid, tid, comm = samples.pid[first], samples.tid[first], samples.comm[first].astype(np.int64)
    blocked, cgroup = {letter: column(letter) for letter in letters if letter != "R"}, samples.cgroup[first]
    return Lives(pid, tid, comm, _lives(profile, tid), None, queued + column("R"), blocked, cgroup.view(np.int64))


def _lives(profile: Profile, tids: I32) -> I64:
    """Return int64[n]: ns for which each thread lived while its host was recorded."""
    meta, tasks = profile.meta, profile.tasks
    row = rows_at(tasks.tid, tasks.begin_ns, tids, np.full(len(tids), -1, np.int64))
    born = np.append(tasks.begin_ns, 0)[row]
    died = np.append(tasks.end_ns, -1)[row]
    died = np.where(died >= 0, died, np.iinfo(np.int64).max)
    lived: I64 = np.zeros(len(tids), np.int64)
    for host, parts in enumerate(meta.hosts or [meta.recorded]):
        is_here = host_of(tids, meta) == host
        for begin, end in parts:
            lived += np.where(is_here, np.maximum(np.minimum(died, end) - np.maximum(born, begin), 0), 0)
    return lived
