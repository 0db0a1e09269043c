# SPDX-License-Identifier: Apache-2.0
"""The progress bar: on terminals, after a second, and removed at the end."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from builders import terminal

WORK = """
import time, sys
from perf_offcpu.commands.shared.streams import busy
with busy('working'): time.sleep({})
"""


def on_terminal(seconds: float, **environment: str) -> str:
    """Return stderr as a terminal got it."""
    command = [sys.executable, "-c", WORK.format(seconds)]
    return terminal.on_terminal(command, "stderr", env=os.environ | {"TERM": "xterm", **environment})


def test_long_work_shows_and_takes_it_back() -> None:
    shown = on_terminal(1.8)
    assert "working, " in shown and shown.endswith("\r\x1b[K")
    assert "\x1b[36m" in shown and "\x1b[36m" not in on_terminal(1.8, NO_COLOR="1")


@pytest.mark.parametrize(("seconds", "term"), [(0.1, "xterm"), (1.5, "dumb")])
def test_short_work_and_dumb_terminals_show_nothing(seconds: float, term: str) -> None:
    assert on_terminal(seconds, TERM=term) == ""


def test_pipes_and_files_never_get_it() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WORK.format(1.5)], capture_output=True, check=True, timeout=60
    )
    assert (done.stdout, done.stderr) == (b"", b"")
