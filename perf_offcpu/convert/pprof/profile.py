# SPDX-License-Identifier: Apache-2.0
"""Write pprof's format, a gzipped profile.proto, for `go tool pprof`, Grafana, Parca and others.

Samples with the same stack, thread and details are merged. Each has the values of all types: off_cpu (ns) and
off_cpu_events (number of waits), runqueue (the part of off_cpu after the wake-up, ns), cpu (ns of CPU
samples), and one more type for each event that does not count time. Labels hold comm, pid, tid, task state,
waker and cgroup. Locations keep their addresses, mappings their build-ids, and inlined functions are lines of
one location.

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
from perf_offcpu.convert.encode import protobuf
from perf_offcpu.convert.encode.protobuf import Rows, field, from_bytes, joined, ragged, varints
from perf_offcpu.convert.options import Options
from perf_offcpu.convert.pprof.locations import Locations
from perf_offcpu.model.columns import I64
from perf_offcpu.model.profile import Profile
from perf_offcpu.text import printable

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
