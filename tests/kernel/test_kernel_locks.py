# SPDX-License-Identifier: Apache-2.0
"""Waits for locks inside the kernel: their class, the lock, and who held it."""

import shutil
import signal
import subprocess
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from builders.compiled import build
from builders.profile import functions_of
from builders.program import PATIENCE
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
OWNERS = Path(__file__).with_name("lock_owners.bt")
NEAR_NS = 10_000  # between both readings: few locks get another owner in that time
TELLS_ALL = Btf.load().member("task_struct", "blocker") is not None


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("programs/kernel_locks.c", tmp_path_factory.mktemp("locks") / "kernel_locks", "-O1")


def record(program: Path, kind: str, directory: Path, *options: str, seconds: int = 2) -> Profile:
    time_s = str(seconds * round(min(PATIENCE, 4)))
    perf_offcpu("record", "-q", "-e", "none", *options, "--", program, kind, time_s, directory, cwd=directory)
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


class Wait(NamedTuple):
    """A wait with names; "" for what is not known."""

    comm: str
    wait_class: str
    object: str
    holder: str  # comm
    waker: str
    functions: list[str]
    ns: int


def waits_of(profile: Profile) -> list[Wait]:
    samples, comms, strings = profile.samples, profile.comms, profile.strings
    comm_of = {tid: strings[comm] for tid, comm in zip(comms.tid.tolist(), comms.comm.tolist(), strict=True)}
    labels = [wait_class.label for wait_class in WaitClass]
    objects = np.append(profile.objects.name, 0)[samples.object]
    columns = samples.comm, classify(profile).wait_class, objects, holders_of(profile).held, samples.waker_tid
    rows = zip(*(column.tolist() for column in (*columns, samples.stack, samples.period)), strict=True)
    return [
        Wait(strings[comm], labels[class_], strings[name], comm_of.get(held, ""), comm_of.get(waker, ""), stack, ns)
        for comm, class_, name, held, waker, leaf, ns in rows
        for stack in [functions_of(profile, leaf)]
    ]


def longest(waits: Iterable[Wait]) -> Wait:
    return max(waits, key=lambda wait: wait.ns)


further = [pytest.param(one, marks=pytest.mark.long) for one in (("--call-graph", "fp"), ("--off-cpu-thresh", "0"))]


@pytest.mark.parametrize("options", [(), *further])
def test_writers_of_a_file_wait_for_each_other(program: Path, tmp_path: Path, options: tuple[str, ...]) -> None:
    if options and not TELLS_ALL:
        pytest.skip("before the switch the kernel itself walks the stack, and leaves out functions of locks")
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


@pytest.mark.long
def test_mappings_wait_for_each_other(program: Path, tmp_path: Path) -> None:
    profile = record(program, "map", tmp_path, "--call-graph", "fp")
    rows, names = of_locks(profile, "mapper")
    assert len(rows) >= 4
    (name,) = names
    assert name.startswith("mmap_lock of kernel_locks (") and share_of_kernel_locks(profile, rows) > 0.9


@pytest.mark.skipif(not TELLS_ALL, reason="needs task->blocker, Linux 6.17")
def test_renames_wait_for_the_file_system(program: Path, tmp_path: Path) -> None:
    rows, names = of_locks(record(program, "rename", tmp_path, "--off-cpu-thresh", "0"), "renamer")
    assert len(rows) >= 4 and "s_vfs_rename_mutex" in {name.partition(" at ")[0] for name in names}, names


@pytest.mark.skipif(not TELLS_ALL, reason="needs task->blocker, Linux 6.17")
@pytest.mark.parametrize(("kind", "holder", "waiter"), [
    ("unmap", "unmapper", "faulter"), pytest.param("fork", "forker", "mapper", marks=pytest.mark.long),
])  # fmt: skip
def test_an_address_space_that_one_thread_locks_for_long(
    program: Path, tmp_path: Path, kind: str, holder: str, waiter: str
) -> None:
    profile = record(program, kind, tmp_path, seconds=3)  # on a busy machine they seldom meet
    rows, names = of_locks(profile, waiter)
    (name,) = names
    assert name.startswith("mmap_lock of kernel_locks (")
    # Waits that the end of the process ends, in its last milliseconds, have no lock.
    time_ns = profile.samples.time_ns[rows]
    assert share_of_kernel_locks(profile, rows[time_ns < time_ns.max() - 100_000_000]) > 0.9
    held = Counter[str]()
    for wait in waits_of(profile):
        if wait.comm == waiter and wait.object == name:
            held[wait.holder] += wait.ns
    assert held[holder] > 0 and not held.keys() - {holder, waiter, "kernel_locks", ""}, held


@pytest.mark.skipif(not TELLS_ALL, reason="needs task->blocker, Linux 6.17")
def test_the_owner_sleeps_while_it_holds_the_lock(program: Path, tmp_path: Path) -> None:
    """As reports of hung tasks have it: one sleeps, the others wait for its lock; the report leads to the sleep."""
    waits = waits_of(record(program, "sleep", tmp_path))
    blocked = [wait for wait in waits if wait.comm == "writer" and wait.object == f"i_rwsem of {tmp_path}/file"]
    whole = [wait for wait in blocked if wait.ns > 50_000_000]
    assert sum(wait.ns for wait in whole) > 1_000_000_000 and {wait.wait_class for wait in whole} == {"lock"}
    assert {wait.holder for wait in whole} == {"owner"}
    asleep = [wait for wait in waits if wait.comm == "owner" and wait.wait_class == "fault"]
    assert {(wait.object, wait.waker) for wait in asleep} == {("", "server")}
    assert sum(wait.ns for wait in asleep) > 1_000_000_000
    shown = perf_offcpu("report", "-i", "perf.data", cwd=tmp_path).stdout
    rows = [line for line in shown.splitlines() if " held by owner" in line or " ended by server" in line]
    assert "lock: i_rwsem of" in rows[0] and "  fault  " in rows[1], shown


FILE_SYSTEM = Path(__file__).with_name("file_system.sh").read_text()


@pytest.mark.skipif(not TELLS_ALL, reason="needs task->blocker, Linux 6.17")
def test_a_file_system_that_is_frozen_and_unmounted(tmp_path: Path) -> None:
    (tmp_path / "mounted").mkdir()
    subprocess.run("truncate -s 256M image && mkfs.ext4 -q image", shell=True, check=True, cwd=tmp_path)
    command = ["unshare", "--mount", "sh", "-c", FILE_SYSTEM]
    perf_offcpu("record", "-q", "-e", "none", "--off-cpu-thresh", "0", "--", *command, cwd=tmp_path)
    waits = waits_of(load_profile([str(tmp_path / "perf.data")], SymbolizeOptions(inline=False)))
    in_fsync = {"jbd2_log_wait_commit", "__x64_sys_fsync"}
    synced = longest(wait for wait in waits if wait.comm == "dd" and in_fsync <= set(wait.functions))
    assert synced.wait_class == "disk" and synced.object.endswith("/synced")
    # The journal's thread: the kernel does not report the names of those that it starts meanwhile.
    assert synced.waker == "kthreadd" or synced.waker.startswith("jbd2/loop")
    frozen = longest(wait for wait in waits if wait.comm == "touch")
    assert "percpu_rwsem_wait" in frozen.functions and (frozen.wait_class, frozen.waker) == ("disk", "fsfreeze")
    # On a busy machine some mounts come when the file system is unmounted already.
    of_mount = [wait for wait in waits if wait.comm == "mount" and wait.object.startswith("s_umount")]
    assert longest(of_mount).wait_class == "lock" and longest(of_mount).holder == "umount", of_mount


@pytest.mark.long
@pytest.mark.alone
def test_the_owners_are_those_that_bpftrace_reads(program: Path, tmp_path: Path) -> None:
    """Both read the same fields at the same switch, one after the other, where they are not far apart. Not of "fork":
    its mappers pass the lock on within the microseconds between both readings."""
    assert shutil.which("bpftrace"), "apt install bpftrace"
    compared = equal = 0
    for kind in ("write", "map", "rename", "unmap"):
        with subprocess.Popen(["bpftrace", OWNERS], stdout=subprocess.PIPE, text=True) as bpftrace:
            assert bpftrace.stdout and bpftrace.stdout.readline().startswith("Attaching")
            profile = record(program, kind, tmp_path, "--off-cpu-thresh", "0")
            bpftrace.send_signal(signal.SIGINT)
            lines = [[*map(int, line.split())] for line in bpftrace.stdout if line.strip()]
        owners: dict[int, list[tuple[int, int]]] = {}
        for ns, tid, owner in lines:
            owners.setdefault(tid, []).append((ns, owner))
        samples, kind_of = profile.samples, np.append(profile.objects.kind, 0)[profile.samples.object]
        rows = np.flatnonzero(kind_of == ObjectKind.KERNEL_LOCK)
        columns = (samples.tid, samples.switch_out_ns, holders_of(profile).held)
        for tid, begin, held in zip(*(column[rows].tolist() for column in columns), strict=True):
            ns, owner = min(owners.get(tid, [(0, 0)]), key=lambda read: abs(read[0] - begin))
            if abs(ns - begin) < NEAR_NS:
                compared, equal = compared + 1, equal + int(owner == held)
    assert equal >= 0.95 * compared > 100, (equal, compared)
