# SPDX-License-Identifier: Apache-2.0
"""`record --control`: pauses, and another period, while the programs stay loaded."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from conftest import PATIENCE
from kernel.recorder import MS, PROGRAM, bpf_programs_of, lost, run

from perf_offcpu import losses
from perf_offcpu.decode.load import load_recording
from perf_offcpu.model.recording import Budget, Recording, SampleFlag

pytestmark = pytest.mark.beside

THREADS = """
import os, threading, time
end, _ = os.pipe()
def sleep():
    while True:
        time.sleep(0.004)
def spin():
    while True:
        sum(range(10000))
        time.sleep(0)
threads = [threading.Thread(target=os.read, args=(end, 1)), threading.Thread(target=sleep)]
for one in threads:
    one.start()
print(*(one.native_id for one in threads), flush=True)
spin()
"""


@contextmanager
def program() -> Iterator[tuple[int, int, int]]:
    """Yield (pid and busy thread, thread that waits for ever, thread that sleeps 4 ms at a time)."""
    with subprocess.Popen([sys.executable, "-c", THREADS], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        stuck, sleeper = map(int, process.stdout.readline().split())
        try:
            yield process.pid, stuck, sleeper
        finally:
            process.kill()


@dataclass
class Controlled:
    process: subprocess.Popen[str]
    commands: int
    acks: int

    def tell(self, text: str) -> None:
        """Send a command, and wait until it was carried out."""
        os.write(self.commands, f"{text}\n".encode())
        assert os.read(self.acks, 100) == b"ack\n"

    def end(self) -> str:
        os.write(self.commands, b"stop\n")
        _, said = self.process.communicate(timeout=60 * PATIENCE)
        assert self.process.returncode == 0, said
        return said


@contextmanager
def controlled(*options: str | Path, cwd: Path) -> Iterator[Controlled]:
    (theirs, commands), (acks, answers) = os.pipe(), os.pipe()
    words = [f"--control=fd:{theirs},{answers}", "--switch-output", "-e", "none", *options]
    process = subprocess.Popen(
        [*PROGRAM, *words], cwd=cwd, stderr=subprocess.PIPE, text=True, pass_fds=(theirs, answers)
    )
    os.close(theirs)
    os.close(answers)
    try:
        assert process.stderr is not None
        assert "recording" in process.stderr.readline()
        yield Controlled(process, commands, acks)
    finally:
        process.kill()
        process.communicate()
        os.close(commands)
        os.close(acks)


def files(directory: Path) -> list[Recording]:
    found = [load_recording(path) for path in sorted(directory.glob("perf.data.*"))]
    for recording in found:
        recording.check()
        assert lost(recording) <= {losses.STORAGE_FAILED}, "of another recorder that runs beside"
    return found


def of_thread(recording: Recording, tid: int) -> Budget:
    return recording.budget.take(np.flatnonzero(recording.budget.tid == tid))


def known_ns(budget: Budget) -> int:
    names = [name for name in vars(budget) if name.endswith("_ns") and name not in ("begin_ns", "end_ns")]
    return sum(int(getattr(budget, name).sum()) for name in names)


def span(recording: Recording) -> int:
    return recording.meta.end_ns - recording.meta.begin_ns


@pytest.mark.parametrize("options", [(), ("--off-cpu-period", "20")], ids=["threshold", "sampled"])
def test_pause_is_in_no_file_and_budgets_begin_anew_after_it(
    tmp_path: Path, options: tuple[str, ...]
) -> None:
    with program() as (pid, stuck, sleeper), controlled("-p", str(pid), *options, cwd=tmp_path) as recorder:
        programs = bpf_programs_of(recorder.process.pid)
        for pause_s in (0.3, 0.6):
            time.sleep(0.4)
            recorder.tell("disable")
            time.sleep(pause_s)
            recorder.tell("enable")
        time.sleep(0.4)
        assert bpf_programs_of(recorder.process.pid) == programs
        said = recorder.end()
    assert said.count("Events disabled") == said.count("Events enabled") == said.count(" dump ") == 2
    found = files(tmp_path)
    gaps = [after.meta.begin_ns - before.meta.end_ns for before, after in pairwise(found)]
    assert len(found) == 3 and gaps[0] > 300 * MS and gaps[1] > 600 * MS
    for recording in found:
        samples, meta = recording.samples, recording.meta
        assert (samples.time_ns <= meta.end_ns).all() and (samples.time_ns >= meta.begin_ns).all()
        for tid in (pid, stuck, sleeper):
            budget = of_thread(recording, tid)
            assert len(budget) == 1
            length = int(budget.end_ns[0] - budget.begin_ns[0])
            assert 0.95 * length <= known_ns(budget) <= length and length >= 0.9 * span(recording)
            assert meta.begin_ns <= int(budget.begin_ns[0]) and int(budget.end_ns[0]) <= meta.end_ns
        assert int(of_thread(recording, stuck).interruptible_ns[0]) >= 0.9 * span(recording)
        (waits,) = np.flatnonzero((samples.tid == stuck) & samples.has(SampleFlag.STILL_BLOCKED))[None]
        assert len(waits) == 1 and 0.9 * span(recording) <= int(samples.period[waits[0]]) <= span(recording)
        # A wake-up of before the pause would make a wait after it one for a CPU.
        asleep = of_thread(recording, sleeper)
        assert int(asleep.interruptible_ns[0]) > int(asleep.runnable_ns[0])
        assert int(of_thread(recording, sleeper).switches[0]) > 20 / PATIENCE


def test_period_changes_with_a_new_file_and_nothing_is_between_them(tmp_path: Path) -> None:
    with (
        program() as (pid, stuck, _),
        controlled("-p", str(pid), "--off-cpu-period", "2", cwd=tmp_path) as recorder,
    ):
        for period in ("7", "0.5"):
            time.sleep(0.4)
            recorder.tell(f"period {period}")
            time.sleep(0.4)
        recorder.tell("disable")
        recorder.tell("period 3")
        recorder.tell("enable")
        time.sleep(0.4)
        recorder.tell("period x")
        recorder.tell("ping")
        said = recorder.end()
    found = files(tmp_path)
    assert [one.meta.sampling.period_ns for one in found] == [2 * MS, 7 * MS, MS // 2, 3 * MS]
    assert [after.meta.begin_ns == before.meta.end_ns for before, after in pairwise(found)] == [
        True,
        True,
        False,
    ]
    told = [(int(one.begin_ns[0]), int(one.end_ns[0])) for one in (of_thread(each, stuck) for each in found)]
    assert [before[1] == after[0] for before, after in pairwise(told)] == [True, True, False]
    for recording, period in zip(found, (2 * MS, 7 * MS, MS // 2, 3 * MS), strict=True):
        drawn = recording.samples.period[recording.samples.has(SampleFlag.SAMPLED)]
        # A wait that was drawn between two looks has the period before.
        assert len(drawn) > 5 and ((drawn % period == 0).mean()) > 0.9
    assert "--control: period x" in said


def test_end_while_paused_is_the_end_of_the_last_file(tmp_path: Path) -> None:
    with program() as (pid, *_), controlled("-p", str(pid), cwd=tmp_path) as recorder:
        time.sleep(0.2)
        recorder.tell("disable")
        said = recorder.end()
    assert len(files(tmp_path)) == 1
    assert "Captured and wrote" in said and " dump " in said


def test_bad_descriptors_are_refused(tmp_path: Path) -> None:
    for options, words in (
        (["--control=fd:99", "--switch-output"], "descriptor 99 is not open"),
        (["--control=3", "--switch-output"], "not fd:CTL"),
        (["--control=fd:0"], "--control needs --switch-output"),
    ):
        done = run(*options, "--", "true", cwd=tmp_path)
        assert done.status == 129 and words in done.stderr
