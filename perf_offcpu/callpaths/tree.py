# SPDX-License-Identifier: Apache-2.0
"""The tree that pictures and folded lines show: thread, then frames by name, from the root on.

It differs from the profile's stack tree in three ways. Each root (a comm, or with options a process or a
thread) has its own copy of the stacks that it used. Frames are merged by name. And marked nodes stand for
parts of stacks that could not be recorded, so that their time is seen:

    comm ─ main ─ read                        a whole stack
    comm ─ [truncated] ─ f ─ read             frames nearer to the root were cut
    comm ─ [missed user stack] ─ schedule     only the kernel's part is there
    comm ─ main ─ [missed kernel stack]       only the user's part is there
    comm ─ [missed stack]                     neither; [no stack] if none was asked for

Below that may come the task state, as a node like a frame, and the waker, as in bcc's offwaketime: its stack
upside down, so that its leaf meets the sleeper's, and its name.

    comm ─ main ─ read ─ -- ─ try_to_wake_up_[w] ─ write_[w] ─ main_[w] ─ waker_[w]
"""

from __future__ import annotations

from dataclasses import field, replace

import numpy as np
from numpy.typing import NDArray

from perf_offcpu.analysis.group import group, sum_by
from perf_offcpu.analysis.states import STATES, state_codes
from perf_offcpu.binary.gather import offsets_of
from perf_offcpu.callpaths.builder import PathBuilder
from perf_offcpu.callpaths.names import Name
from perf_offcpu.callpaths.options import PathOptions
from perf_offcpu.callpaths.wakers import WAKER_DELIMITER, wakers_of
from perf_offcpu.model.callchains import Ragged
from perf_offcpu.model.columns import I32, I64, U8, U64
from perf_offcpu.model.profile import Profile, ProfileSamples
from perf_offcpu.model.recording import SampleFlag
from perf_offcpu.model.stacks import path_lengths
from perf_offcpu.structs import mutable
from perf_offcpu.text import MISSED_KERNEL_STACK, MISSED_STACK, MISSED_USER_STACK, NO_STACK, TRUNCATED

MARKS = ("", TRUNCATED, MISSED_USER_STACK, MISSED_STACK, NO_STACK)
"""The nodes that can stand between a root and the frames, by code (see `marks_of`)."""


@mutable
class PathTree:
    """n nodes; `parent[node] < node`.

    Args:
        names: the names of nodes; several nodes may share one.
        parent: int32[n]; -1 for a root.
        name: int32[n], index into names.
        of_sample: int32[samples], the node at which each sample ends.
        frames: int64[names], the row in the profile's frames that a name stands for, the first if it stands
            for several; -1 for a name that is no frame's.
    """

    names: list[Name]
    parent: I32
    name: I32
    of_sample: I32
    frames: I64 = field(default_factory=lambda: np.empty(0, np.int64))

    def __len__(self) -> int:
        return len(self.parent)

    def total(self, values: NDArray[np.int64]) -> I64:
        """Return int64[n]: the sum of a sample column over the samples that end at each node (exclusive)."""
        return sum_by(self.of_sample.astype(np.int64), values, len(self))

    def paths(self, nodes: I64) -> Ragged:
        """Return the names (indices into `names`) on the way to each of the given nodes, root first."""
        offsets = offsets_of(path_lengths(self.parent, nodes))
        values: U64 = np.empty(offsets[-1], np.uint64)
        place, at = offsets[1:] - 1, nodes
        while len(at):
            values[place] = self.name[at]
            above = self.parent[at]
            place, at = place[above >= 0] - 1, above[above >= 0].astype(np.int64)
        return Ragged(offsets, values)


def build_paths(
    profile: Profile, options: PathOptions, *, rooted: bool = True, merged: bool = True
) -> PathTree:
    """Build the tree of all samples of a profile.

    Args:
        options: choose roots (pid, tid), names (kernel, addrs) and leaves (state, waker_stack).
        rooted: without, threads share one tree, and its roots are the outermost frames and marks.
        merged: without, every address of a function is a name of its own.
    """
    samples = profile.samples
    top, below = marks_of(samples)
    state = state_codes(samples) if options.state else np.zeros(len(samples), np.uint8)
    roots = _root_columns(samples, options) if rooted else []
    columns: list[NDArray[np.integer]] = [*roots, top, below, state]
    if options.waker_stack:
        waker_names, waker = wakers_of(profile, options)
        columns += [waker, samples.waker_stack]
    first, of = group(*columns, samples.stack)
    builder = PathBuilder(profile, options, merged)
    base = builder.add_roots([column[first] for column in roots], len(first))
    base = builder.add_leaves(base, top[first], MARKS)
    leaf = builder.add_stacks(base, samples.stack[first].astype(np.int64))
    leaf = builder.add_leaves(leaf, below[first], ("", MISSED_KERNEL_STACK))
    if options.state:
        codes = (state[first] + 1).astype(np.uint8)
        leaf = builder.add_leaves(leaf, codes, ("", *(f"[{one.words}]" for one in STATES)))
    if options.waker_stack:
        known = waker[first]
        leaf = builder.add_leaves(leaf, np.minimum(known, 1), ("", WAKER_DELIMITER))
        stack = np.where(known > 0, samples.waker_stack[first].astype(np.int64), -1)
        leaf = builder.add_names(builder.add_inverted(leaf, stack), known, waker_names)
    return PathTree(builder.names, *builder.columns(), leaf.astype(np.int32)[of], builder.frames())


def paths_with_wakers(profile: Profile, options: PathOptions, *, merged: bool = True) -> tuple[PathTree, I64]:
    """Build a tree without roots that holds the stacks of wakers, too, so that one numbering serves both.

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


def marks_of(samples: ProfileSamples) -> tuple[U8, U8]:
    """Return the code of each sample's mark above the frames, and whether it has one below them."""
    bare = samples.stack < 0
    user_lost = samples.has(SampleFlag.NO_USER_STACK | SampleFlag.UNMERGED)
    kernel_lost = samples.has(SampleFlag.NO_KERNEL_STACK)
    cases = [bare & (user_lost | kernel_lost), bare, user_lost, samples.has(SampleFlag.TRUNCATED)]
    top = np.select(cases, [3, 4, 2, 1], 0).astype(np.uint8)
    return top, (~bare & kernel_lost).astype(np.uint8)


def _root_columns(samples: ProfileSamples, options: PathOptions) -> list[NDArray[np.integer]]:
    columns: list[NDArray[np.integer]] = [samples.comm]
    if options.pid or options.tid:
        columns.append(samples.pid)
    if options.tid:
        columns.append(samples.tid)
    return columns
