# SPDX-License-Identifier: Apache-2.0
"""Builder of the tree of `callpaths.tree`, a level at a time.

Up from the leaves with one `np.unique` a level to find the nodes that are needed, then down with one grouping
a level to merge them by name. No step looks at single samples or whole paths.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from perf_offcpu.analysis.group import group
from perf_offcpu.callpaths.names import Name, NameKind, name_frames
from perf_offcpu.callpaths.options import PathOptions
from perf_offcpu.callpaths.wakers import waker_name
from perf_offcpu.model.columns import I32, I64, Bool
from perf_offcpu.model.profile import Profile
from perf_offcpu.model.stacks import path_lengths
from perf_offcpu.structs import mutable
from perf_offcpu.text import thread_label


class PathBuilder:
    """Nodes so far, level after level, and their names.

    Args:
        profile: its stacks and frames become nodes.
        options: choose the names of frames.
        merged: addresses of one function share a name.
    """

    def __init__(self, profile: Profile, options: PathOptions, merged: bool) -> None:
        self.names: list[Name] = []
        self._profile, self._options, self._merged = profile, options, merged
        self._frames: list[I64] = []
        self._parents: list[I64] = []
        self._names: list[I64] = []
        self._total = 0

    def columns(self) -> tuple[I32, I32]:
        """Return (parent, name) of all nodes."""
        return _flat(self._parents).astype(np.int32), _flat(self._names).astype(np.int32)

    def frames(self) -> I64:
        """Return the first frame that each name stands for, -1 for none."""
        return _flat(self._frames)

    def _add(self, parent: I64, name: I64) -> I64:
        """Add a node for each distinct (parent, name) pair; return the node of each pair."""
        first, of = group(parent, name)
        self._parents.append(parent[first])
        self._names.append(name[first])
        self._total += len(first)
        return of + (self._total - len(first))

    def _new_names(self, names: list[Name], frames: I64 | None = None) -> int:
        self.names += names
        self._frames.append(np.full(len(names), -1) if frames is None else frames)
        return len(self.names) - len(names)

    def add_roots(self, columns: list[NDArray[np.integer]], groups: int) -> I64:
        """Add the roots of the groups; return the root of each, -1 if there are no columns.

        Args:
            columns: comm (string), perhaps pid and tid of each group.
        """
        if not columns:
            return np.full(groups, -1)
        first, of = group(*columns)
        rows = zip(*(column[first].tolist() for column in columns), strict=True)
        labels = [thread_label(self._profile.strings[comm], *ids) for comm, *ids in rows]
        self._new_names([Name(label, "", NameKind.ROOT) for label in labels])
        return self._add(np.full(len(of), -1), of)

    def add_stacks(self, base: I64, stack: I64) -> I64:
        """Add the frames of each group below its base; return the node of its leaf, or its base."""
        frame = self._profile.stacks.frame
        levels = _needed(self._profile.stacks.parent, base, stack)
        name_of_frame = self._name_frames([level.stack for level in levels])
        leaf, above = base.copy(), np.empty(0, np.int64)
        for level in levels:
            parent = above[level.parent] if len(above) else level.base
            above = self._add(parent, name_of_frame[frame[level.stack]])
            leaf[level.ending] = above[level.ends_at]
        return leaf

    def add_inverted(self, node: I64, stack: I64) -> I64:
        """Add the frames of each group's waker below its node, leaf first; return the last node."""
        parent, frame = self._profile.stacks.parent, self._profile.stacks.frame
        levels: list[NDArray[np.integer]] = [np.unique(stack[stack >= 0])]
        while len(levels[-1]):
            above = parent[levels[-1]]
            levels.append(np.unique(above[above >= 0]))
        name_of_frame = self._name_frames(levels, of_waker=True)
        node, live, at = node.copy(), np.flatnonzero(stack >= 0), stack[stack >= 0]
        while len(live):
            node[live] = self._add(node[live], name_of_frame[frame[at]])
            up = parent[at].astype(np.int64)
            live, at = live[up >= 0], up[up >= 0]
        return node

    def _name_frames(self, levels: Sequence[NDArray[np.integer]], *, of_waker: bool = False) -> I64:
        """Name the frames of all levels (rows in stacks); return int64[frames], -1 for other frames."""
        used: Bool = np.zeros(len(self._profile.frames), np.bool_)
        for level in levels:
            used[self._profile.stacks.frame[level]] = True
        rows = np.flatnonzero(used)
        options = replace(self._options, kernel=False) if of_waker else self._options
        names, of = name_frames(self._profile, rows, options)
        if of_waker:
            names = [waker_name(name.label, name.dso) for name in names]
        if not self._merged:
            names, of = [names[name] for name in of.tolist()], np.arange(len(rows))
        first = np.empty(len(names), np.int64)
        first[of[::-1]] = rows[::-1]  # the last assignment stays
        name_of_frame = np.full(len(used), -1, np.int64)
        name_of_frame[rows] = self._new_names(names, first) + of
        return name_of_frame

    def add_leaves(self, node: I64, code: NDArray[np.integer], labels: Sequence[str]) -> I64:
        """Add a marked node below some nodes: `labels[code]` below each whose code is not 0."""
        return self.add_names(node, code, [Name(label, "", NameKind.MARK) for label in labels])

    def add_names(self, node: I64, code: NDArray[np.integer], names: list[Name]) -> I64:
        """Add a node with the name `names[code]` below each node whose code is not 0."""
        offset = self._new_names(names)
        node, marked = node.copy(), np.flatnonzero(code)
        node[marked] = self._add(node[marked], offset + code[marked].astype(np.int64))
        return node


@mutable
class _Level:
    """The distinct (base, stack) pairs of one depth that some group needs.

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
    """Return the levels of all pairs on the way from each (base, stack) to its root, root level first."""
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


def _flat(levels: list[I64]) -> I64:
    return np.concatenate([np.empty(0, np.int64), *levels])
