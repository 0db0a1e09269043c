# SPDX-License-Identifier: Apache-2.0
"""Severities of the agent's lines where its standard error is the journal, and nowhere else."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from perf_offcpu.resources import commit

CODE = """
from perf_offcpu.agent.journal import Problem, write_line
write_line("as \\x1b usual"), write_line(Problem("a segment is lost"))
"""


@pytest.mark.parametrize("is_journal", [True, False])
def test_problems_are_warnings_in_the_journal(is_journal: bool) -> None:
    reading, writing = os.pipe()
    status = os.fstat(writing)
    environment = os.environ | {"JOURNAL_STREAM": f"{status.st_dev}:{status.st_ino + (not is_journal)}"}
    subprocess.run([sys.executable, "-c", CODE], env=environment, stderr=writing, check=True, timeout=60)
    os.close(writing)
    with open(reading, encoding="utf-8") as lines:
        severity = "<4>" if is_journal else ""
        assert lines.read().splitlines() == [
            "perf-offcpu agent: as \\x1b usual",
            f"{severity}perf-offcpu agent: a segment is lost",
        ]


def test_the_commit_is_that_of_the_checkout() -> None:
    folder = Path(__file__).resolve().parents[3]
    known = subprocess.run(["git", "rev-parse", "HEAD"], cwd=folder, capture_output=True, text=True, check=False)
    assert re.fullmatch(r"(, commit [0-9a-f]{12})?", commit())
    assert commit() in (f", commit {known.stdout[:12]}", "")
