# SPDX-License-Identifier: Apache-2.0
"""Waits for locks inside the kernel: their class, the lock, and who held it."""

from pathlib import Path

import numpy as np
import pytest
from builders.compiled import build
from builders.program import run as perf_offcpu

from perf_offcpu.abi.wait_objects import ObjectKind
from perf_offcpu.analysis.classes.classify import classify
from perf_offcpu.analysis.classes.wait_classes import WaitClass
from perf_offcpu.analysis.holders import holders_of
from perf_offcpu.collect.system.btf import Btf
from perf_offcpu.model.profile import Profile
from perf_offcpu.symbolize.load import load_profile
from perf_offcpu.symbolize.options import SymbolizeOptions

pytestmark = pytest.mark.beside
TELLS_ALL = Btf.load().member("task_struct", "blocker") is not None


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("programs/kernel_locks.c", tmp_path_factory.mktemp("locks") / "kernel_locks", "-O1")


def record(program: Path, kind: str, directory: Path, *options: str) -> Profile:
    """Record the threads of one kind; return the profile."""
    perf_offcpu("record", "-q", "-e", "none", *options, "--", program, kind, "2", directory, cwd=directory)
    return load_profile([str(directory / "perf.data")], SymbolizeOptions(inline=False))


def of_locks(profile: Profile, comm: str) -> tuple[np.ndarray, set[str]]:
    """Return the samples of threads that waited in state D for a lock, and the names of these locks."""
    samples = profile.samples
    is_lock = (samples.comm == profile.strings.find(comm)) & (classify(profile).wait_class == WaitClass.LOCK)
    rows = np.flatnonzero(is_lock & (samples.state & 2 > 0))
    names = np.append(profile.objects.name, 0)[samples.object[rows]]
    return rows, {profile.strings[name] for name in names.tolist() if name}


def share_of_kernel_locks(profile: Profile, rows: np.ndarray) -> float:
    """Return the share of the time of waits whose lock is known."""
    samples = profile.samples
    kind = np.append(profile.objects.kind, 0)[samples.object[rows]]
    return float(samples.period[rows][kind == ObjectKind.KERNEL_LOCK].sum() / samples.period[rows].sum())


further = [pytest.param(one, marks=pytest.mark.long) for one in (("--call-graph", "fp"), ("--off-cpu-thresh", "0"))]


@pytest.mark.parametrize("options", [(), *further])
def test_writers_of_a_file_wait_for_each_other(program: Path, tmp_path: Path, options: tuple[str, ...]) -> None:
    profile = record(program, "write", tmp_path, *options)
    rows, names = of_locks(profile, "writer")
    assert len(rows) >= 4
    if not TELLS_ALL:
        return
    assert share_of_kernel_locks(profile, rows) > 0.98 and names == {f"i_rwsem of {tmp_path}/file"}
    held, tids = holders_of(profile).held[rows], profile.samples.tid[rows]
    writers = set(tids.tolist())
    assert np.isin(held, [*writers, -1]).all() and (held != tids).all()
    # For a moment nobody holds it: it was released, and the next writer has not run yet.
    assert profile.samples.period[rows][held >= 0].sum() > 0.2 * profile.samples.period[rows].sum()


def test_mappings_wait_for_each_other(program: Path, tmp_path: Path) -> None:
    profile = record(program, "map", tmp_path, "--call-graph", "fp")
    rows, names = of_locks(profile, "mapper")
    assert len(rows) >= 4
    (name,) = names
    assert name.startswith("mmap_lock of kernel_locks (") and share_of_kernel_locks(profile, rows) > 0.9


@pytest.mark.skipif(not TELLS_ALL, reason="needs task->blocker, Linux 6.17")
def test_renames_wait_for_the_file_system(program: Path, tmp_path: Path) -> None:
    profile = record(program, "rename", tmp_path, "--off-cpu-thresh", "0")
    rows, names = of_locks(profile, "renamer")
    assert len(rows) >= 4 and names & {"mutex in do_renameat2", "mutex in lock_rename"}, names
