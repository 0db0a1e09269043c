# SPDX-License-Identifier: Apache-2.0
"""Number stacks, locations, functions, mappings and strings of a profile, as pprof and OTLP have them.

A location is an address in a mapping. In the profile an inlined function is a frame of its own, deeper in the
stack than the function that it was inlined into, at the same address; here both are lines of one location.
Marks such as `[missed kernel stack]` are locations without an address. Numbers are dense and in order, from 1
on, only what a stack uses has one, and equal entries are one, as Parca and OTLP want it."""

from typing import NamedTuple, TypeVar

import numpy as np

from perf_offcpu.binary.columnar import offsets_of
from perf_offcpu.callpaths.options import PathOptions
from perf_offcpu.callpaths.tree import MARKS, PathTree, marks_of, name_frames
from perf_offcpu.model.callchains import Ragged, unique_rows
from perf_offcpu.model.columns import I64, U64, Bool, distinct, group, is_among
from perf_offcpu.model.profile import Profile
from perf_offcpu.text import MISSED_KERNEL_STACK, printable

_MARKS = (*MARKS, MISSED_KERNEL_STACK)
"""Marks by code: 0 is no mark; the last one is put at the leaf of a stack, the others at its root."""

T = TypeVar("T")


class Mapping(NamedTuple):
    """A mapped file with code."""

    limit: int  # highest address in use + 1
    path: int  # number of the string
    build_id: str
    has_lines: bool  # True if a frame has a source line


class Location(NamedTuple):
    """An address in a mapping with its lines, or a mark such as `[missed kernel stack]`."""

    mapping: int  # number of the mapping; 0 for a mark
    address: int  # virtual address in the file; in the kernel absolute
    lines: tuple[tuple[int, int], ...]  # (function, line of the source or 0), the innermost function first


class Function(NamedTuple):
    """A function; the fields are numbers of strings."""

    name: int  # as shown
    system_name: int  # the symbol
    file: int  # source file


class Locations:
    """Tables of the stacks of all samples of a profile: entry → number, from 1; the string "" has number 0. `addrs` and
    `kernel` of the options choose the names of functions. `of_sample` is int64[samples]: the row of a sample's stack in
    `stacks`, which are numbers of locations, leaf first."""

    def __init__(self, profile: Profile, options: PathOptions) -> None:
        self.profile = profile
        self.mappings, self.locations = dict[Mapping, int](), dict[Location, int]()
        self.functions, self.strings = dict[Function, int](), {"": 0}
        self.of_sample, self.stacks = self._number(options)

    def string(self, text: str) -> int:
        """Return the number of a text in the string table; a new text is added."""
        return self.strings.setdefault(text, len(self.strings))

    def _number(self, options: PathOptions) -> tuple[I64, Ragged]:
        """Fill all tables; return int64[samples], the row of each sample's stack in the second result, and the stacks,
        each as numbers of locations, leaf first."""
        samples = self.profile.samples
        top, below = marks_of(samples)
        first, group_of = group(samples.stack, top, below)
        frames = self._frames_of(samples.stack[first].astype(np.int64))
        used = distinct(frames.values).astype(np.int64)
        inner, outer = below[first] * (len(_MARKS) - 1), top[first]
        frame_numbers, mark_numbers = self._fill(used, distinct(np.append(inner, outer)).tolist(), options)
        rows = Ragged(frames.offsets, frame_numbers[np.searchsorted(used, frames.values)])
        stacks, ids = unique_rows(_between(mark_numbers[inner], rows, mark_numbers[outer]))
        return ids[group_of].astype(np.int64), stacks

    def _frames_of(self, stacks: I64) -> Ragged:
        """Return the frames (rows of profile.frames) of each of `stacks` (-1: no frames), leaf first. Of frames at one
        address only the innermost inlined function is in it."""
        profile = self.profile
        tree = PathTree([], profile.stacks.parent, profile.stacks.frame, profile.samples.stack)
        some = np.flatnonzero(stacks >= 0)
        paths = tree.paths(stacks[some])
        depth = profile.frames.inline_depth[paths.values.astype(np.int64)]
        outermost = np.zeros(len(paths.values), np.bool_)
        outermost[paths.offsets[:-1]] = True
        is_inlined = (depth > 0) & ~outermost
        kept = ~np.append(is_inlined[1:], False)[: len(is_inlined)]
        counts = np.zeros(len(stacks), np.int64)
        counts[some] = np.add.reduceat(kept.astype(np.int64), paths.offsets[:-1]) if len(some) else 0
        rows = np.repeat(np.arange(len(some)), paths.lengths)[kept]
        leaf_first = np.lexsort((-np.arange(len(rows)), rows))
        return Ragged(offsets_of(counts), paths.values[kept][leaf_first])

    def _fill(self, used: I64, marks: list[int], options: PathOptions) -> tuple[U64, U64]:
        """Add locations of the frames `used` and of `marks` (indices in _MARKS); return the numbers of the locations,
        for each of `used`, and for each row of _MARKS (0: not in `marks`)."""
        frames = self.profile.frames
        outer = self._outer()
        rows = used
        while len(more := outer[rows[outer[rows] >= 0]]) and not is_among(more, rows).all():
            rows = distinct(np.append(rows, more))
        mapping = {dso: _add(self.mappings, self._mapping(dso)) for dso in distinct(frames.dso[rows]).tolist()}
        function = self._add_functions(rows, options)
        numbers = []
        for row in used.tolist():
            lines, frame = [], row
            while frame >= 0:
                lines.append((function[frame], int(frames.line[frame])))
                frame = int(outer[frame])
            location = Location(mapping[int(frames.dso[row])], int(frames.address[row]), tuple(lines))
            numbers.append(_add(self.locations, location))
        number_of_mark = np.zeros(len(_MARKS), np.uint64)
        for mark in filter(None, marks):
            name = self.string(_MARKS[mark])
            number = _add(self.functions, Function(name, name, 0))
            number_of_mark[mark] = _add(self.locations, Location(0, 0, ((number, 0),)))
        return np.array(numbers, np.uint64), number_of_mark

    def _add_functions(self, rows: I64, options: PathOptions) -> dict[int, int]:
        """Add the functions of the frames in `rows`; return frame row → number of its function."""
        frames, strings = self.profile.frames, self.profile.strings
        names, name_of = name_frames(self.profile, rows, options)
        first = dict(zip(name_of[::-1].tolist(), rows[::-1].tolist(), strict=True))
        numbers = []
        for index, name in enumerate(names):
            symbol, file = (printable(strings[int(column[first[index]])]) for column in (frames.symbol, frames.file))
            texts = (name.label, symbol or name.label, file)
            numbers.append(_add(self.functions, Function(*map(self.string, texts))))
        return {row: numbers[index] for row, index in zip(rows.tolist(), name_of.tolist(), strict=True)}

    def _outer(self) -> I64:
        """Return int64[frames]: for an inlined frame the frame into which it was inlined, else -1."""
        stacks, outer = self.profile.stacks, np.full(len(self.profile.frames), -1, np.int64)
        nodes = np.flatnonzero((self.profile.frames.inline_depth[stacks.frame] > 0) & (stacks.parent >= 0))
        outer[stacks.frame[nodes]] = stacks.frame[stacks.parent[nodes]]
        return outer

    def _mapping(self, dso: int) -> Mapping:
        """Return the mapping of the file whose path is string `dso` of the profile."""
        frames = self.profile.frames
        rows = np.flatnonzero(frames.dso == dso)
        limit, has_lines = int(frames.address[rows].max(initial=0)) + 1, bool((frames.line[rows] > 0).any())
        path = self.string(printable(self.profile.strings[dso]))
        return Mapping(limit, path, self.profile.build_id(dso), has_lines)


def _add(table: dict[T, int], row: T) -> int:
    """Return the number of a row, from 1; a new row is added."""
    return table.setdefault(row, len(table) + 1)


def _between(inner: U64, rows: Ragged, outer: U64) -> Ragged:
    """Insert inner[i] before the values of row i of `rows`, and outer[i] after them; 0 inserts nothing."""
    offsets = offsets_of(rows.lengths + (inner > 0) + (outer > 0))
    values: U64 = np.empty(offsets[-1], np.uint64)
    is_mark: Bool = np.zeros(len(values), np.bool_)
    for marks, positions in ((inner, offsets[:-1]), (outer, offsets[1:] - 1)):
        marked = positions[marks > 0]
        values[marked], is_mark[marked] = marks[marks > 0], True
    values[~is_mark] = rows.values
    return Ragged(offsets, values)
