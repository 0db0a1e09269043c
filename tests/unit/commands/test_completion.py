# SPDX-License-Identifier: Apache-2.0
"""Completion in real shells, and command lines known from perf: what makes sense works, the rest is refused."""

import argparse
import contextlib
import functools
import io
import re
import subprocess
from pathlib import Path

import pytest
from builders import program
from builders.examples import examples
from builders.refused import output, refused

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


@pytest.mark.parametrize(("typed", "offered"), [
    ("rep", ["report"]), ("report --un", ["--unit"]), ("report --unit ", ["ns", "us", "ms", "s"]),
    ("report --idle ", ["show", "hide", "only"]), ("report -i rec", ["recording.data"]),
    ("completion ", ["bash", "zsh", "tcsh"]),
])  # fmt: skip
def test_bash(tmp_path: Path, typed: str, offered: list[str]) -> None:
    (tmp_path / "recording.data").touch()
    ask = 'COMP_WORDS=(perf-offcpu "$@"); COMP_CWORD=$#; _shtab_perf_offcpu; printf "%s\\n" "${COMPREPLY[@]}"'
    command = ["bash", "--norc", "-c", f"{script('bash')}\n{ask}", "bash", *typed.split(" ")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert done.stderr == "" and sorted(set(done.stdout.split())) == sorted(offered)


def test_shells_evaluate_the_script_without_complaint(tmp_path: Path) -> None:
    path = tmp_path / "completion.zsh"
    path.write_text(script("zsh"))
    setup = f"autoload -Uz compinit; compinit -u -d {tmp_path}/dump"
    zsh = ["zsh", "-f", "-c", f'{setup}; eval "$(<{path})"; print $_comps[perf-offcpu]']
    for command, shown in ((["bash", "--norc", "-c", script("bash")], ""), (zsh, "_shtab_perf_offcpu\n")):
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert (done.returncode, done.stdout, done.stderr) == (0, shown, "")


DATA = Path(__file__).resolve().parents[2] / "data" / "perf-7.2"
FILE = ("-f", "-i", str(DATA / "atend.data"))


def test_options_without_effect(capsys: pytest.CaptureFixture[str]) -> None:
    usual = output(capsys, "report", *FILE)
    for words in (
        "--stdio", "--stdio --no-children", "-n --show-total-period -v", "-g", "-G", "-g graph,0.5,caller",
        "--call-graph=fractal,0.5,caller,function,percent", "--stdio -g caller",
    ):  # fmt: skip
        assert output(capsys, "report", *FILE, *words.split()) == usual, words


@pytest.mark.parametrize(("words", "same"), examples("unit/examples.txt", "other names"))
def test_other_names(words: str, same: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert output(capsys, *words.split(), *FILE) == output(capsys, *same.split(), *FILE)


@pytest.mark.parametrize(("words", "part"), [
    ("report -i -", "offcpu-time"), ("script -i -", "offcpu-time"), ("inject -f -i -", "PERFILE2"),
])  # fmt: skip
def test_pipes_as_input_and_output(words: str, part: str) -> None:
    assert part in program.run(*words.split(), stdin=DATA / "direct.data").stdout


@pytest.mark.parametrize(("line", "sentence"), examples("unit/sentences.txt", "perf"))
def test_what_does_not_exist_here(line: str, sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert sentence in refused(capsys, *line.replace("DATA", str(DATA)).split())
