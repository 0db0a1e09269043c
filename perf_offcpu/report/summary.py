# SPDX-License-Identifier: Apache-2.0
"""Sum a profile for the report: totals by event, by thread and by stack, and losses. One event (or several of one unit)
is the subject, normally the off-cpu time. The samples of the first other event, normally the CPU samples of the same
threads, are shown next to it. All numbers are exact integers; `report.terminal` rounds them."""

from collections.abc import Sequence
from dataclasses import field

import numpy as np

from perf_offcpu import losses
from perf_offcpu.abi.offcpu import EVENT_NAME
from perf_offcpu.analysis import event_loops
from perf_offcpu.analysis.classes.classify import Waits, classify, of_idle_threads
from perf_offcpu.analysis.classes.wait_classes import WaitClass
from perf_offcpu.analysis.goroutines import GoroutineRow, goroutine_rows, goroutine_sentences
from perf_offcpu.analysis.holders import holders_of
from perf_offcpu.analysis.selection.select import event_rows
from perf_offcpu.callpaths.options import Name, PathOptions
from perf_offcpu.callpaths.tree import build_paths
from perf_offcpu.callpaths.weights import unit_of
from perf_offcpu.causality.locks import DeadThread, deadlocks_of, sentence_of
from perf_offcpu.losses import LossCause
from perf_offcpu.model.columns import I64, Bool, group, sum_by
from perf_offcpu.model.profile import Profile, ProfileSamples
from perf_offcpu.model.recording import Evsel, Meta, SampleFlag
from perf_offcpu.report import breakdowns
from perf_offcpu.report.breakdowns import Oversleep, oversleep_of
from perf_offcpu.report.objects import ObjectTable, object_table
from perf_offcpu.report.thread_budgets import BudgetTable, budget_table
from perf_offcpu.report.totals import Total, heaviest, places_of, sums_by_label, sums_by_state, totals_of
from perf_offcpu.report.verdict.numbers import Verdict, verdict_of
from perf_offcpu.report.verdict.text import lines_of
from perf_offcpu.structs import frozen

_CAUSE_OF_FLAG = {
    SampleFlag.NO_USER_STACK: losses.NO_USER_STACK,
    SampleFlag.NO_KERNEL_STACK: losses.NO_KERNEL_STACK,
    SampleFlag.UNMERGED: losses.NO_DEFERRED_STACK,
    SampleFlag.TRUNCATED: losses.STACK_CUT,
    SampleFlag.REPAIRED_IDS: losses.REPAIRED_IDS,
    SampleFlag.STILL_BLOCKED: losses.STILL_BLOCKED,
    SampleFlag.BEGAN_BEFORE: losses.BEGAN_BEFORE,
}


@frozen
class EventRow:
    """Samples of one event in sum."""

    name: str
    unit: str
    samples: int
    total: Total


@frozen
class ThreadRow:
    """Samples of a thread under one comm in sum; a thread that changed its comm has several rows."""

    comm: str
    pid: int
    tid: int
    total: Total
    beside: Total  # of the event `Summary.beside`
    idle_because: str = ""  # what an idle thread waits for, in most of its time; "" for others


@frozen
class StackRow:
    """Samples of one comm with one stack in sum, functions by name."""

    comm: str
    frames: tuple[Name, ...]  # root first, the comm itself not included
    total: Total
    states: dict[str, int]  # weight by state letter (`abi.task_state`), largest first; without unknown states
    classes: dict[str, int] = field(default_factory=dict)  # weight by wait class, largest first
    syscalls: dict[str, int] = field(default_factory=dict)  # weight by call, largest first; "" unknown
    still_blocked: int = 0  # number of its samples that were still blocked when the recording ended
    error_ns: int = 0  # standard error of its weight, at most: of waits whose stack was drawn; 0: the weight is exact


@frozen
class Summary:
    """Contents of the report. Rows are sorted by weight, heaviest first; lists may be cut, `total` is not."""

    meta: Meta
    events: list[EventRow]
    subject: tuple[str, ...]  # names of the events that the rows are about
    is_offcpu: bool
    unit: str  # unit of all weights of the subject: "ns", or "" for occurrences
    total: Total
    beside: EventRow | None  # the event in the rows' `beside`
    threads: list[ThreadRow]
    more_threads: tuple[int, int]  # (rows, weight) cut off by the limit
    stacks: list[StackRow]
    more_stacks: tuple[int, int]
    budget: BudgetTable | None  # None if the threads' lives are unknown, or cut by a selection of samples
    groups: breakdowns.GroupTable  # by class, or by the sort keys
    objects: ObjectTable  # what was waited for
    oversleep: Oversleep | None  # None if the times asked for are not known
    deadlocks: list[list[DeadThread]]  # see `causality.locks`
    loops: list[event_loops.LoopRow]  # event loops whose threads are blocked at the end
    loop_times: list[event_loops.LoopTimeRow]  # what held up tasks while the recording went on
    goroutines: list[GoroutineRow]  # of Go programs, while they have no thread
    functions: breakdowns.FunctionTable | None  # None unless asked for
    histogram: breakdowns.Histogram | None  # of off-cpu time only
    verdict: Verdict | None  # of off-cpu time only; None unless asked for
    losses: dict[LossCause, int]
    notes: dict[LossCause, int] = field(default_factory=dict)  # causes that lose nothing → samples

    @property
    def subject_name(self) -> str:
        """Return the name of the weights: `off-cpu time`, or the names of the events."""
        return "off-cpu time" if self.is_offcpu else ", ".join(self.subject)


@frozen
class Limits:
    """Largest number of rows of each list of a report; None for all."""

    threads: int | None = None
    stacks: int | None = None
    groups: int | None = None


def summarize(
    profile: Profile,
    events: Sequence[str] = (),
    limits: Limits | None = None,
    *,
    keys: Sequence[str] = ("class",),
    whole_lives: bool = True,
    children: bool = False,
    verdict: bool = True,
    options: Sequence[tuple[str, str]] = (),
    budget_by: str = "thread",
) -> Summary:
    """Sum up a profile, which has all samples of all events of the threads to report. `events`: names of the events to
    report on, default as in `event_rows`. `keys`: sort keys (`callpaths.keys`) of the table `groups`. `whole_lives`:
    the profile has all samples of each thread; if not, there are no budgets. `children`: sum up functions with all that
    they call. `options`: as in `verdict_of`; `budget_by`: as in `budget_table`. Raise UsageError if the recording lacks
    an event, or weights do not add up."""
    limits = limits or Limits()
    rows = event_rows(profile, events)
    chosen_events = [profile.evsels[row] for row in rows.tolist()]
    chosen = np.isin(profile.samples.evsel, rows)
    subject = profile.select(chosen)
    table = _event_table(profile)
    beside_row = min(set(table) - set(rows.tolist()), default=-1)
    waits, holders = classify(subject), holders_of(subject)
    threads, more_threads = _threads(profile, chosen, waits, beside_row, limits.threads)
    stacks, more_stacks = _stacks(subject, waits, limits.stacks)
    is_offcpu, facts = shows_waits(subject, chosen_events), (profile, chosen, subject, waits, holders)
    notes = {cause: count for cause, count in losses.by_text(profile.losses).items() if not cause.is_loss}
    judged = verdict_of(*facts, options=options, whole_lives=whole_lives) if verdict and is_offcpu else None
    return Summary(
        meta=profile.meta,
        events=[table[row] for row in sorted(table)],
        subject=tuple(event.name for event in chosen_events),
        is_offcpu=is_offcpu,
        unit=unit_of(subject) if len(subject.samples) else chosen_events[0].unit if chosen_events else "",
        total=totals_of(subject.samples, np.zeros(len(subject.samples), np.int64), 1)[0],
        beside=table.get(beside_row),
        threads=threads,
        more_threads=more_threads,
        stacks=stacks,
        more_stacks=more_stacks,
        budget=budget_table(profile, limits.threads, budget_by) if whole_lives and is_offcpu else None,
        groups=breakdowns.group_table(subject, waits, keys, limits.groups),
        objects=object_table(subject, waits, holders, limits.stacks),
        oversleep=oversleep_of(subject, waits),
        deadlocks=deadlocks_of(subject, waits, holders),
        loops=event_loops.loop_rows(subject),
        loop_times=event_loops.loop_time_rows(subject),
        goroutines=goroutine_rows(subject),
        functions=breakdowns.function_table(subject, limits.groups) if children else None,
        histogram=breakdowns.histogram(subject.samples) if is_offcpu else None,
        verdict=judged,
        losses=losses.without_notes(profile.losses),
        notes=_notes(subject) | notes,
    )


def shows_waits(subject: Profile, events: list[Evsel]) -> bool:
    """Return True if all samples are waits; without samples, if the only event has the name of the off-cpu event."""
    if len(subject.samples):
        return bool(subject.is_offcpu().all())
    return [event.name for event in events] == [EVENT_NAME]


def _event_table(profile: Profile) -> dict[int, EventRow]:
    """Return row in evsels → sum of the event's samples, for events that have samples."""
    first, group_of = group(profile.samples.evsel)
    samples = np.bincount(group_of, minlength=len(first)).tolist()
    totals = totals_of(profile.samples, group_of, len(first))
    return {
        row: EventRow(profile.evsels[row].name, profile.evsels[row].unit, samples[index], totals[index])
        for index, row in enumerate(profile.samples.evsel[first].tolist())
        if row >= 0
    }


def _threads(
    profile: Profile, chosen: Bool, waits: Waits, beside_row: int, limit: int | None
) -> tuple[list[ThreadRow], tuple[int, int]]:
    samples = profile.samples
    beside = samples.evsel == beside_row
    first, group_of = group(samples.tid, samples.pid, samples.comm)
    own = totals_of(samples, group_of, len(first), None if chosen.all() else chosen)
    beside_totals = totals_of(samples, group_of, len(first), beside) if beside_row >= 0 else [Total(0, 0)] * len(first)
    rows = np.flatnonzero([bool(a.count or b.count) for a, b in zip(own, beside_totals, strict=True)])
    weight, beside_weight = (np.array([total.weight for total in t], np.int64)[rows] for t in (own, beside_totals))
    kept, cut = heaviest(weight, limit, beside_weight)
    rows = rows[kept]
    ids = (column[first[rows]].tolist() for column in (samples.comm, samples.pid, samples.tid))
    reasons = _reasons(profile, chosen, waits)
    return [
        ThreadRow(profile.strings[comm], pid, tid, own[row], beside_totals[row], reasons.get((pid, tid), ""))
        for row, comm, pid, tid in zip(rows.tolist(), *ids, strict=True)
    ], cut


def _reasons(profile: Profile, chosen: Bool, waits: Waits) -> dict[tuple[int, int], str]:
    """Return (pid, tid) of each idle thread → the text in `waits.purposes` for most of its waits' time."""
    samples, purpose = profile.samples, np.zeros(len(chosen), np.int32)
    purpose[chosen] = waits.purpose
    rows = np.flatnonzero(of_idle_threads(profile, purpose > 0) & (purpose > 0))
    first, thread_of = group(samples.pid[rows], samples.tid[rows])
    purposes, period = purpose[rows], samples.period[rows]
    reasons = sums_by_label(thread_of, purposes, lambda code: waits.purposes[code], period, len(first))
    threads = zip(samples.pid[rows[first]].tolist(), samples.tid[rows[first]].tolist(), strict=True)
    return {thread: next(iter(by_reason)) for thread, by_reason in zip(threads, reasons, strict=True)}


def _stacks(subject: Profile, waits: Waits, limit: int | None) -> tuple[list[StackRow], tuple[int, int]]:
    samples, tree = subject.samples, build_paths(subject, PathOptions())
    first, stack_of = group(tree.of_sample)
    kept, cut = heaviest(sum_by(stack_of, samples.period, len(first)), limit)
    row_of, number, weight = places_of(kept, len(first))[stack_of], len(kept), samples.period
    columns = (
        totals_of(samples, row_of, number),
        sums_by_state(samples, row_of, weight, number),
        sums_by_label(row_of, waits.wait_class, lambda code: WaitClass(code).label, weight, number),
        sums_by_label(row_of, waits.syscall, lambda row: waits.syscall_names[row], weight, number),
        np.bincount(row_of[subject.is_still_blocked()] + 1, minlength=number + 1)[1:].tolist(),
        _errors(row_of, samples, subject.meta.sampling.stack_period_ns, number),
    )
    rows = []
    paths = tree.names_of(tree.of_sample[first[kept]])
    for (comm, *frames), total, states, *others in zip(paths, *columns, strict=True):
        states.pop("", None)
        rows.append(StackRow(comm.label, tuple(frames), total, states, *others))
    return rows, cut


def _errors(row_of: I64, samples: ProfileSamples, period_ns: int, number: int) -> list[int]:
    """Return the standard error, ns, of the time of each of `number` stack rows, as if waits were drawn independently
    (a Poisson process, a draw each `period_ns`); draws of one thread vary less. `row_of`: int64[samples], -1 none."""
    drawn = samples.has(SampleFlag.DRAWN)
    weight = np.bincount(row_of[drawn] + 1, samples.period[drawn].astype(np.float64), number + 1)[1:]
    errors: list[int] = np.rint(np.sqrt(weight * period_ns)).astype(np.int64).tolist()
    return errors


def _notes(subject: Profile) -> dict[LossCause, int]:
    """Return cause (no stack, a part of the stack, a wait without begin or end, …) → number of samples, never 0."""
    samples = subject.samples
    notes = {losses.NO_STACK: int((samples.stack < 0).sum()), losses.TASKS_UNREAD: event_loops.in_unread_loops(subject)}
    notes |= {cause: int(samples.has(flag).sum()) for flag, cause in _CAUSE_OF_FLAG.items()}
    return {cause: count for cause, count in notes.items() if count}


def head_of(
    profile: Profile, events: Sequence[str] = (), *, options: Sequence[tuple[str, str]] = (), whole_lives: bool = True
) -> tuple[tuple[str, ...], frozenset[tuple[int, int]]]:
    """Return the head of a page about a profile: its sentences, and the (pid, tid) of idle threads. Sentences are on
    event loops, goroutines and deadlocks, then the verdict; none if samples are no waits. Arguments: as `summarize`."""
    rows = event_rows(profile, events)
    chosen = np.isin(profile.samples.evsel, rows)
    subject = profile.select(chosen)
    if not shows_waits(subject, [profile.evsels[row] for row in rows.tolist()]):
        return (), frozenset()
    waits, holders = classify(subject), holders_of(subject)
    verdict = verdict_of(profile, chosen, subject, waits, holders, options=options, whole_lives=whole_lives)
    sentences = (
        *event_loops.sentences_of(event_loops.loop_rows(subject), event_loops.loop_time_rows(subject)),
        *goroutine_sentences(goroutine_rows(subject)),
        *map(sentence_of, deadlocks_of(subject, waits, holders)),
        *(lines_of(verdict, profile.meta) if verdict else ()),
    )
    return sentences, frozenset(_reasons(profile, chosen, waits) if whole_lives else ())
