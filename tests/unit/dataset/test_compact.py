# SPDX-License-Identifier: Apache-2.0
"""Compaction and retention: no row is lost or there twice, at any time, whatever ends them in between."""

import contextlib
import itertools
import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from builders.dataset import rows_of
from builders.profile import ProfileBuilder, kernel

from perf_offcpu.dataset.compact import Compacted, Upkeep, compact, expire
from perf_offcpu.dataset.dataset import HOUR_NS, Dataset, open_dataset
from perf_offcpu.dataset.rows import Host
from perf_offcpu.dataset.schema import TABLES
from perf_offcpu.dataset.segment import Segment, write_segment
from perf_offcpu.dataset.store import LocalStore
from perf_offcpu.errors import PerfOffcpuError
from perf_offcpu.model.profile import Profile

HOUR = 497_000
BEGIN = HOUR * HOUR_NS
END = (HOUR + 3) * HOUR_NS
EMPTY = ("budgets", "gaps")
FOLDER = "date=2026-09-12/hour=08"


def segment_of(number: int, *, hour: int = HOUR) -> Profile:
    """Return a minute of waits of a host, with random stacks, some of which all segments share."""
    rng, begin = random.Random(number), hour * HOUR_NS + number * 60 * 10**9
    meta = {"hostname": "web", "wall_clock_ns": begin, "wall_clock_at_ns": 1000, "begin_ns": 1000}
    builder = ProfileBuilder(meta=meta | {"end_ns": 1000 + 60 * 10**9}, losses={"full rings": number + 1})
    for _ in range(rng.randrange(1, 30)):
        path = ["main", f"work{rng.randrange(5)}", kernel("schedule")]
        time_ns, weight = 1000 + rng.randrange(60 * 10**9), rng.randrange(10**9)
        builder.sample(f"thread{rng.randrange(4)}", path, weight, time_ns=time_ns)
    return builder.build()


def write(dataset: Dataset, number: int, host: str, *, hour: int = HOUR) -> Segment:
    return write_segment(dataset, segment_of(number, hour=hour), Host(host, "boot", host, labels={"a": "b"}))


def content(dataset: Dataset) -> dict[str, Counter[str]]:
    """Return the rows of all tables, each as often as it is there; of stacks and frames each once."""
    found = {table: Counter(map(repr, rows_of(dataset, table))) for table in TABLES}
    for table in ("stacks", "frames"):
        found[table] = Counter(set(found[table]))
    return found


@pytest.fixture(autouse=True)
def quick_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do not wait for the disk: no test here cuts the power."""
    monkeypatch.setattr(os, "fsync", lambda fd: None)


@pytest.fixture
def dataset(tmp_path: Path) -> Dataset:
    made = open_dataset(str(tmp_path / "set"), make=True)
    for number in range(6):
        for host in ("web2", "web1", "db/1 “x”"):
            write(made, number, host)
    write(made, 0, "web1", hour=HOUR + 1)
    return made


def done(dataset: Dataset, before_ns: int = END) -> list[tuple[str, Compacted]]:
    found = list(compact(dataset, before_ns))
    assert not [problem for _, problem in found if isinstance(problem, Exception)]
    return found  # type: ignore[return-value]


def test_an_hour_that_has_ended_becomes_one_file_a_table_with_the_same_rows(dataset: Dataset) -> None:
    before = content(dataset)
    assert done(dataset, BEGIN + HOUR_NS - 1) == []
    sizes = done(dataset, BEGIN + HOUR_NS)
    assert done(dataset) == [], "the next hour has one file a table"
    assert content(dataset) == before
    assert [folder.split("/")[0] for folder, _ in sizes] == [table for table in TABLES if table not in EMPTY]
    for table in before:
        assert len(dataset.files(table, BEGIN, BEGIN + 1)) == (table not in EMPTY)
        assert len(dataset.files(table, BEGIN + HOUR_NS, END)) == (table not in EMPTY)
    samples = [row for row in rows_of(dataset, "samples") if row["time_ns"] < BEGIN + HOUR_NS]
    assert samples == sorted(samples, key=lambda row: (row["host_id"], row["time_ns"], row["stack_id"]))
    (stacks,) = dataset.files("stacks", BEGIN, BEGIN + 1)
    ids = pq.ParquetFile(stacks).read()["stack_id"].to_pylist()
    assert len(set(ids)) == len(ids) == 5
    assert dict(sizes)[f"samples/{FOLDER}"].rows == len(samples)


def test_what_comes_later_is_merged_and_what_comes_again_is_not(dataset: Dataset) -> None:
    done(dataset)
    write(dataset, 7, "web1")
    before = content(dataset)
    again = write(dataset, 3, "web2")
    assert (again.files, again.bytes) == (0, 0) and again.skipped == 5
    assert content(dataset) == before
    assert len(done(dataset)) == 5
    assert content(dataset) == before
    assert write(dataset, 7, "web1").skipped == 5 and write(dataset, 2, "web2").skipped == 5
    assert done(dataset) == []


def assert_complete(dataset: Dataset) -> None:
    """Check that the stacks of all samples are there, and the frames of all stacks."""
    stacks = {row["stack_id"]: row["frame_ids"] for row in rows_of(dataset, "stacks")}
    frames = {row["frame_id"] for row in rows_of(dataset, "frames")}
    assert {row["stack_id"] for row in rows_of(dataset, "samples")} <= {0, *stacks}
    assert {frame for chain in stacks.values() for frame in chain} <= frames


class Killed(BaseException):
    """Ends a process at some step."""


@pytest.fixture
def dying(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Let each change of a local store count down, and end the process at 0: before, or after it."""
    left = [10**9]

    def wrapped(name: str) -> Any:
        real = getattr(LocalStore, name)

        def change(self: LocalStore, path: str) -> Any:
            left[0] -= 1
            if left[0] == 0:
                raise Killed
            return real(self, path)

        return change

    for name in ("replacing", "remove"):
        monkeypatch.setattr(LocalStore, name, wrapped(name))
    yield left


@pytest.mark.long
def test_a_compaction_that_is_killed_loses_and_doubles_nothing(dataset: Dataset, dying: list[int]) -> None:
    before = content(dataset)
    for step in itertools.count(1):
        dying[0] = step
        try:
            done(dataset)
            break
        except Killed:
            assert content(dataset) == before, step
    assert step > 10
    assert content(dataset) == before
    names = [path.name for path in Path(dataset.url).rglob("*") if path.is_file()]
    assert len([name for name in names if not name.startswith("_")]) == 10  # two hours of five tables


@pytest.mark.parametrize("seed", range(20))
def test_a_killed_writer_leaves_no_sample_without_stack(seed: int, tmp_path: Path, dying: list[int]) -> None:
    made = open_dataset(str(tmp_path), make=True)
    write(made, 1, "web1")
    dying[0] = random.Random(seed).randrange(1, 7)
    with contextlib.suppress(Killed):
        write(made, 2, "web1")
    dying[0] = 10**9
    assert_complete(made)
    counts = Counter(row["time_ns"] >= BEGIN + 120 * 10**9 for row in rows_of(made, "samples"))
    whole = len(segment_of(2).samples)
    assert counts[True] in {0, whole} and counts[False] == len(segment_of(1).samples)
    write(made, 2, "web1")
    assert len(rows_of(made, "samples")) == whole + counts[False]


def test_a_damaged_file_is_named_and_the_rest_is_merged(dataset: Dataset) -> None:
    victim = Path(dataset.files("stacks")[0])
    victim.write_bytes(b"PAR1 not really")
    problems = [(folder, one) for folder, one in compact(dataset, END) if isinstance(one, Exception)]
    assert [folder for folder, _ in problems] == [f"stacks/{FOLDER}"]
    assert str(problems[0][1]).startswith(f"{victim}: it is no Parquet file")
    assert len(dataset.files("samples", BEGIN, BEGIN + 1)) == 1


def test_two_do_not_compact_at_once(dataset: Dataset) -> None:
    with open_dataset(dataset.url).store.locked(), pytest.raises(PerfOffcpuError, match="another process"):
        list(compact(dataset, END))
    done(dataset)


def test_old_hours_are_removed_and_others_stay(dataset: Dataset) -> None:
    done(dataset)
    write(dataset, 9, "web1")
    removed = expire(dataset, BEGIN + HOUR_NS)
    assert (removed.hours, removed.files) == (1, 15)  # five tables: compacted, note, segment
    assert all(row["time_ns"] >= BEGIN + HOUR_NS for row in rows_of(dataset, "samples"))
    assert len(rows_of(dataset, "hosts")) == 1
    assert expire(dataset, END).hours == 1
    assert not [path for path in Path(dataset.url).rglob("*") if path.is_file() or "=" in path.name]


WRITER = """
import sys
from perf_offcpu.dataset.dataset import open_dataset
from perf_offcpu.dataset.rows import host_of
from perf_offcpu.dataset.segment import write_segment
from perf_offcpu.symbolize.load import load_profile
from perf_offcpu.symbolize.options import SymbolizeOptions

profile = load_profile([sys.argv[2]], SymbolizeOptions())
dataset, host = open_dataset(sys.argv[1]), host_of(profile)
while True:
    write_segment(dataset, profile, host)
    profile.meta.wall_clock_ns += 60 * 10**9
    print("written", flush=True)
"""


@pytest.mark.long
def test_writers_killed_by_a_signal_leave_whole_files(tmp_path: Path) -> None:
    made = open_dataset(str(tmp_path), make=True)
    demo = Path(__file__).resolve().parents[2] / "data" / "demo.data"
    words: list[str | Path] = [sys.executable, "-c", WRITER, tmp_path, demo]
    writers = [subprocess.Popen(words, stdout=subprocess.PIPE) for _ in range(3)]
    for writer, delay_ms in zip(writers, (3, 17, 60), strict=True):
        with writer, writer.stdout or contextlib.nullcontext() as out:
            assert out is not None and out.readline() == b"written\n"
            time.sleep(delay_ms / 1000)
            writer.kill()
    assert rows_of(made, "samples")
    assert_complete(made)
    before = content(made)
    done(made, 2**62)
    assert content(made) == before


def write_all(dataset: Dataset, hours: int, hosts: tuple[str, ...], minutes: int = 5) -> None:
    for hour, number, host in itertools.product(range(HOUR, HOUR + hours), range(minutes), hosts):
        write(dataset, number, host, hour=hour)


def test_a_writer_merges_its_own_files_of_the_hour_before_and_no_others(tmp_path: Path, dying: list[int]) -> None:
    """Next to a host of almost the same name, which does the same, without reading other files."""
    made, now = open_dataset(str(tmp_path / "set"), make=True), BEGIN + HOUR_NS
    write_all(made, 2, ("web", "web-1"))
    before, upkeep, opened = content(made), Upkeep(), Counter[str]()
    first = upkeep.after(made, ("web", "boot"), now, now + 5)
    assert first is not None and first[0].files == 25 and content(made) == before
    assert upkeep.after(made, ("web", "boot"), now + 60, now + 60) is None, "once an hour"
    names = sorted(path.name for path in (Path(made.url) / "samples" / FOLDER).iterdir())
    assert [name[:6] for name in names] == ["compac", *["web-1-"] * 5]
    reader = LocalStore.reader
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LocalStore, "reader", lambda self, path: opened.update([path]) or reader(self, path))
        Upkeep().after(made, ("web-1", "boot"), now, now + 5)
    assert opened.total() == 50 and not any("hour=09" in path or "compacted" in path for path in opened)
    assert content(made) == before
    late = Upkeep().after(made, ("web", "boot"), now + HOUR_NS, now + 2 * HOUR_NS)
    assert late is not None and late[0].files == 0, "left to fleet compact"
    with pytest.MonkeyPatch.context() as patch:  # its files are not all open at once, with a part of each in memory
        patch.setattr("perf_offcpu.dataset.compact._hosts", None)
        done(made)
    assert content(made) == before
    assert {len(made.files(table, BEGIN, BEGIN + 1)) for table in TABLES} == {0, 1}


@pytest.mark.long
def test_a_writer_that_is_killed_as_it_merges_loses_and_doubles_nothing(tmp_path: Path, dying: list[int]) -> None:
    for step in itertools.count(1):
        made = open_dataset(str(tmp_path / f"set{step}"), make=True)
        write_all(made, 1, ("web", "db"), minutes=2)
        before, dying[0] = content(made), step
        try:
            Upkeep().after(made, ("web", "boot"), BEGIN + HOUR_NS, BEGIN + HOUR_NS)
            break
        except Killed:
            dying[0] = 10**9
            assert content(made) == before, step
            Upkeep().after(made, ("web", "boot"), BEGIN + HOUR_NS, BEGIN + HOUR_NS)
            assert content(made) == before, step
            done(made)
            assert content(made) == before and len(made.files("samples")) == 1, step
    assert step > 20


def test_a_writer_removes_hours_past_their_age(tmp_path: Path) -> None:
    made = open_dataset(str(tmp_path / "set"), make=True)
    write_all(made, 4, ("web",), minutes=1)
    now = BEGIN + 4 * HOUR_NS
    upkeep = Upkeep(2 * HOUR_NS)
    with made.store.locked(), pytest.raises(PerfOffcpuError, match="another process"):
        upkeep.after(open_dataset(made.url), ("web", "boot"), now, now)
    removed = upkeep.after(made, ("web", "boot"), now, now)
    assert removed is not None and removed[1].hours == 2
    assert {row["time_ns"] // HOUR_NS for row in rows_of(made, "samples")} == {HOUR + 2, HOUR + 3}
