# SPDX-License-Identifier: Apache-2.0
"""Functions with their own and their inclusive time, and the calls between them. Inclusive time counts each sample once
for a function, however often the function is on its stack, and once for a call from one function to another: with
recursion, only the outermost occurrence counts."""

import numpy as np
from numpy.typing import NDArray

from perf_offcpu.callpaths.options import Name, PathOptions
from perf_offcpu.callpaths.tree import PathTree, build_paths
from perf_offcpu.model.callchains import depths
from perf_offcpu.model.columns import I32, I64, Bool, group, sum_by
from perf_offcpu.model.profile import Profile
from perf_offcpu.structs import mutable


@mutable
class Calls:
    """k functions and the m calls between them, as columns; weights are in the unit of the profile's events."""

    names: list[Name]  # the k functions that are on a stack
    own: I64  # int64[k], weight of samples that end in it
    inclusive: I64  # int64[k], weight of samples that have it on their stack
    waits: I64  # int64[k], waits (of other events: samples) that end in it
    # caller, callee: int64[m], the two functions of each call, distinct pairs
    caller: I64
    callee: I64
    weight: I64  # int64[m], weight of samples that have this call on their stack
    total: int  # the weight of all samples


def calls_of(profile: Profile, options: PathOptions, chosen: Bool) -> Calls:
    """Return the functions and calls on the stacks of all threads together. `chosen`: bool[samples], which to count."""
    tree = build_paths(profile, options, rooted=False)
    own, waits = (tree.total(np.where(chosen, column, 0)) for column in (profile.samples.period, profile.samples.count))
    below = subtree_sums(tree, own)
    used, function = np.unique(tree.name, return_inverse=True)
    inner = np.flatnonzero(tree.parent >= 0)
    first, pair_of_inner = group(function[tree.parent[inner]], function[inner])
    pair = np.full(len(tree), -1, np.int64)
    pair[inner] = pair_of_inner
    calling = tree.parent[inner[first]]
    own_sums, wait_sums = (sum_by(function, values, len(used)) for values in (own, waits))
    inclusive = sum_by(np.where(outermost(tree.parent, function), function, -1), below, len(used))
    weight = sum_by(np.where(outermost(tree.parent, pair), pair, -1), below, len(first))
    names, caller, callee = [tree.names[row] for row in used.tolist()], function[calling], function[inner[first]]
    return Calls(names, own_sums, inclusive, wait_sums, caller, callee, weight, int(own.sum()))


def subtree_sums(tree: PathTree, values: I64) -> I64:
    """Return int64[nodes]: the sum of `values`, int64[nodes], over each node and all nodes below it."""
    sums, depth = values.copy(), depths(tree.parent)
    by_depth = np.argsort(-depth, kind="stable")
    bounds = np.flatnonzero(np.diff(depth[by_depth], prepend=-1, append=-1))
    for begin, end in zip(bounds[:-1], bounds[1:], strict=True):
        level = by_depth[begin:end]
        level = level[tree.parent[level] >= 0]
        np.add.at(sums, tree.parent[level], sums[level])
    return sums


def outermost(parent: I32, key: NDArray[np.integer]) -> Bool:
    """Return bool[nodes]: True if no ancestor of the node has its `key` (int[nodes]). `parent`: -1 for a root."""
    result = np.ones(len(parent), np.bool_)
    node = np.flatnonzero(parent >= 0)
    above = parent[node]
    while len(node):
        same = key[above] == key[node]
        result[node[same]] = False
        above = parent[above]
        going = ~same & (above >= 0)
        node, above = node[going], above[going]
    return result
