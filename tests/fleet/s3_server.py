# SPDX-License-Identifier: Apache-2.0
"""A dataset in an S3 store, behind an HTTP server: written, compacted, expired and queried like a directory.

It runs on request only: s3fs and moto are 100 MB with what they need.

    python3 -m venv ~/s3 && ~/s3/bin/pip install -e '.[fleet]' s3fs 'moto[server]' pytest pytest-timeout hypothesis
    PYTHONPATH=tests ~/s3/bin/python -m pytest -p no:cacheprovider tests/fleet/s3_server.py
"""

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from builders.dataset import rows_of
from builders.html_page import Page
from builders.profile import Code, ProfileBuilder
from moto.server import ThreadedMotoServer

from perf_offcpu.agent.ledger import Origin
from perf_offcpu.agent.sinks import DatasetSink
from perf_offcpu.cli import main
from perf_offcpu.dataset.compact import compact, expire
from perf_offcpu.dataset.dataset import HOUR_NS, Dataset, open_dataset
from perf_offcpu.dataset.lease import Lease, LeaseTakenError
from perf_offcpu.dataset.rows import Gap, Host
from perf_offcpu.dataset.schema import TABLES
from perf_offcpu.dataset.segment import write_segment
from perf_offcpu.errors import PerfOffcpuError
from perf_offcpu.fleet.selection import utc
from perf_offcpu.model.profile import Profile

pytestmark = [pytest.mark.timeout(600), pytest.mark.filterwarnings("default")]
ROOT = Path(__file__).resolve().parents[2]
DEMO = ROOT / "tests" / "data" / "demo.data"
HOUR = 497_000
KEYS = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_DEFAULT_REGION": "us-east-1"}


@pytest.fixture(scope="module")
def bucket() -> Iterator[str]:
    """Yield the URL of an empty bucket; the server's address is in the environment, as for any program."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    host, port = server.get_host_and_port()
    before = dict(os.environ)
    os.environ |= KEYS | {"AWS_ENDPOINT_URL": f"http://{host}:{port}"}
    boto3.client("s3").create_bucket(Bucket="waits")
    yield "s3://waits"
    os.environ.clear()
    os.environ |= before
    server.stop()


def profile_of(second: int) -> Profile:
    begin = HOUR * HOUR_NS + second * 10**9
    meta: dict[str, Any] = {"wall_clock_ns": begin, "wall_clock_at_ns": 5, "begin_ns": 5, "end_ns": 10**9}
    meta |= {"hostname": "web", "parts": ((5, 3 * 10**8), (5 * 10**8, 10**9)) if second == 4 else ()}
    builder = ProfileBuilder(meta=meta, losses={"full rings": 1})
    for row, name in enumerate(("a", "b")):
        path = ["main", Code(name, f"/lib/{name}", 0x40 + row, file=name, line=row)]
        builder.sample(name, path, 10 ** (row + 3) + second, time_ns=5 + row, object=builder.thing(name))
    return builder.build()


def fill(dataset: Dataset) -> None:
    for second in range(5):
        begin, host = HOUR * HOUR_NS + second * 10**9, f"web{second % 2}"
        gaps = {0: [Gap(begin - 10**9, begin, "stopped")], 4: [Gap(begin + 3 * 10**8, begin + 5 * 10**8, "budget")]}
        write_segment(dataset, profile_of(second), Host(host, hostname=host), gaps.get(second, []))


def content(dataset: Dataset) -> dict[str, Counter[str]]:
    return {table: Counter(map(repr, rows_of(dataset, table))) for table in TABLES}


def told(url: str, capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    """Return the document of `fleet report`; the name of the dataset, also in commands, is DATASET."""
    assert main(["fleet", "report", url, "--json", *words]) == 0
    document: dict[str, Any] = json.loads(capsys.readouterr().out.replace(url, "DATASET"))
    return document


def picture(url: str, folder: Path, *words: str) -> tuple[Any, ...]:
    assert main(["fleet", "flamegraph", url, "-o", str(folder / "out.html"), *words]) == 0
    shown = Page((folder / "out.html").read_text()).profile
    return shown["layers"], shown["names"], [fact for fact in shown["facts"] if fact[0] != "File"]


def test_a_bucket_is_as_a_directory(bucket: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    remote, local = open_dataset(f"{bucket}/one", make=True), open_dataset(str(tmp_path / "one"), make=True)
    for dataset in (remote, local):
        fill(dataset)
    before = content(local)
    assert content(remote) == before and before["samples"].total() == 10 and before["gaps"].total() == 2
    assert before["hosts"].total() == 6, "a row for each part of a segment"
    assert len(remote.files("samples")) == 5
    expected = told(local.url, capsys)
    assert told(remote.url, capsys) == expected
    assert [(gap["cause"], gap["ns"]) for gap in expected["gaps"]] == [("stopped", 10**9), ("budget", 2 * 10**8)]
    assert expected["recorded_ns"] == 5 * (10**9 - 5) - 2 * 10**8
    since = ("--since", utc(HOUR * HOUR_NS + 2 * 10**9).replace(" ", "T"))
    assert told(remote.url, capsys, *since) == told(local.url, capsys, *since) != expected
    pictures = [picture(dataset.url, tmp_path, *since) for dataset in (remote, local)]
    assert pictures[0] == pictures[1]
    for dataset in (remote, local):
        assert not any(isinstance(done, Exception) for _, done in compact(dataset, (HOUR + 1) * HOUR_NS))
    assert len(remote.files("samples")) == 1
    assert content(remote) == content(local) and content(remote)["samples"] == before["samples"]
    assert told(remote.url, capsys) == expected
    write_segment(remote, profile_of(0), Host("web0", hostname="web0"))
    assert content(remote)["samples"] == before["samples"], "a segment that is compacted comes again"
    assert expire(remote, HOUR * HOUR_NS).files == 0
    assert expire(remote, (HOUR + 1) * HOUR_NS).hours == 1
    assert [name for table in TABLES for name in remote.files(table)] == []
    assert remote.store.names("samples") == []


def test_verbs_write_compact_and_expire_a_bucket(bucket: str, capsys: pytest.CaptureFixture[str]) -> None:
    """In processes of their own, with nothing but the environment."""
    url = f"{bucket}/two"
    program = [sys.executable, "-m", "perf_offcpu"]

    def run(*words: str) -> str:
        done = subprocess.run([*program, *words], capture_output=True, text=True, check=False, cwd=ROOT)
        assert done.returncode == 0, done.stderr
        return done.stdout

    run("convert", "--parquet", url, "-i", str(DEMO))
    report, local = json.loads(run("report", "-i", str(DEMO), "--json")), told(url, capsys)
    weights = {row["name"]: row["weight"] for row in report["events"]}
    assert local["tables"][0]["weight"] == weights["offcpu-time"]
    assert "Total:" in run("fleet", "top", url)
    run("fleet", "compact", url)
    assert told(url, capsys) == local
    rows = run("fleet", "sql", url, "SELECT sum(weight_ns) AS w FROM samples WHERE event = 'offcpu-time'")
    assert str(weights["offcpu-time"]) in rows
    run("fleet", "expire", url, "--older-than", "1h")
    assert open_dataset(url).files("samples") == []


def test_a_store_that_refuses_is_one_sentence(bucket: str, tmp_path: Path) -> None:
    sink = DatasetSink("s3://no-such-bucket/x", {})
    with pytest.raises((PerfOffcpuError, OSError), match="no-such-bucket"):
        sink.write(profile_of(0), Origin("", None))


def test_one_agent_of_a_host_holds_the_lease(bucket: str) -> None:
    store = open_dataset(f"{bucket}/leased", make=True).store
    first, second = (Lease(store, "web", "boot", holder, "/spool") for holder in "ab")
    first.renew()
    assert not store.create("_leases/web-boot.json", b"x"), "written only where there is none"
    first.renew()
    with pytest.raises(LeaseTakenError):
        second.renew()
    second.renew(take_over=True)
    with pytest.raises(LeaseTakenError):
        first.renew()
    second.release()
    assert store.names("_leases") == []
