# SPDX-License-Identifier: Apache-2.0
"""The verb fleet: tables, stacks, flame graph, SQL, and one sentence for what is wrong."""

import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from builders.dataset import BEGIN, HOUR, DatasetBuilder, write_part
from builders.examples import examples
from builders.html_page import Page
from builders.refused import refused

from perf_offcpu.cli import main
from perf_offcpu.dataset.schema import VERSION
from perf_offcpu.fleet.engine import connect
from perf_offcpu.fleet.selection import utc
from perf_offcpu.model.recording import SampleFlag
from perf_offcpu.text import printable

HOSTILE = "\x1b[31m</script><script>alert(1)</script>\n"


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    builder = DatasetBuilder()
    for name in ("web1", "web2"):
        builder.host(name, {"service": "web", HOSTILE: HOSTILE})
        builder.wait(name, 3_000_000, ["main", "f", "futex_wait_[k]"], comm="nginx")
        columns = {"comm": HOSTILE, "object": HOSTILE, "class": "disk"}
        builder.wait(name, 1_000_000, ["main", HOSTILE, "io_schedule_[k]"], **columns)
    builder.host("db1", {"service": "db"}, period_ns=10**7, begin_ns=BEGIN + HOUR, end_ns=BEGIN + 2 * HOUR)
    builder.wait("db1", 10_000_000, ["main", "f", "futex_wait_[k]"], comm="nginx", time_ns=BEGIN + HOUR)
    builder.wait("db1", 5, event="cpu-clock", time_ns=BEGIN + HOUR)
    row = {"begin_ns": BEGIN, "end_ns": BEGIN + HOUR, "host_id": "id-web1"}
    builder.rows["losses"] += [row | {"cause": "rings were full", "count": 7, "is_loss": True}]
    builder.rows["losses"] += [row | {"cause": "odd waits", "count": 3, "is_loss": False}]
    gap = {"host_id": "id-web1", "cause": "budget", "begin_ns": BEGIN + HOUR, "end_ns": BEGIN + HOUR + 20 * 10**9}
    builder.rows["gaps"] += [gap, gap, gap | {"host_id": "id-db1", "cause": "stopped", "begin_ns": BEGIN}]
    return builder.write(tmp_path_factory.mktemp("dataset"))


def run(capsys: pytest.CaptureFixture[str], *words: str | Path) -> str:
    assert main(["fleet", *map(str, words)]) == 0
    out = capsys.readouterr().out
    assert "\x1b" not in out
    return out


def test_report(dataset: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = run(capsys, "report", dataset)
    assert "3 hosts" in out and "Total:    18.000 ms (18000000 ns)" in out and "7  rings were full" in out
    assert "One sample for each 10 ms" in out
    assert "Not recorded: 1.0 h" in out and "20.0 s  budget, web1\n" in out
    assert out.index("1.0 h  stopped, db1\n") < out.index("budget, web1")
    of_web = json.loads(run(capsys, "report", dataset, "--label", "service=web", "--json"))
    assert of_web["gaps"] == [{"host": "web1", "cause": "budget", "ns": 20 * 10**9}]
    since = utc(BEGIN + HOUR + 5 * 10**9).replace(" ", "T")
    cut = json.loads(run(capsys, "report", dataset, "--since", since, "--json"))
    # No segment in this time tells the name of web1.
    assert {(gap["host"], gap["ns"]) for gap in cut["gaps"]} == {("id-web1", 15 * 10**9), ("db1", 15 * 10**9)}
    for title in ("what was waited for", "service", "host", "comm"):
        assert f"# Off-cpu time by {title}\n" in out


def test_idle_threads_are_told_and_can_be_hidden(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dataset = DatasetBuilder().host("web1").wait("web1", 3_000_000, idle=True).wait("web1", 1_000_000).write(tmp_path)
    assert "75.00% are of threads that merely wait for work" in run(capsys, "report", dataset)
    shown = run(capsys, "report", dataset, "--sort", "comm", "--idle", "hide")
    assert "(1000000 ns)" in shown and "Idle:" not in shown
    only = json.loads(run(capsys, "report", dataset, "--json", "--idle", "only"))
    assert only["idle"] == only["tables"][0]["weight"] == 3_000_000


def test_the_longest_waits_are_examples_with_their_stacks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Neither sums, nor waits whose length is not known; the length of a sampled wait is its own, not its weight."""
    builder = DatasetBuilder().host("web1", period_ns=10**8).host("web2", period_ns=10**8)
    for ns in range(1, 6):
        builder.wait("web1", ns * 10**6, ["main", f"f{ns}", "futex_wait_[k]"], weight_ns=10**8, count=20, tid=ns)
    builder.wait("web2", 9 * 10**6, ["main", "g"], tid=9, waker_comm=HOSTILE, waker_tid=5, object="lock 1")
    builder.wait("web2", 99 * 10**6, count=30)
    builder.wait("web2", 99 * 10**6, flags=1 | int(SampleFlag.UNTIMED))
    dataset = builder.write(tmp_path / "dataset")
    found = json.loads(run(capsys, "waits", dataset, "--class", "lock", "--json", "--limit", "3"))["rows"]
    longest = [(row["host"], row["tid"], row["off_ns"] // 10**6) for row in found]
    assert longest == [("web2", 9, 9), ("web1", 5, 5), ("web1", 4, 4)]
    assert [row["frames"][1]["name"] for row in found] == ["g", "f5", "f4"]
    out = run(capsys, "waits", dataset, "--limit", "1")
    assert f"9.000 ms  {utc(BEGIN)}  web2  web/9  lock  lock 1  ended by {printable(HOSTILE)}/5\n" in out
    command = json.loads(run(capsys, "report", dataset, "--json"))["verdict"]["causes"][0]["examples"]
    assert f"# Examples: {command}\n" in run(capsys, "report", dataset)
    assert len(json.loads(run(capsys, *command.split()[2:], "--json"))["rows"]) == 6, "all"


def test_samples_of_other_events_are_no_waits(dataset: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = run(capsys, "report", dataset, "--event", "cpu-clock")
    assert re.search(r"^# +Share +Cpu-clock ms +Samples +Recorded +Cpu-clock s/s +Host$", out, re.M)
    assert not re.search("Off-cpu|Waits  |Run queue|Average|One sample for each", out)
    assert "  1 sample  " in run(capsys, "top", dataset, "--event", "cpu-clock")
    both = run(capsys, "report", dataset, "--event", "cpu-clock,offcpu-time", "--sort", "event")
    assert re.search(r"^# +Share +Weight ms +Samples +Event$", both, re.M)
    assert "One sample for each 10 ms of waiting" in both


def test_report_of_some(dataset: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--label", "service=web", "--sort", "host,class", "--json", "--until", "2100-01-01")
    found = json.loads(run(capsys, "report", dataset, *words))
    (table,) = found["tables"]
    assert found["hosts"] == 2 and found["recorded_ns"] == 2 * HOUR and table["weight"] == 8_000_000
    rows = {(row["host"], row["class"]): row["weight"] for row in table["rows"]}
    classes = {"lock": 3_000_000, "disk": 1_000_000}
    assert rows == {(host, name): ns for host in ("web1", "web2") for name, ns in classes.items()}
    assert all(row["waits_are_exact"] for row in table["rows"])
    sampled = json.loads(run(capsys, "report", dataset, "--label", "service=db", "--json"))["tables"][0]["rows"]
    assert sampled and not any(row["waits_are_exact"] for row in sampled), "an estimate"


def test_stacks_of_equal_names_are_one(dataset: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = json.loads(run(capsys, "top", dataset, "--json"))
    assert [(row["weight"], row["waits"]) for row in found["rows"]] == [(16_000_000, 3), (2_000_000, 2)]
    assert [one["name"] for one in found["rows"][0]["frames"]] == ["main", "f", "futex_wait"]
    text = run(capsys, "top", dataset, "--limit", "1")
    assert "88.89%" in text and "and 1 more stack: 2.000 ms (2000000 ns)" in text
    out = run(capsys, "diff", dataset)
    assert "0 hosts, each compared" in out and "No host was compared: a service needs 5 hosts." in out


def test_more_waiting_than_63_bits_hold(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    builder = DatasetBuilder().host("web1")
    for _ in range(3):
        builder.wait("web1", (1 << 63) - 1, ["main"])
    dataset, weight = builder.write(tmp_path / "dataset"), 3 * ((1 << 63) - 1)
    assert json.loads(run(capsys, "top", dataset, "--json"))["rows"][0]["weight"] == weight
    assert f"({weight} ns)" in run(capsys, "report", dataset)
    assert main(["fleet", "flamegraph", str(dataset), "-o", "-"]) != 0
    assert "more than a picture can hold" in capsys.readouterr().err


def test_flamegraph(dataset: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "out.html"
    run(capsys, "flamegraph", dataset, "-o", page, "--label", "service=web")
    document = Page(page.read_text()).profile
    (layer,) = document["layers"]
    assert sum(hi * 10**9 + lo for hi, lo in zip(layer["hi"], layer["lo"], strict=True)) == 8_000_000
    assert "futex_wait" in document["names"]["label"] and "<script>alert" not in page.read_text()


def test_flamegraph_says_what_it_lacks(dataset: Path, capsys: pytest.CaptureFixture[str]) -> None:
    facts = Page(run(capsys, "flamegraph", dataset, "-o", "-")).profile["facts"]
    assert ["Lost", "7 rings were full"] in facts and ["Note", "3 odd waits"] in facts
    assert ["Lost", "20 s that web1 did not record (budget)"] in facts
    assert ["Estimated", "from a sample for each 10 ms of waiting of a thread"] in facts
    other = run(capsys, "flamegraph", dataset, "-o", "-", "--host", "web2")
    assert ["Lost", "nothing"] in Page(other).profile["facts"] and "everything" not in other
    assert f"{dataset}: host web2 (1 host)" in other


def test_what_is_missing_is_that_of_the_chosen_label(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    builder = DatasetBuilder()
    for hour, version in enumerate("12"):
        times = {"begin_ns": BEGIN + hour * HOUR, "end_ns": BEGIN + hour * HOUR + HOUR // 2}
        builder.host("web1", {"version": version}, **times)
        builder.wait("web1", 1000 * (hour + 1), time_ns=BEGIN + hour * HOUR + 1)
        row = times | {"host_id": "id-web1", "cause": f"loss {version}", "count": 5, "is_loss": True}
        builder.rows["losses"].append(row)
    gap = {"host_id": "id-web1", "begin_ns": BEGIN + HOUR // 2, "end_ns": BEGIN + HOUR, "cause": "stopped"}
    builder.rows["gaps"].append(gap)
    dataset = builder.write(tmp_path / "dataset")
    for version, gaps in (("1", []), ("2", [{"host": "web1", "cause": "stopped", "ns": HOUR // 2}])):
        found = json.loads(run(capsys, "report", dataset, "--json", "--label", f"version={version}"))
        assert (found["losses"], found["gaps"]) == ({f"loss {version}": 5}, gaps)


def test_sql(dataset: Path, capsys: pytest.CaptureFixture[str]) -> None:
    query = "SELECT comm, sum(weight_ns)::BIGINT AS ns FROM samples JOIN hosts USING (host_id) GROUP BY 1 ORDER BY 2"
    assert json.loads(run(capsys, "sql", dataset, query, "--json"))[-1] == {"comm": "nginx", "ns": 16_000_000}
    text = run(capsys, "sql", dataset, query)
    assert re.search(r"^  nginx +16000000$", text, re.M) and "\\x1b[31m" in text


def test_every_column_of_a_query_is_there(dataset: Path, capsys: pytest.CaptureFixture[str]) -> None:
    query = (
        "SELECT 1 AS a, 2 AS a, 3 AS a_1, (1::HUGEINT << 100) AS big, 'NaN'::DOUBLE AS nan, NULL AS none, "
        "DATE '2026-11-22' AS day, 'x'::BLOB AS blob, [1.5::DOUBLE, 'inf'] AS list, labels FROM hosts LIMIT 1"
    )
    (row,) = json.loads(run(capsys, "sql", dataset, query, "--json"), parse_constant=pytest.fail)
    assert (row["a"], row["a_1"], row["a_1_1"], row["big"]) == (1, 2, 3, 1 << 100)
    assert (row["nan"], row["none"], row["list"]) == (None, None, [1.5, None])
    assert (row["day"], row["blob"]) == ("2026-11-22", "x")
    assert row["labels"]["service"] in ("web", "db")
    text = run(capsys, "sql", dataset, "SELECT 1 AS a, 2 AS a")
    assert re.search(r"^# a +a_1$", text, re.M) and re.search(r"^  1 +2$", text, re.M)


def test_names_that_the_encoding_of_output_lacks_are_escaped(dataset: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.TextIOWrapper(io.BytesIO(), encoding="latin-1")
    monkeypatch.setattr(sys, "stdout", out)
    assert main(["fleet", "sql", str(dataset), "SELECT 'ö' || chr(8364) AS name"]) == 0
    out.flush()
    assert out.buffer.getvalue().splitlines()[-1] == b"  \xf6\\u20ac"


def test_temporary_files_are_private_and_go_with_the_program(dataset: Path) -> None:
    """Another user may have made a directory of a known name in /tmp."""
    query, engine = "SELECT current_setting('temp_directory') AS folder", connect()
    (folder,) = engine.sql(query)["folder"]
    status = Path(folder).stat()
    assert (status.st_uid, status.st_mode & 0o777) == (os.geteuid(), 0o700)
    words = [sys.executable, "-m", "perf_offcpu", "fleet", "sql", str(dataset), query]
    lines = subprocess.run(words, capture_output=True, text=True, check=True).stdout.splitlines()
    assert "perf-offcpu-fleet." in lines[-1] and not Path(lines[-1].strip()).exists()


def test_labels_with_the_names_of_columns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dataset = DatasetBuilder().host("web1", {"idle": "never", "service": "web"}).wait("web1", 1000).write(tmp_path)
    assert "no key or label 'idle' (known: host" in refused(capsys, "fleet", "report", str(dataset), "--sort", "idle")
    assert "[none]" in run(capsys, "report", dataset, "--sort", "container", "--label", "idle=never")


def test_an_empty_name_is_not_the_working_directory(
    dataset: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(dataset)
    for words in (["report", ""], ["expire", "", "--older-than", "1h"]):
        assert "the name of the dataset is empty" in refused(capsys, "fleet", *words)


def test_selected_names_all_that_was_chosen(dataset: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--class", "lock", "--comm", "nginx", "--idle", "hide")
    shown = "comm nginx, class lock, threads that merely wait for work left out"
    assert f"# Selected: {shown}\n" in run(capsys, "report", dataset, *words)
    assert f"{dataset}: {shown} (3 hosts)" in run(capsys, "flamegraph", dataset, "-o", "-", *words)


@pytest.mark.parametrize(("words", "sentence"), examples("unit/sentences.txt", "fleet"))
def test_one_sentence(dataset: Path, words: str, sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert sentence in refused(capsys, "fleet", *words.replace("DATASET", str(dataset)).split(), status=None)


@pytest.mark.parametrize("words", [["report"], ["sql", "SELECT 1"], ["report", "--until", "2100-01-01"]])
def test_a_segment_of_another_version(tmp_path: Path, words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Some hosts have a newer agent."""
    builder = DatasetBuilder().host("web1").wait("web1", 1)
    dataset = builder.write(tmp_path / "dataset")
    for part, version in (("b", VERSION + 1), ("c", VERSION)):
        write_part(dataset, "hosts", BEGIN // HOUR, builder.rows["hosts"], part, version)
    assert main(["fleet", words[0], str(dataset), *words[1:]]) == 1
    assert f"b.parquet: it has version '{VERSION + 1}' of the tables" in capsys.readouterr().err


def test_a_dataset_without_hosts_does_not_say_1970(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = run(capsys, "report", DatasetBuilder().wait("web1", 1).write(tmp_path / "dataset"))
    assert "# Recorded: not known: the table hosts is empty\n" in out and "1970" not in out


def test_a_stack_of_too_many_frames_is_cut(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A list of millions of equal frames takes a kilobyte in a file."""
    dataset = DatasetBuilder().host("web1").wait("web1", 5, ["f"] * 3000).write(tmp_path)
    (row,) = json.loads(run(capsys, "top", dataset, "--json"))["rows"]
    assert len(row["frames"]) == 1024


def _nulls(table: Any, name: str, kind: Any = None) -> Any:
    """Return the table with nothing but nulls in a column, perhaps of another type."""
    place = table.schema.get_field_index(name)
    return table.set_column(place, name, pa.array([None] * table.num_rows, kind or table[name].type))


@pytest.mark.parametrize(("words", "file", "change", "sentence"), [
    ("report", "samples", lambda t: _nulls(t, "weight_ns", pa.string()), "weight_ns of type string"),
    ("diff", "samples", lambda t: _nulls(t, "weight_ns"), "weight is null in a row"),
    ("report", "hosts", lambda t: _nulls(t, "labels"), "label_names is null in a row"),
    ("top", "stacks", lambda t: _nulls(t, "frame_ids", pa.int64()), "frame_ids of type int64"),
    ("flamegraph -o /dev/null", "stacks", lambda t: _nulls(t, "frame_ids"), "frame_ids is null"),
    ("compact", "frames", lambda t: t.drop_columns(["kernel"]), "no Parquet file of this table"),
    ("compact", "frames", None, "no Parquet file of this table"),
    ("compact", "frames", lambda t: _nulls(t, "line"), "null values"),
    ("compact", "stacks", lambda t: t, "more than 2 values"),
])  # fmt: skip
def test_wrong_content_of_a_file(
    words: str, file: str, change: Any, sentence: str, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a change, the name of a column is no UTF-8; unchanged stacks are too deep."""
    builder = DatasetBuilder()
    for name in ("web1", "web2"):
        builder.host(name)
        builder.wait(name, 5, ["f", "f", "f"])
    builder.write(tmp_path)
    for path in sorted((tmp_path / file).rglob("*.parquet")):
        table = pq.read_table(path, partitioning=None)
        if change is None:
            path.write_bytes(path.read_bytes().replace(b"inlined", b"\xff" * 7))
        else:
            pq.write_table(change(table).replace_schema_metadata(table.schema.metadata), path)
    if sentence == "more than 2 values":
        monkeypatch.setattr("perf_offcpu.dataset.parquet._MOST_VALUES", 2)
    verb, *options = words.split()
    assert main(["fleet", verb, str(tmp_path), *options]) != 0
    err = capsys.readouterr().err
    assert sentence in err and err.count("\n") == 1


def test_a_name_that_engines_expand(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """DuckDB counted the rows of the other files twice."""
    write_part(DatasetBuilder().host("web1").wait("web1", 5).write(tmp_path), "samples", BEGIN // HOUR, [], "*")
    assert main(["fleet", "sql", str(tmp_path), "SELECT count(*) FROM samples"]) == 1
    assert "*.parquet: query engines expand the '*' in its name" in capsys.readouterr().err


def test_a_damaged_file_and_one_of_another_version(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_part(tmp_path, "samples", BEGIN // HOUR, [], version=VERSION + 1)
    for sentence in (f"has version '{VERSION + 1}' of the tables", "it is no Parquet file"):
        assert sentence in refused(capsys, "fleet", "report", str(tmp_path), status=1)
        next(tmp_path.rglob("*.parquet")).write_bytes(b"PAR1" + bytes(100))


def test_the_first_screen_ranks_causes_by_all_threads_time(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """60 s on CPUs, 30 s for one, 100 s blocked: 10 s for disks, the others for a lock, which `db` releases."""
    second, builder = 10**9, DatasetBuilder().host("web1").host("web2")
    for host, locked_s in (("web1", 60), ("web2", 40)):
        builder.wait(host, locked_s * second, runq_ns=5 * second, waker_comm="db")
        builder.wait(host, 5 * second, **{"class": "disk"}, comm="db")
        builder.wait(host, 7 * second, **{"class": "child"}, comm="sh", runq_ns=second)
        builder.wait(host, 900 * second, **{"class": "poll"}, comm="idler", idle=True)
        builder.wait(host, second, event="cpu-clock")
        budget = {"host_id": f"id-{host}", "boot_id": "b", "begin_ns": BEGIN, "end_ns": BEGIN + HOUR, "comm": "web"}
        spent = {"running_ns": 30 * second, "runnable_ns": 14 * second, "preempted_ns": second}
        builder.rows["budgets"].append(budget | spent)
    dataset = builder.write(tmp_path / "dataset")
    out = run(capsys, "report", dataset)
    assert "Of 190.0 s of threads' time: 32 % running · 16 % waiting for a CPU · 53 % blocked" in out
    rows = [" ".join(line.split()) for line in out.partition("Ended by")[2].splitlines()[2:5]]
    assert rows == ["47 % 90.0 s lock web db", "16 % 30.0 s a CPU web", "5 % 10.0 s disk db"]
    assert "Not counted: 12.0 s for threads and processes to end: sh" in out
    assert "Idle besides: 1800.0 s" in out and f"Next: perf-offcpu fleet top {dataset} --class lock" in out
    of_web = json.loads(run(capsys, "report", dataset, "--comm", "web", "--json"))["verdict"]
    assert (of_web["running"], of_web["whole"]) == (None, 100 * second)
    assert [(one["wait_class"], one["weight"] // second) for one in of_web["causes"]] == [
        ("lock", 90),
        ("runqueue", 10),
    ]
    assert json.loads(run(capsys, "report", dataset, "--event", "cpu-clock", "--json"))["verdict"] is None
