# SPDX-License-Identifier: Apache-2.0
"""A sign of life: on terminals, after a second, and gone at the end."""

from __future__ import annotations

import os
import pty
import subprocess
import sys

import pytest

WORK = "import time, sys; from perf_offcpu.commands._busy import busy\nwith busy('working'): time.sleep({})"


def on_terminal(seconds: float, **environment: str) -> str:
    """What a terminal got on stderr."""
    leader, follower = pty.openpty()
    names = {"TERM": "xterm", **environment}
    with subprocess.Popen(
        [sys.executable, "-c", WORK.format(seconds)], stderr=follower, env=os.environ | names
    ) as one:
        os.close(follower)
        shown = b""
        while True:
            try:
                part = os.read(leader, 4096)
            except OSError:  # EIO: the other end is closed
                break
            if not part:
                break
            shown += part
        assert one.wait(timeout=60) == 0
    os.close(leader)
    return shown.decode()


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
