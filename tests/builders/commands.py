# SPDX-License-Identifier: Apache-2.0
"""The commands that README and man pages show, to be run as they stand. README's are indented and may have a remark
behind them, those of a man page are the lines of its EXAMPLES."""

import os
import re
import shlex
import stat
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from builders import program

TOP = Path(__file__).parents[2]
_README = re.compile(r"^    ((?:sudo )?perf(?:-offcpu)? .*?)(?: {2,}#.*)?$", re.MULTILINE)
_EXAMPLES = re.compile(r"^EXAMPLES\n-+\n\[verse\]\n((?:.+\n)+)", re.MULTILINE)
ELSEWHERE = ("flamegraph.pl", "stackcollapse-perf.pl", "jq", "go")
"""Programs of others that examples hand their output to: one that passes it on stands in."""
_READS = """#!/bin/sh
[ "$1" = tool ] && exec test -s "$4"
exec cat
"""


def of_views() -> list[str]:
    """Return the command of each row of which-view.md; one row has none."""
    page = (TOP / "Documentation" / "which-view.md").read_text()
    commands = re.findall(r"^- .*?[:?)] `(perf-offcpu [^`]+)`", page, re.MULTILINE)
    assert len(re.findall(r"^- ", page, re.MULTILINE)) == len(commands) + 1
    return commands


def is_alone(command: str) -> bool:
    """Return True if a command is this program's alone, without shell syntax."""
    return command.startswith("perf-offcpu ") and not set(command) & set("|&;<>*$")


def shown() -> dict[str, str]:
    """Where ("README.md: 2") → command, without sudo."""
    pages = {path.name: _EXAMPLES.findall(path.read_text()) for path in sorted(TOP.glob("Documentation/*.txt"))}
    found = {name: block.splitlines() for name, (block,) in ((n, b) for n, b in pages.items() if b)}
    found["README.md"] = _README.findall((TOP / "README.md").read_text())
    return {
        f"{name}: {number}": line.replace("sudo ", "").replace("{asterisk}", "*")
        for name, lines in found.items()
        for number, line in enumerate(lines, 1)
    }


def records(command: str) -> bool:
    """Whether a command looks at the running machine, or needs another recording or an installation."""
    return bool(re.search(r"\brecord\b|\bdoctor\b|--install|perf script report|-F trace:", command))


def delivers(command: str) -> bool:
    """Whether a command runs until it is stopped, or needs a server."""
    return command.startswith(("perf-offcpu agent", "perf-offcpu push", "perf-offcpu top"))


def run(command: str, directory: Path, environment: Mapping[str, str] = os.environ) -> str:
    """What a command printed, in a directory; a complaint if a part of it failed. This program runs without a start."""
    if is_alone(command) and environment is os.environ:
        alone = program.run(*shlex.split(command)[1:], cwd=directory, timeout_s=120)
        return alone.stdout + alone.stderr
    stands_in = directory / "elsewhere"
    stands_in.mkdir(exist_ok=True)
    for name in ELSEWHERE:
        (stands_in / name).write_text(_READS)
        (stands_in / name).chmod(stat.S_IRWXU)
    path = f"{stands_in}:{Path(sys.executable).parent}:{environment['PATH']}"
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command], cwd=directory, env=dict(environment) | {"PATH": path},
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=120, check=False,
    )  # fmt: skip
    text = done.stdout.decode(errors="replace")
    assert done.returncode == 0, f"{command}\nexit status {done.returncode}\n{text}"
    assert "Traceback" not in text, text
    return text
