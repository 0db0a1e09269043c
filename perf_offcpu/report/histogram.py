# SPDX-License-Identifier: Apache-2.0
"""How long waits took: single waits in steps of 1, 2, 5, 10, …; sums apart, for nobody knows their parts."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from perf_offcpu.analysis.group import sum_by
from perf_offcpu.model.profile import ProfileSamples
from perf_offcpu.report.totals import SUM_FLAGS, Total, totals_of

EDGES = (0, *(step * 10**power for power in range(3, 16) for step in (1, 2, 5)))
"""ns: 0, 1 us, 2 us, 5 us, … Each step reaches from its edge to below the next."""


@dataclass(frozen=True, slots=True)
class Bucket:
    """Single waits of lengths from `low` to below `high` (ns; None: no limit)."""

    low: int
    high: int | None
    count: int
    weight: int


@dataclass(frozen=True, slots=True)
class Histogram:
    """The lengths of all waits of a report."""

    buckets: list[Bucket]
    """Ascending, from the first that is not empty to the last; those between may be empty."""
    sums: int
    """Samples that are sums."""
    summed: Total
    """Their waits."""


def histogram(samples: ProfileSamples) -> Histogram:
    """Count off-cpu samples by length."""
    is_sum = (samples.flags & np.uint32(SUM_FLAGS)) != 0
    period = samples.period[~is_sum]
    bucket = np.searchsorted(np.array(EDGES, np.int64), np.maximum(period, 0), side="right") - 1
    counts = np.bincount(bucket, minlength=len(EDGES)).tolist()
    weights = sum_by(bucket, period, len(EDGES)).tolist()
    used = [at for at, count in enumerate(counts) if count]
    highs = [*EDGES[1:], None]
    buckets = (
        [Bucket(EDGES[at], highs[at], counts[at], weights[at]) for at in range(used[0], used[-1] + 1)]
        if used
        else []
    )
    summed = samples.take(is_sum)
    total = totals_of(summed, np.zeros(len(summed), np.int64), 1)[0]
    return Histogram(buckets, len(summed), total)
