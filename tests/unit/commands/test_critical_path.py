# SPDX-License-Identifier: Apache-2.0
"""`--critical-path` of report and convert on the demo's recording, and bad input."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from perf_offcpu.cli import main

DEMO = str(Path(__file__).resolve().parents[2] / "data" / "demo.data")
GIVEN = ("-f", "-i", DEMO, "--critical-path")


def test_without_wakers_the_thread_explains_itself(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", *GIVEN, "--comm", "locker-a", "--limit", "2"]) == 0
    shown = capsys.readouterr().out
    assert "# Critical path of locker-a-29439/29440: 266.388 ms (266387536 ns), " in shown
    assert "# The recording has no wakers: " in shown
    assert "\n# and 1 more row: 1.258 ms (" in shown


def test_folded_stacks_sum_to_the_window(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--comm", "locker-b", "--time", "10%-60%"]
    assert main(["report", *GIVEN, *options, "--json"]) == 0
    made = json.loads(capsys.readouterr().out)
    assert sum(row["time"] for row in made["rows"]) == made["total"] == made["hops"][0]["time"]
    assert main(["convert", *GIVEN, *options, "--folded", "-o", "-"]) == 0
    lines = capsys.readouterr().out.splitlines()
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


@pytest.mark.parametrize(("options", "message"), [
    (("report", "--comm", "nobody"), "no such thread"),
    (("report", "--class", "lock"), "not --class"),
    (("report", "--min-dur", "1"), "not --min-dur"),
    (("report", "--idle", "hide"), "not --idle"),
    (("report", "--time", "0,1"), "no samples in that time"),
    (("report", "--diff", DEMO), "does not compare critical paths"),
    (("convert", "--folded", "--all-events"), "--critical-path shows one thread"),
    (("convert", "--perfetto", "--waker-stack"), "--critical-path shows one thread"),
])  # fmt: skip
def test_impossible_questions_are_answered_in_a_sentence(
    options: tuple[str, ...], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = ["-o", str(tmp_path / "out")] if options[0] == "convert" else []
    assert main([options[0], *GIVEN, *options[1:], *output]) == 129
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
