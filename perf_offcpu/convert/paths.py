# SPDX-License-Identifier: Apache-2.0
"""The tree that pictures and folded lines show: thread, then frames by name, from the root on.

It differs from the profile's stack tree in three ways. Each root (a comm, or with options a process or a
thread) has its own copy of the stacks that it used. Frames are merged by name. And what could not be
recorded stands in it as a marked node, so that its time is seen:

    comm ─ main ─ read                        a whole stack
    comm ─ [truncated] ─ f ─ read             frames nearer to the root were cut
    comm ─ [missed user stack] ─ schedule     only the kernel's part is there
    comm ─ main ─ [missed kernel stack]       only the user's part is there
    comm ─ [missed stack]                     neither; [no stack] if none was asked for

Last of all may come the task state, as a node like a frame.

Built by level: up from the leaves with one `np.unique` a level to find the nodes that are needed, then down
with one grouping a level to merge them by name. No step looks at single samples or whole paths.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from perf_offcpu.convert.group import group, sum_by
from perf_offcpu.convert.names import Name, NameKind, name_frames
from perf_offcpu.convert.options import Options
from perf_offcpu.convert.states import STATES, state_codes
from perf_offcpu.convert.text import (
    MISSED_KERNEL_STACK,
    MISSED_STACK,
    MISSED_USER_STACK,
    NO_STACK,
    TRUNCATED,
    thread_label,
)
from perf_offcpu.model.callchains import Ragged, offsets_of
from perf_offcpu.model.columns import I32, I64, U8, U64
from perf_offcpu.model.profile import Profile, ProfileSamples
from perf_offcpu.model.recording import SampleFlag

MARKS = ("", TRUNCATED, MISSED_USER_STACK, MISSED_STACK, NO_STACK)
"""What can stand between a root and the frames, by code (see `marks_of`)."""
_USER_LOST = SampleFlag.NO_USER_STACK | SampleFlag.UNMERGED
_ANY_LOST = _USER_LOST | SampleFlag.NO_KERNEL_STACK


@dataclass(slots=True)
class PathTree:
    """n nodes; `parent[node] < node`.

    Args:
        names: what nodes are called; several nodes may share one.
        parent: int32[n]; -1 for a root.
        name: int32[n], index into names.
        of_sample: int32[samples], the node at which each sample ends.
        frames: int64[names], the row in the profile's frames that a name stands for, the first if it stands
            for several; -1 for what is no frame.
    """

    names: list[Name]
    parent: I32
    name: I32
    of_sample: I32
    frames: I64 = field(default_factory=lambda: np.empty(0, np.int64))

    def __len__(self) -> int:
        return len(self.parent)

    def total(self, values: NDArray[np.int64]) -> I64:
        """int64[n]: the sum of a sample column over the samples that end at each node (exclusive)."""
        return sum_by(self.of_sample.astype(np.int64), values, len(self))

    def paths(self, nodes: I64) -> Ragged:
        """The names (indices into `names`) on the way to each of the given nodes, root first."""
        lengths = path_lengths(self.parent, nodes)
        offsets = offsets_of(lengths)
        values: U64 = np.empty(offsets[-1], np.uint64)
        place, at = offsets[1:] - 1, nodes
        while len(at):
            values[place] = self.name[at]
            above = self.parent[at]
            place, at = place[above >= 0] - 1, above[above >= 0].astype(np.int64)
        return Ragged(offsets, values)


def build_paths(profile: Profile, options: Options, *, rooted: bool = True, merged: bool = True) -> PathTree:
    """The tree of all samples of a profile.

    Args:
        options: choose roots (pid, tid), names (kernel, addrs) and leaves (state).
        rooted: without, threads share one tree, and its roots are the outermost frames and marks.
        merged: without, every address of a function is a name of its own.
    """
    samples = profile.samples
    top, below = marks_of(samples)
    state = state_codes(samples) if options.state else np.zeros(len(samples), np.uint8)
    roots = _root_columns(samples, options) if rooted else []
    first, of = group(*roots, top, below, state, samples.stack)
    builder = _Builder(merged)
    base = builder.add_roots(profile, [column[first] for column in roots], len(first), options)
    base = builder.add_leaves(base, top[first], MARKS)
    leaf = builder.add_stacks(profile, base, samples.stack[first].astype(np.int64), options)
    leaf = builder.add_leaves(leaf, below[first], ("", MISSED_KERNEL_STACK))
    if options.state:
        leaf = builder.add_leaves(
            leaf, (state[first] + 1).astype(np.uint8), ("", *(f"[{one.words}]" for one in STATES))
        )
    frames = np.concatenate([np.empty(0, np.int64), *builder.frames])
    return PathTree(builder.names, *builder.columns(), leaf.astype(np.int32)[of], frames)


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


def marks_of(samples: ProfileSamples) -> tuple[U8, U8]:
    """Per sample: the code of its mark above the frames, and whether it has one below them."""
    flags = samples.flags
    bare = samples.stack < 0
    lost = (flags & np.uint16(_ANY_LOST)) != 0
    user_lost = (flags & np.uint16(_USER_LOST)) != 0
    cut = (flags & np.uint16(SampleFlag.TRUNCATED)) != 0
    top = np.select([bare & lost, bare, user_lost, cut], [3, 4, 2, 1], 0).astype(np.uint8)
    below = ~bare & ((flags & np.uint16(SampleFlag.NO_KERNEL_STACK)) != 0)
    return top, below.astype(np.uint8)


def _root_columns(samples: ProfileSamples, options: Options) -> list[NDArray[np.integer]]:
    columns: list[NDArray[np.integer]] = [samples.comm]
    if options.pid or options.tid:
        columns.append(samples.pid)
    if options.tid:
        columns.append(samples.tid)
    return columns


class _Builder:
    """Nodes so far, level after level, and their names."""

    def __init__(self, merged: bool) -> None:
        self.names: list[Name] = []
        self.frames: list[I64] = []
        self._merged = merged
        self._parents: list[I64] = []
        self._names: list[I64] = []
        self._total = 0

    def columns(self) -> tuple[I32, I32]:
        """(parent, name) of all nodes."""
        return _flat(self._parents), _flat(self._names)

    def _add(self, parent: I64, name: I64) -> I64:
        """Add nodes, one for each different (parent, name) pair; the node of each pair."""
        first, of = group(parent, name)
        self._parents.append(parent[first])
        self._names.append(name[first])
        self._total += len(first)
        return of + (self._total - len(first))

    def _new_names(self, names: list[Name], frames: I64 | None = None) -> int:
        self.names += names
        self.frames.append(np.full(len(names), -1) if frames is None else frames)
        return len(self.names) - len(names)

    def add_roots(
        self, profile: Profile, columns: list[NDArray[np.integer]], groups: int, options: Options
    ) -> I64:
        """The node to which the frames of each group belong: its root; -1, none, if there are no columns."""
        if not columns:
            return np.full(groups, -1)
        first, of = group(*columns)
        comm, *ids = (column[first].tolist() for column in columns)
        labels = [thread_label(profile.strings[row], *more) for row, *more in zip(comm, *ids, strict=True)]
        self._new_names([Name(label, "", NameKind.ROOT) for label in labels])
        return self._add(np.full(len(of), -1), of)

    def add_stacks(self, profile: Profile, base: I64, stack: I64, options: Options) -> I64:
        """The frames of each group below its base: the node of its leaf (the base if it has no stack)."""
        frame = profile.stacks.frame
        levels = _needed(profile.stacks.parent, base, stack)
        name_of_frame = self._name_used_frames(profile, levels, options)
        leaf, above = base.copy(), np.empty(0, np.int64)
        for level in levels:
            parent = above[level.parent] if len(above) else level.base
            above = self._add(parent, name_of_frame[frame[level.stack]])
            leaf[level.ending] = above[level.ends_at]
        return leaf

    def _name_used_frames(self, profile: Profile, levels: list[_Level], options: Options) -> I64:
        """int64[frames]: the name of each frame that some level shows."""
        used = np.zeros(len(profile.frames), np.bool_)
        for level in levels:
            used[profile.stacks.frame[level.stack]] = True
        rows = np.flatnonzero(used)
        names, of = name_frames(profile, rows, options)
        if not self._merged:
            names, of = [names[name] for name in of.tolist()], np.arange(len(rows))
        first = np.empty(len(names), np.int64)
        first[of[::-1]] = rows[::-1]  # the last to be assigned stays
        name_of_frame = np.full(len(used), -1, np.int64)
        name_of_frame[rows] = self._new_names(names, first) + of
        return name_of_frame

    def add_leaves(self, node: I64, code: U8, labels: tuple[str, ...]) -> I64:
        """A further node below some: `labels[code]` below each whose code is not 0."""
        names = self._new_names([Name(label, "", NameKind.MARK) for label in labels])
        node, marked = node.copy(), np.flatnonzero(code)
        node[marked] = self._add(node[marked], names + code[marked].astype(np.int64))
        return node


@dataclass(slots=True)
class _Level:
    """The (base, stack) pairs of one depth that some group needs, each once.

    Args:
        base: int64[k], the node below which the stack hangs.
        stack: int64[k], rows in the profile's stacks, all of one depth.
        ending: groups whose leaf is here.
        ends_at: position in this level, for each of `ending`.
        parent: int64[k], position of the parent in the level above; empty in the first.
    """

    base: I64
    stack: I64
    ending: I64
    ends_at: I64
    parent: I64


def _needed(parent: I32, base: I64, stack: I64) -> list[_Level]:
    """The levels of all pairs on the way from each (base, stack) to its root, root level first."""
    depth = path_lengths(parent, stack)
    order = np.argsort(depth, kind="stable")
    bounds = np.searchsorted(depth[order], np.arange(int(depth.max(initial=0)) + 2))
    levels: list[_Level] = []
    nothing = np.empty(0, np.int64)
    wanted = nothing  # keys of the parents of the level below
    for at in range(len(bounds) - 2, 0, -1):
        ending = order[bounds[at] : bounds[at + 1]]
        own = (base[ending] + 1) * len(parent) + stack[ending]
        keys, place = np.unique(np.concatenate([own, wanted]), return_inverse=True)
        if levels:
            levels[-1].parent = place[len(ending) :]
        bases, stacks = keys // len(parent), keys % len(parent)
        levels.append(_Level(bases - 1, stacks, ending, place[: len(ending)], nothing))
        wanted = bases * len(parent) + parent[stacks]
    return levels[::-1]


def _flat(levels: list[I64]) -> I32:
    return np.concatenate(levels).astype(np.int32) if levels else np.empty(0, np.int32)
