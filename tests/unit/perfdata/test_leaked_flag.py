# SPDX-License-Identifier: Apache-2.0
"""MMAP2 records that are flagged as holding a build-id, and hold an inode."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from builders.recording import BASE, TRACKING, S, event, side, write

from perf_offcpu.abi.attr import AttrFlag
from perf_offcpu.abi.records import Misc, RecordType
from perf_offcpu.decode.load import load_recording
from perf_offcpu.losses import Losses
from perf_offcpu.perfdata.events import EventSpec
from perf_offcpu.perfdata.reader import PerfDataReader
from perf_offcpu.perfdata.scan import Scanner
from perf_offcpu.perfdata.trailers import with_written_miscs, without_leaked_flags

PLAIN = event("cpu-clock", (1,), BASE | S.CALLCHAIN)
ASKING = event("cpu-clock", (1,), BASE | S.CALLCHAIN, flags=TRACKING | AttrFlag.BUILD_ID)
FLAG = Misc.MMAP_BUILD_ID
NAME = {
    "pid": 7, "tid": 7, "addr": 0x1000, "len": 0x1000, "pgoff": 0, "prot": 5, "flags": 2, "filename": b"/x",
}  # fmt: skip


def by_inode(spec: EventSpec, maj: int, time: int = 5) -> bytes:
    """Make a record as the kernel does: an inode, and the flag that it forgot to clear."""
    inode = {"maj": maj, "min": 0, "ino": 0x3F854, "ino_generation": 0}
    record = bytearray(side(spec, RecordType.MMAP2, 2, time=time, **NAME, **inode))
    record[4:6] = int(2 | FLAG).to_bytes(2, "little")
    return bytes(record)


def by_build_id(spec: EventSpec, size: int = 20, time: int = 5) -> bytes:
    held: dict[str, Any] = {
        "build_id_size": size, "reserved_1": 0, "reserved_2": 0, "build_id": b"\xab" * size,
    }  # fmt: skip
    return side(spec, RecordType.MMAP2, 2 | FLAG, time=time, **NAME, **held)


@pytest.mark.parametrize(("record", "spec", "is_leaked"), [
    (by_inode(PLAIN, maj=254), PLAIN, True),
    (by_inode(PLAIN, maj=8), PLAIN, True),  # could be a build-id of 8 bytes, but nobody asked for one
    (by_inode(PLAIN, maj=0), PLAIN, True),
    (by_inode(ASKING, maj=254), ASKING, True),  # no build-id has 254 bytes
    (by_inode(PLAIN, maj=254, time=0), PLAIN, True),
    (by_build_id(PLAIN, time=0), PLAIN, False),  # perf's own, not the kernel's
    (by_build_id(PLAIN, 8, time=0), PLAIN, False),
    (by_build_id(PLAIN), PLAIN, False),
    (by_build_id(PLAIN, 16), PLAIN, False),
    (by_build_id(ASKING), ASKING, False),
    (by_build_id(ASKING, 8), ASKING, False),
])  # fmt: skip
def test_which_flags_are_leaked(record: bytes, spec: EventSpec, is_leaked: bool, tmp_path: Path) -> None:
    path = write(tmp_path / "perf.data", [spec], [record])
    with PerfDataReader.open(path) as reader:
        (chunk,) = reader.chunks()
    assert bool(chunk.miscs[0] & FLAG) != is_leaked
    (untouched,) = Scanner("<", Losses()).feed(record)
    with PerfDataReader.open(path) as reader:
        read = without_leaked_flags(untouched, reader.events)
    assert bytes(read.record(0)) == record
    written = bytes(with_written_miscs(read, "<").record(0))
    assert written == (record[:4] + (2).to_bytes(2, "little") + record[6:] if is_leaked else record)
    recording = load_recording(path)
    assert recording.strings[int(recording.dsos.build_id[0])] == (
        "" if is_leaked else "ab" * min(record[40], 20)
    )
