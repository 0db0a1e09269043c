# SPDX-License-Identifier: Apache-2.0
"""Completion in real shells: what is offered for what has been typed."""

from __future__ import annotations

import os
import pty
import re
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from perf_offcpu import cli
from perf_offcpu.cli import main
from perf_offcpu.commands.completion import verbs
from perf_offcpu.convert.registry import FORMATS


def script(capsys: pytest.CaptureFixture[str], shell: str) -> str:
    assert main(["completion", shell]) == 0
    return capsys.readouterr().out


def test_every_option_of_every_verb_is_there() -> None:
    found = {verb.name: {name for option in verb.options for name in option.names} for verb in verbs()}
    assert set(found) == set(cli.VERBS)
    assert {f"--{name}" for name in FORMATS} <= found["convert"]
    for name, options in found.items():
        parser = cli._parsers((name,))[1][name]
        assert options == {one for action in parser._actions for one in action.option_strings}


# bash

OFFERED = [
    ("", [*cli.VERBS, "--help", "--version", "--traceback"]),
    ("rep", ["report"]),
    ("--traceback repo", ["report"]),
    ("report --un", ["--unit"]),
    ("report --unit ", ["ns", "us", "ms", "s"]),
    ("report --unit = m", ["ms"]),
    ("report --class lock,d", ["lock,disk"]),
    ("report -s comm,sy", ["comm,symbol", "comm,syscall"]),
    ("script --fields sym", ["sym", "symoff"]),
    ("convert --speed", ["--speedscope"]),
    ("convert --state --fold", ["--folded"]),
    ("convert --state D,", [f"D,{letter}" for letter in "RSDITtXZP"]),
    ("report --idle ", ["show", "hide", "only"]),
    ("report -i rec", ["recording.data"]),
    ("report --comm ", []),
    ("completion ", ["bash", "zsh"]),
    ("record tru", ["true", "truncate"]),
]


@pytest.mark.parametrize(("typed", "offered"), OFFERED)
def test_bash(capsys: pytest.CaptureFixture[str], tmp_path: Path, typed: str, offered: list[str]) -> None:
    (tmp_path / "recording.data").touch()
    ask = 'COMP_WORDS=(perf-offcpu "$@"); COMP_CWORD=$#; _perf_offcpu; printf "%s\\n" "${COMPREPLY[@]}"'
    text = f"set -u\n{script(capsys, 'bash')}\n{ask}"
    words = typed.split(" ")
    command = ["bash", "--norc", "-c", text, "bash", *words]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert done.stderr == ""
    assert sorted(set(done.stdout.split())) == sorted(offered)


def test_bash_script_is_sound(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "completion.bash"
    path.write_text(script(capsys, "bash"))
    assert subprocess.run(["bash", "-n", path], check=False, timeout=60).returncode == 0
    if shutil.which("shellcheck"):
        command = ["shellcheck", "-s", "bash", path]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stdout


# zsh: there is no way to ask it but to sit in front of it and type

SETUP = """PS1='%% '; PS2=; cd {directory}; fpath=({directory} $fpath)
autoload -Uz compinit; compinit -u -d {directory}/dump
unsetopt beep auto_menu; setopt no_list_beep
shown() {{ local typed=$BUFFER; BUFFER=; zle -I; print -r -- "<<$typed>>" }}; zle -N shown; bindkey '^X' shown
"""


class Zsh:
    """A zsh on a terminal."""

    def __init__(self, directory: Path) -> None:
        self.leader, follower = pty.openpty()
        environment = os.environ | {"TERM": "dumb", "HOME": str(directory), "ZDOTDIR": str(directory)}
        streams = {"stdin": follower, "stdout": follower, "stderr": follower}
        self.process = subprocess.Popen(
            ["zsh", "-f", "-i"], env=environment, start_new_session=True, **streams
        )
        os.close(follower)
        self.type(SETUP.format(directory=directory))
        assert self.complete("echo ready", tab="") == "echo ready"

    def type(self, text: str) -> None:
        os.write(self.leader, text.encode())

    def complete(self, typed: str, tab: str = "\t") -> str:
        """The line after a press of TAB."""
        self.type(f"{typed}{tab}\x18")
        shown, end = "", time.monotonic() + 60
        while time.monotonic() < end:
            if select.select([self.leader], [], [], 1)[0]:
                shown += os.read(self.leader, 65536).decode(errors="replace")
            if found := re.findall(r"<<(.*?)>>\r?\n", shown):
                return str(found[-1]).strip()
        raise AssertionError(f"zsh does not answer: {shown!r}")

    def close(self) -> None:
        os.close(self.leader)
        self.process.kill()
        self.process.wait()


@pytest.fixture(scope="module")
def zsh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Zsh]:
    if shutil.which("zsh") is None:
        pytest.fail("needs zsh: install it", pytrace=False)
    directory = tmp_path_factory.mktemp("zsh")
    (directory / "recording.data").touch()
    from perf_offcpu.commands.completion_shells import zsh as script_of

    (directory / "_perf-offcpu").write_text(script_of(verbs()))
    shell = Zsh(directory)
    yield shell
    shell.close()


@pytest.mark.parametrize(
    ("typed", "line"),
    [
        ("rep", "report"),
        ("report --cla", "report --class="),
        ("report --idle h", "report --idle hide"),
        ("report --idle=h", "report --idle=hide"),
        ("report --class loc", "report --class lock"),
        ("report --class lock,poll,netw", "report --class lock,poll,network"),
        ("report -s comm,sysc", "report -s comm,syscall"),
        ("report -i reco", "report -i recording.data"),
        ("convert --speed", "convert --speedscope"),
        ("convert --folded --kern", "convert --folded --kernel"),
        ("completion z", "completion zsh"),
        ("report --json --no-pag", "report --json --no-pager"),
    ],
)
def test_zsh(zsh: Zsh, typed: str, line: str) -> None:
    # Behind a value of a list zsh shows a comma, which goes when something else is typed.
    assert zsh.complete(f"perf-offcpu {typed}").rstrip(",") == f"perf-offcpu {line}"


def test_zsh_reads_the_script_without_complaint(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    text = f"autoload -Uz compinit; compinit -u -d {tmp_path}/dump\n{script(capsys, 'zsh')}"
    done = subprocess.run(["zsh", "-f", "-c", text], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
