# SPDX-License-Identifier: Apache-2.0
"""Compare two selections of a dataset by keys, by comm and by stack. Compared are rates (weight, such as ns off CPU,
per recorded ns) of hosts; or of blocks of time, if both selections are of the same single host."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from perf_offcpu.abi.offcpu import EVENT_NAME
from perf_offcpu.callpaths.options import Name
from perf_offcpu.errors import UsageError
from perf_offcpu.fleet.diff.significance import (
    F64,
    SIGNIFICANT,
    Verdicts,
    compare_groups,
    compare_pairs,
    compare_periods,
)
from perf_offcpu.fleet.engine import records
from perf_offcpu.fleet.profile import tree_of
from perf_offcpu.fleet.queries import BLOCK, Selected, column_of, folded, grouped, in_blocks, lengths_of, ranked
from perf_offcpu.fleet.report import labels_of_rows
from perf_offcpu.structs import frozen

STACK = ("comm", "stack")
_TAIL = 0.99
_BLOCKS = 60  # of time, in a period of one host: so many that their shifts can show a change
_LEAST_NS = 10**9  # shortest block
_LOOP = math.log(1.1)  # ratio of lengths from which on a loop may be called closed
MOST = 200  # largest number of rows that are compared: the heaviest ones
Key = tuple[Any, ...]


@frozen
class Cube:
    """Weight and number of waits of a selection by unit (host, or block of time) and keys, as a table of the engine."""

    selected: Selected
    groups: Any  # an Ibis table
    recorded: dict[str, int]  # host_id or block → ns, in order; units without recorded time are not in it
    unit: str = "host"

    def folded(self, columns: Sequence[str], most: int | None = None) -> dict[str, list[Any]]:
        """Sum the table over all keys but `columns`; return column → values, of the `most` heaviest rows if given."""
        sums = folded(self.groups, columns)
        return self.selected.tables.engine.run(sums if most is None else ranked(sums, most))


def cube_of(selected: Selected, keys: Sequence[str]) -> Cube:
    """Sum the samples of a selection by host and keys, in one pass over the files."""
    groups = selected.tables.engine.kept(grouped(selected, ["host", *keys]))
    return Cube(selected, groups, {host: ns for host, ns in sorted(selected.recorded.items()) if ns > 0})


def cubes_of(before: Selected, after: Selected, keys: Sequence[str]) -> tuple[Cube, Cube]:
    """Sum the samples of two selections by keys and host; by keys and block of time if both have the same single host.
    All blocks have the same length: 1 / _BLOCKS of the shorter selection, at least _LEAST_NS. Raise UsageError if the
    two selected times of that host overlap."""
    hosts = [{host for host, ns in side.recorded.items() if ns > 0} for side in (before, after)]
    if hosts[0] != hosts[1] or len(hosts[0]) != 1:
        return cube_of(before, keys), cube_of(after, keys)
    times = [
        (min(span.first_ns for span in side.spans), max(span.last_ns for span in side.spans))
        for side in (before, after)
    ]
    if times[0][0] < times[1][1] and times[1][0] < times[0][1]:
        raise UsageError("the two periods of the host overlap: choose others by --since, --until and --baseline")
    length_ns = max(_LEAST_NS, min(end - begin for begin, end in times) // _BLOCKS)
    cubes = []
    for side, (begin_ns, _) in zip((before, after), times, strict=True):
        cut, recorded = in_blocks(side, begin_ns, length_ns)
        # A block that was hardly recorded has a rate by chance alone.
        kept = {block: ns for block, ns in recorded.items() if 10 * ns >= max(recorded.values(), default=0)}
        cubes.append(Cube(cut, cut.tables.engine.kept(grouped(cut, [BLOCK, *keys])), kept, BLOCK))
    return cubes[0], cubes[1]


def heaviest(cubes: Sequence[Cube], keys: Sequence[str]) -> list[Key]:
    """Return a tuple of the keys' values for each of the MOST heaviest rows of any cube, sorted by their repr: engines
    return rows in any order, on which the last digit of a sum would depend."""
    columns = [column_of(key) for key in keys]
    results = [cube.folded(columns, MOST) for cube in cubes]
    return sorted({row for rows in results for row in records(rows, columns)}, key=repr)


def rates(cube: Cube, keys: Sequence[str], rows: Sequence[Key]) -> F64:
    """Return float64[2, units, rows], 0 without samples: [0] weight and [1] number of waits per recorded ns of the unit
    (host or block). `rows`: values of `keys`."""
    import ibis

    columns = [column_of(key) for key in keys]
    per_host = folded(cube.groups, [cube.unit, *columns])
    types = {f"of_{column}": per_host[column].type() for column in columns}
    wanted = ibis.memtable([dict(zip(types, row, strict=True)) for row in rows], schema=ibis.schema(types))
    on = [per_host[column] == wanted[f"of_{column}"] for column in columns]
    sums = cube.selected.tables.engine.run(per_host.semi_join(wanted, on))
    host_rows, key_rows = ({key: row for row, key in enumerate(keys)} for keys in (cube.recorded, rows))
    result: F64 = np.zeros((2, len(host_rows), len(rows)), np.float64)
    values = zip(sums[cube.unit], records(sums, columns), sums["weight"], sums["waits"], strict=True)
    for host, row, weight, waits in values:
        if host in host_rows:
            result[:, host_rows[host], key_rows[row]] += weight / cube.recorded[host], waits / cube.recorded[host]
    return result


@frozen
class Lengths:
    """Number and length of the waits of a compared row, (before, after) each."""

    waits: tuple[float, float]  # mean over the hosts of waits / recorded ns
    mean_ns: tuple[float, float]  # mean length of all waits of the side
    p: float  # of the change of the logarithm of the hosts' mean lengths (`fleet.diff.significance`)
    p99_ns: tuple[float, float] | None = None  # at most 2.2 % off (`queries.lengths_of`); None: not known

    @property
    def is_significant(self) -> bool:
        """Return True if waits became longer or shorter, and that is unlikely to be chance."""
        return self.p < SIGNIFICANT

    @property
    def ratio(self) -> float:
        """Return the ratio of the waits' mean lengths, after / before."""
        return self.mean_ns[1] / self.mean_ns[0]


@frozen
class Change:
    """Row of a comparison: rates (weight / recorded ns, mean over the hosts) before and after, and p of the change."""

    values: tuple[str, ...]  # texts of the keys
    frames: tuple[Name, ...]  # of a stack, root first; () in tables by other keys
    before: float
    after: float
    p: float  # see `fleet.diff.significance`
    lengths: Lengths | None = None  # None: the samples are no waits, or one side has none

    @property
    def change(self) -> float:
        """Return the change of the rate: after minus before."""
        return self.after - self.before

    @property
    def is_significant(self) -> bool:
        """Return True if the change of the rate is unlikely to be chance."""
        return self.p < SIGNIFICANT

    @property
    def is_shown(self) -> bool:
        """Return True if rate or lengths changed significantly."""
        return self.is_significant or (self.lengths is not None and self.lengths.is_significant)

    @property
    def is_closed_loop(self) -> bool:
        """Return True if waits became longer and rarer by about the same factor, or shorter and more frequent, as in a
        closed loop, where each request waits for the one before: the rate of off-CPU time hardly changes."""
        lengths = self.lengths
        if lengths is None or not lengths.is_significant or not self.before or not self.after:
            return False
        longer, rate = math.log(lengths.ratio), math.log(self.after / self.before)
        return abs(longer) > _LOOP and (rate - longer) * longer < 0 and abs(rate) < abs(longer) / 2


@frozen
class Changes:
    """Table of a comparison by `keys`: rows with a significant change first, then by absolute change."""

    keys: tuple[str, ...]
    rows: list[Change]
    verdicts: Verdicts


@frozen
class Comparison:
    """Total and tables of the comparison of two selections."""

    paired: bool  # True: the same hosts at two times are compared; False: two groups of hosts
    hosts: tuple[int, int]  # number of hosts compared, before and after
    left_out: int  # hosts that are on one side only, or on both where groups are compared
    total: Change
    tables: list[Changes]
    block_ns: int = 0  # blocks of time of one host are compared, of this length; 0: hosts are


def compare(before: Selected, after: Selected, keys: Sequence[str]) -> Comparison:
    """Compare two selections by `keys`, by comm and by stack; raise UsageError if a side has fewer than two hosts (or
    blocks of time, where the same single host is compared)."""
    needed = [*keys, *(key for key in STACK if key not in keys)]
    sides = _Sides(*cubes_of(before, after, needed))
    tables = [_changes_by_keys(sides, table_keys) for table_keys in dict.fromkeys((tuple(keys), ("comm",)))]
    total = sides.changes((), [()], [()], sides.totals(), sides.percentiles((), [()])).rows[0]
    block_ns = sides.cubes[1].selected.block_ns
    return Comparison(sides.paired, sides.hosts, sides.left_out, total, [*tables, _changes_by_stack(sides)], block_ns)


class _Sides:
    """The two selections of a comparison (before, after), cut to the compared hosts, or blocks of time of one host."""

    def __init__(self, before: Cube, after: Cube) -> None:
        self.cubes = before, after
        self._is_earlier = before.unit != BLOCK or before.selected.first_ns < after.selected.first_ns
        ids = [list(cube.recorded) for cube in self.cubes]
        common = set(ids[0]) & set(ids[1]) if before.unit != BLOCK else set[str]()
        self.paired = len(common) >= 2 and 2 * len(common) >= min(map(len, ids))
        # The rows of the compared hosts; of paired hosts in the same order on both sides.
        self._rows = [[row for row, host in enumerate(side) if (host in common) == self.paired] for side in ids]
        self.hosts = len(self._rows[0]), len(self._rows[1])
        compared = self.hosts[0] if self.paired else sum(self.hosts)
        self.left_out = len({*ids[0], *ids[1]}) - compared
        if min(self.hosts) < 2:
            raise UsageError(
                f"hosts are the samples of a comparison, and there are {len(ids[0])} in the baseline and "
                f"{len(ids[1])} in the selection, {len(common)} of them in both: choose at least two on each "
                "side, or the same ones at two times"
            )

    def rates(self, keys: Sequence[str], rows: Sequence[Key]) -> list[F64]:
        """Return [before, after], float64[2, hosts, rows] each: weight, waits per recorded ns; `rows`: values of
        `keys`."""
        return [rates(cube, keys, rows)[:, hosts] for cube, hosts in zip(self.cubes, self._rows, strict=True)]

    def totals(self) -> list[F64]:
        """Return [before, after] of all samples, float64[2, hosts, 1] each: weight, waits per recorded ns."""
        sides = []
        for cube, hosts in zip(self.cubes, self._rows, strict=True):
            sums = cube.folded([cube.unit])
            for_host = dict(zip(sums[cube.unit], zip(sums["weight"], sums["waits"], strict=True), strict=True))
            totals = [
                [[for_host.get(host, (0, 0))[part] / ns] for host, ns in cube.recorded.items()] for part in (0, 1)
            ]
            sides.append(np.array(totals, np.float64)[:, hosts])
        return sides

    def percentiles(self, keys: Sequence[str], rows: Sequence[Key]) -> list[tuple[float, float] | None]:
        """Return (before, after) for each row: 99th percentile of the lengths of its waits, ns; None if not known."""
        if not self._are_waits:
            return [None] * len(rows)
        sides = []
        for cube, rows_of_hosts in zip(self.cubes, self._rows, strict=True):
            ids = list(cube.recorded)
            sides.append(lengths_of(cube.selected, keys, cube.unit, [ids[row] for row in rows_of_hosts], _TAIL))
        values = [[side.get(row) for side in sides] for row in rows]
        return [(before, after) if before and after else None for before, after in values]

    def changes(
        self,
        keys: tuple[str, ...],
        labels: Sequence[Key],
        frames: Sequence[tuple[Name, ...]],
        sides: Sequence[F64],
        percentiles: Sequence[tuple[float, float] | None] = (),
    ) -> Changes:
        """Return a table with a row for each of `labels`, the texts of `keys`, and its `frames`. `sides`: the results
        of `rates`; `percentiles`: the result of `percentiles`, () for none."""
        verdicts = self._verdicts(*(side[0] for side in sides))
        means = [side[0].mean(axis=0).tolist() for side in sides]
        lengths = self._lengths(*sides) if self._are_waits else [None] * len(labels)
        rows = [Change(*row) for row in zip(labels, frames, *means, verdicts.p.tolist(), lengths, strict=True)]
        for index, tail in enumerate(percentiles):
            if length := rows[index].lengths:
                rows[index] = replace(rows[index], lengths=replace(length, p99_ns=tail))
        rows.sort(key=lambda row: (not row.is_shown, -abs(row.change), row.values, row.frames))
        return Changes(keys, rows, verdicts)

    @property
    def _are_waits(self) -> bool:
        return self.cubes[1].selected.selection.events == (EVENT_NAME,)

    def _verdicts(self, before: F64, after: F64) -> Verdicts:
        if self.cubes[0].unit == BLOCK:
            return compare_periods(before, after) if self._is_earlier else compare_periods(after, before)
        return compare_pairs(after - before) if self.paired else compare_groups(before, after)

    def _lengths(self, before: F64, after: F64) -> list[Lengths | None]:
        """Return number and mean length of the waits of each row, None if a side has no waits; the arguments are the
        results of `rates`. A host without waits in a row counts as one with the mean of all hosts."""
        sides, hosts = (before, after), len(before[0])
        weight, waits = (np.concatenate([side[part] for side in sides]) for part in (0, 1))
        with np.errstate(divide="ignore", invalid="ignore"):
            logs = np.log(weight / waits)
            is_finite = np.isfinite(logs)
            usual = np.where(is_finite, logs, 0).sum(axis=0) / np.maximum(is_finite.sum(axis=0), 1)
            means = [side[0].sum(axis=0) / side[1].sum(axis=0) for side in sides]
        if self.paired:
            is_finite[:hosts] = is_finite[hosts:] = is_finite[:hosts] & is_finite[hosts:]
        logs = np.where(is_finite, logs, usual)
        p = self._verdicts(logs[:hosts], logs[hosts:]).p
        return [
            Lengths((before[1, :, row].mean(), after[1, :, row].mean()), (means[0][row], means[1][row]), float(p[row]))
            if all(np.isfinite(mean[row]) and mean[row] > 0 for mean in means)
            else None
            for row in range(len(p))
        ]


def _changes_by_keys(sides: _Sides, keys: tuple[str, ...]) -> Changes:
    rows = heaviest(sides.cubes, keys)
    labels = labels_of_rows(sides.cubes[1].selected, keys, rows)
    return sides.changes(keys, labels, [()] * len(rows), sides.rates(keys, rows), sides.percentiles(keys, rows))


def _changes_by_stack(sides: _Sides) -> Changes:
    """Return the changes by comm and stack; stacks of the same function names are one row."""
    rows = heaviest(sides.cubes, STACK)
    first_ns: dict[int, int] = {}  # of a sample of each stack: the folder of that hour holds its names
    for cube in sides.cubes:
        first_ns |= dict(records(cube.folded(["stack"]), ("stack", "first_ns")))
    comms, stacks = ([row[column] for row in rows] for column in range(2))
    times, marks = [first_ns[stack] for stack in stacks], [1] * len(rows)
    tree = tree_of(sides.cubes[1].selected.tables, comms, stacks, times, marks)
    nodes, node_of = np.unique(tree.of_sample, return_inverse=True)
    merged = [np.zeros((2, hosts, len(nodes)), np.float64) for hosts in sides.hosts]
    for sums, side in zip(merged, sides.rates(STACK, rows), strict=True):
        np.add.at(sums.T, node_of, side.T)
    names = tree.names_of(nodes)
    return sides.changes(STACK, [(path[0].label,) for path in names], [path[1:] for path in names], merged)
