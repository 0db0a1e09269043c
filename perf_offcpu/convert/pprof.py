# SPDX-License-Identifier: Apache-2.0
"""Write pprof's format, a gzipped profile.proto, for `go tool pprof` and others.

Samples with the same stack, thread and details are merged. Each has the values of all types: off_cpu (ns) and
off_cpu_events (number of waits), runqueue (the part of off_cpu after the wake-up, ns), cpu (ns of CPU
samples), and one more type for each event that does not count time. Labels hold comm, pid, tid, task state,
object, holder, waker and cgroup. Locations are addresses, and mappings have build-ids; inlined functions are
lines of one location (`convert.locations`).

There is no time axis. Source of the format: proto/profile.proto of https://github.com/google/pprof."""

import gzip
from collections.abc import Iterator
from typing import BinaryIO

import numpy as np

from perf_offcpu.analysis.times.timeline import timeline_of
from perf_offcpu.analysis.times.wakeups import wakeups_of
from perf_offcpu.convert.encode import protobuf
from perf_offcpu.convert.encode.protobuf import field, from_bytes, joined, ragged, varints
from perf_offcpu.convert.locations import Location, Locations, Mapping
from perf_offcpu.convert.registry import Options
from perf_offcpu.convert.wait_details import details_of
from perf_offcpu.model.columns import I64, group, sum_by
from perf_offcpu.model.profile import Profile
from perf_offcpu.structs import frozen
from perf_offcpu.text import printable

_LEVEL = 1  # level of compression: higher ones take three times as long for a tenth less
_BLOCK = 1 << 16


@frozen
class Content:
    """Values and labels to write for each of the n samples of a profile."""

    types: list[tuple[str, str]]  # (name, unit) of each sample type; the first is shown by default
    values: list[I64]  # int64[n] for each type
    label_sets: list[dict[str, str | int]]  # distinct sets of labels: name → text or number; "" is left out
    label_set: I64  # int64[n], index in label_sets


def write(profile: Profile, out: BinaryIO, options: Options) -> None:
    """Write all samples of a profile, whose events may have different units, as gzipped profile.proto."""
    with gzip.GzipFile("", "wb", _LEVEL, out, mtime=0) as packed:
        for part in encode_content(profile, options, _all_content(profile)):
            packed.write(part)


def encode_content(profile: Profile, options: Options, content: Content) -> Iterator[bytes]:
    """Yield the encoded fields of a Profile message with the samples' stacks and the values and labels `content`."""
    tables = Locations(profile, options)
    string = tables.string
    for name, unit in content.types:
        yield field(1, field(1, string(name)) + field(2, string(unit)))
    yield from _samples(tables, content)
    for mapping, number in tables.mappings.items():
        yield field(3, _mapping(number, mapping, string(mapping.build_id)))
    for location, number in tables.locations.items():
        yield field(4, _location(number, location))
    for function, number in tables.functions.items():
        yield field(5, field(1, number) + b"".join(field(id_, text) for id_, text in enumerate(function, 2)))
    if begin := utc_ns(profile):
        yield field(9, begin)
    if profile.meta.duration_ns:
        yield field(10, profile.meta.duration_ns)
    yield field(14, string(content.types[0 if content.values[0].any() else -1][0]))
    yield from (field(6, text) for text in tables.strings)


def utc_ns(profile: Profile) -> int:
    """Return the time of the first sample or record in ns since 1970; 0 if it is not known."""
    meta = profile.meta
    has_wall_clock = meta.wall_clock_ns and meta.first_ns >= 0
    return meta.wall_clock_ns + meta.first_ns - meta.wall_clock_at_ns if has_wall_clock else 0


def _samples(tables: Locations, content: Content) -> Iterator[bytes]:
    """Sum the values by stack and label set; yield a Sample field for each such pair, in blocks."""
    stacks = [field(1, text) for text in ragged(varints(tables.stacks.values), tables.stacks.offsets)]
    labels = from_bytes([_labels(tables, label_set) for label_set in content.label_sets])
    first, group_of = group(tables.of_sample, content.label_set)
    sums = [sum_by(group_of, values, len(first)) for values in content.values]
    stack, label = tables.of_sample[first], content.label_set[first]
    stack_lengths = np.array(list(map(len, stacks)), np.int64)
    for begin in range(0, len(first), _BLOCK):
        rows = slice(begin, begin + _BLOCK)
        values = joined(*(varints(column[rows]) for column in sums))
        tail = joined(protobuf.lengths(2, values.lengths), values, labels.take(label[rows]))
        head = protobuf.lengths(2, stack_lengths[stack[rows]] + tail.lengths)
        each = np.arange(head.count + 1)
        bodies = map(stacks.__getitem__, stack[rows].tolist())
        yield b"".join(part for row in zip(ragged(head, each), bodies, ragged(tail, each), strict=True) for part in row)


def _labels(tables: Locations, labels: dict[str, str | int]) -> bytes:
    texts = []
    for name, value in labels.items():
        if value != "":
            key = field(1, tables.string(name))
            content = field(3, value) if isinstance(value, int) else field(2, tables.string(value))
            texts.append(field(3, key + content))
    return b"".join(texts)


def _mapping(number: int, mapping: Mapping, build_id: int) -> bytes:
    body = field(1, number) + field(3, mapping.limit) + field(5, mapping.path) + field(6, build_id) + field(7, 1)
    return body + (field(8, 1) + field(9, 1) if mapping.has_lines else b"") + field(10, 1)


def _location(number: int, location: Location) -> bytes:
    code = field(2, location.mapping) + field(3, location.address) if location.mapping else b""
    lines = (field(1, function) + (field(2, line) if line else b"") for function, line in location.lines)
    return field(1, number) + code + b"".join(field(4, line) for line in lines)


def _all_content(profile: Profile) -> Content:
    """Return the values and labels of the pprof file: threads and details of waits."""
    types, values = _values(profile)
    timeline = timeline_of(profile)
    details = details_of(profile, wakeups_of(profile, timeline))
    first, group_of = group(timeline.track, profile.samples.comm, details.of)
    sets: list[dict[str, str | int]] = []
    for row in first.tolist():
        track, comm = timeline.tracks[timeline.track[row]], printable(profile.strings[profile.samples.comm[row]])
        sets.append({"comm": comm, **details.sets[details.of[row]], "pid": track.pid, "tid": track.tid})
    return Content(types, values, sets, group_of)


def _values(profile: Profile) -> tuple[list[tuple[str, str]], list[I64]]:
    """Return the sample types, (name, unit), and a column of values, int64[samples], for each."""
    samples, offcpu = profile.samples, profile.is_offcpu()
    in_time = np.array([event.unit == "ns" for event in profile.evsels] + [False])[samples.evsel]
    types = [("off_cpu", "nanoseconds"), ("off_cpu_events", "count"), ("runqueue", "nanoseconds")]
    values = [samples.period, samples.count, np.maximum(samples.runq_ns, 0)]
    columns = [np.where(offcpu, value, 0) for value in values]
    for row, event in enumerate(profile.evsels):
        chosen = ~offcpu & ~in_time & (samples.evsel == row)
        if chosen.any():
            types.append((printable(event.name), "count"))
            columns.append(np.where(chosen, samples.period, 0))
    types.append(("cpu", "nanoseconds"))
    return types, [*columns, np.where(~offcpu & in_time, samples.period, 0)]
