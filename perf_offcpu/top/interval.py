# SPDX-License-Identifier: Apache-2.0
"""Sum up an interval: its head, and tables by any key.

Times are those inside the interval: of a wait that began before it, the part since its begin. So the times of
consecutive intervals add up. A wait counts in the interval in which it ends; `average` and `longest` are of whole
waits. Waits that have not ended are counted apart, as blocked now.

By comm, process, thread and cgroup, times are those that the recorder counted at each switch (budgets), of threads that
did not wait, too. By other keys they are those of the waits, and the time running is not known."""

from collections.abc import Callable
from dataclasses import replace
from typing import Final

import numpy as np

from perf_offcpu.analysis.causes import causes_of
from perf_offcpu.analysis.classes.classify import Waits, classify, of_idle_threads
from perf_offcpu.analysis.classes.wait_classes import WaitClass
from perf_offcpu.analysis.holders import holders_of
from perf_offcpu.analysis.selection.select import thread_ids
from perf_offcpu.callpaths.keys import NO_OBJECT, cgroup_label, column_of
from perf_offcpu.callpaths.options import PathOptions
from perf_offcpu.callpaths.tree import build_paths
from perf_offcpu.model.columns import I64, Bool, distinct, group, is_among, max_by, sum_by
from perf_offcpu.model.profile import Profile, ProfileSamples
from perf_offcpu.model.recording import SUM_FLAGS, SampleFlag
from perf_offcpu.report.breakdowns import HeavyStack, heavy_stacks
from perf_offcpu.report.thread_budgets import Lives, counted_lives
from perf_offcpu.report.totals import lost_fields, totals_of
from perf_offcpu.report.verdict.numbers import verdict_of
from perf_offcpu.report.verdict.text import first_cause
from perf_offcpu.structs import frozen, mutable
from perf_offcpu.text import id_text, printable, thread_label

_OF_LIVES: Final = ("comm", "process", "thread", "cgroup")
"""Keys of threads, for which rows have the times of the threads' budgets."""


@frozen
class Row:
    """Row of a table: sums over the waits (and, for keys of threads, budgets) with one value of a key; times in ns."""

    label: str  # printable
    value: int  # value of the key's column, which identifies the row in its interval
    blocked: int
    runnable: int  # waiting for a CPU
    running: int | None  # None: not known by this key
    waits: int  # number of waits that ended
    average: int | None  # length of the waits that ended; None if there are none
    longest: int | None  # likewise
    now: int  # number of threads blocked at the end of the interval
    since: int  # length so far of the longest wait that has not ended; 0 none
    since_is_least: bool  # it began before the recorder did: `since` is a lower bound


@mutable
class Interval:
    """Waits of an interval and times of its threads; tables show the chosen ones."""

    profile: Profile  # with times cut to the interval
    whole: ProfileSamples  # the same samples with uncut times
    waits: Waits  # classes of the samples
    lives: Lives  # times of the threads
    is_idle: Bool  # bool[samples]: True for waits of idle threads
    lives_idle: Bool  # bool[threads]: True for idle threads
    chosen: Bool  # bool[samples]
    lives_chosen: Bool  # bool[threads]
    begin_ns: int
    end_ns: int
    cause: str  # the first cause of the verdict, in words

    @property
    def seconds(self) -> float:
        """Return the length of the interval, s."""
        return max(self.end_ns - self.begin_ns, 1) / 1e9

    @property
    def utc_s(self) -> float:
        """Return the end of the interval, s since 1970."""
        meta = self.profile.meta
        return (meta.wall_clock_ns + self.end_ns - meta.wall_clock_at_ns) / 1e9

    @property
    def losses(self) -> dict[str, int]:
        """Return the losses of the interval: printable cause → number."""
        return lost_fields(self.profile)

    def blocked_ns(self) -> I64:
        """Return int64[samples]: the time that each sample's thread was blocked, without the wait for a CPU."""
        samples = self.profile.samples
        blocked = samples.period - np.maximum(samples.runq_ns, 0)
        return np.where(self.waits.wait_class == WaitClass.RUNQUEUE, 0, blocked)

    def by_class(self) -> dict[str, int]:
        """Sum the time blocked in chosen waits by class: return label → ns, largest first, without zeros."""
        sums = sum_by(np.where(self.chosen, self.waits.wait_class.astype(np.int64), -1), self.blocked_ns(), 256)
        named = {wait_class.label: int(sums[wait_class]) for wait_class in WaitClass}
        return dict(sorted(((label, ns) for label, ns in named.items() if ns), key=lambda item: -item[1]))

    def now(self) -> Bool:
        """Return bool[samples]: True for chosen waits that have not ended."""
        return self.chosen & self.profile.is_still_blocked()

    def running_ns(self) -> int:
        """Return the time that the chosen threads ran, ns; 0 if it is not known."""
        return 0 if self.lives.running is None else int(self.lives.running[self.lives_chosen].sum())

    def runnable_ns(self) -> int:
        """Return the time that the chosen threads waited for a CPU, ns."""
        return int(self.lives.runnable[self.lives_chosen].sum())

    def rows(self, key: str) -> list[Row]:
        """Sum chosen waits and threads by a key (of `commands.top.KEYS`); return the rows, longest blocked first."""
        chosen, lives = np.flatnonzero(self.chosen), self.lives
        column, of_lives, label = _column(self, key)
        threads = np.flatnonzero(self.lives_chosen) if len(of_lives) else np.empty(0, np.int64)
        both = np.concatenate([column[chosen], of_lives[threads]])
        first, row_of = group(both)
        row_of, thread_row = np.split(row_of, [len(chosen)])
        number = len(first)
        samples, lengths = self.profile.samples.take(chosen), self.whole.take(chosen)
        now = self.now()[chosen]
        blocked = self.blocked_ns()[chosen]
        times = [sum_by(row_of, values, number) for values in (blocked, samples.period - blocked)]
        running: list[int | None] = [None] * number
        if len(of_lives):
            times = [sum_by(thread_row, values[threads], number) for values in (lives.blocked_ns(), lives.runnable)]
        if len(of_lives) and lives.running is not None:
            running = sum_by(thread_row, lives.running[threads], number).tolist()
        since = max_by(np.where(now, row_of, -1), lengths.period, number)
        is_longest = now & (lengths.period == since[row_of]) & lengths.has(SampleFlag.BEGAN_BEFORE)
        columns = (
            times[0].tolist(),
            times[1].tolist(),
            running,
            totals_of(lengths, row_of, number, ~now),
            np.bincount(row_of[now], minlength=number).tolist(),
            np.maximum(since, 0).tolist(),
            (np.bincount(row_of[is_longest], minlength=number) > 0).tolist(),
        )
        sample_rows = np.append(chosen, np.full(len(threads), -1))[first].tolist()
        rows = [
            Row(
                label(value, sample_row),
                value,
                *(ns_blocked, ns_runnable, ns_running),
                *(total.count, total.average, total.longest if total.count else None),
                *others,
            )
            for value, sample_row, ns_blocked, ns_runnable, ns_running, total, *others in zip(
                both[first].tolist(), sample_rows, *columns, strict=True
            )
        ]
        return sorted(rows, key=lambda row: (-row.blocked, -row.runnable, row.label))

    def showing(self, idle: str) -> "Interval":
        """Choose waits and threads: all ("show"), all but those of idle threads ("hide"), or only these ("only")."""
        masks = (self.is_idle, self.lives_idle)
        chosen, lives = (np.ones_like(mask) if idle == "show" else mask == (idle == "only") for mask in masks)
        return replace(self, chosen=chosen, lives_chosen=lives)

    def narrowed(self, key: str, label: str) -> "Interval":
        """Choose only the waits and threads of the rows labelled `label` in the table by `key`; no threads if it is no
        key of threads (_OF_LIVES)."""
        column, of_lives, _ = _column(self, key)
        values = np.array([row.value for row in self.rows(key) if row.label == label], np.int64)
        threads = np.isin(of_lives, values) if len(of_lives) else np.zeros_like(self.lives_chosen)
        return replace(self, chosen=self.chosen & np.isin(column, values), lives_chosen=self.lives_chosen & threads)

    def stacks(self, most: int) -> list[HeavyStack]:
        """Return at most `most` stacks of the chosen waits, longest blocked first."""
        rows = np.flatnonzero(self.chosen)
        return heavy_stacks(self.profile, rows, self.blocked_ns()[rows], most)


def interval_of(profile: Profile, *, idle: str = "hide", without_pid: int = 0) -> Interval:
    """Make an interval of a recording. `idle` threads: "show", "hide" or "only"; `without_pid`: process to leave
    out."""
    if without_pid:
        samples, budget = profile.samples, profile.budget
        profile = replace(profile.select(samples.pid != without_pid), budget=budget.take(budget.pid != without_pid))
    begin_ns, end_ns = profile.meta.recorded[0][0], profile.meta.recorded[-1][1]
    recorded = profile.samples
    profile = replace(profile, samples=_inside(recorded, begin_ns))
    waits, lives = classify(profile), counted_lives(profile)
    is_idle = of_idle_threads(profile, waits.for_work)
    lives_idle = is_among(thread_ids(lives.pid, lives.tid), distinct(thread_ids(recorded.pid, recorded.tid)[is_idle]))
    masks = is_idle, lives_idle, is_idle, lives_idle
    return Interval(profile, recorded, waits, lives, *masks, begin_ns, end_ns, _cause(profile, waits)).showing(idle)


def _inside(samples: ProfileSamples, begin_ns: int) -> ProfileSamples:
    """Cut single waits to their part after `begin_ns`, and run-queue delays to the length that is left."""
    timed = (samples.time_ns >= 0) & ~samples.has(SUM_FLAGS)
    inside = np.maximum(samples.time_ns - begin_ns, 0)
    period = np.where(timed, np.minimum(samples.period, inside), samples.period)
    return samples.with_columns(period=period, runq_ns=np.minimum(samples.runq_ns, period))


def _cause(profile: Profile, waits: Waits) -> str:
    everything = np.ones(len(profile.samples), np.bool_)
    verdict = verdict_of(profile, everything, profile, waits, holders_of(profile))
    return first_cause(verdict) if verdict else ""


def _column(interval: Interval, key: str) -> tuple[I64, I64, Callable[[int, int], str]]:
    """Return the values of a key: of the samples, int64[samples]; of the threads, int64[threads] (empty if the key is
    none of _OF_LIVES); and a function from a value and a row of the samples with it (-1: none) to the label."""
    profile, lives, samples = interval.profile, interval.lives, interval.profile.samples

    def named(value: int, _: int) -> str:
        return f"{thread_label(comm_at(profile, value, interval.end_ns))} {id_text(value)}"

    if key == "holder":
        held = holders_of(profile).known().astype(np.int64)
        return held, np.empty(0, np.int64), lambda value, _: named(value, _) if value >= 0 else NO_OBJECT
    if key == "stack":
        return _stacks(profile, interval.waits)
    if key not in _OF_LIVES:
        column, label = column_of(key, profile, interval.waits)
        return column, np.empty(0, np.int64), lambda _, row: label(row)
    if key == "comm":
        return samples.comm.astype(np.int64), lives.comm, lambda value, _: thread_label(profile.strings[value])
    if key == "cgroup":
        return samples.cgroup.view(np.int64), lives.cgroup, lambda value, _: cgroup_label(profile, value)
    of_samples, of_lives = (samples.pid, lives.pid) if key == "process" else (samples.tid, lives.tid)
    return of_samples.astype(np.int64), of_lives.astype(np.int64), named


def _stacks(profile: Profile, waits: Waits) -> tuple[I64, I64, Callable[[int, int], str]]:
    """Return the values of the key "stack", as `_column` does. A label is the function that explains the wait, as in
    reports, and the stack, innermost function first: `balance: futex_wait < … < balance < main`."""
    tree, causes = build_paths(profile, PathOptions(), rooted=False), causes_of(profile, waits)
    first, row_of = group(tree.of_sample.astype(np.int64), causes.function)
    functions = (causes.names[function] for function in causes.function[first].tolist())
    texts = [
        f"{function}{function and ': '}" + printable(" < ".join(name.label for name in reversed(path)))
        for function, path in zip(functions, tree.names_of(tree.of_sample[first]), strict=True)
    ]
    labels, column = np.unique(np.array(texts, object), return_inverse=True)  # names of different files may be equal
    return column[row_of].astype(np.int64), np.empty(0, np.int64), lambda value, _: str(labels[value])


def comm_at(profile: Profile, tid: int, time_ns: int) -> str:
    """Return the comm of a thread at a time; "" if unknown."""
    return profile.strings[int(profile.comms_at(np.array([tid], np.int32), np.array([time_ns]))[0])]
