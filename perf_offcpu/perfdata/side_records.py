# SPDX-License-Identifier: Apache-2.0
"""Side-band records: everything but samples, one small object each.

They are rare beside samples (a process start, a mapping, a loss), so here, and only here, a record becomes
a Python object. Trailers are still read for a whole chunk at once.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from perf_offcpu import losses
from perf_offcpu.abi.records import FIRST_USER_TYPE, RECORD_LAYOUTS, RecordType
from perf_offcpu.errors import LayoutError
from perf_offcpu.losses import Losses
from perf_offcpu.perfdata.events import Events
from perf_offcpu.perfdata.scan import HEADER_SIZE, Chunk
from perf_offcpu.perfdata.trailers import NO_TIME, read_trailers


class SideRecord(NamedTuple):
    """One record that is no sample.

    Args:
        type, misc: of its header.
        values: its layout's fields.
        time_ns: of its trailer; 0 for records that describe what was there before.
        pid, tid, cpu: of its trailer; -1 without one.
        file_offset: where it lies.
    """

    type: int
    misc: int
    values: dict[str, Any]
    time_ns: int
    pid: int
    tid: int
    cpu: int
    file_offset: int


def side_records(
    chunk: Chunk, events: Events, counters: Losses, types: Collection[int] | None = None
) -> Iterator[SideRecord]:
    """Yield the records of a chunk that have a layout and are no samples, in file order.

    Args:
        types: only these record types; None for all.

    Records of unknown type, and those that do not fit their layout, are counted.
    """
    counters.add(losses.UNKNOWN_RECORD, int((~np.isin(chunk.types, _KNOWN)).sum()))
    rows = np.flatnonzero(np.isin(chunk.types, _LAID_OUT if types is None else _laid_out(types)))
    if not len(rows):
        return
    data, at = chunk.data.data, chunk.starts[rows]
    # Where the event is unknown, the first one's trailer is the best guess: perf wants all of them alike.
    trailers = read_trailers(chunk, rows, events, unknown=0)
    is_short = (chunk.types[rows] < FIRST_USER_TYPE) & events.sample_id_all & (trailers.size == 0)
    ends = np.where(is_short, at, at + chunk.sizes[rows] - trailers.size)
    times = np.where(trailers.time < NO_TIME, trailers.time, 0).astype(np.int64)
    columns = (
        chunk.types[rows],
        chunk.miscs[rows],
        at,
        ends,
        times,
        trailers.pid,
        trailers.tid,
        trailers.cpu,
    )
    for kind, misc, start, end, time, pid, tid, cpu in _rows(*columns):
        try:
            values = RECORD_LAYOUTS[kind].unpack(data, events.order, misc, start + HEADER_SIZE, end)
        except LayoutError:
            counters.add(losses.BAD_RECORD)
            continue
        # Without trailers, FORK and EXIT hold their time themselves.
        own_time = time or min(values.get("time", 0), 2**63 - 1)
        yield SideRecord(kind, misc, values, own_time, pid, tid, cpu, chunk.file_offset + start)


def _rows(*columns: NDArray[Any]) -> Iterator[tuple[int, ...]]:
    """Columns as rows of Python integers."""
    return zip(*(column.tolist() for column in columns), strict=True)


def _array(types: Collection[int]) -> NDArray[np.uint32]:
    return np.array(sorted(types), np.uint32)


_KNOWN = _array([*RecordType])


def _laid_out(types: Collection[int]) -> NDArray[np.uint32]:
    return _array((RECORD_LAYOUTS.keys() & types) - {RecordType.SAMPLE})


_LAID_OUT = _laid_out(RECORD_LAYOUTS.keys())
