# SPDX-License-Identifier: Apache-2.0
"""Compute the verdict on a recording's waits: numbers for the sentences on top of a report.

It is about the threads that are not idle:

* the shares of their off-cpu time by cause, with function (`analysis.causes`) and threads;
* the part of it that was waiting for a CPU; where such waits are not recorded, how long preempted threads
  waited for one, by their budgets;
* the number of idle threads, the threads that are still blocked, and the largest loss;
* a command that shows the first cause alone.

The same profile yields the same numbers.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence

import numpy as np

from perf_offcpu import losses
from perf_offcpu.analysis.causes import Causes, causes_of
from perf_offcpu.analysis.classes.classify import Waits
from perf_offcpu.analysis.classes.wait_classes import WaitClass
from perf_offcpu.analysis.group import group, max_by, sum_by
from perf_offcpu.analysis.idle import of_idle_threads
from perf_offcpu.losses import LossCause, Stage
from perf_offcpu.model.columns import Bool
from perf_offcpu.model.lookup import rows_at
from perf_offcpu.model.profile import Profile, ProfileSamples
from perf_offcpu.model.recording import SampleFlag
from perf_offcpu.report.verdict.causes import (
    CAUSE_PERCENT,
    SOLE_PERCENT,
    BlockedThread,
    Cause,
    Loss,
    Preempted,
    Threads,
    Verdict,
    cells_of,
    largest_causes,
    named_objects,
)
from perf_offcpu.text import printable, thread_label

_SHOWN_BLOCKED = 2
_ONE_FLAG = {losses.COPY_EXHAUSTED, losses.STACK_TOO_DEEP}
_FLAG_OF_CAUSE = {
    **dict.fromkeys(_ONE_FLAG, SampleFlag.STACK_EXHAUSTED),
    losses.NO_CFI: SampleFlag.NO_CFI,
    losses.OUTSIDE_MAPS: SampleFlag.OUTSIDE_MAPS,
}
_MOST_OF_TIME = 0.95
"""Threads are named that have this part of the time together, the others not: many wait a little."""


def verdict_of(
    profile: Profile,
    chosen: Bool,
    subject: Profile,
    waits: Waits,
    counts: Mapping[LossCause, int],
    *,
    options: Sequence[tuple[str, str]] = (),
    whole_lives: bool = True,
) -> Verdict | None:
    """Return the verdict on the waits of a profile; None if there are none.

    Args:
        profile: all samples of the threads.
        chosen: bool[samples], the waits.
        subject: the profile with these samples.
        waits: `classify(subject)`.
        counts: cause → number, of losses alone.
        options: (option, value) of the command line that `command` keeps.
        whole_lives: the profile has all samples of each thread; else no thread is judged idle.
    """
    idle = _idle(profile, chosen, waits) if whole_lives else np.zeros(len(subject.samples), np.bool_)
    causes = causes_of(subject, waits)
    cells = cells_of(subject, waits, causes, idle)
    busy, period = cells.take(cells.idle == 0), subject.samples.period
    weight = int(busy.weight.sum())
    preempted = _preempted(profile, waits, weight) if whole_lives else None
    if not len(subject.samples) and not preempted:
        return None
    largest = largest_causes(subject, waits, causes, busy)
    blocked, longest = _still_blocked(subject, waits, causes, ~idle)
    hidden, hidden_ms = (profile.losses.get(one, 0) for one in (losses.IDLE_THREADS, losses.IDLE_MS))
    return Verdict(
        weight=weight,
        threads=busy.number_of_threads(),
        causes=largest,
        others=weight - sum(cause.weight for cause in largest),
        runq=int(busy.runq.sum()) if _knows_runq(subject.samples, waits) else None,
        preempted=preempted,
        idle_threads=cells.take(cells.idle == 1).number_of_threads() + hidden,
        idle=int((cells.weight * cells.idle).sum()) + hidden_ms * 10**6,
        still_blocked=blocked,
        longest_blocked=longest,
        goroutines="Go" in {waits.rules[row].program for row in np.unique(waits.rule).tolist() if row >= 0},
        loss=_loss(counts, profile, subject.samples),
        command=_command(largest, int(period.sum()), options),
    )


def _idle(profile: Profile, chosen: Bool, waits: Waits) -> Bool:
    for_work = np.zeros(len(chosen), np.bool_)
    for_work[chosen] = waits.for_work
    return of_idle_threads(profile, for_work)[chosen]


def _knows_runq(samples: ProfileSamples, waits: Waits) -> bool:
    return bool((samples.runq_ns >= 0).any() or (waits.wait_class == WaitClass.RUNQUEUE).any())


def _preempted(profile: Profile, waits: Waits, others: int) -> Preempted | None:
    budget, queued = profile.budget, waits.wait_class == WaitClass.RUNQUEUE
    weight = int(budget.preempted_ns.sum())
    if not weight or queued.any() or 100 * weight < CAUSE_PERCENT * (weight + others):
        return None
    first_row, thread_of_row = group(budget.pid, budget.tid)
    preempted, running, last = (
        sum_by(thread_of_row, budget.preempted_ns, len(first_row)),
        sum_by(thread_of_row, budget.running_ns, len(first_row)),
        max_by(thread_of_row, budget.end_ns, len(first_row)),
    )
    descending = np.argsort(-preempted, kind="stable")
    before = np.cumsum(preempted[descending]) - preempted[descending]
    threads = descending[before < _MOST_OF_TIME * weight]
    comm_row = rows_at(
        profile.comms.tid, profile.comms.begin_ns, budget.tid[first_row[threads]], last[threads]
    )
    comm = np.append(profile.comms.comm, 0)[comm_row]
    first_thread, comm_of_thread = group(comm)
    order = np.argsort(-sum_by(comm_of_thread, preempted[threads], len(first_thread)), kind="stable")
    comms = [thread_label(profile.strings[name]) for name in comm[first_thread[order]].tolist()]
    return Preempted(weight, Threads(len(threads), comms), int(running[threads].sum()))


def _still_blocked(
    profile: Profile, waits: Waits, causes: Causes, busy: Bool
) -> tuple[int, list[BlockedThread]]:
    samples = profile.samples
    rows = np.flatnonzero(busy & profile.is_still_blocked())
    elsewhere = waits.for_work[rows] | (waits.wait_class[rows] == WaitClass.CHILD)
    order = rows[np.lexsort((-samples.period[rows], elsewhere))]
    before, names = samples.has(SampleFlag.BEGAN_BEFORE), named_objects(profile)
    longest = [
        BlockedThread(
            comm=thread_label(profile.strings[samples.comm[row]]),
            pid=int(samples.pid[row]),
            tid=int(samples.tid[row]),
            wait_class=WaitClass(waits.wait_class[row]).label,
            object=printable(profile.strings[int(names[row])]),
            function=causes.names[causes.function[row]],
            weight=int(samples.period[row]),
            since=int(samples.switch_out_ns[row]),
            began_before=bool(before[row]),
        )
        for row in order[:_SHOWN_BLOCKED].tolist()
    ]
    return len(group(samples.pid[rows], samples.tid[rows])[0]), longest


def _loss(counts: Mapping[LossCause, int], profile: Profile, waits: ProfileSamples) -> Loss | None:
    """Return the largest loss that the recorder reports; else of other stages; else of symbolization."""
    if not counts:
        return None
    names = (Stage.NAMES, Stage.LINES)
    cause = max(
        counts,
        key=lambda cause_of_loss: (
            cause_of_loss.in_last_line,
            cause_of_loss.stage not in names,
            counts[cause_of_loss],
        ),
    )
    count, part, whole, of = counts[cause], counts[cause], 0, ""
    if cause.stage in names:
        whole, of = max(len(profile.frames), count), "addresses"
    elif cause.stage is Stage.BPF:
        whole, of = int(waits.count.sum()) + count, "waits"
    elif cause.stage is Stage.UNWIND:
        flag = None if counts.keys() >= _ONE_FLAG else _FLAG_OF_CAUSE.get(cause)
        count, part, whole, of = _cut_stacks(flag, count, profile, waits)
    percent = round(min(100 * part / whole, 100.0), 2) if whole else None
    return Loss(str(cause), count, percent, of, len(counts))


def _cut_stacks(
    flag: SampleFlag | None, count: int, profile: Profile, waits: ProfileSamples
) -> tuple[int, int, int, str]:
    """Return the stacks that unwinding cut: of waits, or else of the event with the most.

    Args:
        flag: of samples whose stack was cut by one cause; None if no flag is of this cause alone.
        count: their number in the whole recording.

    Returns:
        (stacks, what they stand for, the same of all stacks of this kind or 0, name of the kind).
    """
    samples = profile.samples
    if flag is None:
        return count, 0, 0, ""
    if (is_cut := waits.has(flag)).any():
        return int(is_cut.sum()), int(waits.count[is_cut].sum()), int(waits.count.sum()), "waits"
    number = np.bincount(samples.evsel[samples.has(flag) & (samples.evsel >= 0)])
    if not len(number):
        return count, 0, 0, ""
    event, most = int(number.argmax()), int(number.max())
    return most, most, int((samples.evsel == event).sum()), f"{profile.evsels[event].name} samples"


def _command(causes: Sequence[Cause], whole: int, options: Sequence[tuple[str, str]]) -> str:
    """Return a command that shows the first cause: its tables, or its flame graph if it is nearly all."""
    if not causes:
        kept = [word for pair in options for word in pair]
        view = ["--sort", "comm,class"] if whole else ["--budget-by", "comm"]
        return shlex.join(["perf-offcpu", "report", *kept, *view])
    cause = causes[0]
    alone = 100 * cause.weight >= SOLE_PERCENT * whole
    verb = ["convert", "--flamegraph"] if alone else ["report"]
    comms = cause.threads.comms
    named = len(comms) == 1 and re.fullmatch(r"[\w.:+-]+", comms[0])
    comm = ["--comm", comms[0]] if named and not comms[0].startswith("-") else []
    replaced = ("--class", "--comm") if comm else ("--class",)
    kept = [word for pair in options if pair[0] not in replaced for word in pair]
    return shlex.join(["perf-offcpu", *verb, *kept, "--class", cause.wait_class, *comm])
