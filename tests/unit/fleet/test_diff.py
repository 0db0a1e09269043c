# SPDX-License-Identifier: Apache-2.0
"""Changes and outliers that were put into a dataset are found, and nothing else."""

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders.dataset import BEGIN, HOUR, DatasetBuilder
from builders.refused import refused

from perf_offcpu.cli import main
from perf_offcpu.fleet.compare import limit_of, robust_z
from perf_offcpu.fleet.significance import SIGNIFICANT, compare_groups, compare_pairs

LOCK, DISK = ["main", "f", "futex_wait_[k]"], ["main", "g", "io_schedule_[k]"]
HALF = HOUR // 2


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """24 hosts; version 2 waits longer for locks; in the second half of the hour all wait longer for disks. web5 waits
    ten times as long for disks."""
    random, builder = np.random.default_rng(3), DatasetBuilder()
    for host in range(24):
        name = f"web{host}"
        builder.host(name, {"service": "web", "version": "1" if host < 12 else "2"})
        for at in range(8):
            times = {"time_ns": BEGIN + at * HOUR // 8}
            lock = random.lognormal(18, 0.2) * (1 if host < 12 else 1.6)
            disk = random.lognormal(17, 0.2) * (1 if at < 4 else 1.5) * (10 if host == 5 else 1)
            builder.wait(name, int(lock), LOCK, **times)
            builder.wait(name, int(disk), DISK, **{"class": "disk"}, **times)
    return builder.write(tmp_path_factory.mktemp("dataset"))


def diff(capsys: pytest.CaptureFixture[str], dataset: Path, *words: str) -> Any:
    assert main(["fleet", "diff", str(dataset), "--json", *words]) == 0
    return json.loads(capsys.readouterr().out)


def changed(table: Any, key: str) -> dict[str, int]:
    """Return value → change in percent of the significant rows."""
    rows = (row for row in table["rows"] if row["significant"])
    return {row[key]: round(100 * row["change"] / row["before"]) for row in rows}


def test_other_hosts(dataset: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = diff(capsys, dataset, "--label", "version=2", "--baseline", "version=1")
    assert main(["fleet", "report", str(dataset), "--label", "version=2", "--json"]) == 0
    weight = json.loads(capsys.readouterr().out)["tables"][0]["weight"]
    assert found["total"]["after"] == pytest.approx(weight / (12 * HOUR) * 1e9), "for each second recorded"
    for table in found["tables"]:
        assert sum(row["after"] for row in table["rows"]) == pytest.approx(found["total"]["after"])
    assert not found["paired"] and found["hosts_compared"] == [12, 12]
    of_class, of_comm, of_stack = found["tables"]
    assert changed(of_class, "class").keys() == {"lock"} and 40 < changed(of_class, "class")["lock"] < 80
    (stack,) = [row for row in of_stack["rows"] if row["significant"]]
    assert [one["name"] for one in stack["frames"]] == ["main", "f", "futex_wait"]
    assert of_comm["keys"] == ["comm"] and not found["total"]["significant"]


def test_the_same_hosts_at_another_time(dataset: Path, capsys: pytest.CaptureFixture[str]) -> None:
    times = [np.datetime_as_string(np.datetime64(BEGIN + at * HALF, "ns"), "s") for at in range(3)]
    words = ("--since", times[1], "--until", times[2], "--baseline", f"since={times[0]},until={times[1]}")
    found = diff(capsys, dataset, *words)
    assert found["paired"] and found["hosts_compared"] == [24, 24]
    assert found["recorded_ns"] == 24 * HALF
    assert changed(found["tables"][0], "class").keys() == {"disk"}


def test_nothing_changed(dataset: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hosts = [f"web{at}" for at in range(12, 24)]
    words = ("--host", ",".join(hosts[:6]), "--baseline", "host=" + ",host=".join(hosts[6:]))
    found = diff(capsys, dataset, *words)
    assert found["tables"][0]["assignments"] == 924  # all choices of 6 of 12
    assert not any(row["significant"] for table in found["tables"] for row in table["rows"])


def test_rates_of_other_events(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    builder = DatasetBuilder()
    for host in range(6):
        builder.host(f"web{host}", {"version": str(host % 2)})
        for event, number in (("instructions", 7_200_000), ("cpu-clock", 36 * 10**9)):
            no_wait: dict[str, Any] = {"class": None, "off_ns": 0}
            builder.wait(f"web{host}", number, event=event, **no_wait)
    words = ["fleet", "diff", str(builder.write(tmp_path / "set"))]
    versions = ("--label", "version=1", "--baseline", "version=0", "--event")
    assert main([*words, *versions, "instructions"]) == 0
    out = capsys.readouterr().out
    assert "2000.000 → 2000.000 /s of a host" in out and "# Instructions per second of a host, by class\n" in out
    assert main([*words, *versions, "cpu-clock", "--unit", "us"]) == 0
    out = capsys.readouterr().out
    assert "10000.000 → 10000.000 us/s of a host" in out and "# Cpu-clock us per second of a host" in out
    assert main([*words, "--event", "instructions"]) == 0
    assert "if it is 1 % of a host's weight" in " ".join(capsys.readouterr().out.replace("#", "").split())


def test_a_host_unlike_the_others(dataset: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert [(row["host"], row["class"]) for row in diff(capsys, dataset)["rows"]] == [("web5", "disk")]
    assert main(["fleet", "diff", str(dataset)]) == 0
    assert "web5  disk" in capsys.readouterr().out


@pytest.mark.parametrize(("words", "sentence"), [
    ("--host web1 --baseline host=web2", "choose at least two on each side"),
    ("--baseline version", "'version' is not of the form NAME=VALUE"),
    ("--baseline version=3", "no host has version=3"),
    ("--sort host", "--sort host does not apply"),
])  # fmt: skip
def test_one_sentence(dataset: Path, words: str, sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert sentence in refused(capsys, "fleet", "diff", str(dataset), *words.split(), status=None)


def test_few_hosts_are_compared_in_all_ways() -> None:
    """The p of one row equals a plain count over all assignments."""
    random = np.random.default_rng(5)
    before, after = random.random((4, 1)), random.random((3, 1)) + 0.6
    every, hosts = np.concatenate([before, after])[:, 0], range(7)

    def welch(second: tuple[int, ...]) -> float:
        one, other = every[[at for at in hosts if at not in second]], every[list(second)]
        return float((other.mean() - one.mean()) / np.sqrt(one.var(ddof=1) / len(one) + other.var(ddof=1) / len(other)))

    sizes = [abs(welch(second)) for second in itertools.combinations(hosts, 3)]
    expected = sum(size >= abs(welch((4, 5, 6))) - 1e-9 for size in sizes) / len(sizes)
    found = compare_groups(before, after)
    assert found.exact and found.assignments == 35 and found.p.tolist() == [expected]


def test_pairs_of_few_hosts() -> None:
    assert compare_pairs(np.array([[1.0], [2.0], [1.5], [1.2]])).p.tolist() == [2 / 16]  # all grew: + and -
    assert compare_pairs(np.zeros((4, 2))).p.tolist() == [1, 1]


@pytest.mark.parametrize("paired", [False, True])
def test_chance_alone_is_rarely_significant(paired: bool) -> None:
    """Of comparisons of equal hosts with 10 rows, 5 % have a significant row; 200 of them vary by 3 %."""
    random, wrong = np.random.default_rng(7), 0
    for _ in range(200):
        before, after = (random.lognormal(0, 0.7, (6, 10)) for _ in range(2))
        found = compare_pairs(after - before) if paired else compare_groups(before, after)
        wrong += bool((found.p < SIGNIFICANT).any())
    assert wrong < 0.05 * 200 + 4 * np.sqrt(200 * 0.05 * 0.95)


def test_a_large_change_among_many_hosts() -> None:
    random = np.random.default_rng(9)
    before, after = random.random((300, 50)), random.random((200, 50))
    after[:, 7] *= 1.5
    assert np.flatnonzero(compare_groups(before, after).p < SIGNIFICANT).tolist() == [7]


def test_robust_z() -> None:
    values = np.array([[1.0, 0], [2, 0], [3, 0], [4, 0], [100, 5]])
    z = robust_z(values)
    assert z[:, 0] == pytest.approx(np.array([-2, -1, 0, 1, 97]) / 1.4826)
    assert z[4, 1] == pytest.approx(5 / 1.2533) and not robust_z(np.ones((5, 1))).any()
    assert limit_of(5) == 3.5 and 4 < limit_of(1000) < 4.2
