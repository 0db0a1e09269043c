# SPDX-License-Identifier: Apache-2.0
"""Which records of a chunk could any perf read? A writer must not pass on what a reader would choke on.

perf gives up a whole file for one sample of an unknown event, one record whose trailer names an unknown
event, one count that says more than its record holds. Our reader counts such records and goes on; what is
written anew leaves them out.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perf_offcpu import losses
from perf_offcpu.abi.attr import AttrFlag, ReadFormat, SampleType
from perf_offcpu.abi.records import FIRST_USER_TYPE, RECORD_LAYOUTS, Misc, RecordType
from perf_offcpu.binary.layout import REST, Field, Int, Layout, Special
from perf_offcpu.errors import LayoutError
from perf_offcpu.losses import Losses
from perf_offcpu.perfdata.events import Events, EventSpec, sample_id_place
from perf_offcpu.perfdata.scan import HEADER_SIZE, Chunk
from perf_offcpu.perfdata.trailers import Trailers, id_place, read_trailers

Bool = NDArray[np.bool_]
I64 = NDArray[np.int64]


EVENT_UPDATE_CPUS = 3
CPU_MAP_RANGE = 2
"""The last forms of these records."""


def sound_records(chunk: Chunk, events: Events, counters: Losses) -> Bool:
    """bool[len(chunk)]: which records fit their type; others are counted.

    Samples are not looked into, and pass; so do types without a layout.
    """
    rows = np.flatnonzero(chunk.types != RecordType.SAMPLE)
    trailers = read_trailers(chunk, rows, events)
    kinds = chunk.types[rows]
    orphaned = (kinds < FIRST_USER_TYPE) & (trailers.evsel < 0) & events.sample_id_all
    least = np.zeros(len(rows), np.int64)
    for kind in np.unique(kinds).tolist():
        least[kinds == kind] = _least_size(kind)
    short = (chunk.sizes[rows] < HEADER_SIZE + least + trailers.size) & ~orphaned
    lying = _lying(chunk, rows, trailers, events) & ~orphaned & ~short
    counters.add(losses.UNKNOWN_OWNER, int(orphaned.sum()))
    counters.add(losses.BAD_RECORD, int((short | lying).sum()))
    sound = np.ones(len(chunk), np.bool_)
    sound[rows] = ~(orphaned | short | lying)
    return sound


def sound_events(events: Events) -> Events:
    """The events that perf would read together: the first one, and those that agree with it.

    perf finds the id of a record before it knows whose record it is, so all events have to have it at the
    same place; where one does not (its attr is damaged), perf refuses the file. Its records become those of
    an unknown event.
    """
    first = events.specs[:1]
    if first and sample_id_place(first[0].attr.sample_type) is None:
        return Events(first, events.order)  # nobody can tell samples apart: all are taken for the first one's
    specs = [spec for spec in events.specs if _agrees(spec, events.specs[0])]
    return events if len(specs) == len(events.specs) else Events(specs, events.order, are_all=False)


def _agrees(spec: EventSpec, first: EventSpec) -> bool:
    one, other = spec.attr, first.attr
    if spec is not first and one.sample_type & SampleType.READ and not one.read_format & ReadFormat.ID:
        return False
    return (
        (one.flags ^ other.flags) & AttrFlag.SAMPLE_ID_ALL == 0
        and id_place(one.sample_type) == id_place(other.sample_type)
        and sample_id_place(one.sample_type) == sample_id_place(other.sample_type)
    )


def _lying(chunk: Chunk, rows: I64, trailers: Trailers, events: Events) -> Bool:
    """Records whose counts do not fit their size: few types have counts, and few such records come."""
    lying = np.zeros(len(rows), np.bool_)
    known = {one for spec in events.specs for one in spec.ids}
    for index in np.flatnonzero(np.isin(chunk.types[rows], _counted_types())).tolist():
        row = int(rows[index])
        record, kind, misc = chunk.record(row), int(chunk.types[row]), Misc(int(chunk.miscs[row]))
        end = len(record) - int(trailers.size[index])
        try:
            values = RECORD_LAYOUTS[kind].unpack(record, events.order, misc, HEADER_SIZE, end)
        except LayoutError:
            lying[index] = True
            continue
        lying[index] = not _is_sensible(kind, values, known)
    return lying


def _is_sensible(kind: int, values: dict[str, Any], known: set[int]) -> bool:
    """Whether records that describe the file name events that there are, in forms that there are."""
    if kind == RecordType.ID_INDEX:
        return known.issuperset(entry["id"] for entry in values["entries"])
    if kind == RecordType.EVENT_UPDATE:
        return values["id"] in known and values["kind"] <= EVENT_UPDATE_CPUS
    return kind != RecordType.CPU_MAP or values["type"] <= CPU_MAP_RANGE


@cache
def _least_size(kind: int) -> int:
    """Bytes of payload that a record of this type has at least."""
    layout = RECORD_LAYOUTS.get(kind)
    return 0 if layout is None else sum(_fixed_size(field) for field in layout.active(Misc(0)))


def _fixed_size(field: Field) -> int:
    """Bytes of a field whatever the record's content; 0 where only that tells."""
    if field.type is Special.TEXT:
        return 1
    if not (field.count is None or isinstance(field.count, int)):
        return 0
    count = 1 if field.count is None else field.count
    if isinstance(field.type, Int):
        return count * field.type.size
    if isinstance(field.type, Layout):
        return count * field.type.size(Misc(0))
    return count if field.type is Special.BYTE else 0


@cache
def _counted_types() -> tuple[int, ...]:
    """Types whose records hold as many items as one of their fields says, or name events."""
    counted = (
        int(kind)
        for kind, layout in RECORD_LAYOUTS.items()
        if any(isinstance(field.count, str) and field.count != REST for field in layout.fields)
    )
    return (*counted, RecordType.EVENT_UPDATE, RecordType.CPU_MAP)
