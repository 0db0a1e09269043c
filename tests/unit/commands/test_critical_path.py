# SPDX-License-Identifier: Apache-2.0
"""`--critical-path`, `--cascade`, `--bottlenecks` and `--serial` of report and convert on recordings, and bad input."""

import json
from pathlib import Path

import pytest
from builders.refused import output, refused

from perf_offcpu.cli import main

DATA = Path(__file__).resolve().parents[2] / "data"
DEMO, SCHED = str(DATA / "demo.data"), str(DATA / "perf-7.2" / "sched.data")
GIVEN = ("-f", "-i", DEMO, "--critical-path")


def test_text_of_a_path_without_wakers_and_of_bottlenecks(capsys: pytest.CaptureFixture[str]) -> None:
    shown = output(capsys, "report", *GIVEN, "--comm", "locker-a", "--limit", "2")
    assert "# Critical path of locker-a-29439/29440: 266.388 ms (266387536 ns), " in shown
    assert "# The recording has no wakers: " in shown
    assert "\n# and 1 more row: 1.258 ms (" in shown
    shown = output(capsys, "report", "-f", "-i", SCHED, "--bottlenecks", "-g", "none")
    assert "# 1. " in shown and "% of all waits" in shown


def test_folded_stacks_sum_to_the_window(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--comm", "locker-b", "--time", "10%-60%"]
    made = json.loads(output(capsys, "report", *GIVEN, *options, "--json"))
    assert sum(row["time"] for row in made["rows"]) == made["total"] == made["hops"][0]["time"]
    lines = output(capsys, "convert", *GIVEN, *options, "--folded", "-o", "-").splitlines()
    assert sum(int(line.rpartition(" ")[2]) for line in lines) == made["total"] > 0
    assert all(line.startswith("locker-b;") for line in lines)


@pytest.mark.parametrize("form", ["perfetto", "chrome-trace", "firefox"])
def test_views_of_time_have_a_track_of_it(form: str, tmp_path: Path) -> None:
    plain, with_path = tmp_path / "plain", tmp_path / "path"
    options = ["convert", "-f", "-i", DEMO, f"--{form}"]
    assert main([*options, "-o", str(plain)]) == 0
    assert main([*options, "-o", str(with_path), "--critical-path", "--comm", "locker-a"]) == 0
    assert b"critical path of locker-a" not in plain.read_bytes()
    assert b"critical path of locker-a" in with_path.read_bytes()


@pytest.mark.parametrize("recording", [DEMO, SCHED])
@pytest.mark.parametrize("selection", [(), ("--time", "20%-70%"), ("--class", "lock,sleep"), ("--idle", "hide")])
def test_held_time_is_the_waits(recording: str, selection: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    given = ("-f", "-i", recording, *selection)
    whole = given if "--idle" in given else (*given, "--idle", "hide")  # idle threads are no bottlenecks
    graph_options = ("--callgraph", "json", "--cascade", "--min-share", "0", "-o", "-")
    graph = json.loads(output(capsys, "convert", *whole, *graph_options))
    assert sum(node["held"] for node in graph["nodes"]) == graph["graph"]["total"]
    report = json.loads(output(capsys, "report", *given, "--bottlenecks", "--json"))
    held = sum(one["held"] for one in report["bottlenecks"])
    assert held + report["others"]["held"] == report["total"] == graph["graph"]["total"]


@pytest.mark.parametrize(("options", "message"), [
    (("report", "--critical-path", "--comm", "nobody"), "no such thread"),
    (("report", "--critical-path", "--class", "lock"), "not --class"),
    (("report", "--critical-path", "--min-dur", "1"), "not --min-dur"),
    (("report", "--critical-path", "--idle", "hide"), "not --idle"),
    (("report", "--critical-path", "--time", "0,1"), "no samples in that time"),
    (("report", "--critical-path", "--diff", DEMO), "does not compare critical paths"),
    (("convert", "--critical-path", "--folded", "--all-events"), "--critical-path shows one thread"),
    (("convert", "--critical-path", "--perfetto", "--waker-stack"), "--critical-path shows one thread"),
    (("convert", "--folded", "--cascade"), "--cascade means nothing to --folded"),
    (("convert", "--callgraph", "--cascade", "--diff", DEMO), "no --diff"),
    (("convert", "--callgraph", "--cascade", "--event", "cpu-clock"), "no --diff"),
    (("report", "--bottlenecks", "--diff", DEMO), "no --diff"),
    (("report", "--serial", "--class", "lock"), "--serial counts threads"),
    (("report", "--serial", "--cpu", "0"), "--serial counts threads"),
    (("report", "--serial", "--object", "pipe"), "--serial counts threads"),
    (("report", "--serial", "--event", "cpu-clock"), "no --event"),
    (("report", "--serial", "--comm", "nobody"), "no such thread"),
    (("report", "--serial", "--time", "0,1"), "no samples in that time"),
    (("report", "--serial", "--time", "0,1 2,3"), "more than one window"),
])  # fmt: skip
def test_impossible_questions_are_answered_in_a_sentence(
    options: tuple[str, ...], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = ["-o", str(tmp_path / "out")] if options[0] == "convert" else []
    assert message in refused(capsys, options[0], "-f", "-i", DEMO, *options[1:], *out)
    assert not (tmp_path / "out").exists()
