# SPDX-License-Identifier: Apache-2.0
"""Segments and `convert --parquet`: totals are those of the report, names are stable, rewriting replaces; refusals."""

import json
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest
from builders.dataset import rows_of
from builders.examples import examples
from builders.profile import ProfileBuilder, functions_of
from builders.program import run

from perf_offcpu.dataset.content import content_of
from perf_offcpu.dataset.dataset import Dataset, open_dataset
from perf_offcpu.dataset.parquet import arrow_schema
from perf_offcpu.dataset.rows import Gap, host_of, span_of
from perf_offcpu.dataset.schema import TABLES
from perf_offcpu.dataset.segment import write_segment
from perf_offcpu.errors import UsageError
from perf_offcpu.model.profile import Profile
from perf_offcpu.report.document import document
from perf_offcpu.report.summary import summarize
from perf_offcpu.symbolize.load import load_profile
from perf_offcpu.symbolize.options import SymbolizeOptions

DATA = Path(__file__).resolve().parents[2] / "data"


def sums(samples: list[dict[str, Any]], key: str, value: str) -> Counter[Any]:
    found = Counter[Any]()
    for row in samples:
        found[row[key]] += row[value] or 0
    return found


@pytest.fixture
def dataset(tmp_path: Path) -> Dataset:
    return open_dataset(str(tmp_path / "set"), make=True)


@pytest.fixture(params=("demo.data", "arm64/own.data"))
def profile(request: pytest.FixtureRequest) -> Profile:
    return load_profile([str(DATA / request.param)], SymbolizeOptions())


def test_totals_are_those_of_the_report(profile: Profile, dataset: Dataset) -> None:
    segment = write_segment(dataset, profile, host_of(profile))
    samples, report = rows_of(dataset, "samples"), document(summarize(profile))
    assert segment.rows == len(samples) == len(profile.samples)
    assert sums(samples, "event", "weight_ns") == {row["name"]: row["weight"] for row in report["events"]}
    assert sums(samples, "event", "count") == {row["name"]: row["count"] for row in report["events"]}
    waits = [row for row in samples if row["event"] == "offcpu-time"]
    assert sums(waits, "class", "weight_ns") == {row["values"][0]: row["weight"] for row in report["groups"]["rows"]}
    assert sums(waits, "tid", "weight_ns") == {row["tid"]: row["weight"] for row in report["threads"] if row["weight"]}
    states = sum((Counter(stack["states"]) for stack in report["stacks"]), Counter[str]())
    assert sums(waits, "state", "weight_ns") == states
    assert {row["cause"]: row["count"] for row in rows_of(dataset, "losses") if row["is_loss"]} == report["losses"]


def test_every_stack_is_there_with_its_frames(profile: Profile, dataset: Dataset) -> None:
    write_segment(dataset, profile, host_of(profile))
    stacks = {row["stack_id"]: row["frame_ids"] for row in rows_of(dataset, "stacks")}
    frames = {row["frame_id"]: row for row in rows_of(dataset, "frames")}
    ids, times, nodes = content_of(profile).stack_of, profile.samples.time_ns.tolist(), profile.samples.stack.tolist()
    order = sorted(range(len(nodes)), key=lambda row: (times[row], int(ids[nodes[row]])))
    for row, sample in zip(rows_of(dataset, "samples"), order, strict=True):
        symbols = functions_of(profile, nodes[sample])[::-1]
        assert (row["stack_id"] == 0) == (symbols == [])
        assert [frames[one]["symbol"] for one in stacks.get(row["stack_id"], [])] == symbols


def test_the_time_before_a_segment_is_a_row_of_gaps_with_its_cause(profile: Profile, dataset: Dataset) -> None:
    for _ in range(2):
        write_segment(dataset, profile, host_of(profile), [Gap(5, 3600 * 10**9, "budget\n")])
    (row,) = rows_of(dataset, "gaps")
    expected = {"begin_ns": 5, "end_ns": 3600 * 10**9, "cause": "budget\\n", "boot_id": ""}
    assert row == expected | {"host_id": profile.meta.hostname}
    assert "hour=01" in dataset.files("gaps")[0]


def test_each_time_between_pauses_is_a_row_of_hosts(profile: Profile, dataset: Dataset) -> None:
    meta = profile.meta
    begin, end, hour = span_of(profile).begin_ns, span_of(profile).end_ns, 3600 * 10**9
    shift = begin - (meta.begin_ns or max(meta.first_ns, 0))
    times = [(begin, begin + 7), (begin + 9, begin + 9 + hour), (begin + 2 * hour, end + 3 * hour)]
    paused = replace(meta, parts=tuple((first - shift, last - shift) for first, last in times))
    write_segment(dataset, replace(profile, meta=paused), host_of(profile))
    assert [(row["begin_ns"], row["end_ns"]) for row in rows_of(dataset, "hosts")] == times
    assert len(dataset.files("hosts")) == 2


def test_a_missing_package_is_told_before_anything_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(UsageError, match=r"datasets need the package pyarrow: pip install 'perf-offcpu\[fleet\]'"):
        open_dataset(str(tmp_path / "set"), make=True)
    assert not (tmp_path / "set").exists()


def test_a_segment_written_twice_is_there_once(profile: Profile, dataset: Dataset, tmp_path: Path) -> None:
    first = write_segment(dataset, profile, host_of(profile))
    before = {table: rows_of(dataset, table) for table in TABLES}
    again = write_segment(dataset, profile, host_of(profile))
    assert (again.name, again.bytes, again.files) == (first.name, first.bytes, first.files)
    assert {table: rows_of(dataset, table) for table in TABLES} == before
    sizes = [path.stat().st_size for path in (tmp_path / "set").rglob("*") if path.is_file()]
    assert (sum(sizes), len(sizes)) == (first.bytes, first.files)


def test_a_recording_without_a_wall_clock_is_refused(dataset: Dataset) -> None:
    profile = ProfileBuilder(meta={"hostname": "web1", "source": "x.data"}).sample("a", ["f"], 1).build()
    with pytest.raises(UsageError, match="x.data: it does not say what time it was"):
        write_segment(dataset, profile, host_of(profile))


RECORDINGS = {"vm": DATA / "demo.data", "vmtest": DATA / "arm64" / "own.data"}


def test_several_recordings_at_once_have_the_totals_of_the_report(tmp_path: Path) -> None:
    inputs = [word for path in RECORDINGS.values() for word in ("-i", path)]
    labels = ["--label", "service=web", "--label", "version=2.0"]
    done = run("convert", "--parquet", tmp_path / "set", *inputs, *labels, "-j", "2")
    assert done.stderr == ""
    said = [line.split(": ")[1].split(",")[0] for line in done.stdout.splitlines()]
    assert said == ["162 samples of vm", "148 samples of vmtest"]
    import pyarrow.dataset as pads  # which imports pandas: not in each worker

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


@pytest.mark.parametrize(("words", "sentence"), examples("unit/sentences.txt", "datasets"))
def test_impossible_options_are_refused(words: str, sentence: str, tmp_path: Path) -> None:
    assert (
        sentence
        in run("convert", "--parquet", tmp_path / "set", "-i", RECORDINGS["vm"], *words.split(), status=129).stderr
    )
    assert not (tmp_path / "set").exists()


@pytest.mark.parametrize("url", ["nosuch://bucket/set", "s3://bucket/set"])
def test_an_unknown_store_is_one_sentence(url: str) -> None:
    done = run("convert", "--parquet", url, "-i", RECORDINGS["vm"], status=129)
    assert done.stderr.startswith(f"perf-offcpu convert: {url}: ") and done.stderr.count("\n") == 1
    done = run("convert", "--folded", "-j", "2", "-i", RECORDINGS["vm"], status=None)
    assert "--jobs is for --parquet alone" in done.stderr


def test_every_column_has_a_type_of_arrow_and_is_there_once() -> None:
    for table, columns in TABLES.items():
        schema = arrow_schema(table)
        assert [field.name for field in schema] == [column.name for column in columns]
        assert len(set(schema.names)) == len(schema.names)
        assert [field.nullable for field in schema] == [column.nullable for column in columns]
        assert not [field for field in schema if str(field.type).startswith("uint")], "Spark has no such type"
