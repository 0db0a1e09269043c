# SPDX-License-Identifier: Apache-2.0
"""Walk up the stack tree from many leaves at once, and leave nodes out: one numpy pass a level, no loop over stacks."""

import numpy as np
from numpy.typing import NDArray

from perf_offcpu.model.callchains import depths
from perf_offcpu.model.columns import I64, Bool
from perf_offcpu.model.profile import Profile, Stacks


def used_nodes(profile: Profile, leaves: I64) -> Bool:
    """Return bool[stacks]: True for nodes on the way from a leaf to its root. `leaves`: rows in stacks; -1 none."""
    parent = profile.stacks.parent
    is_used = np.zeros(len(parent), np.bool_)
    node = _once(leaves[leaves >= 0], len(parent))
    while len(node):
        is_used[node] = True
        above = parent[node]
        above = above[above >= 0]
        node = _once(above[~is_used[above]], len(parent))
    return is_used


def used_frames(profile: Profile, leaves: I64) -> Bool:
    """Return bool[frames]: True for the frames of the stacks that end in `leaves` (rows in stacks; -1 no stack)."""
    used = np.zeros(len(profile.frames), np.bool_)
    used[profile.stacks.frame[used_nodes(profile, leaves)]] = True
    return used


def innermost_node(profile: Profile, leaves: I64, wanted: Bool, user_frames: int = 0) -> I64:
    """Return int64[n]: the first node from each leaf towards the root with a wanted frame; -1 for none. `leaves`:
    int64[n], rows in stacks; -1 none. `wanted`: bool[frames]. `user_frames`: user frames to look at; 0: all."""
    return _walk(profile, leaves, wanted, first=True, user_frames=user_frames)


def outermost_node(profile: Profile, leaves: I64, wanted: Bool, callers: Bool | None = None) -> I64:
    """Return int64[n]: the last node from each leaf towards the root with a wanted frame; -1 for none. `callers`:
    bool[frames], the node's caller must have one of these frames; None: no condition. Others: as `innermost_node`."""
    return _walk(profile, leaves, wanted, callers, first=False)


def _walk(
    profile: Profile, leaves: I64, wanted: Bool, callers: Bool | None = None, *, first: bool, user_frames: int = 0
) -> I64:
    parent, frame = profile.stacks.parent, profile.stacks.frame
    node = np.full(len(leaves), -1, np.int64)
    if not wanted.any():
        return node
    live = np.flatnonzero(leaves >= 0)
    leaf, is_user = leaves[live], ~profile.frames.is_kernel()
    seen = np.zeros(len(live), np.int32)
    while len(live):
        above = parent[leaf].astype(np.int64)
        hit = wanted[frame[leaf]]
        if callers is not None:
            hit &= (above >= 0) & callers[frame[above]]
        node[live[hit]] = leaf[hit]
        on = (above >= 0) & ~(hit & first)
        if user_frames:
            seen += is_user[frame[leaf]]
            on &= seen < user_frames
            seen = seen[on]
        live, leaf = live[on], above[on]
    return node


def without_nodes(parent: I64, frame: I64, left_out: Bool) -> tuple[Stacks, I64]:
    """Remove nodes (`left_out`: bool[nodes]) from a stack tree, and merge children that become equal. Return the new
    tree, and int32[nodes + 1]: new row of each node (a removed one: of its nearest kept ancestor, else -1), then -1."""
    above = np.append(np.where(left_out, parent, np.arange(len(parent))), -1)  # the last one: the caller of roots
    while (jump := above[above]).tobytes() != above.tobytes():
        above = jump
    above = above[:-1]
    kept = np.flatnonzero(~left_out)
    over = np.where(parent[kept] >= 0, above[parent[kept]], -1)
    number = np.append(np.full(len(parent), -1), -1)  # of kept nodes, in the new tree
    level = depths(np.append(np.cumsum(~left_out) - 1, -1)[over].astype(np.int32))
    parents, frames, total = [np.empty(0, np.int64)], [np.empty(0, np.int64)], 0
    for depth in range(1, int(level.max(initial=0)) + 1):
        of_depth = level == depth
        keys, inverse = np.unique((number[over[of_depth]] + 1) << 31 | frame[kept[of_depth]], return_inverse=True)
        number[kept[of_depth]] = inverse.reshape(-1) + total
        parents.append((keys >> 31) - 1)
        frames.append(keys & 0x7FFFFFFF)
        total += len(keys)
    columns = (np.concatenate(parents).astype(np.int32), np.concatenate(frames).astype(np.int32))
    return Stacks(*columns), np.append(number[above], -1).astype(np.int32)


def _once(nodes: NDArray[np.integer], size: int) -> I64:
    """Return the distinct `nodes`, all below `size`, as int64, in any order; in linear time."""
    owner, places = np.empty(size, np.int32), np.arange(len(nodes), dtype=np.int32)
    owner[nodes] = places
    last: I64 = nodes[owner[nodes] == places].astype(np.int64)
    return last
