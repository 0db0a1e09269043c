# SPDX-License-Identifier: Apache-2.0
"""Find hosts unlike the others of their service.

An outlier's rate in a row (a class) is compared with the median of its group, in units of the median absolute
deviation: z = (x - median) / (1.4826 MAD). Where more than half of the hosts have the same rate, the MAD is 0 and
z = (x - median) / (1.2533 mean absolute deviation). Both as in Iglewicz and Hoaglin, How to Detect and Handle
Outliers, 1993, which takes |z| above 3.5 for an outlier; with many hosts and rows the limit is that of a normal
distribution at which 5 % of tables have any false row (Bonferroni)."""

from collections.abc import Sequence

import numpy as np

from perf_offcpu.fleet.diff.compare import cube_of, heaviest, rates
from perf_offcpu.fleet.diff.significance import F64
from perf_offcpu.fleet.queries import Selected, host_names
from perf_offcpu.fleet.report import SERVICE, labels_of_rows
from perf_offcpu.report.diff.noise import errors_needed
from perf_offcpu.structs import frozen

_LIMIT = 3.5
FEWEST = 5  # least number of hosts in a group: smaller groups have no outliers
_SMALLEST = 0.01  # smallest difference that matters, as a part of the whole rate of the median host


@frozen
class Outlier:
    """Host whose rate (weight / recorded ns) in one row is unlike the rates of the other hosts of its service."""

    host: str
    group: str  # value of the label `service`; "" without one
    values: tuple[str, ...]  # texts of the keys of the row
    rate: float
    median: float  # rate of the median host of the group
    z: float


@frozen
class Outliers:
    """Result of the search for outliers."""

    keys: tuple[str, ...]
    rows: list[Outlier]  # largest |z| first
    limit: float  # |z| from which on a host is an outlier
    groups: int  # number of groups compared
    hosts: int  # number of hosts compared
    left_out: int  # number of hosts in groups of fewer than FEWEST


def outliers_of(selected: Selected, keys: Sequence[str]) -> Outliers:
    """Find the hosts whose rates, by `keys`, are unlike those of the other hosts of their service."""
    cube = cube_of(selected, keys)
    rows = heaviest([cube], keys)
    labels, rate = labels_of_rows(selected, keys, rows), rates(cube, keys, rows)[0]
    names = host_names(selected)
    service_of = {span.host_id: span.labels.get(SERVICE, "") for span in selected.spans}
    groups: dict[str, list[str]] = {}
    for host in cube.recorded:
        groups.setdefault(service_of[host], []).append(host)
    compared = {service: hosts for service, hosts in groups.items() if len(hosts) >= FEWEST}
    number = sum(map(len, compared.values()))
    limit = errors_needed(number * len(rows), least=_LIMIT)
    row_of = {host: row for row, host in enumerate(cube.recorded)}
    outliers = []
    for service, hosts in compared.items():
        part = rate[[row_of[host] for host in hosts]]
        z, median = robust_z(part), np.median(part, axis=0)
        enough = np.abs(part - median) >= _SMALLEST * np.median(part.sum(axis=1))
        for index, row in np.argwhere((np.abs(z) >= limit) & enough).tolist():
            facts = (float(part[index, row]), float(median[row]), float(z[index, row]))
            outliers.append(Outlier(names[hosts[index]], service, labels[row], *facts))
    outliers.sort(key=lambda outlier: -abs(outlier.z))
    return Outliers(tuple(keys), outliers, limit, len(compared), number, len(row_of) - number)


def robust_z(values: F64) -> F64:
    """Return float64[hosts, rows]: each value's distance from its column's median in units of a robust standard
    deviation, 0 if all are equal."""
    away = values - np.median(values, axis=0)
    spread = 1.4826 * np.median(np.abs(away), axis=0)
    spread = np.where(spread > 0, spread, 1.2533 * np.abs(away).mean(axis=0))
    return np.divide(away, spread, out=np.zeros_like(away), where=spread > 0)
