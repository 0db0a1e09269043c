# SPDX-License-Identifier: Apache-2.0
"""The guide's investigations, followed as it tells: every command runs and prints what the page shows."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from builders.console import Step, run, steps

pytestmark = pytest.mark.beside

DOCUMENTS = Path(__file__).parents[2] / "Documentation"
GUIDE = DOCUMENTS / "guide.md"


@pytest.fixture(scope="module")
def examples() -> Iterator[Path]:
    """A copy of the example programs, where the commands run one after the other: on a disk."""
    with tempfile.TemporaryDirectory(dir="/var/tmp", prefix="guide.") as directory:
        yield Path(shutil.copytree(DOCUMENTS / "examples", Path(directory) / "examples"))


@pytest.fixture(scope="module")
def environment() -> dict[str, str]:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return os.environ | {"PATH": path, "NO_COLOR": "1", "LC_ALL": "C.UTF-8"}


@pytest.mark.parametrize("step", list(steps(GUIDE)), ids=lambda step: f"line-{step.line}")
def test_a_command_of_the_guide(step: Step, examples: Path, environment: dict[str, str]) -> None:
    problem = run(step, examples, environment)
    assert not problem, problem
