# SPDX-License-Identifier: Apache-2.0
"""Find the records and events that any perf can read, so that a rewritten file has no others. perf gives up a whole
file for one sample of an unknown event, one record whose trailer names an unknown event, one count that says more than
its record holds. Our reader counts such records and goes on; a file that is written again leaves them out."""

from functools import cache
from typing import Any

import numpy as np

from perf_offcpu import losses
from perf_offcpu.abi.attr import AttrFlag, ReadFormat, SampleType
from perf_offcpu.abi.records import FIRST_USER_TYPE, RECORD_LAYOUTS, Misc, RecordType
from perf_offcpu.binary.columnar import I64, Bool, read_columns
from perf_offcpu.binary.layout import REST, Field, Layout, Special
from perf_offcpu.losses import Losses
from perf_offcpu.perfdata.events import Events, EventSpec, id_place, read_trailers, sample_id_place
from perf_offcpu.perfdata.scan import HEADER_SIZE, Chunk

_EVENT_UPDATE_CPUS, _CPU_MAP_RANGE = 3, 2  # the largest `kind` and `type` of these records that perf knows


def readable_records(chunk: Chunk, events: Events, counters: Losses) -> Bool:
    """Return bool[len(chunk)]: True for records that perf can read, and for all SAMPLE records. Records of unknown
    events, and records that do not fit the layout of their type, are counted."""
    rows = np.flatnonzero(chunk.types != RecordType.SAMPLE)
    trailers = read_trailers(chunk, rows, events)
    kinds = chunk.types[rows]
    orphaned = (kinds < FIRST_USER_TYPE) & (trailers.evsel < 0) & events.sample_id_all
    ends = chunk.starts[rows] + chunk.sizes[rows] - trailers.size
    fits = np.ones(len(rows), np.bool_)
    for kind in np.unique(kinds).tolist():
        own = np.flatnonzero((kinds == kind) & ~orphaned)
        fits[own] = _fit(kind, chunk, rows[own], ends[own], events)
    counters.add(losses.UNKNOWN_OWNER, int(orphaned.sum()))
    counters.add(losses.BAD_RECORD, int((~fits).sum()))
    is_readable = np.ones(len(chunk), np.bool_)
    is_readable[rows] = fits & ~orphaned
    return is_readable


def readable_events(events: Events) -> Events:
    """Return the first event and the events that agree with it: perf can read these in one file. perf finds the id of a
    record before it knows whose record it is, so all events have to have it at the same place; if one does not (its
    attr is damaged), perf refuses the file. Records of the events left out become records of an unknown event."""
    first = events.specs[:1]
    if first and sample_id_place(first[0].attr.sample_type) is None:
        return Events(first, events.order)  # samples cannot be told apart: all are the first event's
    specs = [spec for spec in events.specs if _agrees(spec, events.specs[0])]
    return events if len(specs) == len(events.specs) else Events(specs, events.order, are_all=False)


def _agrees(spec: EventSpec, first: EventSpec) -> bool:
    attr, kind, kind_of_first = spec.attr, spec.attr.sample_type, first.attr.sample_type
    if spec is not first and kind & SampleType.READ and not attr.read_format & ReadFormat.ID:
        return False
    have_trailers_alike = (attr.flags ^ first.attr.flags) & AttrFlag.SAMPLE_ID_ALL == 0
    are_ids_alike = all(place(kind) == place(kind_of_first) for place in (id_place, sample_id_place))
    return have_trailers_alike and are_ids_alike


def _fit(kind: int, chunk: Chunk, rows: I64, ends: I64, events: Events) -> Bool:
    """Return bool[n]: True if a record of type `kind` is as large as its layout and counts say. `ends`: int64[n], byte
    offset of each record's end, without its trailer."""
    if kind not in RECORD_LAYOUTS:
        return np.ones(len(rows), np.bool_)
    layout, has_name = _counted_part(kind)
    starts = chunk.starts[rows] + HEADER_SIZE
    columns = read_columns(layout, chunk.data, starts, ends, events.order, Misc(0))
    fits: Bool = columns.ok & (columns.ends + has_name <= ends)
    if kind in _NAMING_EVENTS:
        ids = {event_id for spec in events.specs for event_id in spec.ids}
        for index in np.flatnonzero(fits).tolist():
            place = int(starts[index]), int(ends[index])
            values = RECORD_LAYOUTS[kind].unpack(chunk.data.data, events.order, Misc(0), *place)
            fits[index] = _is_sensible(kind, values, ids)
    return fits


@cache
def _counted_part(kind: int) -> tuple[Layout, bool]:
    """Return (layout of a record's fields before the first of variable length, True if that one is TEXT)."""
    layout, counted = RECORD_LAYOUTS[kind], list[Field]()
    for field in layout.active(Misc(0)):
        if field.count == REST or field.type in (Special.TEXT, Special.STRING):
            return Layout(layout.name, *counted), field.type is Special.TEXT
        counted.append(field)
    return Layout(layout.name, *counted), False


_NAMING_EVENTS = (RecordType.ID_INDEX, RecordType.EVENT_UPDATE, RecordType.CPU_MAP)


def _is_sensible(kind: int, values: dict[str, Any], ids: set[int]) -> bool:
    """Return True for an ID_INDEX or EVENT_UPDATE record that names only `ids`, and for an EVENT_UPDATE or CPU_MAP
    record of a kind that perf knows. `values`: its fields."""
    if kind == RecordType.ID_INDEX:
        return ids.issuperset(entry["id"] for entry in values["entries"])
    if kind == RecordType.EVENT_UPDATE:
        return values["id"] in ids and values["kind"] <= _EVENT_UPDATE_CPUS
    return bool(values["type"] <= _CPU_MAP_RANGE)
