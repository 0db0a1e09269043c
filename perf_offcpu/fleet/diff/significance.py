# SPDX-License-Identifier: Apache-2.0
"""Tell changes from chance by permuting hosts, or shifting periods of one host (`compare_periods`).

Two groups of hosts are compared by Welch's t of each row, the same hosts at two times by the t of their differences. If
nothing changed, any other assignment of hosts to groups (of signs to differences) is as likely, so the share of
assignments with a t at least as large is the p of a row. Studentized statistics keep that right for groups of different
spread (Janssen, Statistics & Probability Letters 36, 1997); sampled assignments count themselves, so that no p is 0
(Phipson and Smyth, Statistical Applications in Genetics and Molecular Biology 9, 2010). Rows are tested together: the p
of a row is the share of assignments in which the largest |t| of all rows reaches its |t| (single-step max-T: Westfall
and Young, Resampling-Based Multiple Testing, 1993), so 5 % of comparisons without a change have any row below 0.05."""

import itertools
import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from perf_offcpu.structs import frozen

F64 = NDArray[np.float64]
SIGNIFICANT = 0.05
_ASSIGNMENTS = 4999
_AT_ONCE = 500
_SEED = 1
_TINY = 1e-9  # spread, as a part of a row's mean, below which it is taken for an error of rounding


@frozen
class Verdicts:
    """Result of a permutation test of n rows."""

    p: F64  # float64[n], adjusted for the number of rows
    assignments: int  # number of assignments of hosts that were tried, the one in the data included
    exact: bool  # True if all possible assignments were tried
    least_p: float  # no p can be smaller


def compare_groups(before: F64, after: F64) -> Verdicts:
    """Test the rates, float64[hosts, rows], of two groups of different hosts, at least two in each."""
    values = np.concatenate([before, after])
    hosts, second = len(values), len(after)
    scale = _TINY * np.abs(values).mean(axis=0)
    # The data's own assignment: the last hosts are those of `after`.
    observed = _welch(np.repeat([[0.0, 1.0]], [len(before), second], axis=1), values, scale)[0]
    twins = 2 if second == len(before) else 1
    subsets, possible = _subsets(hosts, second), math.comb(hosts, second)
    return _verdicts(observed, subsets, lambda part: _welch(part, values, scale), possible, twins)


def compare_pairs(change: F64) -> Verdicts:
    """Test the changes of the rates of at least two hosts between two times; `change`: float64[hosts, rows]."""
    hosts = len(change)
    scale = _TINY * np.abs(change).mean(axis=0)
    squares = (change**2).sum(axis=0)

    def statistic(signs: F64) -> F64:
        mean = signs @ change / hosts
        variance = np.maximum(squares / hosts - mean**2, 0) * hosts / (hosts - 1)
        return _ratio(mean, np.sqrt(variance / hosts) + scale)

    return _verdicts(statistic(np.ones((1, hosts)))[0], _signs(hosts), statistic, 2**hosts, 2)


def compare_periods(first: F64, second: F64) -> Verdicts:
    """Test the rates of a host in two periods; `first`, `second`: float64[blocks, rows], blocks in order of time.
    Neighbouring blocks are alike, so they cannot be assigned singly. If nothing changed, a second period of the same
    length that begins anywhere else in the circle of all blocks is as likely: these shifts are the assignments."""
    values, later = np.concatenate([first, second]), np.repeat([0.0, 1.0], [len(first), len(second)])
    shifts = np.array([np.roll(later, step) for step in range(len(values))])
    scale = _TINY * np.abs(values).mean(axis=0)
    twins = 2 if len(first) == len(second) else 1
    return _verdicts(
        _welch(shifts[:1], values, scale)[0], shifts, lambda part: _welch(part, values, scale), len(shifts), twins
    )


def _welch(second: F64, values: F64, scale: F64) -> F64:
    """Return Welch's t, float64[assignments, rows], of `values` [hosts, rows]. `second` [assignments, hosts]: 1 for the
    hosts of group 2, else 0; `scale` [rows]: added to each standard error, against errors of rounding."""
    sums, squares = values.sum(axis=0), (values**2).sum(axis=0)
    n2 = second.sum(axis=1)[:, None]
    n1 = len(values) - n2
    sum2, square2 = second @ values, second @ values**2
    mean1, mean2 = (sums - sum2) / n1, sum2 / n2
    variance1 = np.maximum((squares - square2) - n1 * mean1**2, 0) / (n1 - 1)
    variance2 = np.maximum(square2 - n2 * mean2**2, 0) / (n2 - 1)
    return _ratio(mean2 - mean1, np.sqrt(variance1 / n1 + variance2 / n2) + scale)


def _ratio(change: F64, error: F64) -> F64:
    return np.divide(change, error, out=np.zeros_like(change), where=error > 0)


def _verdicts(
    observed: F64, assignments: F64, statistic: Callable[[F64], F64], possible: float, twins: int
) -> Verdicts:
    """Return p of each row: the share of `assignments` whose largest |t| of all rows reaches the row's `observed` |t|.
    `statistic`: assignments → t [assignments, rows]; `possible`: number of all assignments; `twins`: 2 if the two
    groups of an assignment can be swapped, which keeps |t|, else 1."""
    size = np.abs(observed) * (1 - 1e-9)  # sums in another order differ by rounding
    reached = np.zeros(len(observed), np.int64)
    for index in range(0, len(assignments), _AT_ONCE):
        largest = np.abs(statistic(assignments[index : index + _AT_ONCE])).max(axis=1, initial=0)
        reached += len(largest) - np.searchsorted(np.sort(largest), size, side="left")
    exact = len(assignments) == possible
    if exact:  # the data's own assignment is one of them
        return Verdicts(reached / len(assignments), len(assignments), True, twins / len(assignments))
    total = len(assignments) + 1
    return Verdicts((reached + 1) / total, total, False, 1 / total)


def _subsets(hosts: int, second: int) -> F64:
    """Return float64[n, hosts], in each row 1 for the `second` hosts in group 2, else 0: all choices if there are at
    most _ASSIGNMENTS, else so many random ones."""
    if math.comb(hosts, second) <= _ASSIGNMENTS:
        chosen = np.array(list(itertools.combinations(range(hosts), second)), np.int64)
    else:
        random = np.random.default_rng(_SEED).random((_ASSIGNMENTS, hosts))
        chosen = np.argsort(random, axis=1)[:, :second]
    members = np.zeros((len(chosen), hosts), np.float64)
    np.put_along_axis(members, chosen, 1.0, axis=1)
    return members


def _signs(hosts: int) -> F64:
    """Return float64[n, hosts] of 1 and -1: all combinations if at most _ASSIGNMENTS, else as many random ones."""
    if 2**hosts <= _ASSIGNMENTS:
        return np.array(list(itertools.product((1.0, -1.0), repeat=hosts)), np.float64)
    return np.random.default_rng(_SEED).choice((1.0, -1.0), (_ASSIGNMENTS, hosts))
