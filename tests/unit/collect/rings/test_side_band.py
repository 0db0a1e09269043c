# SPDX-License-Identifier: Apache-2.0
"""Records of maps on their way into the file: code and files that are read stay, own data goes."""

import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from perf_offcpu.abi.records import CpuMode, Misc, RecordType
from perf_offcpu.binary.fields import Buffer
from perf_offcpu.collect.existing import maps
from perf_offcpu.collect.existing.kernel_maps import KnownKernel
from perf_offcpu.collect.existing.maps import MappedBuildIds
from perf_offcpu.collect.existing.records import mmap2, synthesized
from perf_offcpu.collect.rings.side_band import SideBand
from perf_offcpu.losses import Losses

READ, WRITE, EXECUTE = 1, 2, 4
COMM = synthesized(RecordType.COMM, 0, {"pid": 7, "tid": 7, "comm": b"main"})


def mapped(name: bytes, prot: int) -> bytes:
    """A map of a process; the kernel marks those without code."""
    place = {"pid": 7, "tid": 7, "addr": 0x1000, "len": 0x1000, "pgoff": 0}
    values = {**place, "prot": prot, "flags": 2, "filename": name}
    return mmap2(CpuMode.USER, values, misc=0 if prot & EXECUTE else Misc.MMAP_DATA)


@pytest.mark.parametrize(("name", "prot", "stays"), [
    (b"/nowhere/libc.so.6", READ | EXECUTE, True), (b"/nowhere/libc.so.6", READ, True),
    (b"/nowhere/libc.so.6", READ | WRITE, False), (b"//anon", READ | WRITE, False),
    (b"//anon", READ, False), (b"//anon", READ | WRITE | EXECUTE, True),
    (b"[stack]", READ | WRITE, False), (b"[vvar]", READ, False), (b"[vdso]", READ | EXECUTE, True),
])  # fmt: skip
def test_maps_of_own_data_are_left_out(name: bytes, prot: int, stays: bool) -> None:
    side_band, kept = SideBand(MappedBuildIds(), KnownKernel(), Losses()), list[Buffer]()
    side_band.sink = SimpleNamespace(append=lambda *pieces: kept.extend(pieces))
    record = mapped(name, prot)
    side_band.append(COMM + record, record + COMM)
    assert b"".join(map(bytes, kept)) == COMM + 2 * stays * record + COMM
    side_band.close()


def test_no_more_than_some_files_are_remembered(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(maps, "MOST_KNOWN", 2)
    build_ids = MappedBuildIds()
    paths = [tmp_path / name for name in ("a", "b", "c")]
    for path in paths:
        shutil.copy("/bin/true", path)
    found = [build_ids.of_mapping(0, 0, 0, 1, path.stat().st_ino, bytes(path)) for path in paths]
    assert found[0] and list(build_ids.files) == [bytes(path) for path in paths[1:]]
