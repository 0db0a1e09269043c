# SPDX-License-Identifier: Apache-2.0
"""Totals of groups of samples: weight, number of waits, the longest; exact integers, honest about sums."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from perf_offcpu.abi.task_state import state_letter
from perf_offcpu.analysis.group import group, max_by, sum_by
from perf_offcpu.model.columns import I64, Bool
from perf_offcpu.model.profile import ProfileSamples
from perf_offcpu.model.recording import SampleFlag

SUM_FLAGS = SampleFlag.AGGREGATED | SampleFlag.UNTIMED


@dataclass(frozen=True, slots=True)
class Total:
    """The weight of some samples."""

    weight: int
    """Sum of periods, in the unit of the event (ns for time)."""
    count: int
    """Waits; of other events samples."""
    count_is_exact: bool = True
    """False: sums of an unknown number of waits are in it; `count` is the least that it can be."""
    longest: int | None = None
    """The longest single wait; None where sums do not tell."""

    @property
    def average(self) -> int | None:
        """Weight by count, rounded; None where the count is not known."""
        return (self.weight + self.count // 2) // self.count if self.count and self.count_is_exact else None


def totals_of(samples: ProfileSamples, of: I64, groups: int, rows: Bool | None = None) -> list[Total]:
    """The total of each group, over the samples in `rows` (default: all)."""
    of = of if rows is None else np.where(rows, of, -1)
    is_sum = (samples.flags & np.uint32(SUM_FLAGS)) != 0
    known = ~is_sum | (samples.longest_ns >= 0)
    longest = max_by(np.where(known, of, -1), np.where(is_sum, samples.longest_ns, samples.period), groups)
    unknown = max_by(of[~known], samples.period[~known], groups)  # bounds the waits within
    uncounted = of[(samples.flags & np.uint32(SampleFlag.UNTIMED)) != 0]
    columns = (
        sum_by(of, samples.period, groups),
        sum_by(of, samples.count, groups),
        np.bincount(uncounted + 1, minlength=groups + 1)[1:] == 0,
        np.where(longest >= unknown, longest, -1),
    )
    return [
        Total(weight, count, exact, None if most < 0 else most)
        for weight, count, exact, most in zip(*(column.tolist() for column in columns), strict=True)
    ]


def heaviest(weight: I64, limit: int | None, beside: I64 | None = None) -> tuple[I64, tuple[int, int]]:
    """(rows, cut): the heaviest rows in order (of equal ones those that have more beside), and (number,
    weight) of those that the limit cut off."""
    order = np.lexsort((np.zeros_like(weight) if beside is None else -beside, -weight))
    kept = order[:limit]
    return kept, (len(order) - len(kept), int(weight.sum()) - int(weight[kept].sum()))


def by_state(samples: ProfileSamples, of: I64, groups: int, values: I64) -> list[dict[str, int]]:
    """Sums of values by state letter ("" unknown) for each group, the largest first.

    Args:
        of: int64[n], the group of each sample; -1 belongs to none.
        values: int64[n].
    """
    preempted = (samples.flags & np.uint32(SampleFlag.PREEMPTED)) != 0
    first, pair = group(of, samples.state, preempted.astype(np.uint8))
    sums = sum_by(pair, values, len(first)).tolist()
    result: list[dict[str, int]] = [{} for _ in range(groups)]
    for at, row in enumerate(first.tolist()):
        if of[row] >= 0:
            letter = state_letter(int(samples.state[row]), bool(preempted[row]))
            mine = result[int(of[row])]
            mine[letter] = mine.get(letter, 0) + sums[at]
    return [largest_first(mine) for mine in result]


def largest_first(sums: dict[str, int]) -> dict[str, int]:
    """The same, in another order."""
    return dict(sorted(sums.items(), key=lambda item: -item[1]))
