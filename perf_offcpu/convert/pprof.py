# SPDX-License-Identifier: Apache-2.0
"""Write pprof's format, a gzipped profile.proto, for `go tool pprof`, Grafana, Parca and others.

Samples with the same stack, thread and details are merged. Each has the values of all types: off_cpu (ns) and
off_cpu_events (number of waits), runqueue (the part of off_cpu after the wake-up, ns), cpu (ns of CPU
samples), and one more type for each event that does not count time. Labels hold comm, pid, tid, task state,
object, holder, waker and cgroup. Locations are addresses, and mappings have build-ids. In the profile an
inlined function is a frame of its own, deeper in the stack than the function that it was inlined into, at the
same address; in pprof both are lines of one location.

There is no time axis. Source of the format: proto/profile.proto of https://github.com/google/pprof.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from typing import BinaryIO

import numpy as np

from perf_offcpu.analysis.group import group, sum_by
from perf_offcpu.analysis.timeline import timeline_of
from perf_offcpu.analysis.wait_details import details_of
from perf_offcpu.analysis.wakeups import wakeups_of
from perf_offcpu.binary.gather import offsets_of
from perf_offcpu.callpaths.names import name_frames
from perf_offcpu.callpaths.tree import MARKS, PathTree, marks_of
from perf_offcpu.convert.encode import protobuf
from perf_offcpu.convert.encode.protobuf import Rows, field, from_bytes, joined, ragged, varints
from perf_offcpu.convert.options import Options
from perf_offcpu.model.callchains import Ragged
from perf_offcpu.model.columns import I64, distinct
from perf_offcpu.model.profile import Profile
from perf_offcpu.text import MISSED_KERNEL_STACK, printable

_LEVEL = 1
"""Level of compression: higher ones take three times as long for a tenth less."""
_BLOCK = 1 << 16


def write(profile: Profile, out: BinaryIO, options: Options) -> None:
    """Write all samples of the profile; its events may have different units."""
    with gzip.GzipFile("", "wb", _LEVEL, out, mtime=0) as packed:
        for part in _Writer(profile, options).parts():
            packed.write(part)


class _Writer:
    def __init__(self, profile: Profile, options: Options) -> None:
        self.profile, self.samples = profile, profile.samples
        self.locations = Locations(profile, options)
        self.types, self.values = _values(profile)

    def parts(self) -> Iterator[bytes]:
        """Return all fields of the Profile message; the string table last, when all strings are known."""
        string = self.locations.string
        for name, unit in self.types:
            yield field(1, field(1, string(name)) + field(2, string(unit)))
        yield from self._samples()
        yield from self.locations.parts()
        meta = self.profile.meta
        if meta.wall_clock_ns and meta.first_ns >= 0:
            yield field(9, meta.wall_clock_ns + meta.first_ns - meta.wall_clock_at_ns)
        if meta.duration_ns:
            yield field(10, meta.duration_ns)
        yield field(14, string(self.types[0 if self.values[0].any() else -1][0]))
        yield self.locations.strings()

    def _samples(self) -> Iterator[bytes]:
        label, labels = self._labels()
        stack, stacks = self.locations.stacks()
        first, of = group(stack, label)
        sums = [sum_by(of, values, len(first)) for values in self.values]
        stack, label = stack[first], label[first]
        stack_lengths = np.array([len(one) for one in stacks], np.int64)
        for begin in range(0, len(first), _BLOCK):
            rows = slice(begin, begin + _BLOCK)
            values = joined(*(varints(one[rows]) for one in sums))
            rest = joined(protobuf.lengths(2, values.lengths), values, labels.take(label[rows]))
            head = protobuf.lengths(2, stack_lengths[stack[rows]] + rest.lengths)
            each = np.arange(head.count + 1)
            bodies = map(stacks.__getitem__, stack[rows].tolist())
            yield b"".join(
                part
                for row in zip(ragged(head, each), bodies, ragged(rest, each), strict=True)
                for part in row
            )

    def _labels(self) -> tuple[I64, Rows]:
        """Return the set of labels of each sample, and the sets."""
        timeline = timeline_of(self.profile)
        details = details_of(self.profile, wakeups_of(self.profile, timeline))
        first, of = group(timeline.track, self.samples.comm, details.of)
        sets = []
        for row in first.tolist():
            track = timeline.tracks[int(timeline.track[row])]
            comm = printable(self.profile.strings[int(self.samples.comm[row])])
            ids = {"pid": track.pid, "tid": track.tid}
            labels: dict[str, str | int] = {"comm": comm, **details.sets[int(details.of[row])], **ids}
            sets.append(b"".join(self._label(name, value) for name, value in labels.items() if value != ""))
        return of, from_bytes(sets)

    def _label(self, name: str, value: str | int) -> bytes:
        key = field(1, self.locations.string(name))
        if isinstance(value, int):
            return field(3, key + field(3, value))
        return field(3, key + field(2, self.locations.string(value)))


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
        kernel_mark = (b"", protobuf.varint(self._first_mark + len(MARKS)))
        marks = [b"", *(protobuf.varint(self._first_mark + code) for code in range(1, len(MARKS)))]
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


def _values(profile: Profile) -> tuple[list[tuple[str, str]], list[I64]]:
    """Return the sample types, as (name, unit), and the column of each."""
    samples, offcpu = profile.samples, profile.is_offcpu()
    in_time = np.array([event.unit == "ns" for event in profile.evsels] + [False])[samples.evsel]
    types = [("off_cpu", "nanoseconds"), ("off_cpu_events", "count"), ("runqueue", "nanoseconds")]
    values = [samples.period, samples.count, np.maximum(samples.runq_ns, 0)]
    columns = [np.where(offcpu, one, 0) for one in values]
    for row, event in enumerate(profile.evsels):
        chosen = ~offcpu & ~in_time & (samples.evsel == row)
        if chosen.any():
            types.append((printable(event.name), "count"))
            columns.append(np.where(chosen, samples.period, 0))
    types.append(("cpu", "nanoseconds"))
    return types, [*columns, np.where(~offcpu & in_time, samples.period, 0)]
