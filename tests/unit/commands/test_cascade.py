# SPDX-License-Identifier: Apache-2.0
"""`convert --callgraph --cascade` and `report --bottlenecks` on recordings, and bad input."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from perf_offcpu.cli import main

DATA = Path(__file__).resolve().parents[2] / "data"
DEMO = str(DATA / "demo.data")
SCHED = str(DATA / "perf-7.2" / "sched.data")


@pytest.mark.parametrize("recording", [DEMO, SCHED])
@pytest.mark.parametrize(
    "selection", [(), ("--time", "20%-70%"), ("--class", "lock,sleep"), ("--idle", "hide")]
)
def test_what_is_held_sums_to_the_selected_waits(
    recording: str, selection: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    given = ("-f", "-i", recording, *selection)
    assert main(["convert", *given, "--callgraph", "json", "--cascade", "--min-share", "0", "-o", "-"]) == 0
    graph = json.loads(capsys.readouterr().out)
    assert sum(node["held"] for node in graph["nodes"]) == graph["graph"]["total"]
    assert main(["report", *given, "--bottlenecks", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["total"] == graph["graph"]["total"]
    held = sum(one["held"] for one in report["bottlenecks"])
    assert held + report["others"]["held"] == report["total"]


def test_bottlenecks_as_text(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "-f", "-i", SCHED, "--bottlenecks", "-g", "none"]) == 0
    shown = capsys.readouterr().out
    assert "# 1. " in shown and "% of all waits" in shown


@pytest.mark.parametrize(("options", "message"), [
    (("convert", "--folded", "--cascade"), "--cascade means nothing to --folded"),
    (("convert", "--callgraph", "--cascade", "--diff", DEMO), "no --diff"),
    (("convert", "--callgraph", "--cascade", "--event", "cpu-clock"), "no --diff"),
    (("report", "--bottlenecks", "--diff", DEMO), "no --diff"),
])  # fmt: skip
def test_impossible_questions_are_answered_in_a_sentence(
    options: tuple[str, ...], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = ["-o", str(tmp_path / "out")] if options[0] == "convert" else []
    assert main([options[0], "-f", "-i", DEMO, *options[1:], *output]) == 129
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
