# SPDX-License-Identifier: Apache-2.0
"""Walk up the stack tree from many leaves at once: one numpy pass per level, not a loop per stack."""

import numpy as np
from numpy.typing import NDArray

from perf_offcpu.model.columns import I64, Bool
from perf_offcpu.model.profile import Profile


def used_nodes(profile: Profile, leaves: I64) -> Bool:
    """Return bool[stacks]: True for nodes on the way from a leaf to its root. `leaves`: rows in stacks; -1 no stack."""
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
    """Return bool[frames]: True for frames of the stacks whose leaves (rows in stacks, -1 none) are given."""
    used = np.zeros(len(profile.frames), np.bool_)
    used[profile.stacks.frame[used_nodes(profile, leaves)]] = True
    return used


def innermost_node(profile: Profile, leaves: I64, wanted: Bool, user_frames: int = 0) -> I64:
    """Return int64[n]: from each leaf towards the root, the first node with a wanted frame; -1 for none. `leaves`:
    int64[n], rows in stacks; -1 for none. `wanted`: bool[frames]. `user_frames`: stop after this number of frames of
    user code; 0: at the root."""
    return _walk(profile, leaves, wanted, first=True, user_frames=user_frames)


def outermost_node(profile: Profile, leaves: I64, wanted: Bool) -> I64:
    """Return int64[n]: from each leaf (row in stacks) towards the root, the last node with a wanted frame; -1 none."""
    return _walk(profile, leaves, wanted, first=False, user_frames=0)


def _walk(profile: Profile, leaves: I64, wanted: Bool, *, first: bool, user_frames: int) -> I64:
    parent, frame = profile.stacks.parent, profile.stacks.frame
    node = np.full(len(leaves), -1, np.int64)
    if not wanted.any():
        return node
    live = np.flatnonzero(leaves >= 0)
    leaf, is_user = leaves[live], ~profile.frames.is_kernel()
    seen = np.zeros(len(live), np.int32)
    while len(live):
        hit = wanted[frame[leaf]]
        node[live[hit]] = leaf[hit]
        above = parent[leaf].astype(np.int64)
        on = (above >= 0) & ~(hit & first)
        if user_frames:
            seen += is_user[frame[leaf]]
            on &= seen < user_frames
            seen = seen[on]
        live, leaf = live[on], above[on]
    return node


def _once(nodes: NDArray[np.integer], size: int) -> I64:
    """Return the distinct `nodes` (all below `size`) as int64, in any order; in linear time."""
    owner, places = np.empty(size, np.int32), np.arange(len(nodes), dtype=np.int32)
    owner[nodes] = places
    last: I64 = nodes[owner[nodes] == places].astype(np.int64)
    return last
