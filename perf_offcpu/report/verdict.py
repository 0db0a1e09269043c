# SPDX-License-Identifier: Apache-2.0
"""Say in a few sentences what a report's numbers mean: the verdict on top of it.

It is about the threads that are not idle: what share of their off-cpu time is which cause in which function
(`analysis.causes`) of which threads, what of it was waiting for a CPU; how long preempted threads waited for
one, by their budgets, where such waits are not recorded; how many threads were idle; who is still blocked;
what was lost; and the command that shows the first cause alone. A cause is a wait class, or a rule of a
program, whose words it then has. Waits for the end of other threads and processes, or, by a rule, for the
next piece of work, stand last: what they wait for is elsewhere. The same profile yields the same words.

`verdict_of` makes the numbers, `sentences_of` the words.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from perf_offcpu import losses
from perf_offcpu.abi.wait_objects import ObjectKind
from perf_offcpu.analysis.causes import Causes, causes_of
from perf_offcpu.analysis.classes.classify import Waits
from perf_offcpu.analysis.classes.wait_classes import WaitClass, Work
from perf_offcpu.analysis.group import group, sum_by
from perf_offcpu.analysis.idle import of_idle_threads
from perf_offcpu.decode.tasks.lookup import rows_at
from perf_offcpu.losses import LossCause, Stage
from perf_offcpu.model.columns import I64, U32, Bool
from perf_offcpu.model.profile import Profile, ProfileSamples
from perf_offcpu.model.recording import SampleFlag
from perf_offcpu.structs import frozen
from perf_offcpu.text import printable, thread_label

_NAMED = [
    *(ObjectKind.FUTEX, ObjectKind.SOCKET, ObjectKind.PIPE, ObjectKind.SEMAPHORES),
    *(ObjectKind.FILE, ObjectKind.DIRECTORY, ObjectKind.CHARACTER, ObjectKind.BLOCK),
]
"""Kinds of objects whose names say more than the class and the function."""
_CAUSES, _PLACES, _SHOWN_BLOCKED = 4, 2, 2
_CAUSE_PERCENT = 5  # smaller causes are "others", but for the first
_PLACE_PERCENT, _SOLE_PERCENT = 25, 90  # of its cause: a function is named; it is named alone


@frozen
class Threads:
    """The threads of some samples."""

    number: int
    comms: list[str]  # the longest waiting first


@frozen
class Place:
    """The waits of a cause in one function."""

    function: str  # "" not known
    weight: int
    threads: Threads
    object: str  # name of what nearly all of it was waited for; "" for several, or none
    mostly: str  # name of what more than half of it was waited for, if that is not nearly all; else ""


@frozen
class Cause:
    """Waits of one class, or by one rule of a program."""

    wait_class: str  # label
    program: str  # of the rule; "" for none
    meaning: str  # of the rule; "" for none
    weight: int
    for_work: bool  # by a rule of the program, or by the class
    threads: Threads
    functions: int  # number of functions in which they wait
    places: list[Place]  # functions with much of the weight, the largest first


@frozen
class Preempted:
    """Waits of preempted threads for a CPU, by their budgets."""

    weight: int
    threads: Threads
    running: int  # ns that these threads ran


@frozen
class BlockedThread:
    """A wait that was not over when the recording ended."""

    comm: str
    pid: int
    tid: int
    wait_class: str
    object: str  # name of what it waits for; "" if that has no name of its own
    function: str
    weight: int
    since: int  # ns; -1 not known
    began_before: bool  # before the recording did


@frozen
class Loss:
    """The largest loss."""

    cause: str
    count: int
    percent: float | None  # of the waits, or of the addresses; None where it is of neither
    of: str  # "waits" or "addresses"; "" for neither
    causes: int  # number of causes of losses


@frozen
class Verdict:
    """The numbers of the verdict; weights in ns."""

    weight: int  # off-cpu time of the threads that are not idle
    threads: int
    causes: list[Cause]  # the largest, until the rest is small; see above for their order
    others: int  # weight of all other causes
    runq: int | None  # of `weight`, waiting for a CPU; None if not recorded
    preempted: Preempted | None  # None if it is little next to `weight`, or such waits are recorded
    idle_threads: int
    idle: int  # off-cpu time of idle threads
    still_blocked: int  # number of threads
    longest_blocked: list[BlockedThread]  # waits that end elsewhere (see above) last
    goroutines: bool  # Go's scheduler waited: goroutines that wait are no threads
    loss: Loss | None
    command: str  # shows the first cause


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
    cells = _cells(subject, waits, causes, idle)
    busy, period = cells.take(cells.idle == 0), subject.samples.period
    weight = int(busy.weight.sum())
    preempted = _preempted(profile, waits, weight) if whole_lives else None
    if not len(subject.samples) and not preempted:
        return None
    found = _causes(subject, waits, causes, busy)
    blocked, longest = _still_blocked(subject, waits, causes, ~idle)
    hidden, hidden_ms = (profile.losses.get(one, 0) for one in (losses.IDLE_THREADS, losses.IDLE_MS))
    return Verdict(
        weight=weight,
        threads=_number(busy),
        causes=found,
        others=weight - sum(cause.weight for cause in found),
        runq=int(busy.runq.sum()) if _knows_runq(subject.samples, waits) else None,
        preempted=preempted,
        idle_threads=_number(cells.take(cells.idle == 1)) + hidden,
        idle=int((cells.weight * cells.idle).sum()) + hidden_ms * 10**6,
        still_blocked=blocked,
        longest_blocked=longest,
        goroutines="Go" in {waits.rules[row].program for row in np.unique(waits.rule).tolist() if row >= 0},
        loss=_loss(counts, int(subject.samples.count.sum()), len(profile.frames)),
        command=_command(found, int(period.sum()), options),
    )


def _idle(profile: Profile, chosen: Bool, waits: Waits) -> Bool:
    for_work = np.zeros(len(chosen), np.bool_)
    for_work[chosen] = waits.for_work
    return of_idle_threads(profile, for_work)[chosen]


class _Cells(NamedTuple):
    """Sums of the waits of one thread, cause and function: columns of equal length."""

    pid: I64
    tid: I64
    comm: I64
    wait_class: I64
    rule: I64
    function: I64
    object: I64  # string: its name; 0 for none, and for what has no name of its own
    idle: I64  # 1 if the thread is idle
    weight: I64
    runq: I64  # of the weight

    def take(self, rows: Bool | I64) -> _Cells:
        """Return some cells."""
        return _Cells(*(column[rows] for column in self))


def _cells(subject: Profile, waits: Waits, causes: Causes, idle: Bool) -> _Cells:
    samples = subject.samples
    who = (samples.pid, samples.tid, samples.comm)
    facts = (*who, waits.wait_class, waits.rule, causes.function, _named_objects(subject), idle)
    first, of = group(*facts[:-1])
    columns = [fact[first].astype(np.int64) for fact in facts]
    delay = np.where(waits.wait_class == WaitClass.RUNQUEUE, samples.period, np.maximum(samples.runq_ns, 0))
    return _Cells(*columns, *(sum_by(of, values, len(first)) for values in (samples.period, delay)))


def _named_objects(profile: Profile) -> U32:
    """Return uint32[samples]: the string with the object's name; 0 where it says no more than the class."""
    objects = profile.objects
    names = np.where(np.isin(objects.kind, _NAMED), objects.name, np.uint32(0))
    found: U32 = np.append(names, np.uint32(0))[profile.samples.object]
    return found


def _knows_runq(samples: ProfileSamples, waits: Waits) -> bool:
    return bool((samples.runq_ns >= 0).any() or (waits.wait_class == WaitClass.RUNQUEUE).any())


def _preempted(profile: Profile, waits: Waits, others: int) -> Preempted | None:
    budget, queued = profile.budget, waits.wait_class == WaitClass.RUNQUEUE
    weight = int(budget.preempted_ns.sum())
    if not weight or queued.any() or 100 * weight < _CAUSE_PERCENT * (weight + others):
        return None
    much = budget.take(100 * budget.preempted_ns >= weight)  # 1 % of it
    at = rows_at(profile.comms.tid, profile.comms.begin_ns, much.tid, much.end_ns)
    comm = np.append(profile.comms.comm, 0)[at]
    first, of = group(comm)
    order = np.argsort(-sum_by(of, much.preempted_ns, len(first)), kind="stable")
    comms = [thread_label(profile.strings[one]) for one in comm[first[order]].tolist()]
    return Preempted(weight, Threads(len(much), comms), int(much.running_ns.sum()))


def _number(cells: _Cells) -> int:
    """Return the number of threads."""
    return len(group(cells.pid, cells.tid)[0])


def _causes(profile: Profile, waits: Waits, causes: Causes, cells: _Cells) -> list[Cause]:
    first, of = group(cells.wait_class, cells.rule)
    total = sum_by(of, cells.weight, len(first))
    found: list[Cause] = []
    for at in np.argsort(-total, kind="stable")[:_CAUSES].tolist():
        if total[at] <= 0 or (found and 100 * int(total[at]) < _CAUSE_PERCENT * int(total.sum())):
            break
        found.append(_cause(profile, waits, causes, cells.take(of == at)))
    return sorted(found, key=lambda cause: (cause.for_work, cause.wait_class == WaitClass.CHILD.label))


def _cause(profile: Profile, waits: Waits, causes: Causes, cells: _Cells) -> Cause:
    rule = waits.rules[cells.rule[0]] if cells.rule[0] >= 0 else None
    whole, (first, of) = int(cells.weight.sum()), group(cells.function)
    sums = sum_by(of, cells.weight, len(first))
    largest = np.argsort(-sums, kind="stable")[:_PLACES].tolist()
    weights = sums.tolist()  # of Python: percentages of them need more than 63 bits
    large = [at for at in largest if 100 * weights[at] >= _PLACE_PERCENT * whole]
    if large and 100 * weights[large[0]] >= _SOLE_PERCENT * whole:
        large = large[:1]
    return Cause(
        WaitClass(cells.wait_class[0]).label,
        rule.program if rule else "",
        rule.meaning if rule else "",
        whole,
        bool(rule.for_work) if rule else WaitClass(cells.wait_class[0]).row.work is Work.ALWAYS,
        _threads(profile, cells),
        len(first),
        [
            Place(
                causes.names[cells.function[first[at]]],
                weights[at],
                _threads(profile, cells.take(of == at)),
                *_object(profile, cells.take(of == at)),
            )
            for at in large
        ],
    )


def _object(profile: Profile, cells: _Cells) -> tuple[str, str]:
    """Return the names of what nearly all, else of what most of the weight was waited for; "" for none."""
    first, of = group(cells.object)
    sums = sum_by(of, cells.weight, len(first)).tolist()
    most = max(range(len(first)), key=lambda at: sums[at], default=-1)
    if most < 0 or 2 * sums[most] <= sum(sums):
        return "", ""
    name = printable(profile.strings[int(cells.object[first[most]])])
    return (name, "") if 100 * sums[most] >= _SOLE_PERCENT * sum(sums) else ("", name)


def _threads(profile: Profile, cells: _Cells) -> Threads:
    first, of = group(cells.comm)
    order = np.argsort(-sum_by(of, cells.weight, len(first)), kind="stable")
    comms = [thread_label(profile.strings[one]) for one in cells.comm[first[order]].tolist()]
    return Threads(_number(cells), comms)


def _still_blocked(
    profile: Profile, waits: Waits, causes: Causes, busy: Bool
) -> tuple[int, list[BlockedThread]]:
    samples = profile.samples
    rows = np.flatnonzero(busy & profile.is_still_blocked())
    elsewhere = waits.for_work[rows] | (waits.wait_class[rows] == WaitClass.CHILD)
    order = rows[np.lexsort((-samples.period[rows], elsewhere))]
    before, names = samples.has(SampleFlag.BEGAN_BEFORE), _named_objects(profile)
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


def _loss(counts: Mapping[LossCause, int], waits: int, frames: int) -> Loss | None:
    """Return the largest loss: of those that the recorder reports, else of others, else of names."""
    if not counts:
        return None
    names = (Stage.NAMES, Stage.LINES)
    cause = max(counts, key=lambda one: (one.in_last_line, one.stage not in names, counts[one]))
    count, of, whole = counts[cause], "", 0
    if cause.stage in names:
        of, whole = "addresses", max(frames, counts[cause])
    elif cause.stage in (Stage.BPF, Stage.UNWIND):
        of, whole = "waits", waits + (count if cause.stage is Stage.BPF else 0)
    percent = round(min(100 * count / whole, 100.0), 2) if whole else None
    return Loss(str(cause), count, percent, of, len(counts))


def _command(causes: Sequence[Cause], whole: int, options: Sequence[tuple[str, str]]) -> str:
    """Return a command that shows the first cause: its tables, or its flame graph if it is nearly all."""
    if not causes:
        kept = [word for pair in options for word in pair]
        view = ["--sort", "comm,class"] if whole else ["--budget-by", "comm"]
        return shlex.join(["perf-offcpu", "report", *kept, *view])
    cause = causes[0]
    alone = 100 * cause.weight >= _SOLE_PERCENT * whole
    verb = ["convert", "--flamegraph"] if alone else ["report"]
    comms = cause.threads.comms
    named = len(comms) == 1 and re.fullmatch(r"[\w.:+-]+", comms[0])
    comm = ["--comm", comms[0]] if named and not comms[0].startswith("-") else []
    replaced = ("--class", "--comm") if comm else ("--class",)
    kept = [word for pair in options if pair[0] not in replaced for word in pair]
    return shlex.join(["perf-offcpu", *verb, *kept, "--class", cause.wait_class, *comm])
