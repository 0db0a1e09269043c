# SPDX-License-Identifier: Apache-2.0
"""Does a recording go on, whatever other processes do (`hostile_processes.py`)? Each of them is described as far as
possible, and counted; a process that sleeps beside them is recorded as if it were alone."""

import json
import os
import shlex
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from builders import program

from perf_offcpu import losses
from perf_offcpu.decode.load import load_recording
from perf_offcpu.model.columns import distinct
from perf_offcpu.model.recording import Recording

HERE = Path(__file__).parent
RECORDINGS = {
    "all": "-a --duration 0.6",
    "targets": "-p {pids} --duration 0.6",
    "agent": "-a --off-cpu-period 5 --max-rate 1000 --switch-output=1s --duration 2",
}
"""Of everybody, of these processes alone, and as the agent records."""
COUNTED = {
    *(losses.LONG_NAMES, losses.MAPS_LEFT_OUT, losses.FILES_UNREAD, losses.GROUPS_LEFT_OUT),
    *(losses.OBJECTS_UNNAMED, losses.WAITERS_UNREAD),
}
DESCRIBED = (
    *("path_of_4_kb", "path_of_70_kb", "maps_with_long_paths", "very_many_maps", "very_many_threads"),
    *("first_thread_has_ended", "in_frozen_group", "in_other_namespaces", "file_that_hangs_is_mapped"),
)
"""Processes of which the recording has mappings."""
MOST_KB = 200 << 10
"""Memory of the recorder, or of one of its helpers."""
KB_OF_THREAD = 12
"""Further memory, and size of the file, for each thread that waits."""
LONGEST_S = {1: 250, 2: 1500}
"""Time of a test by its scale; some 10 s, and some 300 s on an idle machine."""
THREADS = 100_000
"""Number of threads of a process in hostile_processes.py, at scale 2."""


class Made(NamedTuple):
    """The account of hostile_processes.py, and the recordings."""

    directory: Path
    account: dict[str, Any]

    def paths(self, name: str) -> list[Path]:
        return sorted(self.directory.glob(f"{name}.data*"))


def made_beside(directory: Path, scale: int, *names: str, kinds: str = "all", most_kb: int = MOST_KB) -> Made:
    """Make recordings beside hostile processes; each once before, because compiling takes memory."""

    def compile_for(name: str) -> None:
        words = [*RECORDINGS[name].replace("{pids}", str(os.getpid())).split(), "--duration", "0.1"]
        program.run("record", *words, "-o", directory / f"before.{name}")

    with ThreadPoolExecutor() as pool:
        list(pool.map(compile_for, names))
    commands: list[str | Path] = []
    for name in names:
        output = directory / f"{name}.data"
        commands += ["--", *program.PROGRAM, "record", *RECORDINGS[name].split(), "-o", str(output)]
    words = [sys.executable, str(HERE / "hostile_processes.py"), str(scale), *kinds.split(), *map(str, commands)]
    done = subprocess.run(
        ["unshare", "-m", *words], capture_output=True, timeout=LONGEST_S[scale] * program.PATIENCE, check=False
    )
    assert done.returncode == 0, done.stderr.decode(errors="replace")
    account = json.loads(done.stdout)
    for run in account["runs"]:
        print(run["said"], run["kb"], "kB")
        assert run["status"] == 0 and "Traceback" not in run["said"], run["said"]
        assert run["kb"] < most_kb
    return Made(directory, account)


def check(made: Made, threads: int = 0) -> None:
    """Check what holds however many threads and mappings there are."""
    for path in (*made.paths("agent"), *made.paths("all")):
        recording = load_recording(path)
        recording.check()
        assert path.stat().st_size < (40 << 20) + threads * (KB_OF_THREAD << 10)
        assert_innocent(recording, made.account)
    assert recording.losses.keys() >= COUNTED
    described = set(recording.spaces.pid[distinct(recording.maps.space)].tolist())
    assert described >= {made.account["pids"][kind] for kind in DESCRIBED}
    assert COUNTED - {losses.GROUPS_LEFT_OUT} <= load_recording(made.paths("targets")[0]).losses.keys()


def assert_innocent(recording: Recording, account: dict[str, Any]) -> None:
    """Check that each sleep of the ordinary process in the recording is a sample, under its name and map."""
    samples, strings = recording.samples, recording.strings
    own = samples.tid == account["innocent"]
    ends = samples.time_ns[own]
    inside = [(begin, end) for begin, end in account["naps"] if ends.min() < begin and end < ends.max()]
    missing = [nap for nap in inside if np.searchsorted(ends, nap[1]) == np.searchsorted(ends, nap[0])]
    assert len(inside) > 10 and missing == []
    assert {strings[row] for row in np.unique(samples.comm[own])} == {"innocent"}
    spaces = np.flatnonzero(recording.spaces.pid == account["innocent"])
    dsos = recording.maps.dso[np.isin(recording.maps.space, spaces)]
    assert any("libc" in strings[int(recording.dsos.path[dso])] for dso in dsos)


@pytest.mark.long
def test_recordings_go_on_and_count_what_is_missing(tmp_path: Path) -> None:
    check(made_beside(tmp_path, 1, "all", "targets"))


@pytest.mark.long
@pytest.mark.timeout(LONGEST_S[2])
def test_mappings_of_hundreds_of_megabytes_are_cut(tmp_path: Path) -> None:
    names, kinds = ("all", "targets"), ("maps_with_long_paths", "maps_over_256_mb")
    made = made_beside(tmp_path, 2, *names, kinds=" ".join(kinds))
    for name in names:
        (path,) = made.paths(name)
        recording = load_recording(path)
        assert path.stat().st_size < 40 << 20
        assert recording.losses[losses.MAPS_LEFT_OUT] > 5000
        assert not recording.losses.keys() & {losses.LOST_RECORDS, losses.RING_FULL}
        spaces = np.isin(recording.spaces.pid, [made.account["pids"][kind] for kind in kinds])
        of_processes = recording.maps.space[recording.maps.space >= 0]
        numbers = np.bincount(of_processes, minlength=len(spaces))[spaces]
        assert np.all((numbers > 100) & (numbers < 10_000))
    assert_innocent(load_recording(made.paths("all")[0]), made.account)


@pytest.mark.longest
@pytest.mark.timeout(LONGEST_S[2])
def test_they_go_on_beside_the_greatest_numbers_that_the_kernel_allows(tmp_path: Path) -> None:
    limits = {"vm.max_map_count": 1_100_000, "kernel.pid_max": 300_000}
    before = {name: subprocess.check_output(["sysctl", "-n", name], text=True).strip() for name in limits}
    try:
        for name, number in limits.items():
            subprocess.run(["sysctl", "-q", f"{name}={number}"], check=True)
        check(made_beside(tmp_path, 2, *RECORDINGS, most_kb=MOST_KB + THREADS * KB_OF_THREAD), THREADS)
    finally:
        for name, text in before.items():
            subprocess.run(["sysctl", "-q", f"{name}={text}"], check=True)


@pytest.mark.beside
@pytest.mark.parametrize("hidepid", ["invisible", pytest.param("noaccess", marks=pytest.mark.long)])
def test_processes_that_proc_hides_are_counted(hidepid: str, tmp_path: Path) -> None:
    record = shlex.join([*program.PROGRAM, "record", "-a", "--duration", "0.2", "-o", f"{tmp_path}/x.data"])
    words = (
        f"mount -t proc -o hidepid={hidepid} proc /proc && "
        f"exec setpriv --bounding-set=-sys_ptrace --regid=65534 --clear-groups {record}"
    )
    done = subprocess.run(["unshare", "-m", "sh", "-c", words], capture_output=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    cause = losses.THREADS_HIDDEN if hidepid == "invisible" else losses.PROCESSES_DENIED
    recording = load_recording(tmp_path / "x.data")
    assert recording.losses[cause] > 2 and len(recording.samples)
