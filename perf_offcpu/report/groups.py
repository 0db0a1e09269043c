# SPDX-License-Identifier: Apache-2.0
"""Tables of the report that are sums over samples of equal values: by class, or by what `--sort` names."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from perf_offcpu.analysis.classify import Waits
from perf_offcpu.analysis.group import group, sum_by
from perf_offcpu.model.profile import Profile
from perf_offcpu.report.keys import column_of
from perf_offcpu.report.totals import Total, heaviest, totals_of
from perf_offcpu.structs import frozen


@frozen
class GroupRow:
    """Samples that have the same values of some keys."""

    values: tuple[str, ...]
    """Printable, in the order of the keys."""
    total: Total
    runq: int
    """ns of the weight between wake-up and running, as far as it was recorded."""


@frozen
class GroupTable:
    """The groups of some keys, heaviest first."""

    keys: tuple[str, ...]
    rows: list[GroupRow]
    more: tuple[int, int]
    """(rows, weight) that were cut off."""
    runq_known: bool
    """Whether any sample tells its run-queue delay."""


def group_table(profile: Profile, waits: Waits, keys: Sequence[str], limit: int | None = None) -> GroupTable:
    """Group the samples of a profile.

    Args:
        waits: `classify(profile)`.
        keys: of `keys.SORT_KEYS`.
        limit: most rows; None for all.
    """
    samples = profile.samples
    made = [column_of(key, profile, waits) for key in keys]
    first, of = group(*(column for column, _ in made))
    kept, more = heaviest(sum_by(of, samples.period, len(first)), limit)
    rank = np.full(len(first), -1, np.int64)
    rank[kept] = np.arange(len(kept))
    totals = totals_of(samples, rank[of], len(kept))
    known = samples.runq_ns >= 0
    runq = sum_by(np.where(known, rank[of], -1), np.where(known, samples.runq_ns, 0), len(kept)).tolist()
    rows = [
        GroupRow(tuple(label(row) for _, label in made), totals[at], runq[at])
        for at, row in enumerate(first[kept].tolist())
    ]
    return GroupTable(tuple(keys), rows, more, bool(known.any()))
