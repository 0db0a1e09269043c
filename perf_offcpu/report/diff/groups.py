# SPDX-License-Identifier: Apache-2.0
"""Group the samples of two recordings by the same values: of keys, functions, stacks."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from perf_offcpu.analysis.classes.wait_classes import WaitClass
from perf_offcpu.analysis.group import group
from perf_offcpu.callpaths.keys import column_of, object_column
from perf_offcpu.callpaths.names import Name
from perf_offcpu.callpaths.options import PathOptions
from perf_offcpu.callpaths.tree import build_paths, with_older
from perf_offcpu.model.columns import I64
from perf_offcpu.report.diff.sides import Side
from perf_offcpu.structs import frozen

OBJECT = "object"
FUNCTION_KEYS = ("class", "program", "meaning", "function")
"""Keys of `by_function`: wait class, program and meaning of a rule, function in which the thread waits."""

Values = tuple[tuple[str, ...], tuple[Name, ...]]
"""Values of a group, and the frames of a stack, root first."""


@frozen
class Groups:
    """Group of each sample of both recordings, and the values of each group."""

    old: I64
    new: I64
    number: int
    values: Callable[[Sequence[int]], list[Values]]


def everything(old: Side, new: Side) -> Groups:
    """Return one group of all samples."""
    none = [np.zeros(len(side.subject.samples), np.int64) for side in (old, new)]
    return Groups(none[0], none[1], 1, lambda numbers: [((), ()) for _ in numbers])


def by_keys(old: Side, new: Side, keys: Sequence[str]) -> Groups:
    """Group by keys of `callpaths.keys`; objects by the names that both runs have."""

    def values(side: Side) -> tuple[I64, list[tuple[str, ...]]]:
        made = [
            object_column(side.subject, lasting=True)
            if key == OBJECT
            else column_of(key, side.subject, side.waits)
            for key in keys
        ]
        first, of = group(*(column for column, _ in made))
        return of, [tuple(label(row) for _, label in made) for row in first.tolist()]

    return _united(values(old), values(new))


def by_function(old: Side, new: Side) -> Groups:
    """Group by FUNCTION_KEYS."""

    def values(side: Side) -> tuple[I64, list[tuple[str, ...]]]:
        waits, names = side.waits, side.causes.names
        queued = waits.wait_class == WaitClass.RUNQUEUE
        function = np.where(queued, 0, side.causes.function)  # a thread may be preempted anywhere
        first, of = group(waits.wait_class, waits.rule, function)
        found = []
        for row in first.tolist():
            rule = waits.rules[waits.rule[row]] if waits.rule[row] >= 0 else None
            words = (rule.program, rule.meaning) if rule else ("", "")
            found.append((WaitClass(waits.wait_class[row]).label, *words, names[function[row]]))
        return of, found

    return _united(values(old), values(new))


def _united(old: tuple[I64, list[tuple[str, ...]]], new: tuple[I64, list[tuple[str, ...]]]) -> Groups:
    """Return the groups of both sides; groups with the same values are one."""
    number: dict[tuple[str, ...], int] = {}
    of = [
        np.array([number.setdefault(values, len(number)) for values in labels], np.int64)[groups]
        for groups, labels in (old, new)
    ]
    known = list(number)
    return Groups(of[0], of[1], len(known), lambda numbers: [(known[one], ()) for one in numbers])


def by_stack(old: Side, new: Side) -> Groups:
    """Group by comm and stack, functions by name."""
    both, is_old = with_older(new.subject, old.subject)
    tree = build_paths(both, PathOptions())
    first, of = group(tree.of_sample)
    nodes = tree.of_sample[first].astype(np.int64)

    def values(numbers: Sequence[int]) -> list[Values]:
        paths = tree.paths(nodes[np.array(numbers, np.int64)])
        names = ([tree.names[name] for name in paths.row(at).tolist()] for at in range(len(numbers)))
        return [((comm.label,), tuple(frames)) for comm, *frames in names]

    return Groups(of[is_old], of[~is_old], len(nodes), values)
