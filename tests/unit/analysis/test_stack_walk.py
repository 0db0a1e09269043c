# SPDX-License-Identifier: Apache-2.0
"""Walks up the stack tree find what a loop over each stack finds."""

import numpy as np
from builders.profile import ProfileBuilder, kernel
from hypothesis import given
from hypothesis import strategies as st

from perf_offcpu.analysis.stack_walk import innermost_node, outermost_node, used_frames, used_nodes
from perf_offcpu.model.profile import Profile

STACKS = st.lists(st.lists(st.sampled_from("abcdkl"), max_size=6), min_size=1, max_size=8)


def profile_of(stacks: list[list[str]]) -> Profile:
    builder = ProfileBuilder()
    for stack in stacks:
        builder.sample("comm", [kernel(name) if name in "kl" else name for name in stack], 1)
    return builder.build()


def way_up(profile: Profile, leaf: int) -> list[int]:
    nodes = []
    while leaf >= 0:
        nodes.append(leaf)
        leaf = int(profile.stacks.parent[leaf])
    return nodes


@given(STACKS, st.sets(st.sampled_from("abcdkl")), st.integers(0, 3))
def test_walks_are_those_of_each_stack(stacks: list[list[str]], names: set[str], user_frames: int) -> None:
    profile = profile_of(stacks)
    frame_of = profile.stacks.frame.tolist()
    leaves = profile.samples.stack.astype(np.int64)
    wanted = np.array([profile.strings[one] in names for one in profile.frames.symbol.tolist()], np.bool_)
    is_kernel = profile.frames.is_kernel()
    ways = [way_up(profile, leaf) for leaf in leaves.tolist()]

    assert np.flatnonzero(used_nodes(profile, leaves)).tolist() == sorted(set().union(*ways))
    used = {frame_of[node] for way in ways for node in way}
    assert set(np.flatnonzero(used_frames(profile, leaves)).tolist()) == used

    hits = [[node for node in way if wanted[frame_of[node]]] for way in ways]
    assert outermost_node(profile, leaves, wanted).tolist() == [(found or [-1])[-1] for found in hits]
    for way, found, node in zip(
        ways, hits, innermost_node(profile, leaves, wanted, user_frames).tolist(), strict=True
    ):
        users = np.cumsum([not is_kernel[frame_of[one]] for one in way]).tolist()
        near = [
            one
            for at, one in enumerate(way)
            if one in found and (not user_frames or at == 0 or users[at - 1] < user_frames)
        ]
        assert node == (near or [-1])[0]
