# SPDX-License-Identifier: Apache-2.0
"""Find hosts that are unlike the others of their service.

For each row (a class) the rate of each host is compared with the median of its group, in units of the
median absolute deviation: z = (x - median) / (1.4826 MAD). Where more than half of the hosts have the same
rate, the MAD is 0 and z = (x - median) / (1.2533 mean absolute deviation). Both as in Iglewicz and Hoaglin,
How to Detect and Handle Outliers, 1993, which takes |z| above 3.5 for an outlier; with many hosts and rows
the limit is that of a normal distribution at which 5 % of tables have any false row (Bonferroni).
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import NormalDist

import numpy as np

from perf_offcpu.fleet.diff.significance import F64, cube_of, heaviest, rates
from perf_offcpu.fleet.queries import Selected, host_names
from perf_offcpu.fleet.report import SERVICE, labels_of_rows
from perf_offcpu.structs import frozen

_LIMIT = 3.5
_FALSE_TABLES = 0.05
FEWEST = 5
"""Least number of hosts in a group: smaller groups have no outliers."""
_SMALLEST = 0.01
"""Smallest difference that matters, as a part of the whole rate of the median host."""


@frozen
class Outlier:
    """A host with a rate unlike those of the others."""

    host: str
    group: str  # value of the label `service`; "" if there is none
    values: tuple[str, ...]
    rate: float  # off-CPU time per second recorded
    median: float  # of the group's hosts
    z: float


@frozen
class Outliers:
    """Hosts that are unlike the others, the most deviant first."""

    keys: tuple[str, ...]
    rows: list[Outlier]
    limit: float  # |z| from which on a row is shown
    groups: int
    hosts: int  # compared
    left_out: int  # in groups of fewer than five hosts


def outliers_of(selected: Selected, keys: Sequence[str]) -> Outliers:
    """Find the hosts with rates unlike those of the other hosts of their service."""
    cube = cube_of(selected, keys)
    rows = heaviest([cube], keys)
    labels = labels_of_rows(selected, keys, rows)
    rate, names = rates(cube, keys, rows), host_names(selected)
    hosts = list(cube.recorded)
    of_host = {span.host_id: span.labels.get(SERVICE, "") for span in selected.spans}
    groups: dict[str, list[int]] = {}
    for at, host in enumerate(hosts):
        groups.setdefault(of_host[host], []).append(at)
    compared = {name: mine for name, mine in groups.items() if len(mine) >= FEWEST}
    number = sum(map(len, compared.values()))
    limit = limit_of(number * len(rows))
    found = []
    for name, mine in compared.items():
        part = rate[mine]
        z, median = robust_z(part), np.median(part, axis=0)
        enough = np.abs(part - median) >= _SMALLEST * np.median(part.sum(axis=1))
        for at, row in np.argwhere((np.abs(z) >= limit) & enough).tolist():
            facts = (float(part[at, row]), float(median[row]), float(z[at, row]))
            found.append(Outlier(names[hosts[mine[at]]], name, labels[row], *facts))
    found.sort(key=lambda outlier: -abs(outlier.z))
    return Outliers(tuple(keys), found, limit, len(compared), number, len(hosts) - number)


def limit_of(cells: int) -> float:
    """Return the |z| above which one of `cells` values is an outlier."""
    return max(_LIMIT, NormalDist().inv_cdf(1 - _FALSE_TABLES / 2 / max(cells, 1)))


def robust_z(values: F64) -> F64:
    """Return float64[hosts, rows]: z of each value in its column, see above; 0 if all values are equal."""
    away = values - np.median(values, axis=0)
    spread = 1.4826 * np.median(np.abs(away), axis=0)
    spread = np.where(spread > 0, spread, 1.2533 * np.abs(away).mean(axis=0))
    z: F64 = np.divide(away, spread, out=np.zeros_like(away), where=spread > 0)
    return z
