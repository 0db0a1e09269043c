# SPDX-License-Identifier: Apache-2.0
"""Compare two selections of a dataset: by keys, by comm and by stack, with their significance."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from perf_offcpu.callpaths.options import Name, PathOptions
from perf_offcpu.callpaths.tree import build_paths
from perf_offcpu.errors import UsageError
from perf_offcpu.fleet.diff.significance import (
    F64,
    SIGNIFICANT,
    Cube,
    Key,
    Verdicts,
    compare_groups,
    compare_pairs,
    cube_of,
    heaviest,
    rates,
)
from perf_offcpu.fleet.profile import profile_of
from perf_offcpu.fleet.queries import Selected
from perf_offcpu.fleet.report import labels_of_rows
from perf_offcpu.structs import frozen

STACK = ("comm", "stack")


@frozen
class Row:
    """One row of both selections; rates are means over hosts, of off-CPU time per second recorded."""

    values: tuple[str, ...]
    frames: tuple[Name, ...]  # of a stack, root first
    before: float
    after: float
    p: float

    @property
    def change(self) -> float:
        """Return after minus before."""
        return self.after - self.before

    @property
    def is_significant(self) -> bool:
        """Return True if the change is unlikely to be chance."""
        return self.p < SIGNIFICANT


@frozen
class Table:
    """Rows, significant ones first, by absolute change."""

    keys: tuple[str, ...]
    rows: list[Row]
    verdicts: Verdicts


@frozen
class Comparison:
    """Two selections, compared."""

    paired: bool  # the same hosts, at two times
    hosts: tuple[int, int]  # compared, before and after
    left_out: int  # hosts that are on one side only, or on both where groups are compared
    total: Row
    tables: list[Table]


def compare(before: Selected, after: Selected, keys: Sequence[str]) -> Comparison:
    """Compare two selections.

    Args:
        keys: of the first table.

    Raises:
        UsageError: there are not two hosts on each side.
    """
    needed = [*keys, *(key for key in STACK if key not in keys)]
    cubes = cube_of(before, needed), cube_of(after, needed)
    sides = _Sides(*cubes)
    tables = [_by_keys(sides, tuple(keys))]
    if tuple(keys) != ("comm",):
        tables.append(_by_keys(sides, ("comm",)))
    tables.append(_by_stack(sides))
    whole = _table(
        (),
        [()],
        [()],
        sides,
        [rates_of_host.sum(axis=1, keepdims=True) for rates_of_host in sides.of((), [()])],
    )
    return Comparison(sides.paired, sides.hosts, sides.left_out, whole.rows[0], tables)


class _Sides:
    """The hosts of the two sides that are compared."""

    def __init__(self, before: Cube, after: Cube) -> None:
        self.cubes = before, after
        ids = [list(cube.recorded) for cube in self.cubes]
        common = set(ids[0]) & set(ids[1])
        self.paired = len(common) >= 2 and 2 * len(common) >= min(map(len, ids))
        chosen = [[host for host in mine if (host in common) == self.paired] for mine in ids]
        self.hosts = len(chosen[0]), len(chosen[1])
        self.left_out = len(set(ids[0]) | set(ids[1])) - len({*chosen[0], *chosen[1]})
        if min(self.hosts) < 2:
            raise UsageError(
                f"hosts are the samples of a comparison, and there are {len(ids[0])} in the baseline and "
                f"{len(ids[1])} in the selection, {len(common)} of them in both: choose at least two on each "
                "side, or at least two at two times"
            )
        self._rows = [[mine.index(host) for host in kept] for mine, kept in zip(ids, chosen, strict=True)]

    def of(self, keys: Sequence[str], rows: Sequence[Key]) -> list[F64]:
        """Return the rates of the hosts of both sides; of paired hosts in the same order."""
        if not keys:
            return [self._all(cube)[mine] for cube, mine in zip(self.cubes, self._rows, strict=True)]
        sides_found = (rates(cube, keys, rows) for cube in self.cubes)
        return [one[mine] for one, mine in zip(sides_found, self._rows, strict=True)]

    def _all(self, cube: Cube) -> F64:
        from perf_offcpu.fleet.queries import folded

        found = cube.selected.tables.engine.run(folded(cube.groups, ["host"]))
        weight = dict(zip(found["host"], found["weight"], strict=True))
        return np.array([[weight.get(host, 0) / ns] for host, ns in cube.recorded.items()], np.float64)

    def test(self, before: F64, after: F64) -> Verdicts:
        """Return the p of each row."""
        return compare_pairs(after - before) if self.paired else compare_groups(before, after)


def _by_keys(sides: _Sides, keys: tuple[str, ...]) -> Table:
    rows = heaviest(sides.cubes, keys)
    labels = labels_of_rows(sides.cubes[1].selected, keys, rows)
    return _table(keys, labels, [()] * len(rows), sides, sides.of(keys, rows))


def _by_stack(sides: _Sides) -> Table:
    """Compare stacks; stacks with the same names of functions are one row."""
    rows = heaviest(sides.cubes, STACK)
    sides_found, hours = sides.of(STACK, rows), _first_times(sides, rows)
    groups = {
        "event": ["offcpu-time"] * len(rows),
        "comm": [comm for comm, _ in rows],
        "stack": [stack for _, stack in rows],
        "first_ns": hours,
        "weight": [0] * len(rows),
        "waits": [0] * len(rows),
        "marks": [1] * len(rows),
        **dict.fromkeys(("state", "class", "syscall"), [""] * len(rows)),
    }
    tree = build_paths(profile_of(sides.cubes[1].selected.tables, groups, ""), PathOptions())
    nodes, inverse = np.unique(tree.of_sample, return_inverse=True)
    paths = tree.paths(nodes.astype(np.int64))
    names = [[tree.names[name] for name in paths.row(index).tolist()] for index in range(len(nodes))]
    merged = []
    for side in sides_found:
        sums = np.zeros((len(side), len(nodes)), np.float64)
        for column, row in enumerate(inverse.tolist()):
            sums[:, row] += side[:, column]
        merged.append(sums)
    return _table(STACK, [(one[0].label,) for one in names], [tuple(one[1:]) for one in names], sides, merged)


def _first_times(sides: _Sides, rows: Sequence[Key]) -> list[int]:
    """Return a time of a sample of each stack: the folder of that hour holds its names."""
    from perf_offcpu.fleet.queries import folded

    found: dict[int, int] = {}
    for cube in sides.cubes:
        columns = cube.selected.tables.engine.run(folded(cube.groups, ["stack"]))
        found |= dict(zip(columns["stack"], columns["first_ns"], strict=True))
    return [found[stack] for _, stack in rows]


def _table(
    keys: tuple[str, ...],
    labels: Sequence[tuple[str, ...]],
    frames: Sequence[tuple[Name, ...]],
    sides: _Sides,
    rates_of_sides: Sequence[F64],
) -> Table:
    verdicts = sides.test(*rates_of_sides)
    means = [one.mean(axis=0).tolist() for one in rates_of_sides]
    rows = [Row(*row) for row in zip(labels, frames, *means, verdicts.p.tolist(), strict=True)]
    return Table(keys, sorted(rows, key=_order), verdicts)


def _order(row: Row) -> tuple[Any, ...]:
    """Return the sort key of a row; texts decide between equal changes: engines return rows in any order."""
    return not row.is_significant, -abs(row.change), row.values, row.frames
