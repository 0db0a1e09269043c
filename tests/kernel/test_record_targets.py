# SPDX-License-Identifier: Apache-2.0
"""`perf-offcpu record` with targets that are properties: users, comms, CPUs, control groups, namespaces."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from kernel.recorder import PROGRAM, event, off_cpu, run
from kernel.test_bpf_properties import NAPPING, NOBODY, hierarchies, napping

from perf_offcpu.decode.load import load_recording
from perf_offcpu.model.recording import Recording

pytestmark = pytest.mark.beside

KTHREADD = 2
BRIEFLY = ("--duration", "0.4", "-F", "499")


def recorded(directory: Path, *options: str) -> Recording:
    run(*options, *BRIEFLY, cwd=directory)
    return load_recording(directory / "perf.data")


def waiting(recording: Recording) -> set[int]:
    return {int(pid) for pid in recording.samples.pid[off_cpu(recording)]}


def test_user_by_name(tmp_path: Path) -> None:
    with napping(user=NOBODY) as one, napping() as other:
        recording = recorded(tmp_path, "-u", "nobody")
    assert one in waiting(recording) and other not in waiting(recording)


def test_comm_within_a_command(tmp_path: Path) -> None:
    script = """
import threading, time
def nap(name):
    open(f"/proc/self/task/{threading.get_native_id()}/comm", "w").write(name)
    for _ in range(5): time.sleep(0.01)
for name in ("chosen one", "other one"): threading.Thread(target=nap, args=(name,)).start()
"""
    run("--comm", "chosen one", "--", sys.executable, "-c", script, cwd=tmp_path)
    recording = load_recording(tmp_path / "perf.data")
    long = off_cpu(recording) & (recording.samples.period > 9_000_000)
    assert long.sum() == 5
    assert {recording.strings[row] for row in recording.samples.comm[off_cpu(recording)]} == {"chosen one"}


def test_cpus_hold_for_waits_and_for_samples(tmp_path: Path) -> None:
    with napping(cpu=0) as one, napping(cpu=1) as other:
        recording = recorded(tmp_path, "-C", "1", "-e", "cpu-clock,cs")
    assert other in waiting(recording) and one not in waiting(recording)
    for name in ("cpu-clock", "cs"):
        assert set(recording.samples.cpu[event(recording, name)]) <= {1}


def test_control_group_by_path_and_by_name(tmp_path: Path) -> None:
    for _, mount in hierarchies():
        group = mount / f"perf-offcpu-record-{os.getpid()}"
        group.mkdir()
        try:
            with napping() as one, napping() as other:
                (group / "cgroup.procs").write_text(str(one))
                for name in (str(group), group.name):
                    recording = recorded(tmp_path, "-a", "-e", "none", "--call-graph", "fp", "-G", name)
                    assert waiting(recording) == {one} != {other}
        finally:
            group.rmdir()


def test_processes_and_threads_together(tmp_path: Path) -> None:
    with napping() as one, napping() as two, napping() as other:
        recording = recorded(tmp_path, "-p", str(one), "-t", f"{two},{KTHREADD}")
        unmatched = run("-p", str(one), "--comm", "someone else", *BRIEFLY, cwd=tmp_path)
    assert waiting(recording) == {one, two} != {other}
    assert KTHREADD in recording.samples.pid, "it waited all the time"
    assert f"no wait of -p {one} --comm someone else was seen: none ended, none " in unmatched.stderr


def test_inside_a_pid_namespace_ids_are_the_users(tmp_path: Path) -> None:
    """They are those that the user in a container sees and perf's own records have: names and maps match."""
    napper = f"{sys.executable} -c '{NAPPING}' & nap=$!"
    record = f"{' '.join(PROGRAM)} -p $nap --duration 0.4"
    script = f"{napper}; {record}; kill $nap; echo $nap"
    done = subprocess.run(
        ["unshare", "--pid", "--fork", "--mount-proc", "sh", "-c", script],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    pid = int(done.stdout)
    recording = load_recording(tmp_path / "perf.data")
    assert pid < 10 and waiting(recording) == {pid}
    python = os.fsencode(Path(sys.executable).resolve()).decode()
    assert any(recording.strings[path] == python for path in recording.dsos.path)
    comms = {recording.strings[row] for row in recording.samples.comm[off_cpu(recording)]}
    assert comms == {Path(sys.executable).name}
