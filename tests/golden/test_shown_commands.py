# SPDX-License-Identifier: Apache-2.0
"""The commands of README and man pages that read a recording work as printed."""

from __future__ import annotations

import shlex
import shutil
from pathlib import Path

import pytest
from builders.commands import TOP, delivers, records, run, shown
from builders.dataset import DatasetBuilder

from perf_offcpu.commands.agent import config_of
from perf_offcpu.commands.shared.parsers import make_parsers

RECORDING = TOP / "tests" / "data" / "demo.data"
COPIES = ("perf.data", "old.data", "run1.data", "run2.data", "web1.data", "web2.data")
COMMANDS = {
    where: command for where, command in shown().items() if not (records(command) or delivers(command))
}
DELIVERING = {where: command for where, command in shown().items() if delivers(command)}


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Make a directory with the recordings that the examples name, and scripts/ of the checkout."""
    for name in COPIES:
        shutil.copy(RECORDING, tmp_path / name)
    (tmp_path / "scripts").symlink_to(TOP / "scripts")
    return tmp_path


def make_dataset(path: Path) -> None:
    """Write a dataset of a service whose hosts have one of two versions."""
    builder = DatasetBuilder()
    for number, version in enumerate(("1.9", "1.9", "2.0", "2.0")):
        builder.host(f"web{number}", {"service": "web", "version": version})
        builder.wait(f"web{number}", 1_000_000 + number, ["main", "futex_wait_[k]"])
    builder.write(path)


def test_there_are_some_of_each_page() -> None:
    assert len(COMMANDS) > 20
    assert {where.partition(":")[0] for where in shown()} >= {
        "README.md",
        *(f"perf-offcpu-{verb}.txt" for verb in ("convert", "inject", "record", "report", "script")),
    }


@pytest.mark.parametrize("where", COMMANDS)
def test_a_command_that_reads(where: str, directory: Path) -> None:
    if COMMANDS[where].startswith("perf-offcpu fleet"):
        make_dataset(directory / "DIR")
    before = set(directory.iterdir())
    text = run(COMMANDS[where], directory)
    made = [path for path in set(directory.iterdir()) - before if path.is_file()]
    assert text or made or "--class" in COMMANDS[where]  # such waits may be missing
    assert all(path.stat().st_size for path in made)


@pytest.mark.parametrize("where", DELIVERING)
def test_a_command_that_delivers_has_known_options(where: str) -> None:
    """Servers and time are missing here: tests/kernel/test_agent.py and test_push.py run the verbs."""
    _, verb, *words = shlex.split(DELIVERING[where])
    parser = make_parsers((verb,))[1][verb]
    args = parser.parse_args(parser.attached(words))
    if verb == "agent" and args.config is None:
        config = config_of(args)
        assert config.dataset or config.push
