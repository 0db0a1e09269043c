# SPDX-License-Identifier: Apache-2.0
"""Command lines known from perf: what makes sense works, the rest is refused in one sentence."""

import subprocess
import sys
from pathlib import Path

import pytest
from builders.refused import output, refused

DATA = Path(__file__).resolve().parents[2] / "data" / "perf-7.2"
PROGRAM = Path(sys.executable).with_name("perf-offcpu")
FILE = ("-f", "-i", str(DATA / "atend.data"))


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
    ("report", "-C 0", "--cpu 0"), ("script", "-c reader -v", "--comm reader"), ("script", "-C 1", "--cpu 1"),
])  # fmt: skip
def test_other_names(verb: str, words: str, same: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert output(capsys, verb, *FILE, *words.split()) == output(capsys, verb, *FILE, *same.split())


@pytest.mark.parametrize(("words", "part"), [
    ("report -i -", b"offcpu-time"), ("script -i -", b"offcpu-time"), ("inject -f -i -", b"PERFILE2"),
])  # fmt: skip
def test_pipes_as_input_and_output(words: str, part: bytes) -> None:
    with (DATA / "direct.data").open("rb") as stdin:
        done = subprocess.run([PROGRAM, *words.split()], stdin=stdin, capture_output=True, timeout=60, check=True)
    assert part in done.stdout


@pytest.mark.parametrize(("line", "sentence"), [
    (f"report {DATA / 'atend.data'}", "atend.data: name the recording with -i"),
    ("script -s x.py", "unrecognized arguments: -s x.py"), ("report -g nonsense", "invalid choice: 'nonsense'"),
    ("evlist", "'evlist' is not a verb of perf-offcpu"),
])  # fmt: skip
def test_what_does_not_exist_here(line: str, sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert sentence in refused(capsys, *line.split())
