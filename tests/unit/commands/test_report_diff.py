# SPDX-License-Identifier: Apache-2.0
"""`perf-offcpu report --diff` on recordings of perf 7.2: two runs of one program, and bad input."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from builders.refused import output, refused

from perf_offcpu.cli import main

DATA = Path(__file__).resolve().parents[2] / "data" / "perf-7.2"
DIRECT, COMPRESSED, HYBRID, SCHED = (str(DATA / f"{name}.data") for name in ("direct", "compressed", "hybrid", "sched"))


def report(capsys: pytest.CaptureFixture[str], *options: str) -> str:
    return output(capsys, "report", "-f", "-i", HYBRID, "--diff", DIRECT, *options, silent=True)


def document(capsys: pytest.CaptureFixture[str], *options: str) -> Any:
    return json.loads(report(capsys, "--json", *options))


def test_weights_are_those_of_both_reports(capsys: pytest.CaptureFixture[str]) -> None:
    made = document(capsys)
    for side, path in (("old", DIRECT), ("new", HYBRID)):
        alone = json.loads(output(capsys, "report", "-f", "-i", path, "--json"))
        assert made["total"][side]["weight"] == alone["subject"]["weight"]
        for table, key in (("groups", "class"), ("threads", "comm")):
            assert made[table]["keys"] == [key]
            weights = {row["values"][0]: row[side]["weight"] for row in made[table]["rows"]}
            found = Counter[str]()
            for row in alone[table]["rows"] if table == "groups" else alone[table]:
                found[row["values"][0] if table == "groups" else row["comm"]] += row["weight"]
            assert found == Counter(weights)
        assert sum(row[side]["weight"] for row in made["stacks"]["rows"]) == alone["subject"]["weight"]
        assert sum(row[side]["count"] for row in made["functions"]["rows"]) == alone["subject"]["count"]
    assert made["per"]["name"] == "second"
    assert made["total"]["before"] == pytest.approx(made["total"]["old"]["weight"] * 1e9 / made["old"]["recorded_ns"])


def test_two_recordings_of_one_program_have_not_changed(capsys: pytest.CaptureFixture[str]) -> None:
    shown = output(capsys, "report", "-f", "-i", COMPRESSED, "--diff", DIRECT)
    assert "# No change is more than noise.\n" in shown
    assert "# Noise, left out: 11 stacks: " in shown and "---" not in shown
    itself = output(capsys, "report", "-f", "-i", DIRECT, "--diff", DIRECT)
    assert "# No change is more than noise.\n" in itself and "+0.000 and +0.000 ms/s" in itself


def test_selections_apply_to_both(capsys: pytest.CaptureFixture[str]) -> None:
    made = document(capsys, "--comm", "reader,locker", "--class", "other", "--sort", "comm,class")
    assert {tuple(row["values"]) for row in made["groups"]["rows"]} == {("reader", "other"), ("locker", "other")}
    whole, half = (document(capsys, *time) for time in ((), ("--time", "0%-50%")))
    assert half["old"]["recorded_ns"] == pytest.approx(whole["old"]["recorded_ns"] / 2, abs=1)
    assert half["total"]["old"]["count"] < whole["total"]["old"]["count"]
    cpu = document(capsys, "--event", "cpu-clock")
    assert (cpu["offcpu"], cpu["verdict"], cpu["functions"]) == (False, None, None)


def test_rows_units_and_order(capsys: pytest.CaptureFixture[str]) -> None:
    shown = report(capsys, "--limit", "0", "--unit", "us", "-g", "callee")
    assert "Change us/s" in shown and "; leaf first\n" in shown and "Noise, marked ~: " in shown
    plain = report(capsys, "--no-verdict", "-g", "none", "--limit", "1")
    assert "Next: " not in plain and "            |" not in plain and "Off-cpu time per second: " in plain
    assert "\x1b" not in shown


def test_work_is_counted_by_second_run_or_unit(capsys: pytest.CaptureFixture[str]) -> None:
    run, unit = document(capsys, "--per", "run"), document(capsys, "--per", "50,100.5")
    assert run["total"]["before"] == run["total"]["old"]["weight"]
    assert unit["total"]["after"] == pytest.approx(unit["total"]["new"]["weight"] / 100.5)
    for wrong in ("minute", "0,1", "5", "1e3,4", "-1,2", "1,2,3", ""):
        problem = refused(capsys, "report", "-f", "-i", HYBRID, "--diff", DIRECT, f"--per={wrong}")
        assert problem.startswith(f"perf-offcpu report: --per {wrong}: give second, run, ")
    assert "--per has a meaning with --diff OLD only" in refused(capsys, "report", "-f", "-i", HYBRID, "--per", "run")


def test_several_recordings_are_compared_as_one(capsys: pytest.CaptureFixture[str]) -> None:
    made = document(capsys, "-i", SCHED, "--apart", "--from-start")
    assert made["new"]["file"] == f"{HYBRID}, {SCHED}" and made["per"]["name"] == "second"
    assert made["total"]["new"]["weight"] > document(capsys)["total"]["new"]["weight"]


def test_bad_input_ends_in_one_sentence(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no recording" * 10)
    for old, sentence in (
        (str(tmp_path / "missing"), "missing: cannot be opened: No such file or directory"),
        (str(tmp_path / "text"), "this is no perf.data file"),
        (str(DATA / "deferred.data"), "has no off-cpu samples to compare"),
    ):
        assert sentence in refused(capsys, "report", "-f", "-i", DIRECT, "--diff", old, status=None)
    for options, sentence in (
        (["--sort", "blocked"], "--sort blocked does not apply"),
        (["--children"], "--diff compares neither functions with their callees nor budgets"),
        (["--comm", "nobody"], "have no samples to compare"),
        (["--sort", "colour"], "no key 'colour'"),
    ):
        assert main(["report", "-f", "-i", DIRECT, "--diff", DIRECT, *options]) != 0
        assert sentence in capsys.readouterr().err
