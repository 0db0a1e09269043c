# SPDX-License-Identifier: Apache-2.0
"""The guide's fourth and fifth investigation: without its cause, each program is as much faster as the path
says, within 20 %.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import Command

EXAMPLES = Path(__file__).parents[2] / "Documentation" / "examples"


@pytest.fixture
def examples() -> Iterator[Path]:
    """A copy of the example programs."""
    with tempfile.TemporaryDirectory(dir="/var/tmp", prefix="guide.") as directory:
        yield Path(shutil.copytree(EXAMPLES, Path(directory) / "examples"))


def path_of(perf_offcpu: Command, comm: str, cwd: Path) -> dict[str, object]:
    done = perf_offcpu("report", "-i", "x.data", "--critical-path", "--comm", comm, "--json", cwd=cwd)
    assert done.returncode == 0, done.stderr
    found: dict[str, object] = json.loads(done.stdout)
    return found


def shell(command: str, cwd: Path) -> str:
    done = subprocess.run(
        command, shell=True, cwd=cwd, check=True, capture_output=True, text=True, timeout=90
    )
    return done.stdout


def test_a_build_without_its_sleep(perf_offcpu: Command, examples: Path) -> None:
    done = perf_offcpu("record", "-q", "-o", "x.data", "--", *"make -s -C build -j2".split(), cwd=examples)
    assert done.returncode == 0, done.stderr
    path = path_of(perf_offcpu, "make", examples)
    first = path["rows"][0]
    assert (first["comm"], first["class"]) == ("sleep", "sleep") and first["time"] >= 2 * 10**9
    predicted = path["total"] / (path["total"] - first["time"])
    shell("make -s -C build clean", examples)
    since = time.monotonic_ns()
    shell("make -s -C build -j2 HOW=--ns", examples)
    found = path["total"] / (time.monotonic_ns() - since)
    assert found == pytest.approx(predicted, rel=0.2)


def test_a_bank_that_asks_before_it_locks(perf_offcpu: Command, examples: Path) -> None:
    shell("./bank.sh start", examples)
    try:
        slow = payments(perf_offcpu, examples, "x.data")
        fast = payments(perf_offcpu, examples, "y.data", "--ask-first")
    finally:
        shell("./bank.sh stop", examples)
    path = path_of(perf_offcpu, "pgbench", examples)
    first = path["rows"][0]
    assert (first["comm"], first["class"]) == ("pgbench", "poll")
    assert fast / slow == pytest.approx(path["total"] / (path["total"] - first["time"]), rel=0.2)


def payments(perf_offcpu: Command, cwd: Path, output: str, *options: str) -> int:
    """Record a load, so that both loads pay for that, and return the payments a second."""
    command = ["record", "-q", "-a", "-o", output, "--", "./bank.sh", "load", *options]
    done = perf_offcpu(*command, cwd=cwd)
    assert done.returncode == 0, done.stderr
    (found,) = re.findall(r"^(\d+) payments a second", done.stdout, re.MULTILINE)
    return int(found)
