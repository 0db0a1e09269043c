# SPDX-License-Identifier: Apache-2.0
"""merge of recordings made here and now: the whole is the sum of its parts, for perf and for us."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from conftest import Command

from perf_offcpu.decode.load import load_recording
from perf_offcpu.model.recording import Recording

Totals = Counter[tuple[str, str, int]]


@pytest.fixture(scope="module")
def recordings(
    waiter: Path, perf_offcpu: Command, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Path, Path]:
    """Two runs of ours, the second in half the rounds, and one of perf on the same clock."""
    directory = tmp_path_factory.mktemp("runs")
    ours = (directory / "first.data", directory / "second.data")
    for path, rounds in zip(ours, ("6", "3"), strict=True):
        done = perf_offcpu("record", "-o", path, "--", waiter, "--rounds", rounds, cwd=directory)
        assert done.returncode == 0, done.stderr
    theirs = directory / "perf.data"
    command = [
        "perf",
        "record",
        "-q",
        "-B",
        "-k",
        "mono",
        "-g",
        "-e",
        "cpu-clock",
        "-o",
        theirs,
        "--",
        waiter,
    ]
    subprocess.run([*command, "--rounds", "2"], check=True, cwd=directory, capture_output=True, timeout=60)
    return *ours, theirs


def totals(recording: Recording) -> Totals:
    samples, found = recording.samples, Counter[tuple[str, str, int]]()
    for evsel, comm, tid, period in zip(
        samples.evsel.tolist(),
        samples.comm.tolist(),
        samples.tid.tolist(),
        samples.period.tolist(),
        strict=True,
    ):
        found[recording.evsels[evsel].name, recording.strings[comm], tid] += period
    return found


def test_the_whole_is_the_sum_of_its_parts(
    recordings: tuple[Path, ...], perf_offcpu: Command, tmp_path: Path
) -> None:
    merged = tmp_path / "merged.data"
    done = perf_offcpu("merge", "-v", *recordings, "-o", merged)
    assert done.returncode == 0, done.stderr
    assert done.stderr.startswith("machine 1 of 1: ")
    parts = [load_recording(path) for path in recordings]
    whole = load_recording(merged)
    whole.check()
    assert totals(whole) == sum((totals(part) for part in parts), Counter())
    assert len(whole.samples) == sum(len(part.samples) for part in parts)
    assert whole.meta.begin_ns == parts[0].meta.begin_ns
    assert whole.meta.end_ns == parts[1].meta.end_ns
    assert [evsel.name for evsel in whole.evsels] == [
        "cpu-clock", "offcpu-time", "dummy", "offcpu-counters", "cpu-clock",
    ]  # fmt: skip


def test_perf_shows_it_after_inject(
    recordings: tuple[Path, ...], perf_offcpu: Command, tmp_path: Path
) -> None:
    """Hosts cannot be had here: the recordings are taken apart by will, one in pipe form on the way."""
    merged, injected = tmp_path / "merged.data", tmp_path / "out.data"
    assert perf_offcpu("merge", "--apart", *recordings, "-o", merged).returncode == 0
    assert perf_offcpu("inject", "-i", merged, "-o", injected).returncode == 0
    command = ["perf", "script", "-G", "-F", "comm,tid,period,event", "-i", injected]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    found: Totals = Counter()
    for line in done.stdout.splitlines():
        comm, tid, period, event = line.rsplit(maxsplit=3)
        found[event.rstrip(":"), comm.strip(), int(tid)] += int(period)
    found = Counter({key: total for key, total in found.items() if key[0] != "offcpu-counters"})
    parts: Totals = Counter()
    for number, path in enumerate(recordings):
        for (event, comm, tid), total in totals(load_recording(path)).items():
            parts[event, comm, tid + 10_000_000 * number] += total
    assert found == parts


def test_pipes(recordings: tuple[Path, ...], perf_offcpu: Command, tmp_path: Path) -> None:
    merged, piped = tmp_path / "merged.data", tmp_path / "piped.data"
    assert perf_offcpu("merge", *recordings, "-o", merged).returncode == 0
    with open(piped, "wb") as out:
        program = Path(sys.executable).with_name("perf-offcpu")
        subprocess.run([program, "merge", *recordings, "-o", "-"], stdout=out, check=True, timeout=60)
    assert totals(load_recording(piped)) == totals(load_recording(merged))
