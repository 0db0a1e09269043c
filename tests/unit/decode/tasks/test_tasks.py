# SPDX-License-Identifier: Apache-2.0
"""Tasks over time: names, processes, build-ids and mappings of threads that come, exec, fork and go."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import hosts
from builders.hosts import comms_of
from builders.recording import BASE, TRACKING, S, comm, event, sample, side, task, write
from hypothesis import given
from hypothesis import strategies as st

from perf_offcpu.abi.features import Feature
from perf_offcpu.abi.records import Misc, RecordType
from perf_offcpu.decode.load import load_recording
from perf_offcpu.decode.tasks import replay as tasks
from perf_offcpu.decode.tasks.address_spaces import UNKNOWN_SPACE, AddressSpaces, Mapping
from perf_offcpu.decode.tasks.columns import MapRuns, SideRecord, map_runs, task_record
from perf_offcpu.decode.tasks.replay import TaskReplay
from perf_offcpu.model.columns import Strings
from perf_offcpu.model.lookup import find_mappings
from perf_offcpu.model.recording import Recording
from perf_offcpu.perfdata.features import BuildId, build_id_body

CLOCK = event("cpu-clock", (1,), BASE | S.CALLCHAIN, flags=TRACKING)


def load(path: Path, *records: bytes) -> Recording:
    recording = load_recording(write(path / "x.data", [CLOCK], records))
    recording.check()
    return recording


def at(time: int, pid: int, tid: int) -> bytes:
    return sample(CLOCK, pid=pid, tid=tid, time=time, callchain=[])


def mapped(recording: Recording) -> list[list[str]]:
    maps, dsos = recording.maps, recording.dsos
    return [
        [recording.strings[int(dsos.path[dso])] for dso in maps.dso[maps.space == space].tolist()]
        for space in recording.samples.space.tolist()
    ]


def fork(pid: int, tid: int, parent: int, time: int) -> bytes:
    return side(CLOCK, RecordType.FORK, time=time, pid=pid, tid=tid, ppid=parent, ptid=parent)


def maps(pid: int, path: str, time: int, addr: int = 0x1000) -> bytes:
    return side(CLOCK, RecordType.MMAP, 2, time=time, pid=pid, tid=pid, addr=addr, len=0x1000, pgoff=0,
                filename=path.encode())  # fmt: skip


@pytest.mark.parametrize(("records", "names"), [
    # A name holds from its time on, whatever the order of the file.
    ([at(50, 7, 7), at(10, 7, 7), comm(CLOCK, 7, 7, "late", 40), comm(CLOCK, 7, 7, "early", 0), at(40, 7, 7)],
     ["early", "late", "late"]),
    # A thread is named as its creator until it says otherwise.
    ([comm(CLOCK, 7, 7, "main"), fork(7, 8, 7, 20), at(30, 7, 8), comm(CLOCK, 7, 8, "worker", 40), at(50, 7, 8)],
     ["main", "worker"]),
    ([at(10, 7, 9), at(20, 0, 0)], [":9", "swapper"]),  # an unknown one by its number, the idle one as by perf
])  # fmt: skip
def test_names_of_threads(records: list[bytes], names: list[str], tmp_path: Path) -> None:
    assert comms_of(load(tmp_path, *records)) == names


def test_dead_threads_keep_their_names_and_reused_numbers_get_new_ones(tmp_path: Path) -> None:
    recording = load(
        tmp_path, comm(CLOCK, 7, 7, "old"), task(CLOCK, RecordType.EXIT, 7, 7, 30), at(35, 7, 7),
        comm(CLOCK, 1, 1, "init"), fork(7, 7, 1, 60), at(70, 7, 7), comm(CLOCK, 7, 7, "new", 80), at(90, 7, 7),
    )  # fmt: skip
    assert comms_of(recording) == ["old", "init", "new"]
    tasks = recording.tasks
    columns = (tasks.tid, tasks.begin_ns, tasks.end_ns, tasks.parent)
    lives = list(zip(*(column.tolist() for column in columns), strict=True))
    assert [life for life in lives if life[0] == 7] == [(7, 0, 30, 1), (7, 60, -1, 1)]


def test_an_exit_tells_the_parent_of_a_process_that_was_there_before(tmp_path: Path) -> None:
    ends = side(CLOCK, RecordType.EXIT, 0, time=30, pid=8, tid=8, ppid=7, ptid=7)
    recording = load(tmp_path, fork(7, 9, 7, 5), comm(CLOCK, 8, 8, "child"), at(20, 8, 8), at(20, 7, 9), ends)
    assert dict(zip(recording.tasks.tid.tolist(), recording.tasks.parent.tolist(), strict=True)) == {8: 7, 9: -1}


def test_a_child_inherits_maps_and_what_either_maps_then_is_its_own(tmp_path: Path) -> None:
    recording = load(
        tmp_path, maps(7, "/bin/sh", 0), fork(8, 8, 7, 10), at(15, 8, 8), maps(8, "/lib/child", 20, 0x8000),
        at(25, 7, 7), at(26, 8, 8),
    )  # fmt: skip
    assert mapped(recording) == [["/bin/sh"], ["/bin/sh"], ["/bin/sh", "/lib/child"]]
    threads = load(tmp_path, maps(7, "/bin/main", 0), fork(7, 8, 7, 10), at(15, 7, 8))
    assert mapped(threads) == [["/bin/main"]], "threads live in the space of their process"


def test_exec_begins_anew_with_the_first_mapping(tmp_path: Path) -> None:
    execs = side(CLOCK, RecordType.COMM, int(Misc.COMM_EXEC), time=20, pid=7, tid=7, comm=b"new")
    recording = load(
        tmp_path, maps(7, "/bin/old", 0), at(10, 7, 7), execs, at(25, 7, 7), maps(7, "/bin/new", 30), at(40, 7, 7),
    )  # fmt: skip
    assert mapped(recording) == [["/bin/old"], ["/bin/old"], ["/bin/new"]]


def test_maps_come_first_and_paths_of_several_files_have_none(tmp_path: Path) -> None:
    listed = {b"/bin/a": 1, b"/bin/b": 2, b"/bin/c": 3, b"/bin/absent": 4}
    entries = [BuildId(-1, 2, bytes([tag]).hex() * 20, path) for path, tag in listed.items()]
    entries.append(BuildId(-1, 2, "05" * 20, b"/bin/c"))
    records = [*hosts.existing(7, "x"), hosts.tick(1000), hosts.mapped(7, 0x5000, b"/bin/d")]
    records += [hosts.mapped(7, 0x1000, b"/bin/a"), hosts.mapped(7, 0x2000, b"/bin/b", b"\x09" * 20)]
    records.append(hosts.mapped(7, 0x3000, b"/bin/c"))
    path = write(tmp_path / "x", [hosts.CLOCK], records, {Feature.BUILD_ID: build_id_body(entries)})
    recording = load_recording(path)
    recording.check()
    columns = (recording.dsos.path.tolist(), recording.dsos.build_id.tolist())
    found = {recording.strings[path]: recording.strings[build_id] for path, build_id in zip(*columns, strict=True)}
    assert found == {"/bin/a": "01" * 20, "/bin/b": "09" * 20, "/bin/c": "", "/bin/d": ""}


OLD, NEW = 0, 1


def mappings(spaces: AddressSpaces) -> list[tuple[int, int, int]]:
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
    assert mappings(spaces) == [(0, 0x1000, OLD), (1, 0x8000, NEW), (1, 0xA000, NEW)]
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
    assert [row for row in mappings(spaces) if row[0] in of_8] == [(of_8[0], 0x8000, NEW)]
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
