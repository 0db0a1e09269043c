# SPDX-License-Identifier: Apache-2.0
"""Stores: an object store behaves as a directory; files appear whole; hostile names stay text; one agent of a host
writes."""

import json
import os
import time
import uuid
import zlib
from collections import Counter
from pathlib import Path

import pytest
from builders.dataset import rows_of
from builders.profile import Code, ProfileBuilder

from perf_offcpu.dataset import lease as leases
from perf_offcpu.dataset.compact import compact, expire
from perf_offcpu.dataset.dataset import HOUR_NS, Dataset, hour_of_folder, open_dataset, segment_name
from perf_offcpu.dataset.lease import Lease, LeaseTakenError
from perf_offcpu.dataset.rows import Host
from perf_offcpu.dataset.schema import TABLES
from perf_offcpu.dataset.segment import write_segment
from perf_offcpu.dataset.store import Store, open_store, put
from perf_offcpu.errors import FormatError, PerfOffcpuError, UsageError
from perf_offcpu.model.profile import Profile

HOSTILE = [
    "../../etc/passwd", "a/b", "\x1b[31mred", "x\u202ey", "café", "", "-", "_x", ".x", "a b'\";--", "n\0l",
]  # fmt: skip
BEGIN = 497_000 * HOUR_NS


@pytest.fixture(params=["local", "memory"])
def dataset(request: pytest.FixtureRequest, tmp_path: Path) -> Dataset:
    url = str(tmp_path / "set") if request.param == "local" else f"memory://{uuid.uuid4()}/set"
    return open_dataset(url, make=True)


def profile_of(names: list[str], at_ns: int = 0) -> Profile:
    times = {"wall_clock_ns": BEGIN + at_ns, "wall_clock_at_ns": 5, "begin_ns": 5, "end_ns": 10**9}
    builder = ProfileBuilder(meta={"hostname": "web"} | times)
    for row, name in enumerate(names):
        path = ["main", Code(name, f"/lib/{name}", 0x40 + row, file=name, line=row)]
        builder.sample(name, path, 10**row, time_ns=5 + row, object=builder.thing(name))
    return builder.build()


def test_write_list_compact_and_expire(dataset: Dataset) -> None:
    for number in range(4):
        write_segment(dataset, profile_of(["a", "b"], number * 10**9), Host(f"web{number % 2}"))
    before = {table: Counter(map(repr, rows_of(dataset, table))) for table in ("samples", "hosts")}
    assert len(dataset.files("samples")) == 4 and len(rows_of(dataset, "samples")) == 8
    assert all(not isinstance(done, Exception) for _, done in compact(dataset, BEGIN + HOUR_NS))
    assert {table for table in TABLES if not dataset.files(table)} == {"budgets", "losses", "gaps"}
    assert all(len(dataset.files(table)) < 2 for table in TABLES)
    assert {table: Counter(map(repr, rows_of(dataset, table))) for table in ("samples", "hosts")} == before
    assert write_segment(dataset, profile_of(["a", "b"]), Host("web0")).files == 0
    assert dataset.files("samples", BEGIN + HOUR_NS) == [] == dataset.files("samples", None, BEGIN)
    assert expire(dataset, BEGIN + HOUR_NS).hours == 1
    assert [name for table in TABLES for name in dataset.files(table)] == []


def test_hostile_names_stay_printable_text(dataset: Dataset) -> None:
    for host in HOSTILE:
        write_segment(dataset, profile_of(HOSTILE), Host(host, host, host, host, 1, host, {host: host}))
    samples, frames = rows_of(dataset, "samples"), rows_of(dataset, "frames")
    assert len(samples) == len(HOSTILE) ** 2
    texts = [row[name] for row in samples for name in ("comm", "object", "host_id", "boot_id")]
    texts += [row[name] for row in frames for name in ("symbol", "dso", "file")]
    assert all(text.isprintable() for text in texts)
    assert {row["comm"] for row in samples} == {row["host_id"] for row in samples}
    assert len({row["host_id"] for row in samples}) == len(HOSTILE)
    assert all("\x1b" not in path and "/../" not in path for path in dataset.files("samples"))
    assert all(os.path.basename(path)[0].isalnum() for path in dataset.files("samples"))
    names = {segment_name(host, boot, 1, 2) for host in ("a/b", "a-b", "a b") for boot in ("", "1")}
    assert len(names) == 6, "hosts of similar names have different files"


def content(store: Store, path: str) -> bytes:
    with store.reader(path) as file:
        return file.read()


def test_a_failed_write_leaves_nothing(dataset: Dataset) -> None:
    with pytest.raises(RuntimeError), dataset.store.replacing("samples/x.parquet") as file:
        file.write(b"half")
        raise RuntimeError
    assert dataset.store.names("samples") == []
    put(dataset.store, "samples/x.parquet", b"whole")
    put(dataset.store, "samples/x.parquet", b"again")
    assert content(dataset.store, "samples/x.parquet") == b"again"


def test_links_in_a_local_dataset_are_not_followed(tmp_path: Path) -> None:
    dataset = open_dataset(str(tmp_path / "set"), make=True)
    (tmp_path / "set" / "samples").symlink_to(tmp_path)
    with pytest.raises(OSError):
        put(dataset.store, "samples/x", b"")
    (tmp_path / "set" / "stacks").mkdir()
    (tmp_path / "set" / "stacks" / "x").symlink_to("/etc/passwd")
    with pytest.raises(PerfOffcpuError, match="set/stacks/x: it is a symbolic link"):
        content(dataset.store, "stacks/x")


@pytest.mark.parametrize("folder", ["samples", "samples/date=2026-01-01", "samples/date=2026-01-01/hour=00"])
def test_folders_that_are_links_are_not_passed_over(tmp_path: Path, folder: str) -> None:
    dataset = open_dataset(str(tmp_path / "set"), make=True)
    put(dataset.store, "samples/date=2026-01-01/hour=00/x.parquet", b"")
    assert len(dataset.files("samples")) == 1
    (tmp_path / "set" / folder).rename(tmp_path / "elsewhere")
    (tmp_path / "set" / folder).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(PerfOffcpuError, match=f"set/{folder}: it is a symbolic link"):
        dataset.files("samples")


def test_an_engine_gets_regular_files_alone(tmp_path: Path) -> None:
    dataset = open_dataset(str(tmp_path), make=True)
    for name in ("a.parquet", "c.parquet"):
        put(dataset.store, f"samples/date=2026-01-01/hour=00/{name}", b"")
    folder = tmp_path / "samples" / "date=2026-01-01" / "hour=00"
    (folder / "other").symlink_to("/etc/passwd")
    assert len(dataset.files("samples")) == 2
    os.mkfifo(folder / "b.parquet")
    with pytest.raises(PerfOffcpuError, match=r"hour=00/b.parquet: it is not a regular file"):
        dataset.files("samples")


def test_other_folders_and_files_are_left_alone(tmp_path: Path) -> None:
    dataset = open_dataset(str(tmp_path), make=True)
    for name in ("date=x/hour=00/a.parquet", "date=2026-01-01/hour=99/a.parquet", "date=2026-01-01/b.parquet", "c"):
        put(dataset.store, f"samples/{name}", b"")
    assert dataset.files("samples") == []
    with pytest.raises(UsageError, match="there is no dataset"):
        open_dataset(str(tmp_path / "none"))
    assert expire(dataset, 2**62).files == 0
    assert hour_of_folder("date=2026-02-30", "hour=00") is None


@pytest.mark.parametrize("note", [b"x", zlib.compress(b"[" * 100_000), zlib.compress(b'{"files": 1}')])
def test_a_damaged_note_is_one_sentence(note: bytes, tmp_path: Path) -> None:
    dataset = open_dataset(str(tmp_path), make=True)
    folder = "samples/date=2026-01-01/hour=00"
    for name in ("compacted-0123456789abcdef.parquet", "_compacted-0123456789abcdef.json.zz", "a.parquet"):
        put(dataset.store, f"{folder}/{name}", note)
    with pytest.raises(PerfOffcpuError, match="json.zz: is damaged"):
        dataset.files("samples")


@pytest.mark.parametrize("time_ns", [2**62, 2**40 * 10**6])
def test_damaged_times_are_refused(time_ns: int, tmp_path: Path) -> None:
    profile = profile_of(["a", "b"])
    profile.samples.time_ns = profile.samples.time_ns.copy()
    profile.samples.time_ns[1] = time_ns
    with pytest.raises((FormatError, PerfOffcpuError)):
        write_segment(open_dataset(str(tmp_path), make=True), profile, Host("x"))


PATH = "_leases/web-1-boot.json"


@pytest.fixture(params=["local", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return open_store(str(tmp_path / "set") if request.param == "local" else f"memory://{uuid.uuid4()}/set", make=True)


def lease(store: Store, holder: str, host: str = "web/1", boot: str = "boot") -> Lease:
    return Lease(store, host, boot, holder, f"/spool/{holder}")


def aged(store: Store, path: str, monotonic_s: float = 0, utc_s: int = 0) -> None:
    """Make a lease older."""
    held = json.loads(content(store, path))
    held["renewed_ns"], held["utc_s"] = held["renewed_ns"] - int(monotonic_s * 1e9), held["utc_s"] - utc_s
    put(store, path, json.dumps(held).encode())


def test_one_agent_of_a_host_holds_it_until_it_ends(store: Store) -> None:
    first, second = lease(store, "a"), lease(store, "b")
    first.renew()
    first.renew()
    lease(store, "a").renew()  # after a restart
    refusal = (
        rf"set: another agent of this host writes there \(pid {os.getpid()}, spool /spool/a; its lease was renewed 0"
    )
    with pytest.raises(LeaseTakenError, match=refusal):
        second.renew()
    second.release()
    assert store.names("_leases") == ["web-1-boot.json"], "it is not the second one's"
    first.release()
    assert store.names("_leases") == []
    second.renew()
    lease(store, "a", "web2").renew()
    lease(store, "a", boot="other").renew()  # a machine of the same image
    assert len(store.names("_leases")) == 3


def test_takeover_and_void_leases(store: Store) -> None:
    first, second = lease(store, "a"), lease(store, "b")
    first.renew()
    second.renew(take_over=True)
    with pytest.raises(LeaseTakenError, match="/spool/b"):
        first.renew()
    aged(store, PATH, leases.VOID_AFTER_S - 20)
    with pytest.raises(LeaseTakenError, match="renewed 280 s ago and is void after 300 s"):
        first.renew()
    aged(store, PATH, 20)
    first.renew()
    with pytest.raises(LeaseTakenError):
        second.renew()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{}",
        b"[" * 4000,
        b"\xff",
        b'{"holder": "x", "renewed_ns": "y"}',
        b'{"renewed_ns": 1%s, "utc_s": 0}' % (b"0" * 400),
        b" " * 9999,
    ],
)
def test_damaged_leases_are_void(store: Store, content: bytes) -> None:
    put(store, PATH, content)
    lease(store, "a").renew()
    with pytest.raises(LeaseTakenError):
        lease(store, "b").renew()


def test_of_two_at_once_one_gets_a_free_lease(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both have seen that there is none."""
    second, create = lease(store, "b"), store.create

    def late(path: str, data: bytes) -> bool:
        monkeypatch.undo()
        lease(store, "a").renew()
        return create(path, data)

    monkeypatch.setattr(store, "create", late)
    with pytest.raises(LeaseTakenError, match="/spool/a"):
        second.renew()
    assert [name for name in store.names("_leases") if name != "web-1-boot.json"] == []


def test_leases_of_earlier_boots_are_removed_after_a_day(store: Store) -> None:
    for boot in ("old", "yesterday"):
        lease(store, "a", boot=boot).renew()
    lease(store, "a", "web/2", "old").renew()
    aged(store, "_leases/web-1-old.json", utc_s=90_000)
    aged(store, "_leases/web-2-old.json", utc_s=90_000)
    lease(store, "a").renew()
    assert store.names("_leases") == ["web-1-boot.json", "web-1-yesterday.json", "web-2-old.json"]


def test_another_users_pipe_is_not_waited_for(tmp_path: Path) -> None:
    (tmp_path / "_leases").mkdir()
    os.mkfifo(tmp_path / PATH)
    begin = time.monotonic()
    with pytest.raises(PerfOffcpuError, match="not a regular file"):
        lease(open_store(str(tmp_path), make=False), "a").renew()
    assert time.monotonic() - begin < 10
