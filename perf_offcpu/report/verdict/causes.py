# SPDX-License-Identifier: Apache-2.0
"""Find the largest causes of waits, with their functions, threads and objects, by sums over cells.

A cause is a wait class, or a rule of a program, whose words it then has. Weights are in ns.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from perf_offcpu.abi.wait_objects import ObjectKind
from perf_offcpu.analysis.causes import Causes
from perf_offcpu.analysis.classes.classify import Waits
from perf_offcpu.analysis.classes.wait_classes import WaitClass, Work
from perf_offcpu.analysis.group import group, sum_by
from perf_offcpu.model.columns import I64, U32, Bool
from perf_offcpu.model.profile import Profile
from perf_offcpu.structs import frozen
from perf_offcpu.text import printable, thread_label


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
    count: int  # where stacks were cut: of one kind of sample, of waits if there are any
    percent: float | None  # of what `of` names
    of: str  # "waits", "addresses" or "EVENT samples"; "" for none of these
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


_NAMED = [
    *(ObjectKind.FUTEX, ObjectKind.SOCKET, ObjectKind.PIPE, ObjectKind.SEMAPHORES),
    *(ObjectKind.FILE, ObjectKind.DIRECTORY, ObjectKind.CHARACTER, ObjectKind.BLOCK),
]
"""Kinds of objects whose names say more than the class and the function."""
_CAUSES, _PLACES = 4, 2
_PLACE_PERCENT = 25  # of its cause: a function is named
CAUSE_PERCENT: Final = 5
"""Smaller causes are "others", but for the first."""
SOLE_PERCENT: Final = 90
"""A function with this share of its cause is named alone."""


class Cells(NamedTuple):
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

    def take(self, rows: Bool | I64) -> Cells:
        """Return some cells."""
        return Cells(*(column[rows] for column in self))

    def number_of_threads(self) -> int:
        """Return the number of threads."""
        return len(group(self.pid, self.tid)[0])


def cells_of(subject: Profile, waits: Waits, causes: Causes, idle: Bool) -> Cells:
    """Return the cells of all waits.

    Args:
        subject: the profile of the waits.
        waits: `classify(subject)`.
        idle: bool[samples], waits of idle threads.
    """
    samples = subject.samples
    who = (samples.pid, samples.tid, samples.comm)
    facts = (*who, waits.wait_class, waits.rule, causes.function, named_objects(subject), idle)
    first, group_of = group(*facts[:-1])
    columns = [fact[first].astype(np.int64) for fact in facts]
    delay = np.where(waits.wait_class == WaitClass.RUNQUEUE, samples.period, np.maximum(samples.runq_ns, 0))
    return Cells(*columns, *(sum_by(group_of, values, len(first)) for values in (samples.period, delay)))


def named_objects(profile: Profile) -> U32:
    """Return uint32[samples]: the string with the object's name; 0 where it says no more than the class."""
    objects = profile.objects
    names = np.where(np.isin(objects.kind, _NAMED), objects.name, np.uint32(0))
    name: U32 = np.append(names, np.uint32(0))[profile.samples.object]
    return name


def largest_causes(profile: Profile, waits: Waits, causes: Causes, cells: Cells) -> list[Cause]:
    """Return the largest causes of some cells, largest first, but waits that end elsewhere last.

    These are waits for the end of other threads and processes, and, by a rule, for the next piece of work.
    """
    first, group_of = group(cells.wait_class, cells.rule)
    total = sum_by(group_of, cells.weight, len(first))
    causes_found: list[Cause] = []
    for index in np.argsort(-total, kind="stable")[:_CAUSES].tolist():
        if total[index] <= 0 or (causes_found and 100 * int(total[index]) < CAUSE_PERCENT * int(total.sum())):
            break
        causes_found.append(_cause(profile, waits, causes, cells.take(group_of == index)))
    return sorted(causes_found, key=lambda cause: (cause.for_work, cause.wait_class == WaitClass.CHILD.label))


def _cause(profile: Profile, waits: Waits, causes: Causes, cells: Cells) -> Cause:
    rule = waits.rules[cells.rule[0]] if cells.rule[0] >= 0 else None
    whole, (first, of) = int(cells.weight.sum()), group(cells.function)
    sums = sum_by(of, cells.weight, len(first))
    largest = np.argsort(-sums, kind="stable")[:_PLACES].tolist()
    weights = sums.tolist()  # of Python: percentages of them need more than 63 bits
    large = [at for at in largest if 100 * weights[at] >= _PLACE_PERCENT * whole]
    if large and 100 * weights[large[0]] >= SOLE_PERCENT * whole:
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


def _object(profile: Profile, cells: Cells) -> tuple[str, str]:
    """Return the names of `Place.object` and `Place.mostly`; "" for none."""
    first, group_of = group(cells.object)
    sums = sum_by(group_of, cells.weight, len(first)).tolist()
    most = max(range(len(first)), key=lambda index: sums[index], default=-1)
    if most < 0 or 2 * sums[most] <= sum(sums):
        return "", ""
    name = printable(profile.strings[int(cells.object[first[most]])])
    return (name, "") if 100 * sums[most] >= SOLE_PERCENT * sum(sums) else ("", name)


def _threads(profile: Profile, cells: Cells) -> Threads:
    first, group_of = group(cells.comm)
    order = np.argsort(-sum_by(group_of, cells.weight, len(first)), kind="stable")
    comms = [thread_label(profile.strings[text]) for text in cells.comm[first[order]].tolist()]
    return Threads(cells.number_of_threads(), comms)
