# SPDX-License-Identifier: Apache-2.0
"""Several `-i`: verbs that join recordings, and the error of the others."""

import json
import shutil
from pathlib import Path

import pytest
from builders.refused import output, refused

import perf_offcpu
from perf_offcpu.cli import main

DEMO = Path(__file__).resolve().parents[2] / "data" / "demo.data"


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Make two copies of a recording and return the words that name them."""
    monkeypatch.chdir(tmp_path)
    for name in ("run1.data", "run2.data"):
        shutil.copy(DEMO, name)
    return ["-f", "-i", "run1.data", "-i", "run2.data"]


def total(text: str) -> int:
    (event,) = [one for one in json.loads(text)["events"] if one["name"] == "offcpu-time"]
    weight: int = event["weight"]
    return weight


def test_report_sums_up(runs: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    one = total(output(capsys, "report", "--json", *runs[:3]))
    assert total(output(capsys, "report", "--json", *runs)) == 2 * one
    document = json.loads(output(capsys, "report", "--json", "--apart", *runs))
    assert document["recording"]["file"] == "run1.data, run2.data"
    pids = {one["pid"] // 10_000_000 for one in document["threads"] if one["pid"] > 0}
    assert pids == {0, 1}


def test_convert_names_its_output_after_the_first(runs: list[str]) -> None:
    assert main(["convert", "--folded", *runs]) == 0
    assert Path("run1.data.folded").stat().st_size


def test_convert_does_not_overwrite_any_input(runs: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert "same file" in refused(capsys, "convert", "--folded", *runs, "-o", "run2.data")


def test_script_prints_all(runs: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    one = output(capsys, "script", "-F", "comm,tid,time", *runs[:3]).splitlines()
    both = output(capsys, "script", "-F", "comm,tid,time", *runs).splitlines()
    assert sorted(both) == sorted(one * 2) and len(one) > 100


def test_load_takes_several(runs: list[str]) -> None:
    one, both = perf_offcpu.load("run1.data"), perf_offcpu.load("run1.data", "run2.data", from_start=True)
    assert len(both.samples) == 2 * len(one.samples)
    assert both.samples.pid.max() > 10_000_000


@pytest.mark.parametrize(("words", "sentence"), [
    (["report", "-i", "run1.data", "-i", "run1.data"], "-i run1.data: the same recording is given twice"),
    (["inject", "-i", "run1.data", "-i", "run2.data", "-o", "x"], "-i is given twice: one recording is read"),
    (["archive", "-i", "run1.data", "-i", "run2.data"], "-i is given twice: one recording is read"),
    (["dump", "-i", "run1.data", "--input=run2.data"], "-i is given twice: one recording is read"),
], ids=lambda value: value[0] if isinstance(value, list) else '')  # fmt: skip
def test_what_is_refused(words: list[str], sentence: str, runs: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert sentence in refused(capsys, *words)
    assert not Path("x").exists()
