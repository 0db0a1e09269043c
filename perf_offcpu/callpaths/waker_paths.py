# SPDX-License-Identifier: Apache-2.0
"""The stacks of sleepers and of those who woke them in one tree, so that one numbering serves both."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from perf_offcpu.analysis.options import Options
from perf_offcpu.callpaths.tree import PathTree, build_paths
from perf_offcpu.model.columns import I64
from perf_offcpu.model.profile import Profile, ProfileSamples
from perf_offcpu.model.recording import SampleFlag


def paths_with_wakers(profile: Profile, options: Options, *, merged: bool = True) -> tuple[PathTree, I64]:
    """A tree without roots (`build_paths`), with the stacks of wakers in it.

    Returns:
        (tree, waker): its `of_sample` is that of the profile's samples; int64[samples], the node at which the
        stack of each sample's waker ends, -1 if that is not known.
    """
    samples = profile.samples
    rows = np.flatnonzero(samples.waker_stack >= 0)
    stacks, of = np.unique(samples.waker_stack[rows], return_inverse=True)
    if not len(stacks):
        return build_paths(profile, options, rooted=False, merged=merged), np.full(len(samples), -1)
    wakers = ProfileSamples.filled(len(stacks), stack=stacks, flags=np.full(len(stacks), SampleFlag.OFFCPU))
    both = replace(profile, samples=ProfileSamples.concat([samples, wakers]))
    tree = build_paths(both, replace(options, state=False), rooted=False, merged=merged)
    node = np.full(len(samples), -1)
    node[rows] = tree.of_sample[len(samples) :][of]
    tree.of_sample = tree.of_sample[: len(samples)]
    return tree, node
