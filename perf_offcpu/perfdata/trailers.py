# SPDX-License-Identifier: Apache-2.0
"""Whose record is it, and when was it? The trailers and times of any kernel records, as columns.

Every kernel record but SAMPLE ends with a trailer (`abi.sample.TRAILER`), laid out by the sample_type of the
event that wrote it; a sample says the same in front. A trailer is found from the record's end: where it
holds the event's id follows from the first event, because perf demands that all events agree on that place
(tools/perf/util/evlist.c: evlist__valid_sample_type). Id 0 is the first event's: perf's own records, which
describe what was there before, have a trailer of zeros.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from perf_offcpu.abi.attr import SampleType
from perf_offcpu.abi.records import FIRST_USER_TYPE, RecordType
from perf_offcpu.abi.sample import SAMPLE, TRAILER
from perf_offcpu.binary.columnar import read_columns
from perf_offcpu.binary.gather import gather_u64
from perf_offcpu.perfdata.events import Events
from perf_offcpu.perfdata.scan import HEADER_SIZE, Chunk
from perf_offcpu.structs import mutable

I32 = NDArray[np.int32]
I64 = NDArray[np.int64]
U64 = NDArray[np.uint64]

NO_TIME = np.uint64(2**63)
"""Times from here on are none: perf writes such dummies for sums of off-cpu time."""

_U64 = 8
_UNKNOWN = np.int32(-2)


@mutable
class Trailers:
    """The trailers of n records.

    Args:
        evsel: int32[n], whose record it is; -1 without a trailer, or with one of an unknown event.
        size: int64[n], bytes at the record's end that are the trailer; 0 without one.
        time: uint64[n], ns as the file has it; 0 without.
        pid, tid, cpu: int32[n], -1 without.
    """

    evsel: I32
    size: I64
    time: U64
    pid: I32
    tid: I32
    cpu: I32


def read_trailers(chunk: Chunk, rows: I64, events: Events, unknown: int = -1) -> Trailers:
    """The trailers of some records of a chunk (`rows`), in that order; samples have none.

    Args:
        unknown: the evsel that records of unknown events are taken for.
    """
    owners = _owners(chunk, rows, events)
    found = Trailers(
        np.where(owners == _UNKNOWN, np.int32(unknown), owners),
        np.zeros(len(rows), np.int64),
        np.zeros(len(rows), np.uint64),
        *(np.full(len(rows), -1, np.int32) for _ in range(3)),
    )
    for number in np.flatnonzero(np.bincount(found.evsel[found.evsel >= 0])).tolist():
        _read(chunk, rows, events, number, found)
    return found


def id_place(kind: SampleType) -> int | None:
    """How many u64 words before a record's end its trailer holds the event's id; None without one.

    Source: tools/perf/util/evsel.c, __perf_evsel__calc_is_pos().
    """
    if kind & SampleType.IDENTIFIER:
        return 1
    if kind & SampleType.ID:
        return 1 + (kind & (SampleType.CPU | SampleType.STREAM_ID)).bit_count()
    return None


def _owners(chunk: Chunk, rows: I64, events: Events) -> I32:
    """int32[n]: the evsel of each record; -1 where there is no trailer, -2 where its event is unknown."""
    kinds, sizes = chunk.types[rows], chunk.sizes[rows]
    has = (kinds < FIRST_USER_TYPE) & (kinds != RecordType.SAMPLE) & events.sample_id_all
    place = id_place(events.trailer_type) if events.needs_ids else None
    if place is None:
        return np.where(has, 0, -1).astype(np.int32)
    at = chunk.starts[rows] + sizes - _U64 * place
    has &= sizes >= HEADER_SIZE + _U64 * place
    owner = events.lookup(gather_u64(chunk.data, np.where(has, at, 0), events.order))
    return np.where(has, np.where(owner < 0, _UNKNOWN, owner), np.int32(-1)).astype(np.int32)


def _read(chunk: Chunk, rows: I64, events: Events, number: int, into: Trailers) -> None:
    """Fill in the trailers of one evsel."""
    mine = np.flatnonzero(into.evsel == number)
    kind = events.specs[number].attr.sample_type
    size = TRAILER.size(kind)
    ends = chunk.starts[rows[mine]] + chunk.sizes[rows[mine]]
    fits = chunk.sizes[rows[mine]] >= HEADER_SIZE + size
    into.evsel[mine[~fits]] = -1
    mine, ends = mine[fits], ends[fits]
    into.size[mine] = size
    scalars = read_columns(TRAILER, chunk.data, ends - size, ends, events.order, kind).scalars
    if "time" in scalars:
        into.time[mine] = scalars["time"]
    for name, column in (("pid", into.pid), ("tid", into.tid), ("cpu", into.cpu)):
        if name in scalars:
            column[mine] = scalars[name].view(np.int32)


def trailer_type(kind: int, record: bytes, events: Events) -> SampleType | None:
    """The sample_type that lays out the trailer of one record (header included); None if it has none."""
    if kind >= FIRST_USER_TYPE or kind == RecordType.SAMPLE or not events.sample_id_all:
        return None
    place = id_place(events.trailer_type) if events.needs_ids else None
    number = 0
    if place is not None and len(record) >= HEADER_SIZE + _U64 * place:
        at = len(record) - _U64 * place
        word = np.frombuffer(record, f"{events.order}u8", 1, at).astype(np.uint64)
        number = max(0, int(events.lookup(word)[0]))  # of an unknown event: most likely as the first one's
    return events.specs[number].attr.sample_type


def sample_times(chunk: Chunk, rows: I64, evsel: I32, events: Events) -> U64:
    """uint64[n]: the TIME field of some samples of a chunk, whose evsels are known; 0 without one."""
    times = np.zeros(len(rows), np.uint64)
    for number in np.flatnonzero(np.bincount(evsel[evsel >= 0])).tolist():
        shape = events.specs[number].shape
        if not shape.flags & SampleType.TIME:
            continue
        offset = HEADER_SIZE + SAMPLE.offset("time", shape)
        mine = np.flatnonzero((evsel == number) & (chunk.sizes[rows] >= offset + _U64))
        times[mine] = gather_u64(chunk.data, chunk.starts[rows[mine]] + offset, events.order)
    return times


def record_times(chunk: Chunk, events: Events) -> I64:
    """int64[len(chunk)]: when each record of a chunk happened, ns; 0 for those without a real time."""
    rows = np.arange(len(chunk))
    times = read_trailers(chunk, rows, events).time
    samples = np.flatnonzero(chunk.types == RecordType.SAMPLE)
    times[samples] = sample_times(chunk, samples, events.of_samples(chunk, samples), events)
    real: I64 = np.where(times < NO_TIME, times, np.uint64(0)).astype(np.int64)
    return real
