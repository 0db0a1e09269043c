# SPDX-License-Identifier: Apache-2.0
"""Compute off-CPU time per second recorded, of each host and row."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from perf_offcpu.fleet.diff.significance import F64
from perf_offcpu.fleet.queries import Selected, column_of, folded, grouped, ranked
from perf_offcpu.structs import frozen

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
    found: dict[Key, None] = {}
    for cube in cubes:
        rows = cube.selected.tables.engine.run(ranked(folded(cube.groups, columns), MOST))
        found |= dict.fromkeys(zip(*(rows[column] for column in columns), strict=True))
    return sorted(found, key=repr)


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
