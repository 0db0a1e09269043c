# SPDX-License-Identifier: Apache-2.0
"""Read records about tasks, a whole chunk at a time.

A machine that starts a process maps the same libraries again: such records differ in ids, addresses and times, their
first fields, and are alike in all that follows (names, build-ids, protection). So the first fields are read as columns,
and of records that are alike after them one is read as an example of all.

Most mappings come in runs: a process is executed and maps its libraries one by one. Between two forks and execs of a
process its address space is not read, so they are applied together, unless one replaces another."""

from collections.abc import Set
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from perf_offcpu import losses
from perf_offcpu.abi.records import FIRST_USER_TYPE, RECORD_LAYOUTS, RecordType
from perf_offcpu.binary.columnar import Rows, gather_rows, native, read_columns
from perf_offcpu.binary.layout import Layout
from perf_offcpu.errors import LayoutError
from perf_offcpu.losses import Losses
from perf_offcpu.model.callchains import Ragged, first_of_each, unique_rows
from perf_offcpu.model.columns import I32, I64, U64, Bool, Table, column
from perf_offcpu.perfdata.events import NO_TIME, Events, read_trailers
from perf_offcpu.perfdata.scan import HEADER_SIZE, Chunk
from perf_offcpu.structs import mutable

_OWN_FIELDS: dict[int, int] = {RecordType.COMM: 2, RecordType.NAMESPACES: 2}
_OWN_FIELDS |= dict.fromkeys((RecordType.FORK, RecordType.EXIT, RecordType.MMAP, RecordType.MMAP2), 5)
"""By type: how many first fields (ids, addresses, times) differ between records that are otherwise alike."""

_OWN = {
    kind: Layout(layout.name, *layout.fields[: _OWN_FIELDS.get(kind, 0)], source=layout.source)
    for kind, layout in RECORD_LAYOUTS.items()
}

_LAST_TIME = np.uint64(2**63 - 1)


class SideRecord(NamedTuple):
    """Holds a decoded record other than a sample."""

    type: int
    misc: int
    values: dict[str, Any]  # fields of its layout
    time_ns: int = 0  # 0 for records that describe the state before the recording
    file_offset: int = 0


@mutable
class TaskRecords:
    """Holds n records of one type in file order: fields that mostly differ as columns, others once for all alike."""

    kind: int  # their type
    rows: I64  # int64[n], rows of their chunk
    time_ns: I64  # int64[n], of their trailers; 0 for records that describe what was there before
    own: dict[str, NDArray[np.unsignedinteger]]  # name → array[n], the fields that each record has of its own
    example: I64  # int64[n], which of `examples` holds the other fields
    examples: list[SideRecord]  # records, in file order


def task_records(chunk: Chunk, kinds: Set[int], events: Events, counters: Losses) -> list[TaskRecords]:
    """Return the chunk's records of each type in `kinds`; those that do not fit their type are left out and counted."""
    # One count finds the types that a chunk lacks, which are most.
    present = np.flatnonzero(np.bincount(np.minimum(chunk.types, 255).astype(np.uint8))).tolist()
    return [_of_type(kind, chunk, events, counters) for kind in present if kind in kinds]


def task_record(record: SideRecord) -> TaskRecords:
    """Return a record about tasks as TaskRecords of length 1."""
    fields, first = _OWN[record.type].fields, np.zeros(1, np.int64)
    own = {field.name: np.array([record.values.get(field.name, 0)], native(field.type)) for field in fields}
    return TaskRecords(record.type, first, np.array([record.time_ns]), own, first, [record])


def _of_type(kind: int, chunk: Chunk, events: Events, counters: Losses) -> TaskRecords:
    rows = np.flatnonzero(chunk.types == kind)
    # Where the event is unknown, the first one's trailer is the best guess: perf wants all of them alike.
    trailers = read_trailers(chunk, rows, events, unknown=0)
    starts = chunk.starts[rows]
    ends = starts + chunk.sizes[rows] - trailers.size
    if kind < FIRST_USER_TYPE and events.sample_id_all:
        ends = np.where(trailers.size == 0, starts, ends)  # too short for a trailer, and for anything else
    columns = read_columns(_OWN[kind], chunk.data, starts + HEADER_SIZE, ends, events.order)
    example, firsts = _alike(chunk, rows, Rows(columns.ends, np.maximum(ends - columns.ends, 0) // 8, 8), columns.ok)
    own = columns.scalars
    times: I64 = np.where(trailers.time < NO_TIME, trailers.time, np.uint64(0)).astype(np.int64)
    if "time" in own:  # without trailers, FORK and EXIT hold their time themselves
        times = np.where(times == 0, np.minimum(own["time"], _LAST_TIME).astype(np.int64), times)
    examples: list[SideRecord] = []
    number = np.full(len(firsts), -1)
    for index, row in enumerate(firsts):
        start, misc = int(starts[row]), int(chunk.miscs[rows[row]])
        body = start + HEADER_SIZE, int(ends[row])
        try:
            values = RECORD_LAYOUTS[kind].unpack(chunk.data.data, events.order, misc, *body)
        except LayoutError:
            continue
        number[index] = len(examples)
        examples.append(SideRecord(kind, misc, values, int(times[row]), chunk.file_offset + start))
    example = number[example]
    sound = np.flatnonzero(example >= 0)
    counters.add(losses.BAD_RECORD, len(rows) - len(sound))
    own = {name: values[sound] for name, values in own.items()}
    return TaskRecords(kind, rows[sound], times[sound], own, example[sound], examples)


def _alike(chunk: Chunk, rows: I64, rest: Rows, ok: Bool) -> tuple[I64, list[int]]:
    """Group n records that agree in misc and in `rest`, their words after the own fields. Returns (int64[n]: group of
    each record, by first appearance; the first record of each group)."""
    same_rest = unique_rows(Ragged(*gather_rows(chunk.data, rest)))[1].astype(np.int64)
    keys = same_rest << 17 | chunk.miscs[rows].astype(np.int64) << 1 | ok
    first, numbers = first_of_each(keys.view(np.uint64))
    return numbers.astype(np.int64), first.tolist()


class MapEvents(Table):
    """Holds one mapping (MMAP or MMAP2 record) a row, at its time."""

    time_ns: I64 = column("i8", unit="ns", doc="when; 0 before the recording")
    number: I64 = column("i8", doc="place among all events, which decides between equal times")
    pid: I32 = column("i4", doc="whose; -1 the kernel's")
    start: U64 = column("u8", doc="first address")
    size: U64 = column("u8", unit="bytes", doc="length")
    pgoff: U64 = column("u8", unit="bytes", doc="offset in the file")
    dso: I32 = column("i4", doc="row in dsos")


@mutable
class MapRuns:
    """Holds mappings in runs, which are applied together: all of a process between two of its forks or execs."""

    maps: MapEvents  # by run, and within it by first address
    cuts: I64  # int64[runs + 1]: run i is rows `cuts[i]` to `cuts[i + 1]`
    first: I64  # int64[runs]: the row of its first mapping in time
    sound: Bool  # bool[runs]: whether it is a process's, and no two of its mappings share an address


def map_runs(maps: MapEvents, pids: I32, times: I64, numbers: I64) -> MapRuns:
    """Sort mappings (given in any order) into runs, each up to the next fork or exec of its process. `pids`, `times`
    (ns), `numbers` (as in MapEvents): of n forks and execs."""
    kept = len(maps)
    pairs = (maps.pid, pids), (maps.time_ns, times), (maps.number, numbers)
    pid, time, number = (np.concatenate(pair) for pair in pairs)
    order = np.lexsort((number, time, pid))
    is_map, owner = order < kept, pid[order]
    begins = np.append(True, (owner[1:] != owner[:-1]) | ~is_map[:-1])[: len(order)] | ~is_map
    run_of_event = np.cumsum(begins)
    rows = order[is_map]
    run = np.unique(run_of_event[is_map], return_inverse=True)[1]
    # `rows` are in time order within each run.
    oldest = rows[np.append(True, run[1:] != run[:-1])[: len(run)]]
    by_start = np.lexsort((maps.start[rows], run))
    place = np.empty(kept, np.int64)
    place[rows[by_start]] = np.arange(kept)
    sorted_maps = maps.take(rows[by_start])
    cuts = np.append(np.searchsorted(run, np.arange(len(oldest))), kept)
    starts, ends = sorted_maps.start, sorted_maps.start + sorted_maps.size
    is_bad = (ends <= starts) | (sorted_maps.pid < 0)
    is_bad[:-1] |= (run[1:] == run[:-1]) & (starts[1:] < ends[:-1])
    return MapRuns(sorted_maps, cuts, place[oldest], np.bincount(run[is_bad], minlength=len(oldest)) == 0)
