# SPDX-License-Identifier: Apache-2.0
"""Mappings that are taken up together give the same address spaces as those taken up one by one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perf_offcpu.abi.records import Misc, RecordType
from perf_offcpu.decode.tasks import replay as tasks
from perf_offcpu.decode.tasks.columns import MapRuns, SideRecord, map_runs, task_record
from perf_offcpu.decode.tasks.replay import TaskReplay
from perf_offcpu.model.columns import Strings

PIDS, TIMES = st.integers(5, 8), st.integers(0, 12)
MAPS = st.tuples(PIDS, TIMES, st.integers(0, 9), st.integers(0, 4), st.integers(0, 1), st.integers(1, 2))
FORKS = st.tuples(PIDS, TIMES, PIDS, st.booleans())
EXECS = st.tuples(PIDS, TIMES, st.booleans())


def record(kind: RecordType, misc: int, time: int, **values: Any) -> SideRecord:
    return SideRecord(kind, misc, values, time)


def as_record(event: tuple[Any, ...]) -> SideRecord:
    pid, time = event[:2]
    if len(event) == 6:
        start, size, path, mode = event[2:]
        page = 0x1000
        return record(RecordType.MMAP, mode, time, pid=pid, tid=pid, addr=start * page, len=size * page,
                      pgoff=0, filename=b"lib%d" % path)  # fmt: skip
    if len(event) == 4:
        misc = int(Misc.FORK_EXEC) if event[3] else 0
        return record(RecordType.FORK, misc, time, pid=pid, tid=pid, ppid=event[2], ptid=event[2])
    misc = int(Misc.COMM_EXEC) if event[2] else 0
    return record(RecordType.COMM, misc, time, pid=pid, tid=pid, comm=b"x")


def tables(records: list[SideRecord]) -> list[Any]:
    replay = TaskReplay(Strings())
    for one in records:
        replay.notes.take([task_record(one)])
    replay.replay()
    spaces, maps = replay.spaces.tables()
    columns = [getattr(table, name) for table in (spaces, maps) for name in table.columns]
    return [column.tolist() for column in (*columns, *replay.spaces.timeline())]


@given(st.lists(st.one_of(MAPS, MAPS, FORKS, EXECS), max_size=40))
def test_runs_give_what_single_mappings_give(events: list[tuple[Any, ...]]) -> None:
    records = [as_record(event) for event in events]
    together = tables(records)

    def none_sound(*args: Any) -> MapRuns:
        runs = map_runs(*args)
        return replace(runs, sound=np.zeros(len(runs.first), np.bool_))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tasks, "map_runs", none_sound)
        assert together == tables(records)
