# SPDX-License-Identifier: Apache-2.0
"""Prepare the two recordings of a comparison, and group their samples alike."""

from collections.abc import Callable, Sequence

import numpy as np

from perf_offcpu.analysis.causes import Causes, causes_of
from perf_offcpu.analysis.classes.classify import Waits, classify, of_idle_threads
from perf_offcpu.analysis.classes.wait_classes import WaitClass
from perf_offcpu.analysis.selection.select import event_rows
from perf_offcpu.analysis.selection.time_windows import Window
from perf_offcpu.callpaths.keys import column_of, object_column
from perf_offcpu.callpaths.options import Name, PathOptions
from perf_offcpu.callpaths.tree import build_paths, with_older
from perf_offcpu.callpaths.weights import unit_of
from perf_offcpu.errors import UsageError
from perf_offcpu.model.columns import I64, Bool, group
from perf_offcpu.model.profile import Profile
from perf_offcpu.report.diff.noise import RecordedTime
from perf_offcpu.report.summary import shows_waits
from perf_offcpu.structs import frozen
from perf_offcpu.text import printable


@frozen
class Per:
    """Denominator of weights: a second of recorded time, a run, or a unit of work."""

    name: str  # "second" of recorded time, "run", "unit" of work
    program: str = ""  # recorded by both sides, if "run" was chosen because of it; else ""
    units: tuple[float, float] = (1.0, 1.0)  # units of work of the old and of the new recording

    @property
    def is_steady(self) -> bool:
        """Return True if the recordings are of a steady load, False if each is of one run of a program."""
        return self.name != "run"


@frozen
class Side:
    """One recording of a comparison: compared samples, their waits and causes, and the factor of its weights."""

    profile: Profile
    subject: Profile  # the samples that are compared
    is_offcpu: bool
    waits: Waits
    causes: Causes
    idle: Bool  # bool[samples of subject], True for samples of threads that merely wait for work
    recorded: RecordedTime
    scale: float  # factor from weights to weights per second, unit or run

    @property
    def source(self) -> str:
        """Return the file name of the recording, printable, or `the recording`."""
        return printable(self.profile.meta.source) or "the recording"


def side_of(
    profile: Profile, events: Sequence[str], per: Per, units: float, windows: Sequence[Window], *, whole: bool
) -> Side:
    """Prepare the samples of the named events of a recording. `units`: units of work in it, if `per` is "unit".
    `whole`: the profile has all samples of each thread; else no thread is judged idle. Raise UsageError if `per` is
    "second", and the duration is not known."""
    rows = event_rows(profile, events)
    chosen = np.isin(profile.samples.evsel, rows)
    subject = profile.select(chosen)
    waits = classify(subject)
    recorded = RecordedTime.of(profile.meta, windows)
    if per.name == "second" and not recorded.total_ns:
        raise UsageError(f"{profile.meta.source}: its duration is not known: compare with --per run")
    for_work = np.zeros(len(chosen), np.bool_)
    for_work[chosen] = waits.for_work
    idle = of_idle_threads(profile, for_work)[chosen] if whole else np.zeros(int(chosen.sum()), np.bool_)
    is_offcpu = shows_waits(subject, [profile.evsels[row] for row in rows.tolist()])
    scale = 1e9 / recorded.total_ns if per.name == "second" else 1 / units
    return Side(profile, subject, is_offcpu, waits, causes_of(subject, waits), idle, recorded, scale)


def common_unit(old: Side, new: Side) -> str:
    """Return the unit of weights. Raise UsageError if there are no samples, only one side has waits or units differ."""
    for side, other in ((old, new), (new, old)):
        if other.is_offcpu and not side.is_offcpu:
            events = ", ".join(printable(event.name) for event in side.profile.evsels) or "none"
            raise UsageError(f"{side.source} has no off-cpu samples to compare (its events: {events})")
    sides = [side for side in (old, new) if len(side.subject.samples)]
    if not sides:
        raise UsageError(f"{old.source} and {new.source} have no samples to compare")
    units = {unit_of(side.subject) for side in sides}
    if len(units) > 1:
        raise UsageError(f"the events of {old.source} and {new.source} have different units: name one with --event")
    return units.pop()


OBJECT = "object"
FUNCTION_KEYS = ("class", "program", "meaning", "function")
"""Keys of `by_function`: wait class, program and meaning of a rule, function in which the thread waits."""

Values = tuple[tuple[str, ...], tuple[Name, ...]]  # values of a group, and the frames of a stack, root first


@frozen
class Groups:
    """Groups of the samples of both recordings, numbered from 0; `values` returns keys and frames of given groups."""

    old: I64  # int64[samples of the old side], group of each
    new: I64  # int64[samples of the new side], group of each
    number: int  # of groups
    values: Callable[[Sequence[int]], list[Values]]


def everything(old: Side, new: Side) -> Groups:
    """Return a single group of all samples of both sides."""
    none = [np.zeros(len(side.subject.samples), np.int64) for side in (old, new)]
    return Groups(none[0], none[1], 1, lambda numbers: [((), ()) for _ in numbers])


def by_keys(old: Side, new: Side, keys: Sequence[str]) -> Groups:
    """Return groups by sort keys (`callpaths.keys`), objects by names that do not differ from run to run."""

    def values(side: Side) -> tuple[I64, list[tuple[str, ...]]]:
        made = [
            object_column(side.subject, lasting=True) if key == OBJECT else column_of(key, side.subject, side.waits)
            for key in keys
        ]
        first, group_of = group(*(column for column, _ in made))
        return group_of, [tuple(label(row) for _, label in made) for row in first.tolist()]

    return _united(values(old), values(new))


def by_function(old: Side, new: Side) -> Groups:
    """Return groups by wait class, program and meaning of a rule, and function (FUNCTION_KEYS; "" in a run queue)."""

    def values(side: Side) -> tuple[I64, list[tuple[str, ...]]]:
        waits, names = side.waits, side.causes.names
        queued = waits.wait_class == WaitClass.RUNQUEUE
        function = np.where(queued, 0, side.causes.function)  # a thread may be preempted anywhere
        first, group_of = group(waits.wait_class, waits.rule, function)
        keys = []
        for row in first.tolist():
            rule = waits.rules[waits.rule[row]] if waits.rule[row] >= 0 else None
            words = (rule.program, rule.meaning) if rule else ("", "")
            keys.append((WaitClass(waits.wait_class[row]).label, *words, names[function[row]]))
        return group_of, keys

    return _united(values(old), values(new))


def _united(old: tuple[I64, list[tuple[str, ...]]], new: tuple[I64, list[tuple[str, ...]]]) -> Groups:
    """Number the groups of two sides alike, by values. Side: (group of each sample, values of each group)."""
    number: dict[tuple[str, ...], int] = {}
    old_groups, new_groups = (
        np.array([number.setdefault(values, len(number)) for values in labels], np.int64)[groups]
        for groups, labels in (old, new)
    )
    keys = list(number)
    return Groups(old_groups, new_groups, len(keys), lambda numbers: [(keys[group], ()) for group in numbers])


def by_stack(old: Side, new: Side) -> Groups:
    """Return groups by comm and stack, with functions by name."""
    both, is_old = with_older(new.subject, old.subject)
    tree = build_paths(both, PathOptions())
    first, group_of = group(tree.of_sample)
    nodes = tree.of_sample[first]

    def values(numbers: Sequence[int]) -> list[Values]:
        paths = tree.names_of(nodes[np.array(numbers, np.int64)])
        return [((comm.label,), tuple(frames)) for comm, *frames in paths]

    return Groups(group_of[is_old], group_of[~is_old], len(nodes), values)
