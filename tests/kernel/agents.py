# SPDX-License-Identifier: Apache-2.0
"""Run `perf-offcpu agent` for tests, and check what it delivered and counted."""

import json
import re
import signal
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from builders import program
from kernel.recorder import until

START_S = 240  # longest time until a recorder on a busy machine has loaded its programs
HOSTS = ["begin_ns", "end_ns", "clock_offset_ns"]


@dataclass
class Place:
    """A dataset and a spool."""

    root: Path
    disk: Path | None = None
    options: tuple[str, ...] = ("--segment", "3s", "--max-cpu", "1000", "--off-cpu-period", "50")
    said: list[str] = field(default_factory=list)
    before: tuple[str, ...] = ()  # words before the command

    @property
    def dataset(self) -> Path:
        return self.root / "dataset"

    @property
    def spool(self) -> Path:
        return (self.disk or self.root) / "spool"

    def command(self, *more: str) -> list[str | Path]:
        where: list[str | Path] = ["--dataset", self.dataset, "--spool", self.spool]
        return [*self.before, *program.PROGRAM, "agent", *where, "--port", "0", *self.options, *more]

    @contextmanager
    def agent(self, *more: str) -> Iterator[subprocess.Popen[str]]:
        """Run an agent; SIGTERM ends it at the end of the block, if it still runs."""
        process = subprocess.Popen(self.command(*more), stderr=subprocess.PIPE, text=True)
        try:
            yield process
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
                assert process.wait(60) == 0
        finally:
            process.kill()
            self.said.append(process.communicate()[1])

    def state(self) -> dict[str, Any]:
        path = self.spool / "state.json"
        state: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {"counters": {}}
        return state

    def counter(self, name: str) -> float:
        return float(sum(self.causes(name).values()))

    def causes(self, name: str) -> dict[str, float]:
        parts = [(*key.partition("|"), value) for key, value in self.state()["counters"].items()]
        return {label: value for metric, _, label, value in parts if metric == name}

    def recordings(self) -> list[str]:
        return sorted(path.name for path in self.spool.glob("*.data.*") if "push" not in path.name)

    def wait_for_segments(self, number: int) -> None:
        """Wait for a number of segments more than now."""
        wanted = self.counter("segments_total") + number
        until(lambda: self.counter("segments_total") >= wanted, START_S)

    def rows(self, table: str, columns: list[str]) -> list[tuple[Any, ...]]:
        files = sorted((self.dataset / table).rglob("*.parquet"))
        tables = [pq.ParquetFile(path).read(columns).to_pydict() for path in files]
        return [row for one in tables for row in zip(*(one[name] for name in columns), strict=True)]

    def check(self) -> None:
        """Check that segments and gaps add up, overlap nowhere, and hold no row twice."""
        spans = sorted((begin - shift, end - shift) for begin, end, shift in self.rows("hosts", HOSTS))
        assert spans
        assert all(end <= begin for (_, end), (begin, _) in zip(spans, spans[1:], strict=False)), spans
        recorded = sum(end - begin for begin, end in spans) / 1e9
        whole = (spans[-1][1] - spans[0][0]) / 1e9
        assert abs(recorded - self.counter("recorded_seconds_total")) < 1e-3
        assert abs(recorded + self.counter("gap_seconds_total") - whole) < 1e-3
        assert len(spans) == self.counter("segments_total")
        self.check_gaps(spans)
        columns = ["time_ns", "off_ns", "pid", "tid", "event", "stack_id", "class", "state", "cpu", "count"]
        samples = self.rows("samples", columns)
        assert len(samples) == self.counter("samples_total")
        timed = [row for row in samples if row[1]]
        assert len(set(timed)) == len(timed)

    def check_gaps(self, spans: list[tuple[int, int]]) -> None:
        """Check that each time between segments is a row of gaps, or one for each cause, and that these are counted."""
        rows = sorted(self.rows("gaps", ["begin_ns", "end_ns", "cause"]))
        between = [begin - end for (_, end), (begin, _) in zip(spans, spans[1:], strict=False) if begin > end]
        begins = {begin for begin, _, _ in rows}
        ends = {end for _, end, _ in rows}
        alone = zip(sorted(begins - ends), sorted(ends - begins), strict=True)
        assert sorted(end - begin for begin, end in alone) == sorted(between)
        told: dict[str, float] = {}
        for begin, end, cause in rows:
            told[cause] = told.get(cause, 0) + (end - begin) / 1e9
        counted = self.causes("gap_seconds_total")
        assert told.keys() == counted.keys()
        assert all(abs(told[cause] - counted[cause]) < 1e-3 for cause in told)


def recorder_of(agent: subprocess.Popen[str]) -> int:
    """Return the process of an agent's recorder, once it records; 0 while there is none."""
    command = ["ps", "--ppid", str(agent.pid), "-o", "pid=,args="]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = [line.split(None, 1) for line in found.stdout.splitlines()]
    return next((int(pid) for pid, words in lines if re.search(r"perf_offcpu record", words)), 0)


def fetch(port: int, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as problem:
        return problem.code, problem.read().decode()
