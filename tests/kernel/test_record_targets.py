# SPDX-License-Identifier: Apache-2.0
"""`perf-offcpu record` with targets that are properties: users, comms, CPUs, control groups, namespaces."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import pytest
from builders.program import started
from kernel.recorder import MS, PROGRAM, event, off_cpu, run, until

from perf_offcpu.collect.bpf.kernel.facts import explore, pid_namespace_level
from perf_offcpu.collect.system.btf import Btf
from perf_offcpu.decode.load import load_recording
from perf_offcpu.model.recording import Recording

pytestmark = pytest.mark.beside

NAPPING = "import time\nwhile True: time.sleep(0.005)"
KTHREADD = 2
NOBODY = 65534
BRIEFLY = ("--duration", "0.4", "-F", "499")


@contextmanager
def napping(user: int = 0, cpu: int | None = None, comm: str = "python3") -> Iterator[int]:
    """Start a process that naps, 5 ms at a time, as this user, on this CPU, under this name; yield its pid."""
    script = f"""
import os
open("/proc/self/comm", "w").write({comm!r})
if {cpu!r} is not None: os.sched_setaffinity(0, [{cpu!r}])
os.setresuid({user}, {user}, {user})
print(flush=True)
{NAPPING}
"""
    with started(sys.executable, "-c", script) as (process, _):
        yield process.pid


def recorded(directory: Path, *options: str) -> Recording:
    return run(*options, *BRIEFLY, cwd=directory).recording


def waiting(recording: Recording) -> set[int]:
    return {int(pid) for pid in recording.samples.pid[off_cpu(recording)]}


def test_user_by_name(tmp_path: Path) -> None:
    with napping(NOBODY) as one, napping() as other:
        recording = recorded(tmp_path, "-u", "nobody")
    assert one in waiting(recording) and not {other, os.getpid()} & waiting(recording)


def test_comms_are_compared_to_their_end(tmp_path: Path) -> None:
    with napping(comm="fifteen letters") as one, napping(comm="fifteen letter"):
        recording = recorded(tmp_path, "--comm", "fifteen letters")
    assert waiting(recording) == {one}


def test_comm_within_a_command(tmp_path: Path) -> None:
    script = """
import threading, time
def nap(name):
    open(f"/proc/self/task/{threading.get_native_id()}/comm", "w").write(name)
    for _ in range(5): time.sleep(0.01)
for name in ("chosen one", "other one"): threading.Thread(target=nap, args=(name,)).start()
"""
    recording = run("--comm", "chosen one", "--", sys.executable, "-c", script, cwd=tmp_path).recording
    long = off_cpu(recording) & (recording.samples.period > 9_000_000)
    assert long.sum() == 5
    assert {recording.strings[row] for row in recording.samples.comm[off_cpu(recording)]} == {"chosen one"}


def test_cpus_hold_for_waits_and_for_samples(tmp_path: Path) -> None:
    with napping(cpu=0) as one, napping(cpu=1) as other:
        recording = recorded(tmp_path, "-C", "1", "-e", "cpu-clock,cs")
    assert other in waiting(recording) and one not in waiting(recording)
    for name in ("cpu-clock", "cs"):
        assert set(recording.samples.cpu[event(recording, name)]) <= {1}


def test_properties_restrict_each_other_and_targets(tmp_path: Path) -> None:
    """Three of the four are targets, and each of the other two lacks one property."""
    forms = ((NOBODY, 0), (NOBODY, 1), (0, 0), (NOBODY, 0))
    with ExitStack() as running:
        pids = [running.enter_context(napping(*form)) for form in forms]
        recording = recorded(tmp_path, "-p", ",".join(map(str, pids[:3])), "-u", "nobody", "-C", "0")
    assert waiting(recording) == {pids[0]}


def hierarchies() -> list[Path]:
    """Return the mounts of cgroup v2 and of one v1 hierarchy, where there is one."""
    mounts = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
    unified = [Path(mount[1]) for mount in mounts if mount[2] == "cgroup2"][:1]
    return unified + [Path(mount[1]) for mount in mounts if mount[2] == "cgroup" and "freezer" in mount[3]][:1]


@pytest.mark.parametrize("mount", hierarchies())
def test_control_group_by_path_and_by_name_and_those_below(mount: Path, tmp_path: Path) -> None:
    group = mount / f"perf-offcpu-record-{os.getpid()}"
    below = group / "below" / "further"
    below.mkdir(parents=True)
    try:
        with napping() as one, napping(), napping() as deep:
            (group / "cgroup.procs").write_text(str(one))
            (below / "cgroup.procs").write_text(str(deep))
            for name in (group.name, str(group)) if mount == hierarchies()[0] else (group.name,):
                recording = recorded(tmp_path, "-a", "-e", "none", "--call-graph", "fp", "-G", name)
                assert waiting(recording) == {one, deep}
    finally:
        for directory in (below, below.parent, group):
            until(lambda of=directory: not (of / "cgroup.procs").read_text())  # type: ignore[misc]
            directory.rmdir()


def test_processes_and_threads_together(tmp_path: Path) -> None:
    with napping() as one, napping() as two, napping() as other:
        recording = recorded(tmp_path, "-p", str(one), "-t", f"{two},{KTHREADD}")
        unmatched = run("-p", str(one), "--comm", "someone else", *BRIEFLY, cwd=tmp_path)
    assert waiting(recording) == {one, two} != {other}
    assert KTHREADD in recording.samples.pid, "it waited all the time"
    assert f"no wait of -p {one} --comm someone else was seen: none ended, none " in unmatched.stderr


@pytest.mark.parametrize("targets", ["-p $nap", "-a"])
def test_inside_a_pid_namespace_ids_are_the_users(targets: str, tmp_path: Path) -> None:
    """They are those that the user in a container sees and perf's own records have: names and maps match. Whoever is
    not in the namespace is not recorded: there is no id to record them under."""
    record = f"{' '.join(PROGRAM)} {targets} --duration 0.4"
    script = f"{sys.executable} -c '{NAPPING}' & nap=$!; {record}; kill $nap; echo $nap"
    command = ["unshare", "--pid", "--fork", "--mount-proc", "sh", "-c", script]
    with napping():
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    pid = int(done.stdout)
    recording = load_recording(tmp_path / "perf.data")
    found = waiting(recording)
    assert pid in found and max(found) < 200, found
    assert pid < 10 and (targets == "-a" or found == {pid})
    python = os.fsencode(Path(sys.executable).resolve()).decode()
    assert any(recording.strings[path] == python for path in recording.dsos.path)
    of_target = off_cpu(recording) & (recording.samples.pid == pid)
    assert {recording.strings[row] for row in recording.samples.comm[of_target]} == {Path(sys.executable).name}


def test_threads_that_end_inside_a_pid_namespace_have_budgets(tmp_path: Path) -> None:
    """When they leave their CPU for the last time they may have no id any more."""
    program = tmp_path / "threads.py"
    program.write_text(
        "import threading, time\n"
        "for _ in range(9):\n"
        "    thread = threading.Thread(target=time.sleep, args=[0.03])\n"
        "    thread.start()\n"
        "    thread.join()\n"
    )
    record = [*PROGRAM, "--", sys.executable, str(program)]
    subprocess.run(["unshare", "--pid", "--fork", "--mount-proc", *record], cwd=tmp_path, check=True, timeout=60)
    recording = load_recording(tmp_path / "perf.data")
    budget = recording.budget.take(np.flatnonzero(recording.budget.interruptible_ns > 4 * MS))
    threads = budget.take(np.flatnonzero(budget.tid != budget.pid))
    assert len(threads) == 9 and set(threads.pid.tolist()) < set(budget.tid.tolist())
    assert (threads.own_tid == threads.tid).all() and (threads.own_pid == threads.pid).all()


def test_this_pid_namespace_is_the_first() -> None:
    assert pid_namespace_level(explore(Btf.load()).defines) == 0
