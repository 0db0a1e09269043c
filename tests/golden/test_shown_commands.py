# SPDX-License-Identifier: Apache-2.0
"""The commands of README, man pages and guides that read a recording work as printed."""

import re
import shlex
import shutil
from pathlib import Path

import pytest
from builders.commands import TOP, delivers, is_alone, of_views, records, run, shown
from builders.dataset import DatasetBuilder

from perf_offcpu.cli import main
from perf_offcpu.commands.agent import config_of
from perf_offcpu.commands.shared.parsers import make_parsers

RECORDING = TOP / "tests" / "data" / "demo.data"
COPIES = ("perf.data", "old.data", "run1.data", "run2.data", "web1.data", "web2.data")
READING = [command for command in shown().values() if not (records(command) or delivers(command))]
VIEWS = [command for command in of_views() if not delivers(command)]
COMMANDS = list(dict.fromkeys([*READING, *VIEWS]))
DELIVERING = {where: command for where, command in shown().items() if delivers(command)}


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Make a directory with the recordings that the examples name, and scripts/ of the checkout."""
    for name in COPIES:
        shutil.copy(RECORDING, tmp_path / name)
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
    """Servers, time and a kernel are missing here: tests/kernel/test_agent.py, test_dataset.py and test_top.py run the
    verbs."""
    _, verb, *words = shlex.split(DELIVERING[where])
    parser = make_parsers((verb,))[1][verb]
    args = parser.parse_args(parser.attached(words))
    if verb == "agent" and args.config is None:
        config = config_of(args)
        assert config.dataset or config.push
