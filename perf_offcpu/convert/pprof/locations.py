# SPDX-License-Identifier: Apache-2.0
"""Write the tables of a pprof file: strings, functions, mappings, locations, and the locations of each stack.

A location is an address. In the profile an inlined function is a frame of its own, deeper in the stack than
the function that it was inlined into, at the same address; here both are lines of one location.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from perf_offcpu.analysis.group import group
from perf_offcpu.binary.gather import offsets_of
from perf_offcpu.callpaths.names import name_frames
from perf_offcpu.callpaths.tree import MARKS, PathTree, marks_of
from perf_offcpu.convert.encode.protobuf import field, ragged, varint, varints
from perf_offcpu.convert.options import Options
from perf_offcpu.model.callchains import Ragged
from perf_offcpu.model.columns import I64, distinct
from perf_offcpu.model.profile import Profile
from perf_offcpu.text import MISSED_KERNEL_STACK, printable


class Locations:
    """Numbers strings, functions, mappings and locations as they come; all but strings from 1."""

    def __init__(self, profile: Profile, options: Options) -> None:
        self.profile, self.options = profile, options
        self._strings = {"": 0}
        self._used: I64 = np.empty(0, np.int64)
        self._first_mark = len(profile.frames) + 1  # locations of marks follow those of frames
        self._tree = PathTree([], profile.stacks.parent, profile.stacks.frame, profile.samples.stack)

    def string(self, text: str) -> int:
        """Return the number of a text."""
        return self._strings.setdefault(text, len(self._strings))

    def strings(self) -> bytes:
        """Write the string table."""
        return b"".join(field(6, text) for text in self._strings)

    def stacks(self) -> tuple[I64, list[bytes]]:
        """Return the distinct stacks.

        Returns:
            (of, fields): int64[samples], the stack of each; the field location_id of each stack, leaf first.
        """
        samples = self.profile.samples
        top, below = marks_of(samples)
        first, of = group(samples.stack, top, below)
        paths = self._locations(samples.stack[first].astype(np.int64))
        self._used = distinct(paths.values).astype(np.int64)
        frames = ragged(varints(paths.values + np.uint64(1)), paths.offsets)
        kernel_mark = (b"", varint(self._first_mark + len(MARKS)))
        marks = [b"", *(varint(self._first_mark + code) for code in range(1, len(MARKS)))]
        marked = zip(below[first].tolist(), frames, top[first].tolist(), strict=True)
        return of, [field(1, kernel_mark[inner] + stack + marks[outer]) for inner, stack, outer in marked]

    def _locations(self, stacks: I64) -> Ragged:
        """Return the frame of each location of some stacks, leaf first: the innermost frame at an address."""
        some = np.flatnonzero(stacks >= 0)
        paths = self._tree.paths(stacks[some])
        depth = self.profile.frames.inline_depth[paths.values.astype(np.int64)]
        outermost = np.zeros(len(paths.values), np.bool_)
        outermost[paths.offsets[:-1]] = True
        is_inlined = (depth > 0) & ~outermost
        kept = ~np.append(is_inlined[1:], False)[: len(is_inlined)]
        counts = np.zeros(len(stacks), np.int64)
        counts[some] = np.add.reduceat(kept.astype(np.int64), paths.offsets[:-1]) if len(some) else 0
        rows = np.repeat(np.arange(len(some)), paths.lengths)[kept]
        leaf_first = np.lexsort((-np.arange(len(rows)), rows))
        return Ragged(offsets_of(counts), paths.values[kept][leaf_first])

    def parts(self) -> Iterator[bytes]:
        """Write the mappings, locations and functions of the result of `stacks`."""
        frames = self.profile.frames
        outer = self._outer()
        rows = self._used
        while len(more := outer[rows[outer[rows] >= 0]]) and not np.isin(more, rows).all():
            rows = distinct(np.append(rows, more))
        mappings = {dso: id_ for id_, dso in enumerate(distinct(frames.dso[rows]).tolist(), 1)}
        names, of = name_frames(self.profile, rows, self.options)
        function = dict(zip(rows.tolist(), (of + 1).tolist(), strict=True))
        yield from (self._mapping(dso, id_) for dso, id_ in mappings.items())
        for row in self._used.tolist():
            head = field(1, row + 1) + field(2, mappings[int(frames.dso[row])])
            yield field(4, head + field(3, int(frames.address[row])) + self._lines(row, outer, function))
        for code, label in enumerate([*MARKS, MISSED_KERNEL_STACK]):
            id_ = len(names) + 1 + code
            yield field(4, field(1, self._first_mark + code) + field(4, field(1, id_)))
            yield self._function(id_, label, "", "")
        first = dict(zip(of[::-1].tolist(), rows[::-1].tolist(), strict=True))
        for number, name in enumerate(names):
            symbol, source = (int(column[first[number]]) for column in (frames.symbol, frames.file))
            texts = (printable(self.profile.strings[row]) for row in (symbol, source))
            yield self._function(number + 1, name.label, *texts)

    def _outer(self) -> I64:
        """Return int64[frames]: for an inlined frame, the frame that it was inlined into; else -1."""
        stacks, outer = self.profile.stacks, np.full(len(self.profile.frames), -1, np.int64)
        nodes = np.flatnonzero((self.profile.frames.inline_depth[stacks.frame] > 0) & (stacks.parent >= 0))
        outer[stacks.frame[nodes]] = stacks.frame[stacks.parent[nodes]]
        return outer

    def _lines(self, row: int, outer: I64, function: dict[int, int]) -> bytes:
        lines = []
        while row >= 0:
            line = int(self.profile.frames.line[row])
            lines.append(field(4, field(1, function[row]) + (field(2, line) if line else b"")))
            row = int(outer[row])
        return b"".join(lines)

    def _function(self, id_: int, label: str, system: str, source: str) -> bytes:
        texts = (self.string(label), self.string(system or label), self.string(source))
        return field(5, field(1, id_) + b"".join(field(number, text) for number, text in enumerate(texts, 2)))

    def _mapping(self, dso: int, id_: int) -> bytes:
        path = printable(self.profile.strings[dso])
        frames = self.profile.frames
        mine = frames.dso == dso
        limit = int(frames.address[mine].max(initial=0)) + 1
        body = field(1, id_) + field(3, limit) + field(5, self.string(path))
        body += field(6, self.string(self.profile.build_id(dso))) + field(7, 1)
        has_lines = bool((frames.line[mine] > 0).any())
        return field(3, body + (field(8, 1) + field(9, 1) if has_lines else b"") + field(10, 1))
