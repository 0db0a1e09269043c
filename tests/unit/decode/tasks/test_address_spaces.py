# SPDX-License-Identifier: Apache-2.0
"""What is mapped where, when: exec, fork, mappings that replace others, one by one or many at once."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perf_offcpu.abi.records import Misc, RecordType
from perf_offcpu.decode.tasks import replay as tasks
from perf_offcpu.decode.tasks.address_spaces import UNKNOWN_SPACE, AddressSpaces, Mapping
from perf_offcpu.decode.tasks.columns import MapRuns, SideRecord, map_runs, task_record
from perf_offcpu.decode.tasks.replay import TaskReplay
from perf_offcpu.model.columns import Strings
from perf_offcpu.model.lookup import find_mappings

OLD, NEW = 0, 1


def mapped(spaces: AddressSpaces) -> list[tuple[int, int, int]]:
    """(space, start, dso) of all mappings."""
    table = spaces.tables()[1]
    return list(zip(table.space.tolist(), table.start.tolist(), table.dso.tolist(), strict=True))


def timeline(spaces: AddressSpaces) -> list[tuple[int, int, int]]:
    return list(zip(*(column.tolist() for column in spaces.timeline()), strict=True))


def test_the_old_image_stays_until_the_new_one_maps_something() -> None:
    """In between the thread is in execve(), which the old image called."""
    spaces = AddressSpaces()
    spaces.map(7, Mapping(0x1000, 0x2000, 0, OLD), 0)
    spaces.exec(7, 100)
    spaces.map(7, Mapping(0x8000, 0x9000, 0, NEW), 110)
    spaces.map(7, Mapping(0xA000, 0xB000, 0, NEW), 120)
    assert timeline(spaces) == [(7, 0, 0), (7, 110, 1)]
    assert mapped(spaces) == [(0, 0x1000, OLD), (1, 0x8000, NEW), (1, 0xA000, NEW)]
    assert spaces.tables()[0].previous.tolist() == [-1, 0]


def test_what_execve_was_called_from_is_found_in_the_image_before() -> None:
    """Until it returns. Only in the one directly before, and only what the new one does not map itself."""
    spaces = AddressSpaces()
    spaces.map(7, Mapping(0x1000, 0x2000, 0, OLD), 0)
    for time_ns, start in ((100, 0x8000), (200, 0x5000)):
        spaces.exec(7, time_ns)
        spaces.map(7, Mapping(start, start + 0x1000, 0, NEW), time_ns + 1)
    table, maps = spaces.tables()
    space = np.array([1, 1, 2, 2, 2], np.int32)
    found = find_mappings(maps, table, space, np.array([0x1800, 0x8800, 0x5800, 0x8800, 0x1800], np.uint64))
    starts = [int(maps.start[row]) if row >= 0 else None for row in found.tolist()]
    assert starts == [0x1000, 0x8000, 0x5000, 0x8000, None]


def test_an_old_image_that_was_not_seen_is_unknown_not_the_new_one() -> None:
    spaces = AddressSpaces()
    spaces.exec(7, 100)
    spaces.map(7, Mapping(0x8000, 0x9000, 0, NEW), 110)
    assert timeline(spaces) == [(7, 0, UNKNOWN_SPACE), (7, 110, 0)]


def test_the_image_of_another_process_is_not_touched_by_an_exec() -> None:
    spaces = AddressSpaces()
    spaces.map(7, Mapping(0x1000, 0x2000, 0, OLD), 0)
    spaces.fork(8, 7, 50)
    spaces.exec(8, 60)
    spaces.map(7, Mapping(0x3000, 0x4000, 0, OLD), 65)
    spaces.map(8, Mapping(0x8000, 0x9000, 0, NEW), 70)
    of_8 = [space for pid, begin, space in timeline(spaces) if (pid, begin) == (8, 70)]
    assert [row for row in mapped(spaces) if row[0] in of_8] == [(of_8[0], 0x8000, NEW)]
    assert timeline(spaces)[0] == (7, 0, 0)


PIDS, TIMES = st.integers(5, 8), st.integers(0, 12)
MAPS = st.tuples(PIDS, TIMES, st.integers(0, 9), st.integers(0, 4), st.integers(0, 1), st.integers(1, 2))
EVENTS = st.one_of(MAPS, MAPS, st.tuples(PIDS, TIMES, PIDS, st.booleans()), st.tuples(PIDS, TIMES, st.booleans()))


def as_record(event: tuple[Any, ...]) -> SideRecord:
    pid, time = event[:2]
    if len(event) == 6:
        start, size, path, mode = event[2:]
        place = {"addr": start * 0x1000, "len": size * 0x1000, "pgoff": 0, "filename": b"lib%d" % path}
        return SideRecord(RecordType.MMAP, mode, {"pid": pid, "tid": pid} | place, time)
    if len(event) == 4:
        misc, parent = int(Misc.FORK_EXEC) if event[3] else 0, event[2]
        return SideRecord(RecordType.FORK, misc, {"pid": pid, "tid": pid, "ppid": parent, "ptid": parent}, time)
    misc = int(Misc.COMM_EXEC) if event[2] else 0
    return SideRecord(RecordType.COMM, misc, {"pid": pid, "tid": pid, "comm": b"x"}, time)


def tables(records: list[SideRecord]) -> list[Any]:
    replay = TaskReplay(Strings())
    for one in records:
        replay.notes.take([task_record(one)])
    replay.replay()
    spaces, maps = replay.spaces.tables()
    columns = [getattr(table, name) for table in (spaces, maps) for name in table.columns]
    return [column.tolist() for column in (*columns, *replay.spaces.timeline())]


@given(st.lists(EVENTS, max_size=40))
def test_runs_give_what_single_mappings_give(events: list[tuple[Any, ...]]) -> None:
    records = [as_record(event) for event in events]
    together = tables(records)

    def none_sound(*args: Any) -> MapRuns:
        runs = map_runs(*args)
        return replace(runs, sound=np.zeros(len(runs.first), np.bool_))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tasks, "map_runs", none_sound)
        assert together == tables(records)
