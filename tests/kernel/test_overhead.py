# SPDX-License-Identifier: Apache-2.0
"""The page about overhead: the commands for one's own machine run and print what it shows."""

import os
import sys
from pathlib import Path

import pytest
from builders.console import Step, run, steps

pytestmark = pytest.mark.beside

TOP = Path(__file__).parents[2]


@pytest.mark.parametrize(
    "step", list(steps(TOP / "Documentation" / "overhead.md")), ids=lambda step: f"line-{step.line}"
)
def test_a_command_of_the_page(step: Step) -> None:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    problem = run(step, TOP, os.environ | {"PATH": path, "NO_COLOR": "1", "LC_ALL": "C.UTF-8"})
    assert not problem, problem
