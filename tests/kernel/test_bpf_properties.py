# SPDX-License-Identifier: Apache-2.0
"""The BPF program on the running kernel: tasks chosen by user, comm, CPU, control group and pid namespace."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from kernel.napping import MS, recording, waits_of

from perf_offcpu.collect.bpf.config import OffCpuConfig, Targets
from perf_offcpu.collect.bpf.kernel.facts import explore
from perf_offcpu.collect.bpf.kernel.probes import pid_namespace_level
from perf_offcpu.collect.bpf.program import OffCpuProgram
from perf_offcpu.collect.system.btf import Btf

pytestmark = pytest.mark.beside

NAPPING = "import time\nwhile True: time.sleep(0.005)"
NOBODY = 65534


@contextmanager
def napping(*, user: int = 0, comm: str = "", cpu: int | None = None) -> Iterator[int]:
    """A process that naps, 5 ms at a time, as this user, under this name, on this CPU; gives its pid."""
    script = f"""
import os, time
open("/proc/self/comm", "w").write({comm or "python3"!r})
if {cpu!r} is not None: os.sched_setaffinity(0, [{cpu!r}])
os.setresuid({user}, {user}, {user})
os.write(1, b"x")
{NAPPING}
"""
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE)
    assert process.stdout is not None
    try:
        process.stdout.read(1)
        yield process.pid
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def recorded(program: OffCpuProgram, rings: object, seconds: float = 0.2) -> set[int]:
    """The processes whose waits are sampled."""
    program.enable()
    time.sleep(seconds)
    program.disable()
    return {wait.pid for wait in waits_of(rings)}  # type: ignore[arg-type]


def test_users() -> None:
    config = OffCpuConfig(by_user=True, threshold_ns=MS)
    with napping(user=NOBODY) as one, napping() as other, recording(config) as (program, rings):
        program.maps.add_target(NOBODY, "user")
        found = recorded(program, rings)
    assert one in found and other not in found and os.getpid() not in found


def test_comms() -> None:
    config = OffCpuConfig(by_comm=True, threshold_ns=MS)
    with (
        napping(comm="fifteen letters") as one,
        napping(comm="fifteen letter") as other,
        recording(config) as (program, rings),
    ):
        program.maps.add_comm(b"fifteen letters and what the kernel cuts off")
        assert recorded(program, rings) == {one} != {other}


def test_cpus() -> None:
    config = OffCpuConfig(by_cpu=True, threshold_ns=MS)
    with napping(cpu=0) as one, napping(cpu=1) as other, recording(config) as (program, rings):
        program.maps.add_target(1, "cpu")
        found = recorded(program, rings)
    assert other in found and one not in found


def test_properties_restrict_each_other_and_targets() -> None:
    config = OffCpuConfig(targets=Targets.PIDS, by_user=True, by_cpu=True, threshold_ns=MS)
    with (
        napping(user=NOBODY, cpu=0) as one,
        napping(user=NOBODY, cpu=1) as elsewhere,
        napping(cpu=0) as root,
        napping(user=NOBODY, cpu=0),
        recording(config) as (program, rings),
    ):
        program.maps.add_target(NOBODY, "user")
        program.maps.add_target(0, "cpu")
        for pid in (one, elsewhere, root):
            program.maps.add_target(pid)
        assert recorded(program, rings) == {one}


def hierarchies() -> list[tuple[str, Path]]:
    """(controller, mount) of cgroup v2 ("") and of one v1 hierarchy, where there is one."""
    mounts = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
    unified = [("", Path(mount[1])) for mount in mounts if mount[2] == "cgroup2"][:1]
    freezer = [("freezer", Path(mount[1])) for mount in mounts if mount[2] == "cgroup" and "freezer" in mount[3]]
    return unified + freezer[:1]


@pytest.mark.parametrize(("controller", "mount"), hierarchies())
def test_groups_and_those_below_them(controller: str, mount: Path) -> None:
    group = mount / f"perf-offcpu-properties-{os.getpid()}"
    below = group / "below" / "further"
    below.mkdir(parents=True)
    config = OffCpuConfig(by_group=controller, threshold_ns=MS)
    try:
        with napping() as one, napping() as other, napping() as deep, recording(config) as (program, rings):
            (group / "cgroup.procs").write_text(str(one))
            (below / "cgroup.procs").write_text(str(deep))
            program.maps.add_group(group.stat().st_ino)
            assert recorded(program, rings) == {one, deep} != {other}
    finally:
        for directory in (below, below.parent, group):
            until_gone = time.monotonic() + 5
            while (directory / "cgroup.procs").read_text() and time.monotonic() < until_gone:
                time.sleep(0.01)
            directory.rmdir()


def test_processes_and_threads_at_once() -> None:
    config = OffCpuConfig(targets=Targets.TASKS, threshold_ns=MS)
    with napping() as one, napping() as two, napping() as other, recording(config) as (program, rings):
        program.maps.add_target(one, "process")
        program.maps.add_target(two, "thread")
        assert recorded(program, rings) == {one, two} != {other}


IN_NAMESPACE = f"""
import os, subprocess, sys, time
sys.path[:0] = {[str(Path(__file__).parents[1]), *sys.path]!r}
from kernel.napping import MS, recording, waits_of
from perf_offcpu.collect.bpf.config import OffCpuConfig, Targets
child = subprocess.Popen([sys.executable, "-c", {NAPPING!r}])
for targets in (Targets.PIDS, Targets.ALL):
    with recording(OffCpuConfig(targets=targets, threshold_ns=MS)) as (program, rings):
        if targets is Targets.PIDS:
            program.maps.add_target(child.pid)
        program.enable()
        time.sleep(0.2)
        program.disable()
        found = {{one for wait in waits_of(rings) for one in (wait.pid, wait.tid)}}
        print(os.getpid(), child.pid, *found)
child.kill()
"""


def test_ids_are_those_of_the_recorders_pid_namespace() -> None:
    """Whoever is not in it is not recorded: there is no id to record them under."""
    with napping():
        done = subprocess.run(
            ["unshare", "--pid", "--fork", "--mount-proc", sys.executable, "-c", IN_NAMESPACE],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
    for line, others in zip(done.stdout.splitlines(), (set(), {1}), strict=True):
        own, child, *found = map(int, line.split())
        assert own == 1 and child < 10
        assert child in found and set(found) <= {child} | others


def test_this_pid_namespace_is_the_first() -> None:
    assert pid_namespace_level(explore(Btf.load()).defines) == 0
