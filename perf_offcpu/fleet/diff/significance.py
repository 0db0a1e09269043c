# SPDX-License-Identifier: Apache-2.0
"""Tell changes from chance by permuting hosts.

Two groups of hosts are compared by Welch's t of each row, the same hosts at two times by the t of their
differences. If nothing changed, any other assignment of hosts to groups (of signs to differences) is as
likely, so the share of assignments with a t at least as large is the p of a row. Studentized statistics
keep that right for groups of different spread (Janssen, Statistics & Probability Letters 36, 1997); sampled
assignments count themselves, so that no p is 0 (Phipson and Smyth, Statistical Applications in Genetics and
Molecular Biology 9, 2010). Rows are tested together: the p of a row is the share of assignments in which
the largest |t| of all rows reaches its |t| (single-step max-T: Westfall and Young, Resampling-Based
Multiple Testing, 1993), so 5 % of comparisons without a change have any row below 0.05, however the rows
depend on each other.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perf_offcpu.fleet.queries import Selected, column_of, folded, grouped, ranked
from perf_offcpu.structs import frozen

F64 = NDArray[np.float64]
SIGNIFICANT = 0.05
_ASSIGNMENTS = 4999
_AT_ONCE = 500
_SEED = 1
_TINY = 1e-9
"""Spread, as a part of a row's mean, below which it is taken for an error of rounding."""


@frozen
class Verdicts:
    """p of n rows, adjusted for their number."""

    p: F64  # float64[n]
    assignments: int  # how many were looked at, that of the data among them
    exact: bool  # they are all that there are
    least_p: float  # no p can be smaller


def compare_groups(before: F64, after: F64) -> Verdicts:
    """Compare two groups of different hosts.

    Args:
        before, after: float64[hosts, rows], the rate of each host; at least two hosts each.
    """
    values = np.concatenate([before, after])
    hosts, second = len(values), len(after)
    scale = _TINY * np.abs(values).mean(axis=0)
    chosen = _subsets(hosts, second)
    # The data's own assignment: the last hosts are those of `after`.
    own = np.zeros((1, hosts), np.float64)
    own[0, len(before) :] = 1
    observed = _welch(own, values, scale)[0]
    twins = 2 if second == len(before) else 1
    possible = math.comb(hosts, second)
    return _verdicts(observed, chosen, lambda part: _welch(part, values, scale), possible, twins)


def compare_pairs(change: F64) -> Verdicts:
    """Compare hosts with themselves.

    Args:
        change: float64[hosts, rows], the difference of the rates of each host; at least two hosts.
    """
    hosts = len(change)
    scale = _TINY * np.abs(change).mean(axis=0)
    squares = (change**2).sum(axis=0)

    def statistic(signs: F64) -> F64:
        mean = signs @ change / hosts
        variance = np.maximum(squares / hosts - mean**2, 0) * hosts / (hosts - 1)
        return _ratio(mean, np.sqrt(variance / hosts) + scale)

    observed = statistic(np.ones((1, hosts)))[0]
    return _verdicts(observed, _signs(hosts), statistic, 2**hosts, 2)


def _welch(second: F64, values: F64, scale: F64) -> F64:
    """Return float64[assignments, rows]: Welch's t; `second` is 1 for hosts of the second group, else 0."""
    sums, squares = values.sum(axis=0), (values**2).sum(axis=0)
    n2 = second.sum(axis=1)[:, None]
    n1 = len(values) - n2
    sum2, square2 = second @ values, second @ values**2
    mean1, mean2 = (sums - sum2) / n1, sum2 / n2
    variance1 = np.maximum((squares - square2) - n1 * mean1**2, 0) / (n1 - 1)
    variance2 = np.maximum(square2 - n2 * mean2**2, 0) / (n2 - 1)
    return _ratio(mean2 - mean1, np.sqrt(variance1 / n1 + variance2 / n2) + scale)


def _ratio(change: F64, error: F64) -> F64:
    ratio: F64 = np.divide(change, error, out=np.zeros_like(change), where=error > 0)
    return ratio


def _verdicts(
    observed: F64, assignments: F64, statistic: Callable[[F64], F64], possible: float, twins: int
) -> Verdicts:
    """Count the assignments that reach each |t|.

    Args:
        possible: number of all assignments.
        twins: number of assignments with the same |t| for any data: 2 if sides can be swapped.
    """
    size = np.abs(observed) * (1 - 1e-9)  # sums in another order differ by rounding
    reached = np.zeros(len(observed), np.int64)
    for index in range(0, len(assignments), _AT_ONCE):
        largest = np.abs(statistic(assignments[index : index + _AT_ONCE])).max(axis=1, initial=0)
        reached += len(largest) - np.searchsorted(np.sort(largest), size, side="left")
    exact = len(assignments) == possible
    if exact:  # the data's own assignment is one of them
        return Verdicts(reached / len(assignments), len(assignments), True, twins / len(assignments))
    whole = len(assignments) + 1
    return Verdicts((reached + 1) / whole, whole, False, 1 / whole)


def _subsets(hosts: int, second: int) -> F64:
    """Return float64[n, hosts]: all ways to choose the second group if they are few, else random ones."""
    if math.comb(hosts, second) <= _ASSIGNMENTS:
        chosen = np.array(list(itertools.combinations(range(hosts), second)), np.int64)
    else:
        random = np.random.default_rng(_SEED).random((_ASSIGNMENTS, hosts))
        chosen = np.argsort(random, axis=1)[:, :second]
    members = np.zeros((len(chosen), hosts), np.float64)
    np.put_along_axis(members, chosen, 1.0, axis=1)
    return members


def _signs(hosts: int) -> F64:
    """Return float64[n, hosts] of 1 and -1: all of them if they are few, else random ones."""
    if 2**hosts <= _ASSIGNMENTS:
        return np.array(list(itertools.product((1.0, -1.0), repeat=hosts)), np.float64)
    return np.random.default_rng(_SEED).choice((1.0, -1.0), (_ASSIGNMENTS, hosts))


MOST = 200
"""Largest number of rows that are compared: the heaviest ones."""
Key = tuple[Any, ...]


@frozen
class Cube:
    """Sums of a selection by host and keys, kept by the engine."""

    selected: Selected
    groups: Any  # an Ibis table
    recorded: dict[str, int]  # host_id → ns; hosts without recorded time are not in it


def cube_of(selected: Selected, keys: Sequence[str]) -> Cube:
    """Sum the samples of a selection by host and keys, in one pass over the files."""
    groups = selected.tables.engine.kept(grouped(selected, ["host", *keys]))
    recorded: Counter[str] = Counter()
    for span in selected.spans:
        recorded[span.host_id] += span.recorded_ns
    return Cube(selected, groups, {host: ns for host, ns in sorted(recorded.items()) if ns > 0})


def heaviest(cubes: Sequence[Cube], keys: Sequence[str]) -> list[Key]:
    """Return the values of the heaviest rows of all cubes, sorted.

    The order makes results repeatable: engines return rows of equal weight in any order, and the last digit
    of a sum depends on the order.
    """
    columns = [column_of(key) for key in keys]
    distinct_keys: dict[Key, None] = {}
    for cube in cubes:
        rows = cube.selected.tables.engine.run(ranked(folded(cube.groups, columns), MOST))
        distinct_keys |= dict.fromkeys(zip(*(rows[column] for column in columns), strict=True))
    return sorted(distinct_keys, key=repr)


def rates(cube: Cube, keys: Sequence[str], rows: Sequence[Key]) -> F64:
    """Return float64[hosts, rows]: weight by recorded time; 0 where a host has no samples of a row."""
    import ibis

    columns = [column_of(key) for key in keys]
    per_host = folded(cube.groups, ["host", *columns])
    types = {f"of_{column}": per_host[column].type() for column in columns}
    wanted = ibis.memtable([dict(zip(types, row, strict=True)) for row in rows], schema=ibis.schema(types))
    on = [per_host[column] == wanted[f"of_{column}"] for column in columns]
    found = cube.selected.tables.engine.run(per_host.semi_join(wanted, on))
    hosts, places = ({one: at for at, one in enumerate(ids)} for ids in (cube.recorded, rows))
    result: F64 = np.zeros((len(hosts), len(rows)), np.float64)
    values = zip(*(found[column] for column in columns), strict=True)
    for host, row, weight in zip(found["host"], values, found["weight"], strict=True):
        if host in hosts:
            result[hosts[host], places[row]] += weight / cube.recorded[host]
    return result
