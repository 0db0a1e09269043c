# SPDX-License-Identifier: Apache-2.0
"""Find the evsel of each record by the ids in the records, and read the trailers and times of records, as columns.

Each evsel has one id per CPU or thread. Samples hold it at a place that follows from sample_type, other kernel records
in their trailer (`abi.sample.TRAILER`), which is laid out by the sample_type of the event that wrote the record and is
found from the record's end: perf demands that all events agree on the place of the id (tools/perf/util/evlist.c:
evlist__event2evsel, evlist__valid_sample_type, tools/perf/util/evsel.c: __evsel__sample_id_pos). Id 0 is the first
event's: perf's own records, which describe what was there before, have a trailer of zeros.

The kernel writes one mapping to all events that ask for mappings, and for those with attr.build_id it sets
MISC_MMAP_BUILD_ID in a header that all of them share; it never clears the flag (kernel/events/core.c:
perf_event_mmap_output(), seen in 6.18). While one recorder asks for build-ids, as perf 7.2 does, the records of all
others have the flag, too, over maj, min and ino. perf 6.1 takes the major number for a length and overruns its stack
(abort in util/build-id.c). Such records are recognized because build-ids have at most 20 bytes, and an event that did
not ask gets none. Records that perf synthesized stay as they are, as do sizes of 20 or 16 bytes, those of build-ids."""

from dataclasses import dataclass, replace
from itertools import chain
from typing import Self

import numpy as np
from numpy.typing import NDArray

from perf_offcpu.abi.attr import Attr, AttrFlag, PerfType, SampleType, SoftwareConfig
from perf_offcpu.abi.records import FIRST_USER_TYPE, RECORD_HEADER, RECORD_LAYOUTS, Misc, RecordType
from perf_offcpu.abi.sample import SAMPLE, TRAILER, SampleShape
from perf_offcpu.binary.columnar import I64, gather_u64, read_columns
from perf_offcpu.binary.layout import Order
from perf_offcpu.perfdata.scan import HEADER_SIZE, Chunk
from perf_offcpu.structs import mutable

_SOFTWARE_NAMES: dict[int, str] = {config: config.name.lower().replace("_", "-") for config in SoftwareConfig}


@dataclass(frozen=True, slots=True)
class EventSpec:
    """Describes an evsel as a file does: attr, name ("" until known) and ids, one per CPU or thread."""

    attr: Attr
    name: str = ""
    ids: tuple[int, ...] = ()

    @property
    def shape(self) -> SampleShape:
        """Return the shape of the event's samples: the parts of the attr that decide which fields they have."""
        return SampleShape.of(self.attr)

    def named(self) -> Self:
        """Return the evsel with a name derived from the attr if the file has none."""
        attr, is_software = self.attr, self.attr.type == PerfType.SOFTWARE
        derived = _SOFTWARE_NAMES.get(attr.config, "unknown-software") if is_software else ""
        return replace(self, name=self.name or derived or f"type-{attr.type}-config-{attr.config:#x}")


class Events:
    """Looks up the evsel of a record by the id in it. An evsel is a row of `specs`, here and in all tables. `are_all`:
    the recording has no events but `specs`, so that records of a single event need no id."""

    def __init__(self, specs: list[EventSpec], order: Order, *, are_all: bool = True) -> None:
        self.specs, self.order = specs, order
        self.needs_ids = len(specs) > 1 or (len(specs) == 1 and not are_all)
        # Id 0 stands for the first event, and the first event with an id keeps it.
        ids = np.fromiter(chain([0], *(spec.ids for spec in specs)), np.uint64)
        rows = np.repeat(np.arange(-1, len(specs)), [1, *(len(spec.ids) for spec in specs)]).clip(0)
        self._ids, first, claim = np.unique(ids, return_index=True, return_inverse=True)
        self._rows = rows[first].astype(np.int32)
        self.duplicates = int(((rows != rows[first][claim]) & (ids != 0)).sum())  # ids that several events have
        # The attr that decides the layout of trailers, and the place of ids.
        self.first = specs[0].attr if specs else Attr()
        # Without any ids, samples of one layout are read as the first event's.
        alike = len({spec.shape for spec in specs}) == 1
        self._unknown = np.int32(0 if alike and are_all and len(self._ids) == 1 else -1)

    @property
    def sample_id_all(self) -> bool:
        """Return True if kernel records other than samples end with a trailer."""
        return bool(self.first.flags & AttrFlag.SAMPLE_ID_ALL)

    def of_samples(self, chunk: Chunk, rows: NDArray[np.int64]) -> NDArray[np.int32]:
        """Return the evsel of each SAMPLE record in `rows`: int32[n]; -1 where its id is unknown."""
        place = sample_id_place(self.first.sample_type) if self.needs_ids else None
        if place is None:
            return np.full(len(rows), 0 if self.specs else -1, np.int32)
        starts = chunk.starts[rows] + HEADER_SIZE + 8 * place
        inside = chunk.sizes[rows] >= HEADER_SIZE + 8 * (place + 1)
        evsels = self.lookup(gather_u64(chunk.data, np.where(inside, starts, 0), self.order))
        return np.where(inside, evsels, np.int32(-1)).astype(np.int32)

    def lookup(self, ids: NDArray[np.uint64]) -> NDArray[np.int32]:
        """Return the evsel of each id: int32[n]; -1 unknown. In a file with one event, all ids belong to it."""
        if len(self.specs) == 1 and not self.needs_ids:
            return np.zeros(len(ids), np.int32)
        slot = np.minimum(np.searchsorted(self._ids, ids), len(self._ids) - 1)
        return np.where(self._ids[slot] == ids, self._rows[slot], self._unknown).astype(np.int32)


def sample_id_place(kind: SampleType) -> int | None:
    """Return the index of the u64 word of a sample's payload that is the event's id; None if samples have no id."""
    if kind & SampleType.IDENTIFIER:
        return 0
    before = SampleType.IP | SampleType.TID | SampleType.TIME | SampleType.ADDR
    return (kind & before).bit_count() if kind & SampleType.ID else None


I32 = NDArray[np.int32]
U64 = NDArray[np.uint64]
NO_TIME = np.uint64(2**63)  # times from here on are dummies, as perf writes them for sums of off-cpu time
_U64 = 8
UNKNOWN = np.int32(-2)


@mutable
class Trailers:
    """Holds the trailers (sample_id) of n records as columns."""

    evsel: I32  # int32[n], the event that wrote the record; -1 unknown, or without a trailer
    size: I64  # int64[n], bytes of the trailer; 0 without one
    time: U64  # uint64[n], ns as in the file; 0 without a trailer
    # pid, tid, cpu: int32[n], -1 without a trailer
    pid: I32
    tid: I32
    cpu: I32


def read_trailers(chunk: Chunk, rows: I64, events: Events, unknown: int = -1) -> Trailers:
    """Read the trailers of records `rows`; samples have none. A trailer with an unknown id is read as one of evsel
    `unknown`, or not at all if `unknown` is -1."""
    owners = owners_of(chunk, rows, events)
    trailers = Trailers(
        np.where(owners == UNKNOWN, np.int32(unknown), owners),
        np.zeros(len(rows), np.int64),
        np.zeros(len(rows), np.uint64),
        *(np.full(len(rows), -1, np.int32) for _ in range(3)),
    )
    for number in np.flatnonzero(np.bincount(trailers.evsel[trailers.evsel >= 0])).tolist():
        _read(chunk, rows, events, number, trailers)
    return trailers


def id_place(kind: SampleType) -> int | None:
    """Return how many u64 words before a record's end the id in its trailer begins; None if trailers hold no id."""
    if kind & SampleType.IDENTIFIER:
        return 1
    return 1 + (kind & (SampleType.CPU | SampleType.STREAM_ID)).bit_count() if kind & SampleType.ID else None


def owners_of(chunk: Chunk, rows: I64, events: Events) -> I32:
    """Return int32[n]: the evsel of each record; -1 where it has no trailer, UNKNOWN where no event has its id."""
    kinds, sizes = chunk.types[rows], chunk.sizes[rows]
    has = (kinds < FIRST_USER_TYPE) & (kinds != RecordType.SAMPLE) & events.sample_id_all
    place = id_place(events.first.sample_type) if events.needs_ids else None
    if place is None:
        return np.where(has, 0, -1).astype(np.int32)
    starts = chunk.starts[rows] + sizes - _U64 * place
    is_whole = has & (sizes >= HEADER_SIZE + _U64 * place)
    owner = events.lookup(gather_u64(chunk.data, np.where(is_whole, starts, 0), events.order))
    return np.where(has, np.where(is_whole & (owner >= 0), owner, UNKNOWN), np.int32(-1)).astype(np.int32)


def _read(chunk: Chunk, rows: I64, events: Events, number: int, into: Trailers) -> None:
    own = np.flatnonzero(into.evsel == number)
    kind = events.specs[number].attr.sample_type
    size = TRAILER.size(kind)
    fits = chunk.sizes[rows[own]] >= HEADER_SIZE + size
    into.evsel[own[~fits]] = -1
    own = own[fits]
    into.size[own] = size
    ends = chunk.starts[rows[own]] + chunk.sizes[rows[own]]
    scalars = read_columns(TRAILER, chunk.data, ends - size, ends, events.order, kind).scalars
    for name in scalars.keys() & {"time", "pid", "tid", "cpu"}:
        column = getattr(into, name)
        column[own] = scalars[name].view(column.dtype)


def sample_times(chunk: Chunk, rows: I64, evsel: I32, events: Events) -> U64:
    """Return uint64[n]: time (ns) of SAMPLE records `rows` of events `evsel` (int32[n], -1 unknown); 0 for none."""
    times = np.zeros(len(rows), np.uint64)
    for number in np.flatnonzero(np.bincount(evsel[evsel >= 0])).tolist():
        shape = events.specs[number].shape
        if not shape.flags & SampleType.TIME:
            continue
        offset = HEADER_SIZE + SAMPLE.offset("time", shape)
        own = np.flatnonzero((evsel == number) & (chunk.sizes[rows] >= offset + _U64))
        times[own] = gather_u64(chunk.data, chunk.starts[rows[own]] + offset, events.order)
    return times


def record_times(chunk: Chunk, events: Events) -> I64:
    """Return int64[len(chunk)]: the time of each record in ns; 0 where it has none, or perf's dummy (NO_TIME)."""
    times = read_trailers(chunk, np.arange(len(chunk)), events).time
    samples = np.flatnonzero(chunk.types == RecordType.SAMPLE)
    times[samples] = sample_times(chunk, samples, events.of_samples(chunk, samples), events)
    real: I64 = np.where(times < NO_TIME, times, np.uint64(0)).astype(np.int64)
    return real


_FLAG = np.uint16(Misc.MMAP_BUILD_ID)
_SIZE_AT = HEADER_SIZE + RECORD_LAYOUTS[RecordType.MMAP2].offset("build_id_size", Misc.MMAP_BUILD_ID)
_SIZE_MAX = 20
_SIZES = (16, 20)


def without_leaked_flags(chunk: Chunk, events: Events) -> Chunk:
    """Return the chunk without MISC_MMAP_BUILD_ID in `miscs` of MMAP2 records without build-id; `data` is unchanged."""
    flagged = (chunk.types == RecordType.MMAP2) & ((chunk.miscs & _FLAG) != 0)
    rows = np.flatnonzero(flagged & (chunk.sizes > _SIZE_AT))
    if not len(rows):
        return chunk
    sizes = chunk.data[chunk.starts[rows] + _SIZE_AT]
    trailers = read_trailers(chunk, rows, events)
    asked = np.array([bool(spec.attr.flags & AttrFlag.BUILD_ID) for spec in events.specs] + [False])
    unasked = (trailers.time > 0) & ~asked[trailers.evsel] & ~np.isin(sizes, _SIZES)
    leaked = rows[unasked | (sizes > _SIZE_MAX)]
    if not len(leaked):
        return chunk
    miscs = chunk.miscs.copy()
    miscs[leaked] &= ~_FLAG
    return replace(chunk, miscs=miscs)


def with_written_miscs(chunk: Chunk, order: str) -> Chunk:
    """Return the chunk with the `miscs` of its MMAP2 records written into `data`, a copy if any of them differs."""
    rows = np.flatnonzero(chunk.types == RecordType.MMAP2)
    starts = chunk.starts[rows] + RECORD_HEADER.offset("misc")
    places = starts[:, None] + np.arange(2)
    wanted = chunk.miscs[rows].astype(f"{order}u2").view(np.uint8).reshape(-1, 2)
    if np.array_equal(chunk.data[places], wanted):
        return chunk
    data: NDArray[np.uint8] = chunk.data.copy()
    data[places] = wanted
    return replace(chunk, data=data)
