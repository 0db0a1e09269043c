# SPDX-License-Identifier: Apache-2.0
"""Tasks over time: names, processes, maps and their build-ids, of threads that come, exec, fork and go."""

from pathlib import Path

import pytest
from builders import hosts
from builders.hosts import comms_of
from builders.recording import BASE, TRACKING, S, comm, event, sample, side, task, write

from perf_offcpu.abi.features import Feature
from perf_offcpu.abi.records import Misc, RecordType
from perf_offcpu.decode.load import load_recording
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
    """The objects in the address space of each sample."""
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
