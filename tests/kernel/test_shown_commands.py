# SPDX-License-Identifier: Apache-2.0
"""What README and man pages tell to record works, with a program of ours for theirs."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from builders.commands import run, shown

COMMANDS = {
    where: command
    for where, command in shown().items()
    if command.startswith(("perf-offcpu record", "perf-offcpu doctor"))
}
"""perf's own `record --off-cpu`, which distributions leave out, and installed scripts have other tests."""
QUICKER = {"make -j8": "./program", "sleep 5": "./program", "--duration 10": "--duration 0.5"}
QUICKER |= {"--duration 5": "--duration 0.5", "system.slice/nginx.service": "/"}


@pytest.fixture
def process() -> Iterator[int]:
    """A process that goes away by itself, and with it a recording that waits for its end."""
    with subprocess.Popen(["sleep", "3"]) as one:
        yield one.pid
        one.kill()


@pytest.mark.parametrize("where", COMMANDS)
def test_a_command_that_records(where: str, tmp_path: Path, process: int) -> None:
    program = tmp_path / "program"
    program.write_text("#!/bin/sh\nsleep 0.2\n")
    program.chmod(0o700)
    command = re.sub(r"-p \d+", f"-p {process}", COMMANDS[where])
    for theirs, ours in QUICKER.items():
        command = command.replace(theirs, ours)
    if "-a" in command and " -- " not in command and "--duration" not in command:
        command = f"timeout -s INT 4 {command} || test $? = 124"  # somebody's Ctrl-C
    text = run(command, tmp_path)
    if " record " in command:
        assert "-o -" in command or list(tmp_path.glob("perf.data*"))
        assert re.search(r"[1-9]\d* off-cpu samples|offcpu-time", text), text
    else:
        assert "perf events" in text
