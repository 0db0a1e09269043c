# SPDX-License-Identifier: Apache-2.0
"""`perf-offcpu record`: pipes, compression, several files in turn, and the line on the terminal."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from builders.program import PATIENCE
from builders.stock_perf import REPORT
from builders.terminal import on_terminal
from kernel.recorder import INTERRUPTIBLE, MS, PROGRAM, budget_of, event, lost, off_cpu, perf, run, until

from perf_offcpu import losses
from perf_offcpu.abi.features import Feature
from perf_offcpu.decode.join import join_by_host
from perf_offcpu.decode.load import load_recording
from perf_offcpu.model.recording import Recording, SampleFlag, Samples
from perf_offcpu.perfdata.reader import PerfDataReader

pytestmark = pytest.mark.beside

NAPS = "import time\nfor _ in range({}): time.sleep(0.004)"


def napping(naps: int) -> list[str]:
    return [sys.executable, "-c", NAPS.format(naps)]


def test_pipe_goes_straight_into_perf_and_the_commands_output_beside_it(tmp_path: Path) -> None:
    command = ["sh", "-c", f"echo said; {sys.executable} -c 'sum(range(10**7))'"]
    recorder = subprocess.Popen(
        [*PROGRAM, "-o", "-", "-F", "999", "--", *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=tmp_path
    )
    report = subprocess.run(
        ["perf", "report", "-i", "-", "--stdio"], stdin=recorder.stdout, capture_output=True, text=True, check=True
    )
    assert recorder.stdout is not None and recorder.stderr is not None
    recorder.stdout.close()
    said = recorder.stderr.read().decode()
    recorder.stderr.close()
    assert recorder.wait() == 0
    assert report.stderr == ""
    for name in ("cpu-clock", "offcpu-time"):
        assert f"of event '{name}'" in report.stdout
    assert "libpython" in report.stdout or "python" in report.stdout
    assert said.startswith("said\n") and "MB standard output (" in said
    assert list(tmp_path.iterdir()) == []


def test_pipe_holds_what_a_file_holds(tmp_path: Path) -> None:
    with (tmp_path / "pipe").open("wb") as out:
        subprocess.run([*PROGRAM, "-o", "-", "--off-cpu-thresh", "0", "--", *napping(50)], stdout=out, check=True)
    recording = load_recording(tmp_path / "pipe")
    assert lost(recording) == set()
    naps = off_cpu(recording) & (recording.samples.period >= 3_500_000)
    assert naps.sum() >= 48  # one that is preempted on its way to sleep is two waits, the second of them shorter
    assert recording.meta.hostname == os.uname().nodename
    python = os.fsencode(Path(sys.executable).resolve()).decode()
    assert any(recording.strings[path] == python for path in recording.dsos.path)


def test_reader_of_the_pipe_that_goes_away_ends_the_recording(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [*PROGRAM, "-o", "-", "-a", "-F", "999"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=tmp_path
    )
    assert process.stdout is not None and process.stderr is not None
    process.stdout.read(1)
    process.stdout.close()
    assert process.wait(20) == 128 + signal.SIGPIPE
    assert process.stderr.read() == b""
    process.stderr.close()


RATE = str(int(1999 / PATIENCE))  # samples a second; an emulated machine does not compress as fast as that


@pytest.mark.parametrize("level, load", [
    pytest.param("-z", ["-a", "-F", RATE], id="quick", marks=pytest.mark.alone),
    pytest.param("-z19", ["-F", RATE], id="best", marks=pytest.mark.long),  # too slow for all of a busy machine
])  # fmt: skip
def test_compressed_file_opens_in_perf(tmp_path: Path, level: str, load: list[str]) -> None:
    busy = [*napping(100)[:-1], f"{NAPS.format(100)}\nsum(range(10**7))"]
    run(level, *load, "--", *busy, cwd=tmp_path)
    path = tmp_path / "perf.data"
    recording = load_recording(path)
    assert lost(recording, of_others=True) == set() and off_cpu(recording).sum() >= 100
    shown = perf("script", "-F", "event", "-i", path).split()
    assert shown.count("offcpu-time:") == int(event(recording, "offcpu-time").sum())
    assert shown.count("cpu-clock:") == int(event(recording, "cpu-clock").sum()) > 100
    assert "of event 'offcpu-time'" in perf(*REPORT, "-i", path)
    with PerfDataReader.open(path) as reader:
        found = reader.features.values(Feature.COMPRESSED)
    assert found is not None and found["level"] == int(level[2:] or 1)


def parts(directory: Path) -> list[Path]:
    return sorted(directory.glob("perf.data.*"))


def more_parts(directory: Path) -> Callable[[], set[Path]]:
    """Return a function that returns the parts that come after this call."""
    before = set(parts(directory))
    return lambda: set(parts(directory)) - before


@pytest.mark.alone
@pytest.mark.parametrize("switch", [pytest.param("1s", marks=pytest.mark.long), "64K"])
def test_files_in_turn_are_each_complete_and_together_hold_everything(tmp_path: Path, switch: str) -> None:
    done = run(f"--switch-output={switch}", "-z0", "--off-cpu-thresh", "0", "--", *napping(300), cwd=tmp_path)
    files = parts(tmp_path)
    assert len(files) >= 2 and not (tmp_path / "perf.data").exists()
    assert [f"dump {path.name} ]" in done.stderr for path in files] == [True] * (len(files) - 1) + [False]
    python = os.fsencode(Path(sys.executable).resolve()).decode()
    naps = 0
    spans, lives = [], list[tuple[int, int, int]]()
    pids: set[int] = set()
    for path in files:
        recording = load_recording(path)
        assert lost(recording) == set()
        naps += int((off_cpu(recording) & (recording.samples.period >= 3_500_000)).sum())
        pids |= (found := set(recording.samples.pid[off_cpu(recording)].tolist()))
        assert found <= set(recording.tasks.tid.tolist())
        assert any(recording.strings[row] == python for row in recording.dsos.path), "frames have names"
        assert perf("report", "--header-only", "-i", path)
        budget = recording.budget
        lives += zip(budget.tid.tolist(), budget.begin_ns.tolist(), budget.end_ns.tolist(), strict=True)
        with PerfDataReader.open(path) as reader:
            spans.append(reader.features.values(Feature.SAMPLE_TIME))
    # No moment of a thread is told twice, none of the command is missing.
    assert all(before[2] <= after[1] for before, after in pairwise(sorted(lives)) if before[0] == after[0])
    (pid,) = pids
    told = [(begin, end) for tid, begin, end in lives if tid == pid]
    assert all(before[1] == after[0] for before, after in pairwise(told))
    # The last file may have been begun when the command had ended, or was just ending.
    assert len(files) - 1 <= len(told) <= len(files), told
    # A nap that is preempted on its way to sleep is two waits, the second of them shorter.
    assert 290 <= naps <= 310
    assert all(one["last"] <= two["first"] for one, two in pairwise(spans))  # type: ignore[index]


STUCK = """
import os, threading, time
end, _ = os.pipe()
stuck = threading.Thread(target=os.read, args=(end, 1), daemon=True)
stuck.start()
print(os.getpid(), stuck.native_id, flush=True)
for _ in range(500):
    time.sleep(0.004)
os._exit(0)
"""


def still_blocked(recording: Recording, tid: int) -> Samples:
    flags = recording.samples.flags & np.uint32(SampleFlag.STILL_BLOCKED)
    return recording.samples.take(np.flatnonzero((recording.samples.tid == tid) & (flags != 0)))


@pytest.mark.alone
def test_each_file_tells_who_is_stuck_and_where_time_went(tmp_path: Path) -> None:
    """Joined they are one recording again, in which each wait counts once."""
    done = run("--switch-output=1s", "--", sys.executable, "-c", STUCK, cwd=tmp_path)
    pid, tid = map(int, done.stdout.split())
    files = parts(tmp_path)
    assert len(files) >= 2
    blocked_ns, command_ns, ended_in = 0, 0, files[-1]
    for path in files[:-1]:
        recording = load_recording(path)
        of_command = budget_of(recording, pid)
        command_ns += int((of_command.end_ns - of_command.begin_ns).sum())
        if not (of_command.end_ns >= recording.meta.end_ns).any():
            ended_in = min(ended_in, path)  # and the recorder was slow to see it
            continue
        waits, budget = still_blocked(recording, tid), budget_of(recording, tid)
        if not len(waits) and not blocked_ns:
            continue  # on a slow machine it may not be born yet, or not wait for good yet
        blocked_ns += int(budget.interruptible_ns.sum())
        # So far: what this file and those before it tell of the wait, but for the start of the thread.
        assert len(waits) == 1 and abs(int(waits.period[0]) - blocked_ns) < 20 * MS * PATIENCE
        assert len(recording.callchains.row(int(waits.callchain[0]))) > 3
        assert recording.meta.end_ns == int(waits.time_ns[0])
        # A thread that goes on is looked at a moment later.
        assert 0 <= int(of_command.end_ns[0]) - recording.meta.end_ns < 500 * MS * PATIENCE
    assert blocked_ns > 0
    (host,) = join_by_host([load_recording(path) for path in files])
    joined, last = host.recording, budget_of(load_recording(files[-1]), pid)
    joined.check()
    assert len(still_blocked(joined, tid)) == 0  # the command has ended, and so has its wait
    assert len(budget_of(load_recording(ended_in), tid)) == 1  # its last moments are told, too
    budget = budget_of(joined, pid)
    assert len(budget) == 1
    assert int(budget.end_ns[0] - budget.begin_ns[0]) == command_ns + int((last.end_ns - last.begin_ns).sum())


@pytest.mark.long
def test_signal_switches_and_only_the_last_files_are_kept(tmp_path: Path) -> None:
    """Meanwhile processes come and go: each file names the threads of its waits."""
    born = subprocess.Popen(["sh", "-c", "while sleep 0.002 | cat; do :; done"], start_new_session=True)
    process = subprocess.Popen(
        [*PROGRAM, "--switch-output", "--switch-max-files", "2", "-a", "-m", "16M"],
        cwd=tmp_path, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    until(lambda: parts(tmp_path))
    first = parts(tmp_path)[0]
    for _ in range(2):
        is_switched = more_parts(tmp_path)
        time.sleep(0.2)
        process.send_signal(signal.SIGUSR2)
        until(is_switched)
    until(lambda: not first.exists())
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=20)
    os.killpg(born.pid, signal.SIGKILL)
    born.wait()
    assert process.returncode == 128 + signal.SIGINT
    assert said.count("dump ") == 2 and "and 2 before it" in said
    assert len(parts(tmp_path)) == 2
    for path in parts(tmp_path):
        assert lost(load_recording(path), of_others=True) == set()


def test_terminal_is_told_how_it_goes_on_and_the_line_is_taken_back(tmp_path: Path) -> None:
    shown = on_terminal(
        [*INTERRUPTIBLE, *PROGRAM, "-a"], "stderr", cwd=tmp_path, status=128 + signal.SIGINT,
        is_enough=lambda shown: shown.count(b" MB") >= 2,
    )  # fmt: skip
    *live, last = shown.split("\r\x1b[K")
    assert len(live) >= 3
    assert all("samples" in line and "rings" in line and "from 1 ms" in line for line in live[1:])
    assert last.startswith("[ perf-offcpu record: Captured and wrote ")
    assert "\x1b" not in on_terminal([*PROGRAM, "-a", "-q", "--duration", "0.7"], "stderr", cwd=tmp_path)
    assert "\x1b" not in run("-a", "--duration", "0.7", cwd=tmp_path).stderr


CROWD = """
import threading, time
text = "def f{0}(): time.sleep(0.0015)\\n"
def work():
    names = {"time": time}
    exec(compile("".join(text.format(i) for i in range(300)), "crowd", "exec"), names)
    until = time.monotonic() + 1.5
    while time.monotonic() < until:
        for i in range(300):
            names[f"f{i}"]()
threads = [threading.Thread(target=work) for _ in range(6)]
for thread in threads: thread.start()
"""
"""Runs 1800 functions in turn, each for one wait: all are new to each file."""


@pytest.mark.long
def test_each_file_describes_all_functions_of_python_that_its_waits_name(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [*PROGRAM, "--switch-output", "-m", "4M", "--", "/usr/bin/python3", "-c", CROWD],
        cwd=tmp_path, stderr=subprocess.PIPE,
    )  # fmt: skip
    until(lambda: parts(tmp_path))
    for _ in range(2):
        is_switched = more_parts(tmp_path)
        time.sleep(0.3)
        process.send_signal(signal.SIGUSR2)
        until(is_switched)
    process.communicate(timeout=60)
    functions = []
    for path in parts(tmp_path):
        recording = load_recording(path)
        assert losses.PYTHON_UNDESCRIBED not in recording.losses
        functions.append(len(np.unique(recording.places.name)))
    assert len(functions) == 3 and max(functions) > 200
