# SPDX-License-Identifier: Apache-2.0
"""The ways to convert with perf: inside `perf script -s`, and by hand."""

import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from perf_offcpu.cli import main
from perf_offcpu.convert.registry import FORMATS

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / "tests" / "data"
SCRIPT = ROOT / "scripts" / "offcpu.py"
MORE = {name: pytest.mark.long for name in FORMATS if name not in ("folded", "html", "pprof")}
"""Formats that go the same ways as a text, a page and packed messages."""
SYMBOLS = ["--symfs", str(DATA / "demo.symfs"), "--kallsyms", str(DATA / "demo.kallsyms")]
SYMBOLS += ["--buildid-dir", "nowhere"]  # perf sets PERF_BUILDID_DIR for its children


def run(*command: str | Path, cwd: Path, **environment: str) -> bytes:
    done = subprocess.run(command, cwd=cwd, env=os.environ | environment, capture_output=True, timeout=120, check=False)
    # perf's warning on other kernels than the recorded one; the symbols come from our options.
    said = [line for line in done.stderr.splitlines() if not line.startswith(b"No kallsyms or vmlinux with build-id")]
    assert (done.returncode, said) == (0, []), done.stderr.decode()
    return done.stdout


def by_convert(options: list[str], out: Path) -> bytes:
    assert main(["convert", "-f", "-i", "demo.data", "-o", str(out), *SYMBOLS, *options]) == 0
    return out.read_bytes()


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "demo.data").write_bytes((DATA / "demo.data").read_bytes())
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", [pytest.param(name, marks=MORE.get(name, ())) for name in FORMATS])
def test_all_doors_give_the_same(name: str, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = by_convert([f"--{name}"], here / "wanted")
    inside = ["perf", "script", "-f", "-i", "demo.data", "-s", str(SCRIPT), "--", f"--{name}", *SYMBOLS]
    run(*inside, "inside", cwd=here)
    by_hand = [str(SCRIPT), "-f", "-i", "demo.data", f"--{name}", *SYMBOLS, "by-hand"]
    monkeypatch.setattr(sys, "argv", by_hand)
    monkeypatch.setattr(sys, "path", [*sys.path])
    with pytest.raises(SystemExit) as stop:  # in a process of its own in the test of selections
        runpy.run_path(str(SCRIPT), run_name="__main__")
    assert stop.value.code == 0
    results = {door: (here / door).read_bytes() == wanted for door in ("inside", "by-hand")}
    assert results == dict.fromkeys(results, True)
    assert wanted


def test_doors_select_alike(here: Path) -> None:
    options = ["--folded", "--class", "lock,pipe", "--time", "0%-60%", "--min-dur", "5ms", "--idle", "show"]
    wanted = by_convert(options, here / "wanted")
    script = ["perf", "script", "-f", "-i", "demo.data", "-s", str(SCRIPT)]
    inside = run(*script, "--", *options, *SYMBOLS, cwd=here)
    by_hand = run(sys.executable, SCRIPT, "-f", "-i", "demo.data", *options, *SYMBOLS, cwd=here)
    assert inside == by_hand == wanted != by_convert(["--folded"], here / "all")
