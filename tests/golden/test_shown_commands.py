# SPDX-License-Identifier: Apache-2.0
"""Commands that documents show, with what they print; what perf says of the same recordings."""

import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from builders.commands import TOP, delivers, is_alone, of_views, records, run, shown
from builders.dataset import DatasetBuilder

from perf_offcpu.cli import main
from perf_offcpu.commands.agent import config_of
from perf_offcpu.commands.shared.parsers import make_parsers
from perf_offcpu.convert.registry import FORMATS

READING = [command for command in shown().values() if not (records(command) or delivers(command))]
VIEWS = [command for command in of_views() if not delivers(command)]
COMMANDS = list(dict.fromkeys([*READING, *VIEWS]))
DELIVERING = {where: command for where, command in shown().items() if delivers(command)}


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Make a directory with the recordings that the examples name, and scripts/ of the checkout."""
    for name in ("perf.data", "old.data", "run1.data", "run2.data", "web1.data", "web2.data"):
        shutil.copy(TOP / "tests" / "data" / "demo.data", tmp_path / name)
    (tmp_path / "scripts").symlink_to(TOP / "scripts")
    return tmp_path


def make_dataset(path: Path) -> None:
    builder = DatasetBuilder()
    for number, version in enumerate(("1.9", "1.9", "2.0", "2.0")):
        builder.host(f"web{number}", {"service": "web", "version": version})
        builder.wait(f"web{number}", 1_000_000 + number, ["main", "futex_wait_[k]"])
    builder.write(path)


def test_there_are_some_of_each_page() -> None:
    assert len(COMMANDS) > 20
    pages = {f"perf-offcpu-{verb}.txt" for verb in ("convert", "inject", "record", "report", "script")}
    assert {where.partition(":")[0] for where in shown()} >= {"README.md", *pages}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_that_reads(
    command: str, directory: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(directory)
    if " DIR" in command and "fleet" in command:
        make_dataset(directory / "DIR")
    elif "fleet" in command:
        assert main(["convert", "--parquet", "waits", "-i", "perf.data"]) == 0
    before = set(directory.iterdir())
    if is_alone(command):
        assert main(shlex.split(command)[1:]) == 0
        text = "".join(capfd.readouterr())
    else:
        text = run(command, directory)
    made = [path for path in set(directory.iterdir()) - before if path.name != "elsewhere"]
    assert text or made or "--class" in command  # such waits may be missing
    assert all(path.stat().st_size for path in made)
    if command in VIEWS:
        assert bool(made) == bool(re.search(r"-o [^-]", command))
        assert max([len(text), *(path.stat().st_size for path in made)]) > 200


@pytest.mark.parametrize("where", DELIVERING)
def test_a_command_that_delivers_has_known_options(where: str) -> None:
    """Servers, time and a kernel are missing here: tests/kernel (test_agent, test_dataset, test_top) runs these."""
    _, verb, *words = shlex.split(DELIVERING[where])
    parser = make_parsers((verb,))[1][verb]
    args = parser.parse_args(parser.attached(words))
    if verb == "agent" and args.config is None:
        config = config_of(args)
        assert config.dataset or config.push


ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / "tests" / "data"
SCRIPT = ROOT / "scripts" / "offcpu.py"
MORE = {name: pytest.mark.long for name in FORMATS if name not in ("folded", "html", "pprof")}
"""Formats that go the same ways as a text, a page and packed messages."""
SYMBOLS = ["--symfs", str(DATA / "demo.symfs"), "--kallsyms", str(DATA / "demo.kallsyms")]
SYMBOLS += ["--buildid-dir", "nowhere"]  # perf sets PERF_BUILDID_DIR for its children


def run_perf(*command: str | Path, cwd: Path, **environment: str) -> bytes:
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
    run_perf(*inside, "inside", cwd=here)
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), "-f", "-i", "demo.data", f"--{name}", *SYMBOLS, "by-hand"])
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
    inside = run_perf(*script, "--", *options, *SYMBOLS, cwd=here)
    by_hand = run_perf(sys.executable, SCRIPT, "-f", "-i", "demo.data", *options, *SYMBOLS, cwd=here)
    assert inside == by_hand == wanted != by_convert(["--folded"], here / "all")
