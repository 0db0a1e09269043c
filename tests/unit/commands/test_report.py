# SPDX-License-Identifier: Apache-2.0
"""`perf-offcpu report` on recordings, into a pipe and on a terminal; paths, cascades, bottlenecks; `--diff` of two
runs of one program; bad input."""

import json
import os
import shlex
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from builders import terminal
from builders.examples import examples
from builders.refused import output, refused

from perf_offcpu.cli import main

DATA = Path(__file__).resolve().parents[2] / "data"
RECORDING, COMPRESSED, HYBRID, SCHED, DEFERRED = (
    str(DATA / f"perf-7.2/{name}.data") for name in ("direct", "compressed", "hybrid", "sched", "deferred")
)
COMMAND = [sys.executable, "-m", "perf_offcpu", "report", "-f", "-i", RECORDING]


def report(capsys: pytest.CaptureFixture[str], *options: str) -> str:
    return output(capsys, "report", "-f", "-i", RECORDING, *options, silent=True)


def test_totals_and_threads(capsys: pytest.CaptureFixture[str]) -> None:
    shown = report(capsys)
    assert "# Event 'offcpu-time' (this report): 108 samples, 1610.900 ms (1610900175 ns)\n" in shown
    assert "# Event 'cpu-clock': 401 samples, 402.207 ms (402206609 ns)\n" in shown
    table = shown[: shown.index("# Thread budget")]
    rows = [line.split() for line in table.splitlines() if line.endswith(" locker")]
    figures = [(row[1], row[2], row[-3], row[-2]) for row in rows]
    assert figures == [("194.440", "20", "126", "130"), ("123.228", "14", "126", "131")]
    assert "\x1b" not in shown


def test_units_and_limit(capsys: pytest.CaptureFixture[str]) -> None:
    shown = report(capsys, "--unit", "ns", "--limit", "2")
    assert "Off-cpu ns" in shown and " 273231404 " in shown
    assert "# and 16 more threads: " in shown and "total of 11 threads\n" in shown
    assert shown.count("            |\n") == 2 and "more threads" not in report(capsys, "--limit", "0")
    problem = refused(capsys, "report", "-f", "-i", RECORDING, "--limit", "-1")
    assert "--limit -1: not a number of rows, 0 for all" in problem


def test_json_has_everything(capsys: pytest.CaptureFixture[str]) -> None:
    document = json.loads(report(capsys, "--json"))
    assert document["subject"]["weight"] == 1610900175
    buckets = document["histogram"]["buckets"]
    for rows in (document["threads"], document["stacks"], buckets):
        assert sum(row["weight"] for row in rows) == 1610900175
    assert sum(bucket["count"] for bucket in buckets) == 108 and document["histogram"]["sums"]["samples"] == 0
    assert len(json.loads(report(capsys, "--json", "--limit", "3"))["threads"]) == 3
    selected = json.loads(report(capsys, "--json", "--comm", "reader", "--tid", "132", "--pid", "126"))
    assert {row["tid"] for row in selected["threads"]} == {132}
    assert json.loads(report(capsys, "--json", "--event", "cpu-clock"))["subject"]["weight"] == 402206609


def on_terminal(columns: int, *options: str, **environment: str) -> str:
    """Return the output on a terminal of this width, by default without a pager."""
    names = {"TERM": "xterm", "COLUMNS": str(columns), "PAGER": "cat", **environment}
    kept = {key: value for key, value in os.environ.items() if key not in ("NO_COLOR", "PERF_PAGER", "LESS")}
    return terminal.on_terminal([*COMMAND, *options], "stdout", env=kept | names).replace("\r\n", "\n")


def test_a_terminal_gets_colours_and_lines_that_fit() -> None:
    assert "\x1b[31m16.96%\x1b[0m" in on_terminal(70)
    plain = on_terminal(70, NO_COLOR="1")
    assert "\x1b" not in plain
    rows = [line for line in plain.splitlines() if line.startswith("  ") and not line.startswith("   ")]
    assert rows and max(map(len, rows)) <= 70
    assert on_terminal(70, TERM="dumb") == plain


@pytest.mark.parametrize(
    ("columns", "options"), [(80, []), (80, ["--sort", "comm,class,syscall,state,waker,cgroup"]), (160, ["-g", "none"])]
)
def test_rows_of_all_tables_fit(columns: int, options: list[str]) -> None:
    shown = on_terminal(columns, *options, NO_COLOR="1").splitlines()
    rows = [line for line in shown if line.startswith("  ") or line.startswith("# ..")]
    assert len(rows) > 30 and max(map(len, rows)) <= columns
    assert any(line.startswith("#") and "Share" in line and "Off-cpu ms" in line for line in shown)


@pytest.mark.long
def test_a_terminal_gets_a_pager(tmp_path: Path) -> None:
    through = on_terminal(80, PAGER="sed 's/^/through the pager: /'")
    assert all(line.startswith("through the pager: ") for line in through.splitlines())
    assert "through the pager" not in on_terminal(80, "--no-pager", PAGER="sed 's/^/through the pager: /'")
    assert on_terminal(80, PERF_PAGER="", PAGER="false") == on_terminal(80)
    # A pager that quits early is no error.
    assert on_terminal(80, PAGER="head -1").startswith("# ")
    left = tmp_path / "LESS"
    on_terminal(80, PAGER=f"cat > /dev/null; echo $LESS > {left}")
    assert left.read_text() == "FRSX\n"


def test_the_summary_alone(capsys: pytest.CaptureFixture[str]) -> None:
    shown, whole = report(capsys, "--summary").splitlines(), report(capsys).splitlines()
    assert [f"# {line}".rstrip() for line in shown] == whole[: len(shown)] and shown[-1].startswith("Next: ")
    wrong = ("report", "-f", "-i", RECORDING, "--summary", "--no-verdict")
    assert "of which there are none here" in refused(capsys, *wrong)


def test_sorted_by_keys(capsys: pytest.CaptureFixture[str]) -> None:
    shown = report(capsys, "--sort", "comm,state", "-g", "none", "--unit", "ns")
    assert "# Off-cpu time by comm, state\n" in shown and "---" not in shown
    groups = json.loads(report(capsys, "--json", "--sort", "comm,state"))["groups"]
    assert groups["keys"] == ["comm", "state"] and sum(row["weight"] for row in groups["rows"]) == 1610900175
    assert all(f" {row['weight']} " in shown for row in groups["rows"])
    assert "--sort: no key 'colour'" in refused(capsys, "report", "-i", RECORDING, "--sort", "colour")


def test_budgets_are_of_whole_lives(capsys: pytest.CaptureFixture[str]) -> None:
    assert json.loads(report(capsys, "--json", "--comm", "reader"))["budget"]["derived"] is True
    for part in (["--time", "0%-50%"], ["--class", "other"], ["--min-dur", "1"], ["--event", "cpu-clock"]):
        assert json.loads(report(capsys, "--json", *part))["budget"] is None


WORK = """
import time, sys
from perf_offcpu.commands.shared.streams import busy
with busy('working'): time.sleep({})
"""


def busy_on_terminal(seconds: float, **environment: str) -> str:
    command = [sys.executable, "-c", WORK.format(seconds)]
    return terminal.on_terminal(command, "stderr", env=os.environ | {"TERM": "xterm", **environment})


def test_long_work_shows_and_takes_it_back() -> None:
    shown = busy_on_terminal(1.8)
    assert "working, " in shown and shown.endswith("\r\x1b[K")
    assert "\x1b[36m" in shown and "\x1b[36m" not in busy_on_terminal(1.8, NO_COLOR="1")


@pytest.mark.parametrize(("seconds", "term"), [(0.1, "xterm"), (1.5, "dumb")])
def test_short_work_and_dumb_terminals_show_nothing(seconds: float, term: str) -> None:
    assert busy_on_terminal(seconds, TERM=term) == ""


def test_pipes_and_files_never_get_it() -> None:
    done = subprocess.run([sys.executable, "-c", WORK.format(1.5)], capture_output=True, check=True, timeout=60)
    assert (done.stdout, done.stderr) == (b"", b"")


DEMO = str(DATA / "demo.data")
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


@pytest.mark.parametrize(("words", "message"), examples("unit/sentences.txt", "questions"))
def test_impossible_questions_are_answered_in_a_sentence(
    words: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    verb, *options = [word.replace("DEMO", DEMO) for word in shlex.split(words)]
    out = ["-o", str(tmp_path / "out")] if verb == "convert" else []
    assert message in refused(capsys, verb, "-f", "-i", DEMO, *options, *out)
    assert not (tmp_path / "out").exists()


def compared(capsys: pytest.CaptureFixture[str], *options: str) -> str:
    return output(capsys, "report", "-f", "-i", HYBRID, "--diff", RECORDING, *options, silent=True)


def document(capsys: pytest.CaptureFixture[str], *options: str) -> Any:
    return json.loads(compared(capsys, "--json", *options))


def test_weights_are_those_of_both_reports(capsys: pytest.CaptureFixture[str]) -> None:
    made = document(capsys)
    for side, path in (("old", RECORDING), ("new", HYBRID)):
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
    shown = output(capsys, "report", "-f", "-i", COMPRESSED, "--diff", RECORDING)
    assert "# No change is more than noise.\n" in shown
    assert "# Noise, left out: 11 stacks: " in shown and "---" not in shown
    itself = output(capsys, "report", "-f", "-i", RECORDING, "--diff", RECORDING)
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
    shown = compared(capsys, "--limit", "0", "--unit", "us", "-g", "callee")
    assert "Change us/s" in shown and "; leaf first\n" in shown and "Noise, marked ~: " in shown
    plain = compared(capsys, "--no-verdict", "-g", "none", "--limit", "1")
    assert "Next: " not in plain and "            |" not in plain and "Off-cpu time per second: " in plain
    assert "\x1b" not in shown


def test_work_is_counted_by_second_run_or_unit(capsys: pytest.CaptureFixture[str]) -> None:
    run, unit = document(capsys, "--per", "run"), document(capsys, "--per", "50,100.5")
    assert run["total"]["before"] == run["total"]["old"]["weight"]
    assert unit["total"]["after"] == pytest.approx(unit["total"]["new"]["weight"] / 100.5)
    for wrong in ("minute", "0,1", "5", "1e3,4", "-1,2", "1,2,3", ""):
        problem = refused(capsys, "report", "-f", "-i", HYBRID, "--diff", RECORDING, f"--per={wrong}")
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
        (DEFERRED, "has no off-cpu samples to compare"),
    ):
        assert sentence in refused(capsys, "report", "-f", "-i", RECORDING, "--diff", old, status=None)
    for options, sentence in (
        (["--sort", "blocked"], "--sort blocked does not apply"),
        (["--children"], "--diff compares neither functions with their callees nor budgets"),
        (["--comm", "nobody"], "have no samples to compare"),
        (["--sort", "colour"], "no key 'colour'"),
    ):
        assert main(["report", "-f", "-i", RECORDING, "--diff", RECORDING, *options]) != 0
        assert sentence in capsys.readouterr().err
