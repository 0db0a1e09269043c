# SPDX-License-Identifier: Apache-2.0
"""fleet path follows waits for connections to other hosts, whose clocks differ; made by hand, with known answers."""

import json
import random
from pathlib import Path
from typing import Any

import pytest
from builders.dataset import BEGIN, DatasetBuilder
from builders.refused import output

from perf_offcpu.cli import main

MS = 10**6
WEB, API, DATABASE = "10.0.0.1:40000", "10.0.0.2:80", "10.0.0.3:5432"
API_AS_CLIENT = "10.0.0.2:50000"


class Fleet(DatasetBuilder):
    """Hosts whose clocks are ahead by `ahead_ms`."""

    def __init__(self, **ahead_ms: float) -> None:
        super().__init__()
        self._ahead_ms = ahead_ms
        for number, name in enumerate(ahead_ms):
            self.host(name, boot_id=f"b{number}")

    def from_to(self, host: str, begin_ms: float, end_ms: float, **columns: Any) -> None:
        """Add a wait of thread 1 of a host, by true times."""
        boot = f"b{[*self._ahead_ms].index(host)}"
        end = BEGIN + 10**9 + round((end_ms + self._ahead_ms[host]) * MS)
        facts: dict[str, Any] = {"comm": f"{host}d", "pid": 1, "tid": 1, "time_ns": end, "boot_id": boot} | columns
        self.wait(host, round((end_ms - begin_ms) * MS), **facts)

    def request(self, host: str, begin_ms: float, end_ms: float, ends: tuple[str, str], **columns: Any) -> None:
        known: dict[str, Any] = {"class": "network", "network": "peer slow", "object": f"tcp {ends[1]}"}
        self.from_to(host, begin_ms, end_ms, **between(ends), **known | columns)

    def idle(self, host: str, begin_ms: float, end_ms: float, ends: tuple[str, str]) -> None:
        self.from_to(host, begin_ms, end_ms, **between(ends), **{"class": "network", "object": f"tcp {ends[1]}"})


def between(ends: tuple[str, str]) -> dict[str, Any]:
    return dict(zip(("local_address", "remote_address"), ends, strict=True))


def path(capsys: pytest.CaptureFixture[str], dataset: Path, *words: str) -> Any:
    return json.loads(output(capsys, "fleet", "path", str(dataset), "--json", *words))


def steps(found: Any) -> dict[tuple[Any, ...], float]:
    """Return (comms of the peers, what the last one did, object) → ms."""
    shown: dict[tuple[Any, ...], float] = {}
    for step in found["steps"]:
        key = (tuple(peer["comm"] for peer in step["peers"]), step["doing"], step["object"])
        shown[key] = shown.get(key, 0) + step["ns"] / MS
    return shown


def three_tiers(**ahead_ms: float) -> Fleet:
    """web asks api four times, which asks db, which waits for its disk; a byte takes 1 ms. Each request of 100 ms."""
    fleet = Fleet(**ahead_ms)
    for begin in range(0, 400, 100):
        fleet.request("web", begin, begin + 99, (WEB, API))
        fleet.idle("api", begin - 2, begin + 1, (API, WEB))
        fleet.from_to("api", begin + 1, begin + 11, runq_ns=2 * MS, object="cache_lock")
        fleet.request("api", begin + 20, begin + 90, (API_AS_CLIENT, DATABASE))
        fleet.idle("db", begin - 11, begin + 21, (DATABASE, API_AS_CLIENT))
        fleet.from_to("db", begin + 25, begin + 85, **{"class": "disk"}, object="/data/table")
    fleet.idle("api", 398, 1000, (API, WEB))
    fleet.idle("db", 389, 1000, (DATABASE, API_AS_CLIENT))
    return fleet


def test_a_chain_of_hosts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = path(capsys, three_tiers(web=0, api=0, db=0).write(tmp_path), "--host", "web")
    assert (found["weight"], found["waits"], found["followed"]) == (396 * MS, 4, 4)
    shown = steps(found)
    api, database = ("apid",), ("apid", "dbd")
    assert shown.pop((api, "lock", "cache_lock")) == 4 * 8
    assert shown.pop((api, "runqueue", "")) == 4 * 2
    assert shown.pop((database, "disk", "/data/table")) == 4 * 60
    assert shown.pop((api, "connection", "")) == 4 * 2
    assert shown.pop((database, "connection", "")) == 4 * 2
    assert set(shown) == {(api, "running", ""), (database, "running", "")}
    assert sum(step["ns"] for step in found["steps"]) == pytest.approx(found["weight"], abs=10)


@pytest.mark.parametrize("ahead_ms", [0, 7.5, -15])
def test_clocks_are_compared(tmp_path: Path, ahead_ms: float, capsys: pytest.CaptureFixture[str]) -> None:
    found = path(capsys, three_tiers(web=0, api=ahead_ms, db=-ahead_ms).write(tmp_path), "--host", "web")
    clocks = {tuple(row["hosts"]): row for row in found["clocks"]}
    for hosts, offset_ms in ((("web", "api"), ahead_ms), (("api", "db"), -2 * ahead_ms)):
        assert abs(clocks[hosts]["ns"] / MS - offset_ms) <= clocks[hosts]["error_ns"] / MS <= 1.2
        assert clocks[hosts]["pairs"] >= 3
    assert steps(found)[("apid", "dbd"), "disk", "/data/table"] == 4 * 60
    assert 0 < found["uncertain"] <= 4 * 4.5 * MS


def test_waits_shorter_than_the_clocks_can_tell(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fleet = Fleet(web=0, api=0)
    for begin in range(0, 400, 100):  # requests and answers take 12 ms to arrive
        fleet.request("web", begin, begin + 30, (WEB, API))
        fleet.idle("api", begin - 82, begin + 12, (API, WEB))
    fleet.idle("api", 318, 400, (API, WEB))
    assert set(steps(path(capsys, fleet.write(tmp_path), "--host", "web"))) == {((), "clocks", "")}


def test_what_nobody_recorded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A peer without an agent; one behind NAT; 127.0.0.1 of another host; an address that two hosts have."""
    fleet = Fleet(web=0, api=0, db=0)
    fleet.request("web", 0, 60, (WEB, API))
    fleet.idle("api", 0, 1, (API, "192.168.1.1:40000"))
    fleet.request("web", 100, 130, ("127.0.0.1:40000", "127.0.0.1:80"))
    fleet.idle("api", 100, 101, ("127.0.0.1:80", "127.0.0.1:40000"))
    fleet.request("web", 200, 210, (WEB, "10.0.0.9:80"))
    for host in ("api", "db"):
        fleet.idle(host, 200, 201, ("10.0.0.9:80", WEB))
    dataset = fleet.write(tmp_path)
    assert steps(path(capsys, dataset)) == {
        ((), "unknown peer", f"tcp {end}"): ms for end, ms in ((API, 60), ("127.0.0.1:80", 30), ("10.0.0.9:80", 10))
    }
    out = output(capsys, "fleet", "path", str(dataset))
    assert "100 % of 0.1 s that webd on web waited for TCP connections, the other end is in no recording" in out
    assert "without an agent, or a thread that waits briefly (mostly tcp 10.0.0.2:80)" in out
    assert "Unknown peers: 100.00%." in out


def test_the_first_sentence_and_the_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dataset = three_tiers(web=0, api=3, db=0).write(tmp_path)
    out = output(capsys, "fleet", "path", str(dataset), "--host", "web", "--limit", "1")
    assert (
        "# 61 % of 0.4 s that webd on web waited for TCP connections, dbd on db, for apid on api, waited: disk" in out
    )
    assert f"Next: perf-offcpu fleet top {dataset} --host db --comm dbd --class disk" in out
    assert "Clock of api against that of web: +3.0" in out
    (row,) = [line for line in out.splitlines() if "60.61%" in line]
    assert row.split()[3:] == "webd on web peer slow apid on api → dbd on db waited: disk /data/table".split()


def test_nothing_to_follow(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dataset = DatasetBuilder().host("web").wait("web", 5).write(tmp_path)
    assert path(capsys, dataset)["steps"] == []
    assert "No wait for a TCP connection" in output(capsys, "fleet", "path", str(dataset))


def test_a_sample_stands_for_more_waits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Sampled by length, waits of the peer may stand for more than the time in which it was waited for."""
    fleet = Fleet(web=0, api=0)
    fleet.request("web", 0, 50, (WEB, API), weight_ns=100 * MS)
    fleet.idle("api", -1, 0.1, (API, WEB))
    fleet.from_to("api", 10, 40, weight_ns=100 * MS, **{"class": "sleep"})
    shown = steps(path(capsys, fleet.write(tmp_path)))
    assert shown[("apid",), "sleep", ""] == pytest.approx(100, rel=0.01) and sum(shown.values()) == pytest.approx(100)


def test_of_many_waits_some_are_drawn(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A quarter of the time is in long waits for a disk, the others are short, for a lock."""
    fleet, chance, begin = Fleet(web=0), random.Random(1), 0.0
    for number in range(1200):
        length = 30.0 if number % 10 == 0 else 10.0
        fleet.request("web", begin, begin + length, ("127.0.0.1:1", "127.0.0.1:2"))
        served = {"class": "disk" if length > 10 else "lock", "comm": "served", "tid": 2}
        fleet.from_to("web", begin + 0.01, begin + length, **served)
        begin += length + chance.uniform(0.5, 1.5)
        fleet.from_to("web", begin - 0.4, begin, **between(("127.0.0.1:2", "127.0.0.1:1")), comm="served", tid=2)
    monkeypatch.setattr("perf_offcpu.fleet.path.MOST", 400)
    found = path(capsys, fleet.write(tmp_path))
    assert found["waits"] == 1200 and 300 < found["followed"] < 500
    shown = steps(found)
    assert sum(shown.values()) == pytest.approx(120 * 30 + 1080 * 10)
    assert shown[("served",), "disk", ""] == pytest.approx(120 * 30, rel=0.1)
    assert shown[("served",), "lock", ""] == pytest.approx(1080 * 10, rel=0.05)


MOST = (1 << 63) - 1


@pytest.mark.parametrize(("time_ns", "length", "weight", "runq"), [
    (BEGIN, MOST, MOST, 0), (BEGIN, 5, 0, 0), (BEGIN, 5, 1, 7), (BEGIN, 5, MOST, MOST), (0, MOST, 1, 0), (0, 1, 1, 0),
    (BEGIN, 5, 5, -9), (BEGIN, 1, MOST, -MOST),
])  # fmt: skip
def test_values_that_no_recording_has(
    tmp_path: Path, time_ns: int, length: int, weight: int, runq: int, capsys: pytest.CaptureFixture[str]
) -> None:
    fleet = Fleet(web=0, api=0)
    columns: dict[str, Any] = {"class": "network", "network": "peer slow", "comm": "\x1b[31m", "runq_ns": runq}
    for host, ends in (("web", (WEB, API)), ("api", (API, WEB))):
        fleet.wait(host, length, **columns | between(ends) | {"time_ns": time_ns, "weight_ns": weight, "tid": 1})
    assert main(["fleet", "path", str(fleet.write(tmp_path))]) in (0, 1)
    out = capsys.readouterr()
    assert out.err.count("\n") <= 1 and "\x1b" not in out.out
