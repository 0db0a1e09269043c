# SPDX-License-Identifier: Apache-2.0
"""`convert --parquet`: recordings of several hosts at once, their totals, and refusals."""

import json
from pathlib import Path

import pyarrow.compute as pc
import pyarrow.dataset as pads
import pytest
from builders.program import run

DATA = Path(__file__).resolve().parents[2] / "data"
RECORDINGS = {"vm": DATA / "demo.data", "vmtest": DATA / "arm64" / "own.data"}


def test_several_recordings_at_once_have_the_totals_of_the_report(tmp_path: Path) -> None:
    inputs = [word for path in RECORDINGS.values() for word in ("-i", path)]
    labels = ["--label", "service=web", "--label", "version=2.0"]
    done = run("convert", "--parquet", tmp_path / "set", *inputs, *labels, "-j", "2")
    assert done.stderr == ""
    said = [line.split(": ")[1].split(",")[0] for line in done.stdout.splitlines()]
    assert said == ["162 samples of vm", "148 samples of vmtest"]
    table = pads.dataset(tmp_path / "set" / "samples", partitioning="hive").to_table()
    hosts = pads.dataset(tmp_path / "set" / "hosts", partitioning="hive").to_table()
    assert hosts["labels"].to_pylist() == [[("service", "web"), ("version", "2.0")]] * 2
    for host, path in RECORDINGS.items():
        report = json.loads(run("report", "-i", path, "--json").stdout)
        mine = table.filter(pc.equal(table["host_id"], host))
        weights = mine.group_by("event").aggregate([("weight_ns", "sum"), ("count", "sum")]).to_pylist()
        events = {row["name"]: row["weight"] for row in report["events"]}
        assert {row["event"]: row["weight_ns_sum"] for row in weights} == events


def test_a_recording_that_cannot_be_written_is_named_and_the_others_are_written(tmp_path: Path) -> None:
    clockless = DATA / "perf-7.2" / "direct.data"
    inputs = ("-i", clockless, "-i", RECORDINGS["vm"], "-i", "/no\tne")
    done = run("convert", "--parquet", tmp_path, *inputs, "-j", "1", status=1)
    assert [line.rpartition(": ")[0][-9:] for line in done.stdout.splitlines()] == ["demo.data"]
    first, second = done.stderr.splitlines()
    assert first.startswith(f"perf-offcpu convert: {clockless}: it does not say what time it was")
    assert second.startswith("perf-offcpu convert: /no\\tne: cannot be opened")


@pytest.mark.parametrize(("words", "sentence"), [
    (["--comm", "x"], "--comm means nothing to --parquet, which writes whole recordings"),
    (["--class", "lock"], "--class means nothing to --parquet"), (["-o", "x"], "--output means nothing to --parquet"),
    (["--label", "x"], "--label x: not NAME=VALUE"), (["--jobs", "0"], "--jobs: 0 is not between 1 and 1024"),
    (["--idle", "hide"], "--idle means nothing to --parquet"),
])  # fmt: skip
def test_impossible_options_are_refused(words: list[str], sentence: str, tmp_path: Path) -> None:
    assert sentence in run("convert", "--parquet", tmp_path / "set", "-i", RECORDINGS["vm"], *words, status=129).stderr
    assert not (tmp_path / "set").exists()


@pytest.mark.parametrize("url", ["nosuch://bucket/set", "s3://bucket/set"])
def test_an_unknown_store_is_one_sentence(url: str) -> None:
    done = run("convert", "--parquet", url, "-i", RECORDINGS["vm"], status=129)
    assert done.stderr.startswith(f"perf-offcpu convert: {url}: ") and done.stderr.count("\n") == 1
    done = run("convert", "--folded", "-j", "2", "-i", RECORDINGS["vm"], status=None)
    assert "--jobs is for --parquet alone" in done.stderr
