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

After it may come the waker of the waker in the same form, and so on (`callpaths.chains`)."""

from collections.abc import Sequence
from dataclasses import field, replace

import numpy as np
from numpy.typing import NDArray

from perf_offcpu import text
from perf_offcpu.analysis.selection.states import STATES, state_codes
from perf_offcpu.callpaths.chains import WAKER_DELIMITER, direct_wakers, waker_name
from perf_offcpu.callpaths.options import Name, NameKind, PathOptions
from perf_offcpu.model.callchains import Ragged, path_lengths, paths_of_nodes
from perf_offcpu.model.columns import I32, I64, U8, Bool, distinct, group, sum_by
from perf_offcpu.model.join import join
from perf_offcpu.model.profile import Profile, ProfileSamples
from perf_offcpu.model.recording import SampleFlag
from perf_offcpu.structs import mutable

MARKS = ("", text.TRUNCATED, text.MISSED_USER_STACK, text.MISSED_STACK, text.NO_STACK)
"""Labels of the marks between a root and its frames, by the first code that `marks_of` returns; "" is no mark."""


@mutable
class PathTree:
    """Tree of n nodes; a node is a path of names from a root. Parents come first: `parent[node] < node`."""

    names: list[Name]  # the names of nodes; several nodes may share one
    parent: I32  # int32[n]; -1 for a root
    name: I32  # int32[n], index into names
    of_sample: I32  # int32[samples], the node at which each sample ends
    # int64[names], the row in the profile's frames that a name stands for, the first if it stands for
    # several; -1 for a name that is no frame's
    frames: I64 = field(default_factory=lambda: np.empty(0, np.int64))

    def __len__(self) -> int:
        return len(self.parent)

    def total(self, values: NDArray[np.int64]) -> I64:
        """Return int64[n]: the sum of `values`, one per sample, over the samples that end at each node itself."""
        return sum_by(self.of_sample.astype(np.int64), values, len(self))

    def paths(self, nodes: I64) -> Ragged:
        """Return a row for each of k nodes: the names from the root to the node, indices in `names`, root first."""
        offsets, path = paths_of_nodes(self.parent, nodes)
        return Ragged(offsets, self.name[path].astype(np.uint64))

    def names_of(self, nodes: NDArray[np.integer]) -> list[tuple[Name, ...]]:
        """Return, for each node, the names from the root to the node, root first."""
        paths = self.paths(nodes.astype(np.int64))
        return [tuple(self.names[name] for name in paths.row(row).tolist()) for row in range(len(nodes))]


def build_paths(profile: Profile, options: PathOptions, *, rooted: bool = True, merged: bool = True) -> PathTree:
    """Build the tree of all samples of a profile. `options` choose roots (pid, tid), names (kernel, addrs) and leaves
    (state, waker_stack, chains). If not `rooted`, the threads share one tree, whose roots are the outermost frames and
    marks. If not `merged`, each address is a name of its own, though several are in one function."""
    samples = profile.samples
    top, below = marks_of(samples)
    state = state_codes(samples) if options.state else np.zeros(len(samples), np.uint8)
    asked = ((True, samples.comm), (options.pid or options.tid, samples.pid), (options.tid, samples.tid))
    roots: list[NDArray[np.integer]] = [column for is_asked, column in asked if rooted and is_asked]
    chains = options.chains or direct_wakers(profile, options, shown=options.waker_stack)
    first, group_of = group(*roots, top, below, state, chains.chain, samples.stack)
    builder = _Builder(profile, options, merged)
    base = builder.add_roots([column[first] for column in roots], len(first))
    base = builder.add_leaves(base, top[first], MARKS)
    leaf = builder.add_stacks(base, samples.stack[first].astype(np.int64))
    leaf = builder.add_leaves(leaf, below[first], ("", text.MISSED_KERNEL_STACK))
    if options.state:
        codes = (state[first] + 1).astype(np.uint8)
        leaf = builder.add_leaves(leaf, codes, ("", *(f"[{task_state.words}]" for task_state in STATES)))
    for name, stack in chains.hops:
        leaf = builder.add_leaves(leaf, np.minimum(name[first], 1), ("", WAKER_DELIMITER))
        leaf = builder.add_names(builder.add_inverted(leaf, stack[first]), name[first], chains.names)
    return builder.tree(leaf[group_of])


def paths_with_wakers(
    profile: Profile, options: PathOptions, *, rooted: bool = False, merged: bool = True
) -> tuple[PathTree, I64]:
    """Build a tree that also holds the stacks of wakers, so that both are numbered alike. Return it, and
    int64[samples]: the node at which the stack of each sample's waker ends, -1 if it is not known. If `rooted`, stacks
    of wakers hang below one root of their own, a thread without a name. `merged`: as in `build_paths`."""
    samples = profile.samples
    rows = np.flatnonzero(samples.waker_stack >= 0)
    stacks, inverse = np.unique(samples.waker_stack[rows], return_inverse=True)
    if not len(stacks):
        return build_paths(profile, options, rooted=rooted, merged=merged), np.full(len(samples), -1)
    wakers = ProfileSamples.filled(len(stacks), stack=stacks, flags=SampleFlag.OFFCPU)
    both = replace(profile, samples=ProfileSamples.concat([samples, wakers]))
    tree = build_paths(both, replace(options, state=False), rooted=rooted, merged=merged)
    node = np.full(len(samples), -1)
    node[rows] = tree.of_sample[len(samples) :][inverse]
    tree.of_sample = tree.of_sample[: len(samples)]
    return tree, node


def marks_of(samples: ProfileSamples) -> tuple[U8, U8]:
    """Return uint8[samples] twice: index in MARKS of the mark below the root; 1 where kernel frames are missing."""
    bare = samples.stack < 0
    user_lost = samples.has(SampleFlag.NO_USER_STACK | SampleFlag.UNMERGED)
    kernel_lost = samples.has(SampleFlag.NO_KERNEL_STACK)
    cases = [bare & (user_lost | kernel_lost), bare, user_lost, samples.has(SampleFlag.TRUNCATED)]
    return np.select(cases, [3, 4, 2, 1], 0).astype(np.uint8), (~bare & kernel_lost).astype(np.uint8)


def with_older(new: Profile, old: Profile | None) -> tuple[Profile, Bool]:
    """Return a profile with the samples of `new`, then those of `old`, to compare both in one tree, and bool[samples]:
    True for samples of `old`. Threads, losses, cgroups and meta are those of `new`."""
    if old is None:
        return new, np.zeros(len(new.samples), np.bool_)
    both = join([new, old], new.meta.nr_cpus)
    of_new = ("comms", "tasks", "budget", "cgroups", "losses", "meta")
    both = replace(both, **{name: getattr(new, name) for name in of_new})
    return both, np.arange(len(both.samples)) >= len(new.samples)


def name_frames(profile: Profile, rows: I64, options: PathOptions) -> tuple[list[Name], I64]:
    """Return the distinct names of n frames (`rows`: int64[n]), and int64[n]: the index in them of each frame's name.
    The frames of a profile differ by address; a view that kept them apart would show a caller once for each of its call
    sites. Names are distinct by label, dso, and kernel or user. Of the options only `addrs` and `kernel` are used."""
    frames, strings = profile.frames.take(rows), profile.strings
    kernel = frames.is_kernel()
    address = np.where((frames.symbol == 0) & options.addrs, frames.address, np.uint64(0))
    first, group_of = group(frames.symbol, frames.dso, kernel.astype(np.uint8), address)
    columns = (column[first].tolist() for column in (frames.symbol, frames.dso, frames.address, kernel))
    names = []
    for symbol, dso, code, in_kernel in zip(*columns, strict=True):
        label = text.frame_label(strings[symbol], strings[dso], code if options.addrs else None)
        suffix = text.KERNEL_SUFFIX if in_kernel and options.kernel else ""
        names.append(Name(label + suffix, text.basename(strings[dso]), NameKind(in_kernel)))
    return names, group_of


class _Builder:
    """Collects nodes, level after level, and their names. `_levels` finds the nodes of the stacks, level by level up
    from the leaves; then each level is grouped by name, down from the roots."""

    def __init__(self, profile: Profile, options: PathOptions, merged: bool) -> None:
        self._profile, self._options, self._merged = profile, options, merged
        self.names = list[Name]()
        self._frames, self._parents, self._names = list[I64](), list[I64](), list[I64]()
        self._total = 0

    def tree(self, leaf_of_sample: I64) -> PathTree:
        parts = (self._parents, self._names, self._frames)
        parent, name, frames = (np.concatenate([np.empty(0, np.int64), *part]) for part in parts)
        of_sample = leaf_of_sample.astype(np.int32)
        return PathTree(self.names, parent.astype(np.int32), name.astype(np.int32), of_sample, frames)

    def _add(self, parent: I64, name: I64) -> I64:
        """Add a node for each distinct pair (parent[i], name[i]); return int64[n]: the node of each pair."""
        first, group_of = group(parent, name)
        self._parents.append(parent[first])
        self._names.append(name[first])
        self._total += len(first)
        return group_of + (self._total - len(first))

    def _new_names(self, names: list[Name], frames: I64 | None = None) -> int:
        self.names += names
        self._frames.append(np.full(len(names), -1) if frames is None else frames)
        return len(self.names) - len(names)

    def add_roots(self, columns: list[NDArray[np.integer]], groups: int) -> I64:
        """Add a root for each distinct row of `columns` (comm, pid, tid of each group of samples). Return
        int64[groups]: the root of each group; without columns add none, and return -1 for all."""
        if not columns:
            return np.full(groups, -1)
        first, group_of = group(*columns)
        rows = zip(*(column[first].tolist() for column in columns), strict=True)
        labels = [text.thread_label(self._profile.strings[comm], *ids) for comm, *ids in rows]
        self._new_names([Name(label, "", NameKind.ROOT) for label in labels])
        return self._add(np.full(len(group_of), -1), group_of)

    def add_stacks(self, base: I64, stack: I64) -> I64:
        """Add the frames of stack[i], root first, below node base[i], for each group i of samples. `stack`: rows in the
        profile's stacks, -1 none. Return int64[groups]: node of the innermost frame; base[i] without a stack."""
        frame = self._profile.stacks.frame
        levels = _levels(self._profile.stacks.parent, base, stack)
        name_of_frame = self._name_frames([level.stack for level in levels])
        leaf, above = base.copy(), np.empty(0, np.int64)
        for level in levels:
            parent = above[level.parent] if len(above) else level.base
            above = self._add(parent, name_of_frame[frame[level.stack]])
            leaf[level.ending] = above[level.ends_at]
        return leaf

    def add_inverted(self, node: I64, stack: I64) -> I64:
        """Add the frames of `stack[i]` (-1 none), leaf first, below `node[i]`, for each group i of samples; return
        int64[groups]: the last node added, else `node[i]`."""
        parent, frame = self._profile.stacks.parent, self._profile.stacks.frame
        levels: list[NDArray[np.integer]] = [distinct(stack[stack >= 0])]
        while len(levels[-1]):
            above = parent[levels[-1]]
            levels.append(distinct(above[above >= 0]))
        name_of_frame = self._name_frames(levels, of_waker=True)
        node, live, inner = node.copy(), np.flatnonzero(stack >= 0), stack[stack >= 0]
        while len(live):
            node[live] = self._add(node[live], name_of_frame[frame[inner]])
            outer = parent[inner].astype(np.int64)
            live, inner = live[outer >= 0], outer[outer >= 0]
        return node

    def _name_frames(self, levels: Sequence[NDArray[np.integer]], *, of_waker: bool = False) -> I64:
        """Add to `names` those of the frames on `levels` (rows in the profile's stacks); as `NAME_[w]` if `of_waker`.
        Return int64[frames]: index in `names` for each frame of the profile; -1 for frames that are not on them."""
        used: Bool = np.zeros(len(self._profile.frames), np.bool_)
        for level in levels:
            used[self._profile.stacks.frame[level]] = True
        rows = np.flatnonzero(used)
        options = replace(self._options, kernel=False) if of_waker else self._options
        names, name_of = name_frames(self._profile, rows, options)
        if of_waker:
            names = [waker_name(name.label, name.dso) for name in names]
        if not self._merged:
            names, name_of = [names[name] for name in name_of.tolist()], np.arange(len(rows))
        first = np.empty(len(names), np.int64)
        first[name_of[::-1]] = rows[::-1]  # the last assignment stays
        name_of_frame = np.full(len(used), -1, np.int64)
        name_of_frame[rows] = self._new_names(names, first) + name_of
        return name_of_frame

    def add_leaves(self, node: I64, code: NDArray[np.integer], labels: Sequence[str]) -> I64:
        """Below node[i] add a mark `labels[code[i]]` unless code[i] is 0; return int64[n]: its node, else node[i]."""
        return self.add_names(node, code, [Name(label, "", NameKind.MARK) for label in labels])

    def add_names(self, node: I64, code: NDArray[np.integer], names: list[Name]) -> I64:
        """Below node[i] add a node `names[code[i]]` unless code[i] is 0; return int64[n]: its node, else node[i]."""
        offset = self._new_names(names)
        node, marked = node.copy(), np.flatnonzero(code)
        node[marked] = self._add(node[marked], offset + code[marked].astype(np.int64))
        return node


@mutable
class _Level:
    """Nodes of one depth below roots, while stacks are added: k distinct pairs of base node and row in stacks."""

    base: I64  # int64[k], the node below which the stack hangs
    stack: I64  # int64[k], rows in the profile's stacks, all of one depth
    ending: I64  # groups whose leaf is here
    ends_at: I64  # position in this level, for each of `ending`
    parent: I64  # int64[k], position of the parent in the level above; empty in the first


def _levels(parent: I32, base: I64, stack: I64) -> list[_Level]:
    """Return the nodes to be added for the stacks `stack[i]` (rows in the profile's stacks) below nodes `base[i]`, by
    depth, the outermost frames first. `parent`: the column of the profile's stacks."""
    depth = path_lengths(parent, stack)
    order = np.argsort(depth, kind="stable")
    bounds = np.searchsorted(depth[order], np.arange(int(depth.max(initial=0)) + 2))
    levels, nothing = list[_Level](), np.empty(0, np.int64)
    wanted = nothing  # keys of the parents of the level below
    for index in range(len(bounds) - 2, 0, -1):
        ending = order[bounds[index] : bounds[index + 1]]
        own = (base[ending] + 1) * len(parent) + stack[ending]
        keys, place = np.unique(np.concatenate([own, wanted]), return_inverse=True)
        if levels:
            levels[-1].parent = place[len(ending) :]
        bases, stacks = keys // len(parent), keys % len(parent)
        levels.append(_Level(bases - 1, stacks, ending, place[: len(ending)], nothing))
        wanted = bases * len(parent) + parent[stacks]
    return levels[::-1]
