# SPDX-License-Identifier: Apache-2.0
"""Find runs of mappings of a process, which can be applied all at once, in columns.

Most mappings come in runs: a process is executed and its libraries are mapped one by one. Between two forks
and execs of a process its address space is not read, so that the mappings in between may be applied together,
unless one replaces another.
"""

from __future__ import annotations

import numpy as np

from perf_offcpu.model.columns import I32, I64, U64, Bool, Table, column
from perf_offcpu.structs import mutable


class MapEvents(Table):
    """Mappings as they happen."""

    time_ns: I64 = column("i8", unit="ns", doc="when; 0 before the recording")
    number: I64 = column("i8", doc="place among all events, which decides between equal times")
    pid: I32 = column("i4", doc="whose; -1 the kernel's")
    start: U64 = column("u8", doc="first address")
    size: U64 = column("u8", unit="bytes", doc="length")
    pgoff: U64 = column("u8", unit="bytes", doc="offset in the file")
    dso: I32 = column("i4", doc="row in dsos")


@mutable
class MapRuns:
    """Runs of mappings."""

    maps: MapEvents  # by run, and within it by first address
    cuts: I64  # int64[runs + 1]: run i is rows `cuts[i]` to `cuts[i + 1]`
    first: I64  # int64[runs]: the row of its first mapping in time
    sound: Bool  # bool[runs]: whether it is a process's, and no two of its mappings share an address


def map_runs(maps: MapEvents, pids: I32, times: I64, numbers: I64) -> MapRuns:
    """Cut mappings into runs.

    Args:
        maps: in any order.
        pids, times, numbers: of n other events, between which the mappings of a process are one run.
    """
    kept = len(maps)
    pid, time, number = (
        np.concatenate(pair) for pair in ((maps.pid, pids), (maps.time_ns, times), (maps.number, numbers))
    )
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
    return MapRuns(sorted_maps, cuts, place[oldest], _sound(sorted_maps, run, len(oldest)))


def _sound(maps: MapEvents, run: I64, runs: int) -> Bool:
    ends = maps.start + maps.size
    bad = (ends <= maps.start) | (maps.pid < 0)
    bad[:-1] |= (run[1:] == run[:-1]) & (maps.start[1:] < ends[:-1])
    sound: Bool = np.bincount(run[bad], minlength=runs) == 0
    return sound
