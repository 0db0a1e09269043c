# SPDX-License-Identifier: Apache-2.0
"""The commands of the guide run as printed."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import pytest

from perf_offcpu.cli import main

ROOT = Path(__file__).resolve().parents[2]
GUIDE = (ROOT / "Documentation" / "which-view.md").read_text()
COMMANDS = re.findall(r"^\|[^|]+\| `(perf-offcpu [^`]+)`", GUIDE, re.M)


def test_every_row_has_a_command_but_one() -> None:
    rows = re.findall(r"^\| (?!question).*", GUIDE, re.M)
    assert len(rows) == len(COMMANDS) + 1 > 20


@pytest.mark.parametrize("command", dict.fromkeys(COMMANDS))
def test_command(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    inputs: tuple[str, ...] = ("perf.data", "old.data")
    for name in inputs:
        shutil.copy(ROOT / "tests" / "data" / "demo.data", tmp_path / name)
    monkeypatch.chdir(tmp_path)
    _, *words = shlex.split(command)
    if words[0] == "fleet":
        assert main(["convert", "--parquet", "waits", "-i", "perf.data"]) == 0
        inputs = (*inputs, "waits")
    assert main(words) == 0
    written = [path.stat().st_size for path in tmp_path.iterdir() if path.name not in inputs]
    assert bool(re.search(r"-o [^-]", command)) == bool(written)
    assert max([*written, len(capsys.readouterr().out)]) > 200
