# SPDX-License-Identifier: Apache-2.0
"""Fresh recordings have the same totals in a dataset and on each kind of server as in the report, to the nanosecond."""

import os
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from builders import program
from builders.push.servers import receiver
from kernel.recorder import report, run

from perf_offcpu.dataset.dataset import open_dataset
from perf_offcpu.push.targets import SERVERS

pytestmark = pytest.mark.beside


def summed(rows: list[dict[str, Any]], key: str, value: str = "weight_ns") -> Counter[Any]:
    found: Counter[Any] = Counter()
    for row in rows:
        found[row[key]] += row[value] or 0
    return +found


@pytest.mark.long
def test_totals_of_fresh_recordings(waiter: Path, tmp_path: Path) -> None:
    forms = {"every": ["--off-cpu-thresh", "0"], "sums": ["--off-cpu-thresh", "5"], "drawn": ["--off-cpu-period", "2"]}
    reports, inputs, before_ns = {}, [], time.time_ns()
    for name, options in forms.items():
        run("-o", f"{name}.data", *options, "--", waiter, "--rounds", "3", cwd=tmp_path)
        reports[name] = report("-i", f"{name}.data", cwd=tmp_path)
        inputs += ["-i", f"{name}.data"]
    assert program.run("convert", "--parquet", "set", *inputs, cwd=tmp_path).stderr == ""
    dataset = open_dataset(str(tmp_path / "set"))
    hosts = [row for path in dataset.files("hosts") for row in pq.ParquetFile(path).read().to_pylist()]
    assert sorted(row["period_ns"] for row in hosts) == [0, 0, 2_000_000]
    assert {(row["hostname"], row["cpus"]) for row in hosts} == {(os.uname().nodename, os.cpu_count())}
    for name, span in zip(forms, sorted((row["begin_ns"], row["end_ns"]) for row in hosts), strict=True):
        _same(dataset, reports[name], *span)
        assert before_ns - 10**9 < span[0] < span[1] < time.time_ns() + 10**9


def _same(dataset: Any, report: dict[str, Any], begin_ns: int, end_ns: int) -> None:
    part = f"-{begin_ns}-{end_ns}-"
    tables = {
        table: [row for path in dataset.files(table) if part in path for row in pq.ParquetFile(path).read().to_pylist()]
        for table in ("samples", "budgets", "losses")
    }
    samples, budgets = tables["samples"], tables["budgets"]
    assert summed(samples, "event") == {row["name"]: row["weight"] for row in report["events"]}
    assert summed(samples, "event", "count") == {row["name"]: row["count"] for row in report["events"]}
    waits = [row for row in samples if row["event"] == "offcpu-time"]
    assert waits and all(begin_ns <= row["time_ns"] <= end_ns for row in waits)
    classes = report["groups"]["rows"]
    assert summed(waits, "class") == {row["values"][0]: row["weight"] for row in classes}
    assert summed(waits, "class", "runq_ns") == +Counter({row["values"][0]: row["runq"] or 0 for row in classes})
    assert summed(waits, "tid") == {row["tid"]: row["weight"] for row in report["threads"] if row["weight"]}
    total = report["budget"]["total"]
    assert len(budgets) == total["threads"] > 5
    assert sum(row["running_ns"] for row in budgets) == total["running"]
    assert sum(row["runnable_ns"] + row["preempted_ns"] for row in budgets) == total["runnable"]
    assert sum(row["end_ns"] - row["begin_ns"] for row in budgets) == total["wall"]
    # Names are counted as they are asked for, and code of BPF programs of others is not there for long.
    lost = {row["cause"]: row["count"] for row in tables["losses"] if row["is_loss"]}
    assert _but_names(lost) == _but_names(report["losses"])


def _but_names(losses: dict[str, int]) -> dict[str, int]:
    return {cause: count for cause, count in losses.items() if not cause.startswith("no name")}


def test_a_recording_arrives_whole(waiter: Path, tmp_path: Path) -> None:
    done = program.run("record", "--", waiter, "--rounds", "5", cwd=tmp_path)
    folded = program.run("convert", "--folded", "-o", "-", cwd=tmp_path)
    lines = [line.rpartition(" ") for line in folded.stdout.splitlines()]
    expected = Counter({tuple(stack.split(";")): int(weight) for stack, _, weight in lines})
    with receiver() as found:
        url = f"http://127.0.0.1:{found.port}"
        targets = [f"{server}={url}" for server in SERVERS]
        done = program.run("push", *targets, "--label", "service=waiter", cwd=tmp_path)
        assert done.stderr == ""
    for series, server in zip(found.stored, SERVERS.values(), strict=True):
        name = "thread.name" if server.export_answers else "thread_name"  # of OTLP, or of pprof
        stacks = Counter({(comm, *stack): value for (comm, stack), value in series.by_label(name).items()})
        assert stacks == +expected and stacks.total() > 0
        assert series.duration_ns > 0
        assert any(build_id for _, build_id, _ in series.addresses)
