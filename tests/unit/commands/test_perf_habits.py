# SPDX-License-Identifier: Apache-2.0
"""Command lines known from perf: what makes sense works, the rest gets a sentence of advice."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from perf_offcpu.cli import main
from perf_offcpu.commands.shared.parsers import VERBS, make_parsers
from perf_offcpu.commands.shared.perf_habits import VERBS as HABITS
from perf_offcpu.commands.shared.perf_habits import advice_of
from perf_offcpu.script.fields import choose_fields

DATA = Path(__file__).resolve().parents[2] / "data" / "perf-7.2"
PROGRAM = Path(sys.executable).with_name("perf-offcpu")
FILE = ("-f", "-i", str(DATA / "atend.data"))


def output(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(list(words)) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize(
    "words",
    ["--stdio", "--stdio --no-children", "-n --show-total-period -v", "-g", "-G", "-g graph,0.5,caller",
     "--call-graph=fractal,0.5,caller,function,percent", "--stdio -g caller"],
)  # fmt: skip
def test_options_without_effect(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert output(capsys, "report", *FILE, *words.split()) == output(capsys, "report", *FILE)


@pytest.mark.parametrize(("verb", "words", "same"), [
    ("report", "-g graph,callee", "-g callee"), ("report", "--no-call-graph", "-g none"),
    ("report", "-c reader", "--comm reader"), ("report", "--comms=reader,writer", "--comm reader,writer"),
    ("report", "-C 0", "--cpu 0"), ("script", "-c reader -v", "--comm reader"),
    ("script", "-C 1", "--cpu 1"),
])  # fmt: skip
def test_other_names(verb: str, words: str, same: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert output(capsys, verb, *FILE, *words.split()) == output(capsys, verb, *FILE, *same.split())


@pytest.mark.parametrize("verb", ["report", "script"])
def test_a_pipe_as_input(verb: str) -> None:
    with (DATA / "direct.data").open("rb") as stdin:
        done = subprocess.run(
            [PROGRAM, verb, "-i", "-"], stdin=stdin, capture_output=True, text=True, timeout=60, check=True
        )
    assert "offcpu-time" in done.stdout


def test_inject_writes_to_standard_output_as_perfs() -> None:
    command: list[str | Path] = [PROGRAM, "inject", "-f", "-i", DATA / "atend.data"]
    done = subprocess.run(command, capture_output=True, timeout=60, check=True)
    assert done.stdout[:8] == b"PERFILE2"


@pytest.mark.parametrize(("line", "sentence"), [
    ("report --tui", "--tui: it prints text"), ("report -F overhead,comm", "-F: columns are fixed"),
    ("report --percent-limit=1", "--percent-limit: report --limit"),
    ("report -S schedule", "-S: it selects by"),
    (f"report {DATA / 'atend.data'}", "atend.data: name the recording with -i"),
    ("script -s x.py", "-s: it runs no scripts"),
    ("script report flamegraph", "report: it runs no scripts"), ("script -D", "-D: perf-offcpu dump"),
    ("inject -b -o x", "-b: build-ids are kept"), ("inject -s -o x", "-s: --switches"),
    ("evlist", "use perf-offcpu script --header-only"),
    ("report -g nonsense", "invalid choice: 'nonsense'"),
])  # fmt: skip
def test_advice(line: str, sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(line.split()) == 129
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and sentence in err


def test_an_unknown_option_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "--nonsense"]) == 129
    assert "unrecognized arguments: --nonsense (see 'perf-offcpu report --help')" in capsys.readouterr().err


def test_advice_names_verbs_options_and_fields_that_exist() -> None:
    parsers = make_parsers(VERBS)[1]
    options = {option for parser in parsers.values() for option in parser._option_string_actions}
    texts = [*HABITS.values(), *(text for verb in VERBS for text in advice_of(verb).values())]
    ours = [re.sub(r"\bperf [a-z]+ --?\w+", "", text) for text in texts]  # options of perf
    named = {word for text in ours for word in re.findall(r"--[a-z][a-z-]+", text)}
    assert not named - options - {"--help", "--version"}
    assert not {verb for text in ours for verb in re.findall(r"perf-offcpu ([a-z]+)", text)} - {*VERBS}
    fields = [one for text in ours for one in re.findall(r"-F ([\w+,:]+)", text)]
    assert fields and all(map(choose_fields, [[one] for one in fields]))
