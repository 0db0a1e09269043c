# SPDX-License-Identifier: Apache-2.0
"""Find the stacks with the largest weights."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from perf_offcpu.analysis.group import sum_by
from perf_offcpu.callpaths.names import Name
from perf_offcpu.callpaths.options import PathOptions
from perf_offcpu.callpaths.tree import build_paths
from perf_offcpu.model.columns import I64
from perf_offcpu.model.profile import Profile


def heavy_stacks(
    profile: Profile, rows: I64, weight: I64, most: int
) -> Iterator[tuple[str, tuple[Name, ...], int]]:
    """Yield comm, frames and weight of the heaviest stacks of some samples, the heaviest first.

    Args:
        rows: int64[n], the samples.
        weight: int64[n], the weight of each.
        most: number of stacks.
    """
    tree = build_paths(profile.select(rows), PathOptions())
    total = sum_by(tree.of_sample.astype(np.int64), weight, len(tree))
    nodes = np.argsort(-total, kind="stable")[:most]
    nodes = nodes[total[nodes] > 0]
    paths = tree.paths(nodes)
    for row, node in enumerate(nodes.tolist()):
        ids = paths.values[paths.offsets[row] : paths.offsets[row + 1]].tolist()
        names = [tree.names[one] for one in ids]
        yield names[0].label, tuple(names[1:]), int(total[node])
