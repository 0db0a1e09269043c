# SPDX-License-Identifier: Apache-2.0
"""The ways to convert with perf: inside `perf script -s`, as `perf script report offcpu`, and by hand."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from perf_offcpu.cli import main
from perf_offcpu.commands.scripts import files, install
from perf_offcpu.convert.registry import FORMATS

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / "tests" / "data"
SCRIPT = ROOT / "scripts" / "offcpu.py"
SYMBOLS = ["--symfs", str(DATA / "demo.symfs"), "--kallsyms", str(DATA / "demo.kallsyms")]
SYMBOLS += ["--buildid-dir", "nowhere"]  # perf sets PERF_BUILDID_DIR for its children


def run(*command: str | Path, cwd: Path, **environment: str) -> bytes:
    done = subprocess.run(
        command, cwd=cwd, env=os.environ | environment, capture_output=True, timeout=120, check=False
    )
    # perf's warning on other kernels than the recorded one; the symbols come from our options.
    said = [
        line
        for line in done.stderr.splitlines()
        if not line.startswith(b"No kallsyms or vmlinux with build-id")
    ]
    assert (done.returncode, said) == (0, []), done.stderr.decode()
    return done.stdout


def by_convert(options: list[str], out: Path) -> bytes:
    assert main(["convert", "-f", "-i", "demo.data", "-o", str(out), *SYMBOLS, *options]) == 0
    return out.read_bytes()


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a directory with the recording as perf.data and with the scripts installed."""
    (tmp_path / "demo.data").write_bytes((DATA / "demo.data").read_bytes())
    monkeypatch.chdir(tmp_path)
    install(tmp_path / "exec")
    return tmp_path


@pytest.mark.parametrize("name", FORMATS)
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


@pytest.mark.parametrize("name", ["folded", "pprof"])
def test_by_the_name_that_perf_knows(name: str, here: Path) -> None:
    """The installed script passes its arguments on: a text format and a binary one."""
    wanted = by_convert([f"--{name}"], here / "wanted")
    command = ["perf", "script", "report", "offcpu", "-f", "-i", "demo.data", "--", f"--{name}", *SYMBOLS]
    run(*command, "named", cwd=here, PERF_EXEC_PATH=str(here / "exec"))
    assert (here / "named").read_bytes() == wanted


def test_doors_select_alike(here: Path) -> None:
    options = ["--folded", "--class", "lock,pipe", "--time", "0%-60%", "--min-dur", "5ms", "--idle", "show"]
    wanted = by_convert(options, here / "wanted")
    script = ["perf", "script", "-f", "-i", "demo.data", "-s", str(SCRIPT)]
    inside = run(*script, "--", *options, *SYMBOLS, cwd=here)
    by_hand = run(sys.executable, SCRIPT, "-f", "-i", "demo.data", *options, *SYMBOLS, cwd=here)
    assert inside == by_hand == wanted != by_convert(["--folded"], here / "all")


def test_perf_lists_the_script(here: Path) -> None:
    listed = run("perf", "script", "-l", cwd=here, PERF_EXEC_PATH=str(here / "exec")).decode()
    assert "offcpu" in listed and "off-cpu time: folded stacks" in listed


def test_a_perf_without_python_runs_the_script_by_hand(here: Path) -> None:
    """As with perf from 7.4 on: `perf version` reports no libpython."""
    fake = here / "bin" / "perf"
    fake.parent.mkdir()
    fake.write_text("#!/bin/sh\n[ \"$1\" = version ] && echo 'libpython: [ OFF ]' && exit 0\nexit 9\n")
    fake.chmod(0o755)
    report = here / "exec" / "scripts" / "python" / "bin" / "offcpu-report"
    path = f"{fake.parent}:{os.environ['PATH']}"
    odd = here / "it's a name.data"
    odd.write_bytes((DATA / "demo.data").read_bytes())
    shown = run(report, "-f", "-i", odd, "--", "--folded", *SYMBOLS, cwd=here, PATH=path)
    assert shown == by_convert(["--folded"], here / "wanted")


def test_installed_where_perf_looks_and_removed(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    place = here / "other"
    monkeypatch.setenv("PERF_EXEC_PATH", str(place))
    assert main(["scripts"]) == 0
    assert "is not installed: perf-offcpu scripts --install" in capsys.readouterr().out
    assert main(["scripts", "--install"]) == 0
    assert all(path.is_file() and os.access(path, os.X_OK) for path in files(place))
    assert (
        "'perf script record offcpu' and 'perf script report offcpu' are installed" in capsys.readouterr().out
    )
    assert main(["scripts", "--install"]) == 0, "twice does no harm"
    for _ in range(2):
        assert main(["scripts", "--remove"]) == 0
    assert not [path for path in place.rglob("*") if path.is_file()]


def test_the_record_script_runs_this_recorder(here: Path) -> None:
    record = here / "exec" / "scripts" / "python" / "bin" / "offcpu-record"
    assert b"usage: perf-offcpu record" in run(record, "--help", cwd=here)
