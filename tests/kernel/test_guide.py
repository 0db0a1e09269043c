# SPDX-License-Identifier: Apache-2.0
"""The guide's investigations and the page about overhead, followed as they tell: every command runs and prints what the
page shows. A command needs the files of those above it: if it is repeated alone, they run before it."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from builders.console import Step, run, steps

pytestmark = pytest.mark.beside

DOCUMENTS = Path(__file__).parents[2] / "Documentation"
GUIDE = DOCUMENTS / "guide.md"
STEPS = list(steps(GUIDE))
INVESTIGATIONS = [number for number, line in enumerate(GUIDE.read_text().splitlines(), 1) if line.startswith("## ")]


@pytest.fixture(scope="module")
def examples() -> Iterator[Path]:
    """A copy of the example programs, where the commands run one after the other: on a disk."""
    with tempfile.TemporaryDirectory(dir="/var/tmp", prefix="guide.") as directory:
        copy = Path(shutil.copytree(DOCUMENTS / "examples", Path(directory) / "examples"))
        yield copy
        subprocess.run(["./bank.sh", "stop"], cwd=copy, capture_output=True, timeout=60, check=False)


@pytest.fixture(scope="module")
def done() -> set[Step]:
    return set()


@pytest.fixture(scope="module")
def environment() -> dict[str, str]:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return os.environ | {"PATH": path, "NO_COLOR": "1", "LC_ALL": "C.UTF-8", "BANK_SECONDS": "2"}


def above(step: Step) -> list[Step]:
    (begin,) = [line for line in INVESTIGATIONS if line < step.line][-1:]
    return [other for other in STEPS if begin < other.line < step.line]


@pytest.mark.long
@pytest.mark.parametrize("step", STEPS, ids=lambda step: f"line-{step.line}")
def test_a_command_of_the_guide(step: Step, examples: Path, environment: dict[str, str], done: set[Step]) -> None:
    for one in above(step):
        if one not in done:
            run(one, examples, environment)
            done.add(one)
    done.add(step)
    problem = run(step, examples, environment)
    assert not problem, problem


@pytest.mark.long
@pytest.mark.parametrize("step", list(steps(DOCUMENTS / "overhead.md")), ids=lambda step: f"line-{step.line}")
def test_a_command_of_the_page_about_overhead(step: Step, environment: dict[str, str]) -> None:
    problem = run(step, DOCUMENTS.parent, environment)
    assert not problem, problem
