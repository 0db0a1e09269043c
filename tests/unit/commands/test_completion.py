# SPDX-License-Identifier: Apache-2.0
"""Completion in real shells: what is offered for what has been typed."""

from __future__ import annotations

import argparse
import contextlib
import functools
import io
import os
import pty
import re
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from perf_offcpu.cli import main
from perf_offcpu.commands.shared.parsers import VERBS, make_parsers


@functools.cache
def script(shell: str) -> str:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        assert main(["completion", shell]) == 0
    return out.getvalue()


def test_every_option_of_every_verb_is_there() -> None:
    for verb, parser in make_parsers(VERBS)[1].items():
        names = re.search(rf"^_shtab_perf_offcpu_{verb}_option_strings=\((.*)\)$", script("bash"), re.M)
        shown = [action for action in parser._actions if action.help != argparse.SUPPRESS]
        assert names and names[1].split() == [one for action in shown for one in action.option_strings]


def test_tcsh_has_the_verbs_options_and_values() -> None:
    text = script("tcsh")
    assert f"'p/1/({' '.join(VERBS)})/'" in text
    assert "'n/--unit/(ns us ms s)/'" in text and "'n/--input/f/'" in text and "waker-stacks" in text


# bash

OFFERED = [
    ("", [*VERBS]), ("-", ["-h", "--help", "--version", "--traceback"]), ("rep", ["report"]),
    ("--traceback repo", ["report"]), ("report --un", ["--unit"]),
    ("report --unit ", ["ns", "us", "ms", "s"]), ("report --unit = m", ["ms"]),
    ("report --class lock,d", ["lock,disk"]), ("report -s comm,sy", ["comm,symbol", "comm,syscall"]),
    ("script --fields sym", ["sym", "symoff"]), ("convert --speed", ["--speedscope"]),
    ("convert --state --fold", ["--fold-interpreters", "--folded"]), ("convert --callgraph --sv", ["--svg"]),
    ("convert --state D,", [f"D,{letter}" for letter in "RSDITtXZP"]),
    ("report --idle ", ["show", "hide", "only"]), ("report -i rec", ["recording.data"]),
    ("report --comm ", []), ("completion ", ["bash", "zsh", "tcsh"]), ("record tru", ["true", "truncate"]),
]  # fmt: skip


@pytest.mark.parametrize(("typed", "offered"), OFFERED)
def test_bash(tmp_path: Path, typed: str, offered: list[str]) -> None:
    (tmp_path / "recording.data").touch()
    ask = 'COMP_WORDS=(perf-offcpu "$@"); COMP_CWORD=$#; _perf_offcpu; printf "%s\\n" "${COMPREPLY[@]}"'
    text = f"set -u\n{script('bash')}\n{ask}"
    words = typed.split(" ")
    command = ["bash", "--norc", "-c", text, "bash", *words]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert done.stderr == ""
    assert sorted(set(done.stdout.split())) == sorted(offered)


def test_bash_reads_the_script_without_complaint() -> None:
    command = ["bash", "--norc", "-uc", script("bash")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


# zsh completes on a terminal only

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
        options: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), follower)
        options |= {"env": environment, "start_new_session": True}
        self.process = subprocess.Popen(["zsh", "-f", "-i"], **options)
        os.close(follower)
        self.type(SETUP.format(directory=directory))
        assert self.complete("echo ready", tab="") == "echo ready"

    def type(self, text: str) -> None:
        os.write(self.leader, text.encode())

    def complete(self, typed: str, tab: str = "\t") -> str:
        """Return the line after TAB was pressed."""
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
    (directory / "_perf-offcpu").write_text(script("zsh"))
    shell = Zsh(directory)
    yield shell
    shell.close()


@pytest.mark.parametrize(("typed", "line"), [
    ("rep", "report"), ("report --cla", "report --class="), ("report --idle h", "report --idle hide"),
    ("report --idle=h", "report --idle=hide"), ("report --class loc", "report --class lock"),
    ("report --class lock,poll,netw", "report --class lock,poll,network"),
    ("report -s comm,sysc", "report -s comm,syscall"), ("report -i reco", "report -i recording.data"),
    ("convert --speed", "convert --speedscope"), ("convert --folded --kern", "convert --folded --kernel"),
    ("convert --callgraph --sv", "convert --callgraph --svg"), ("record -a fals", "record -a false"),
    ("completion z", "completion zsh"), ("report --json --no-pag", "report --json --no-pager"),
])  # fmt: skip
def test_zsh(zsh: Zsh, typed: str, line: str) -> None:
    # zsh appends a comma to a value of a list; it disappears when a space is typed.
    assert zsh.complete(f"perf-offcpu {typed}").rstrip(",") == f"perf-offcpu {line}"


def test_zsh_evaluates_the_script_without_complaint(tmp_path: Path) -> None:
    path = tmp_path / "completion.zsh"
    path.write_text(script("zsh"))
    setup = f"autoload -Uz compinit; compinit -u -d {tmp_path}/dump"
    text = f'{setup}; eval "$(<{path})"; print $_comps[perf-offcpu]'
    done = subprocess.run(["zsh", "-f", "-c", text], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "_shtab_perf_offcpu\n", "")
