# SPDX-License-Identifier: Apache-2.0
"""Commands of README and man pages that record work, with a program of ours in place of theirs; the guide's
investigations and the page about overhead, whose commands print what the page shows. A command of these needs the
files of those above it: if it is repeated alone, they run before it."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from builders import console
from builders.commands import delivers, records, run, shown
from builders.stock_perf import REPORT

pytestmark = pytest.mark.beside

RECORDING = {command for command in shown().values() if records(command) and not delivers(command)}
COMMANDS = sorted(command for command in RECORDING if command.startswith("perf-offcpu record"))
OTHERS = RECORDING - set(COMMANDS)
"""Each has a test of its own: below, or in test_doctor.py."""
QUICKER = {"make -j8": "./program", "sleep 5": "./program", "--duration 10": "--duration 0.5"}
QUICKER |= {"--duration 5": "--duration 0.5", "system.slice/nginx.service": "/"}
QUICKER |= {"perf report -i": f"perf {' '.join(REPORT)} -i"}


@pytest.fixture(scope="module")
def beginning_s(tmp_path_factory: pytest.TempPathFactory) -> float:
    """Longest time until a recording has begun: that of a whole one, with nothing compiled before."""
    begin = time.monotonic()
    run("perf-offcpu record -- true", tmp_path_factory.mktemp("first"))
    return time.monotonic() - begin


@contextmanager
def process(seconds: float) -> Iterator[int]:
    """Start a process that goes away by itself, and with it a recording that waits for its end."""
    with subprocess.Popen(["sleep", str(seconds)]) as one:
        yield one.pid
        one.kill()


def make_program(directory: Path) -> None:
    program = directory / "program"
    program.write_text("#!/bin/sh\nsleep 0.2\n")
    program.chmod(0o700)


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_that_records(command: str, tmp_path: Path, beginning_s: float) -> None:
    make_program(tmp_path)
    for theirs, ours in QUICKER.items():
        command = command.replace(theirs, ours)
    if "-a" in command and " -- " not in command and "--duration" not in command:
        command = f"timeout -s INT {3 * beginning_s + 2} {command} || test $? = 124"  # somebody's Ctrl-C
    with process(60 if "--duration" in command else 2 * beginning_s + 1) as pid:
        text = run(re.sub(r"-p \d+", f"-p {pid}", command), tmp_path)
    assert "-o -" in command or list(tmp_path.glob("perf.data*"))
    assert re.search(r"[1-9]\d* off-cpu samples|offcpu-time", text), text


PERFS_PIPE = "perf record -o - --off-cpu -a -- sleep 5 | perf-offcpu inject -i - -o old.data"


def test_no_shown_command_is_left_out() -> None:
    assert {PERFS_PIPE, "perf-offcpu doctor", "perf-offcpu doctor --json"} == OTHERS


def test_perfs_own_recording_goes_through_inject(tmp_path: Path) -> None:
    """Debian's perf has no BPF and says so: what it can record without goes the same way."""
    run(PERFS_PIPE.replace("sleep 5", "sleep 0.3"), tmp_path)
    samples = run("perf script -i old.data -F tid,event", tmp_path).splitlines()
    assert len(samples) > 3 and all(re.search(r"(cycles|cpu-clock|offcpu-time)", line) for line in samples)


DOCUMENTS = Path(__file__).parents[2] / "Documentation"
GUIDE = DOCUMENTS / "guide.md"
STEPS = list(console.steps(GUIDE))
INVESTIGATIONS = [number for number, line in enumerate(GUIDE.read_text().splitlines(), 1) if line.startswith("## ")]


@pytest.fixture(scope="module")
def examples() -> Iterator[Path]:
    """A copy of the example programs, where the commands run one after the other: on a disk."""
    with tempfile.TemporaryDirectory(dir="/var/tmp", prefix="guide.") as directory:
        copy = Path(shutil.copytree(DOCUMENTS / "examples", Path(directory) / "examples"))
        yield copy
        subprocess.run(["./bank.sh", "stop"], cwd=copy, capture_output=True, timeout=60, check=False)


@pytest.fixture(scope="module")
def done() -> set[console.Step]:
    return set()


@pytest.fixture(scope="module")
def environment() -> dict[str, str]:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return os.environ | {"PATH": path, "NO_COLOR": "1", "LC_ALL": "C.UTF-8", "BANK_SECONDS": "2"}


def above(step: console.Step) -> list[console.Step]:
    (begin,) = [line for line in INVESTIGATIONS if line < step.line][-1:]
    return [other for other in STEPS if begin < other.line < step.line]


@pytest.mark.long
@pytest.mark.parametrize("step", STEPS, ids=lambda step: f"line-{step.line}")
def test_a_command_of_the_guide(
    step: console.Step, examples: Path, environment: dict[str, str], done: set[console.Step]
) -> None:
    for one in above(step):
        if one not in done:
            console.run(one, examples, environment)
            done.add(one)
    done.add(step)
    problem = console.run(step, examples, environment)
    assert not problem, problem


@pytest.mark.long
@pytest.mark.parametrize("step", list(console.steps(DOCUMENTS / "overhead.md")), ids=lambda step: f"line-{step.line}")
def test_a_command_of_the_page_about_overhead(step: console.Step, environment: dict[str, str]) -> None:
    problem = console.run(step, DOCUMENTS.parent, environment)
    assert not problem, problem
