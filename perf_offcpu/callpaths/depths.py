# SPDX-License-Identifier: Apache-2.0
"""How deep nodes lie in a tree that is a column of parents, found for many at once."""

from __future__ import annotations

import numpy as np

from perf_offcpu.model.columns import I32, I64


def depths(parent: I32) -> I64:
    """int64[n]: nodes from the root to each node, itself included; by pointer doubling, in log2(depth)
    passes."""
    depth = np.ones(len(parent), np.int64)
    above = parent.astype(np.int64)
    while True:
        live = np.flatnonzero(above >= 0)
        if not len(live):
            return depth
        jump = above[live]
        depth[live] += depth[jump]
        above[live] = above[jump]


def path_lengths(parent: I32, nodes: I64) -> I64:
    """int64[k]: the same for some nodes only, -1 (none) among them; by climbing, which is cheaper for few."""
    length = np.zeros(len(nodes), np.int64)
    live = np.flatnonzero(nodes >= 0)
    at = nodes[live]
    while len(live):
        length[live] += 1
        above = parent[at]
        live, at = live[above >= 0], above[above >= 0].astype(np.int64)
    return length
