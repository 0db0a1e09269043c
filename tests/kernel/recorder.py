# SPDX-License-Identifier: Apache-2.0
"""Run `perf-offcpu record` for tests, and look up what they need of a recording."""

import json
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from builders import program
from builders.program import PATIENCE

from perf_offcpu import losses
from perf_offcpu.decode.load import load_recording
from perf_offcpu.losses import LossCause
from perf_offcpu.model.profile import Profile
from perf_offcpu.model.recording import Budget, Recording, SampleFlag
from perf_offcpu.symbolize.load import load_profile
from perf_offcpu.symbolize.options import SymbolizeOptions

PROGRAM = [*program.PROGRAM, "record"]
INTERRUPTIBLE = ["env", "--default-signal=INT"]
"""Commands that a shell runs in the background ignore SIGINT, and so do their children: these tests, too."""
MS = 1_000_000
TWO_SLEEPS = "import time; time.sleep(0.05); time.sleep(0.03)"
CHILDREN = f"""
import subprocess, sys
for _ in range(3):
    subprocess.run([sys.executable, "-c", {TWO_SLEEPS!r}])
"""


@dataclass(frozen=True)
class Run:
    """A run of `record` that has ended: its outputs, and what is in `perf.data` of its directory."""

    directory: Path
    returncode: int
    stdout: str
    stderr: str

    @property
    def recording(self) -> Recording:
        return load_recording(self.directory / "perf.data")

    @property
    def profile(self) -> Profile:
        """Load the file with unwound stacks and names, without inlined functions."""
        return load_profile([str(self.directory / "perf.data")], SymbolizeOptions(inline=False))


def run(*arguments: str | Path, cwd: Path, **options: Any) -> Run:
    """Run `record` in a directory to its end; options are those of `builders.program.run`."""
    done = program.run("record", *arguments, cwd=cwd, **options)
    return Run(cwd, done.returncode, done.stdout, done.stderr)


def report(*arguments: str | Path, cwd: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(program.run("report", "--json", *arguments, cwd=cwd).stdout)
    return found


@contextmanager
def recorder(*arguments: str | Path, cwd: Path) -> Iterator[subprocess.Popen[str]]:
    """Start a recorder; it records by now, as its file has its name."""
    process = subprocess.Popen(
        [*PROGRAM, *arguments], cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        until(lambda: (cwd / "perf.data").exists() or process.poll() is not None)
        assert process.poll() is None, process.communicate()
        yield process
    finally:
        process.kill()
        process.communicate()


@contextmanager
def hanging(*command: str | Path, threads: int = 1) -> Iterator[int]:
    """Yield the pid of a program that waits by now, with so many threads or more."""
    with subprocess.Popen(command, stdin=subprocess.PIPE) as process:
        try:
            until(lambda: len(list(Path(f"/proc/{process.pid}/task").iterdir())) >= threads)
            time.sleep(0.5)
            yield process.pid
        finally:
            process.kill()


def until(condition: Callable[[], object], seconds: float = 60) -> None:
    end = time.monotonic() + seconds * PATIENCE
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def perf(*arguments: str | Path, allow: str = "") -> str:
    """Return the output of stock perf; a word on stderr is a failure, but for lines that contain `allow`."""
    done = subprocess.run(["perf", *arguments], capture_output=True, timeout=60, check=True)
    said = done.stderr.decode(errors="replace").splitlines()
    assert [line for line in said if not allow or allow not in line] == []
    return done.stdout.decode(errors="replace")


def waits(recording: Recording, tid: int) -> tuple[int, int]:
    samples = recording.samples
    mine = (samples.tid == tid) & (samples.flags & SampleFlag.OFFCPU > 0)
    return int(samples.count[mine].sum()), int(samples.period[mine].sum())


def lost(recording: Recording, *, of_others: bool = False) -> set[LossCause]:
    """Return the losses of a recording, apart from garbage words at the end of walks by frame pointer.

    Left out, too, are events that the kernel does not report: some kernels trace nothing while certain tasks
    run, so that wake-ups from interrupts are not seen then, by perf's own sched:sched_waking neither.

    Args:
        of_others: it has programs of tests that run at the same time; these close descriptors, unmap memory
            and take events for which they wait. With all of them, not every file is named and not every waiter's
            memory read in time, and some are named as an old Python.
    """
    left_out = {losses.WRONG_CALLERS, losses.ENDS_MISSED, losses.BEGINS_MISSED, losses.WAKEUPS_MISSED}
    left_out.add(losses.PROCESSES_DENIED)  # some machines do not even let root read their first process
    if of_others:
        left_out |= {losses.OBJECTS_CLOSED, losses.OBJECTS_UNREADABLE, losses.OBJECTS_COMPAT}
        left_out |= {losses.EVENTS_TAKEN, losses.OBJECTS_UNNAMED, losses.WAITERS_UNREAD}
        left_out |= {losses.PYTHON_UNKNOWN, losses.PYTHON_UNREADABLE, losses.JVM_UNASKED}
        left_out |= {losses.EVENT_LOOP_UNREAD, losses.GO_UNKNOWN}
    return set(recording.losses) - left_out


def off_cpu(recording: Recording) -> np.ndarray:
    """Return a mask of the waits that began in the recording."""
    return recording.samples.flags & (SampleFlag.OFFCPU | SampleFlag.BEGAN_BEFORE) == SampleFlag.OFFCPU


def event(recording: Recording, name: str) -> np.ndarray:
    rows = [row for row, evsel in enumerate(recording.evsels) if evsel.name == name]
    return np.isin(recording.samples.evsel, rows)


def budget_of(recording: Recording, tid: int) -> Budget:
    return recording.budget.take(np.flatnonzero(recording.budget.tid == tid))


def bpf_programs_of(pid: int) -> set[int]:
    texts = []
    for path in Path(f"/proc/{pid}/fdinfo").iterdir():
        with suppress(FileNotFoundError):  # closed since
            texts.append(path.read_text())
    return {int(found[1]) for text in texts if (found := re.search(r"^prog_id:\s*(\d+)$", text, re.MULTILINE))}


@contextmanager
def two_threads() -> Iterator[tuple[int, list[int]]]:
    """Start a process whose two threads sleep 20 ms at a time: (pid, tids)."""
    script = """
import os, threading, time
def work():
    os.write(1, b"%d\\n" % threading.get_native_id())
    while True:
        time.sleep(0.02)
threading.Thread(target=work, daemon=True).start()
threading.Thread(target=work, daemon=True).start()
time.sleep(100)
"""
    with program.started(sys.executable, "-c", script) as (process, line):
        assert process.stdout is not None
        yield process.pid, [int(line), int(process.stdout.readline())]
