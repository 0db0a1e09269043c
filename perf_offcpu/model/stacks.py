# SPDX-License-Identifier: Apache-2.0
"""Build the stack tree: callchains as nodes {parent, frame}, shared from the root on. Built level by level: at depth d
all chains that are at least d frames long are grouped by (node at d - 1, frame at d) with one `np.unique`, which
numbers the nodes of that level. So `parent[s] < s` for every node, and everything that is inherited from the root
(paths, inclusive sums) is one pass over the nodes."""

import numpy as np

from perf_offcpu.binary.columnar import offsets_of
from perf_offcpu.model.callchains import Ragged
from perf_offcpu.model.columns import I32, I64


def build_stack_tree(chains: Ragged) -> tuple[I32, I32, I32]:
    """Build the tree of n chains of frame ids, leaf first (uint64 below 2^31). Returns (parent, frame, stack):
    int32[nodes], int32[nodes], int32[n]; `stack[i]`: the node of chain i's leaf, -1 if empty; parent -1: a root."""
    lengths = chains.lengths
    order = np.argsort(-lengths, kind="stable")  # longest first: the chains alive at depth d are a prefix
    alive_at = np.searchsorted(-lengths[order], -np.arange(1, int(lengths.max(initial=0)) + 1), side="right")
    last = chains.offsets[1:][order] - 1  # the root's place in each chain
    node = np.full(len(chains), -1, np.int64)
    parents: list[I64] = []
    frames: list[I64] = []
    total = 0
    for depth, alive in enumerate(alive_at):
        frame = chains.values[last[:alive] - depth].astype(np.int64)
        keys, inverse = np.unique((node[:alive] + 1) << 31 | frame, return_inverse=True)
        parents.append((keys >> 31) - 1)
        frames.append(keys & 0x7FFFFFFF)
        node[:alive] = inverse + total
        total += len(keys)
    stack = np.empty(len(chains), np.int32)
    stack[order] = node
    none = np.empty(0, np.int64)
    parent, frames_in_order = np.concatenate([none, *parents]), np.concatenate([none, *frames])
    return parent.astype(np.int32), frames_in_order.astype(np.int32), stack


def depths(parent: I32) -> I64:
    """Return int64[n]: number of nodes from the root to each node, both included; in log2(depth) passes."""
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
    """Return int64[k]: depth of each given node (1 for a root), 0 for -1; by climbing, cheaper for few nodes."""
    length = np.zeros(len(nodes), np.int64)
    live = np.flatnonzero(nodes >= 0)
    node = nodes[live]
    while len(live):
        length[live] += 1
        above = parent[node]
        live, node = live[above >= 0], above[above >= 0].astype(np.int64)
    return length


def paths_of_nodes(parent: I32, nodes: I64, *, leaf_first: bool = False) -> tuple[I64, I64]:
    """Return the paths from the root to each of k `nodes` (>= 0), root first by default, both ends included. Returns
    (offsets, path): int64[k + 1] and int64[]; nodes of path i are `path[offsets[i]:offsets[i + 1]]`."""
    offsets = offsets_of(path_lengths(parent, nodes))
    path = np.empty(int(offsets[-1]), np.int64)
    step, place = (1, offsets[:-1].copy()) if leaf_first else (-1, offsets[1:] - 1)
    node = nodes
    while len(node):
        path[place] = node
        above = parent[node]
        place, node = place[above >= 0] + step, above[above >= 0].astype(np.int64)
    return offsets, path


def frames_of(parent: I32, frame: I32, stack: int) -> list[int]:
    """Return the frame rows of one stack, root first; for output and tests. `stack`: row of the leaf, -1: []."""
    frames = []
    while stack >= 0:
        frames.append(int(frame[stack]))
        stack = int(parent[stack])
    return frames[::-1]
