# SPDX-License-Identifier: Apache-2.0
"""Sums of a dataset equal a plain computation over the same rows, and what report says of the recordings in it; changes
and outliers that were put in are found."""

import fnmatch
import itertools
import json
import re
import shutil
import tempfile
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders.dataset import BEGIN, HOUR, DatasetBuilder, rows_of
from builders.examples import examples
from builders.refused import output, refused
from hypothesis import given, settings
from hypothesis import strategies as st

from perf_offcpu.cli import main
from perf_offcpu.dataset.dataset import open_dataset
from perf_offcpu.errors import UsageError
from perf_offcpu.fleet.diff.outliers import robust_z
from perf_offcpu.fleet.diff.significance import SIGNIFICANT, compare_groups, compare_pairs, compare_periods
from perf_offcpu.fleet.engine import Engine, connect
from perf_offcpu.fleet.queries import KEYS, column_of, grouped, ranked, select
from perf_offcpu.fleet.selection import Selection, parse_labels, parse_time, utc
from perf_offcpu.fleet.tables import Tables, open_tables
from perf_offcpu.report.diff.noise import errors_needed

HOSTS = ("web1", "web2", "db1")
CLASSES = ("lock", "disk", "runqueue", None)
NAMES = ("host", "class", "comm", "object", "service", "version", "cpu")
STACKS = [[], ["main", "read", "io_schedule_[k]"], ["main", "lock"]]
Row = dict[str, Any]
Sums = dict[tuple[Any, ...], list[int]]


@pytest.fixture(scope="module")
def engine() -> Engine:
    return connect()


def rows(path: Path, engine: Engine, selection: Selection, keys: list[str]) -> Sums:
    """Return key values → weight, blocked, runq, waits."""
    found = engine.run(ranked(grouped(select(open_tables(str(path), engine), selection), keys), None))
    sums = zip(*(found[name] for name in ("weight", "blocked", "runq", "waits")), strict=True)
    values = zip(*(found[column_of(key)] for key in keys), strict=True)
    return {key: list(one) for key, one in zip(values, sums, strict=True)}


WAITS = st.lists(
    st.fixed_dictionaries(
        {
            "host": st.sampled_from(HOSTS), "ns": st.integers(0, 1 << 61),
            "time_ns": st.integers(BEGIN, BEGIN + 3 * HOUR - 1), "class": st.sampled_from(CLASSES),
            "runq_ns": st.none() | st.integers(0, 1 << 40), "comm": st.sampled_from(("web", "worker", "öß")),
            "object": st.none() | st.sampled_from(("/var/log/x", "a*b", "10.0.0.7:53", "[x]", "x\\y'z")),
            "count": st.integers(1, 1 << 30), "stack": st.sampled_from(STACKS),
            "event": st.sampled_from(("offcpu-time", "cpu-clock")), "idle": st.booleans(),
        }
    ),
    min_size=1,
    max_size=30,
)  # fmt: skip
SELECTIONS = st.builds(
    Selection, since_ns=st.none() | st.integers(BEGIN, BEGIN + 2 * HOUR),
    until_ns=st.none() | st.integers(BEGIN + 2 * HOUR, BEGIN + 3 * HOUR),
    hosts=st.sampled_from(((), ("web1",), ("id-db1", "web2"))),
    labels=st.sampled_from(({}, {"service": ("web",)}, {"version": ("2",)}, {"version": ("1", "2")})),
    classes=st.sampled_from(((), ("lock",), ("disk", "runqueue"))),
    objects=st.sampled_from(((), ("x",), ("a*b", "10.?"), ("[x]",), ("\\", "'"))),
    comms=st.sampled_from(((), ("öß", "web"))), idle=st.sampled_from(("show", "hide", "only")),
)  # fmt: skip


def labels_of(host: str, time_ns: int) -> dict[str, str]:
    """web1 changes its version after an hour and a half."""
    if host == "db1":
        return {"service": "db"}
    version = "2" if host == "web1" and time_ns >= BEGIN + HOUR * 3 // 2 else "1"
    return {"service": "web", "version": version, "cpu": "arm"}


def write(waits: list[Row], path: Path) -> None:
    builder = DatasetBuilder()
    for host in HOSTS:
        for half in range(6):
            begin = BEGIN + half * HOUR // 2
            builder.host(host, labels_of(host, begin), begin_ns=begin, end_ns=begin + HOUR // 2)
    for wait in waits:
        builder.wait(**wait)
    builder.write(path)


def fits(wait: Row, selection: Selection) -> bool:
    host, time_ns, labels = wait["host"], wait["time_ns"], labels_of(wait["host"], wait["time_ns"])
    return (
        wait["event"] in selection.events
        and (selection.since_ns is None or time_ns >= selection.since_ns)
        and (selection.until_ns is None or time_ns < selection.until_ns)
        and (not selection.hosts or host in selection.hosts or f"id-{host}" in selection.hosts)
        and all(labels.get(name, "") in values for name, values in selection.labels.items())
        and (not selection.classes or wait["class"] in selection.classes)
        and selection.idle in ("show", "only" if wait["idle"] else "hide")
        and (not selection.comms or wait["comm"] in selection.comms)
        and (not selection.objects or any(matches(wait["object"], one) for one in selection.objects))
    )


def matches(name: str | None, pattern: str) -> bool:
    return name is not None and fnmatch.fnmatchcase(name, f"*{pattern.replace('[', '[[]')}*")


def expected(waits: list[Row], selection: Selection, keys: list[str]) -> Sums:
    sums: dict[tuple[Any, ...], Counter[int]] = {}
    for wait in waits:
        if not fits(wait, selection):
            continue
        labels = labels_of(wait["host"], wait["time_ns"])
        values = {"host": f"id-{wait['host']}", "class": wait["class"] or "", "comm": wait["comm"]}
        values |= {"object": wait["object"] or ""}
        key = tuple(values[one] if one in values else labels.get(one, "") for one in keys)
        runq = wait["runq_ns"] or 0
        blocked = 0 if wait["class"] == "runqueue" else wait["ns"] - runq
        sums.setdefault(key, Counter()).update({0: wait["ns"], 1: blocked, 2: runq, 3: wait["count"]})
    return {key: [found[at] for at in range(4)] for key, found in sums.items()}


@pytest.mark.long
@settings(max_examples=12, deadline=None)
@given(WAITS, SELECTIONS, st.lists(st.sampled_from(NAMES), min_size=1, max_size=3, unique=True))
def test_sums_of_random_selections(engine: Engine, waits: list[Row], selection: Selection, keys: list[str]) -> None:
    with tempfile.TemporaryDirectory() as name:
        write(waits, Path(name))
        try:
            found = rows(Path(name), engine, selection, keys)
        except UsageError as problem:
            assert "no host" in str(problem) and not [wait for wait in waits if fits(wait, selection)]
            return
    assert found == expected(waits, selection, keys)


def test_a_day_of_a_large_fleet_is_more_than_63_bits_hold(engine: Engine, tmp_path: Path) -> None:
    builder = DatasetBuilder().host("web1")
    for _ in range(5):
        builder.wait("web1", (1 << 63) - 1, **{"class": "lock"})
    found = rows(builder.write(tmp_path), engine, Selection(), ["class"])
    assert found == {("lock",): [5 * ((1 << 63) - 1)] * 2 + [0, 5]}


def test_a_host_that_goes_back_to_an_older_label(engine: Engine, tmp_path: Path) -> None:
    builder = DatasetBuilder()
    for half, version in enumerate("121"):
        begin = BEGIN + half * HOUR // 2
        builder.host("web1", {"version": version}, begin_ns=begin, end_ns=begin + HOUR // 2)
        builder.wait("web1", 10**half, time_ns=begin + 5)
    path = builder.write(tmp_path)
    weights = {key: sums[0] for key, sums in rows(path, engine, Selection(), ["version"]).items()}
    assert weights == {("1",): 101, ("2",): 10}
    selected = select(open_tables(str(path), engine), Selection(labels={"version": ("2",)}))
    assert [span.recorded_ns for span in selected.spans] == [HOUR // 2]


def test_recorded_time_is_cut_to_the_selected_time(engine: Engine, tmp_path: Path) -> None:
    builder = DatasetBuilder().host("web1")
    builder.host("web1")  # written again: the same segment
    builder.host("web1", begin_ns=BEGIN + HOUR, end_ns=BEGIN + 2 * HOUR)
    builder.wait("web1", 1)
    tables = open_tables(str(builder.write(tmp_path)), engine)
    selection = Selection(since_ns=BEGIN + HOUR // 2, until_ns=BEGIN + HOUR + 7)
    assert [span.recorded_ns for span in select(tables, selection).spans] == [HOUR // 2 + 7]


def test_all_keys_are_columns(engine: Engine, tmp_path: Path) -> None:
    path = DatasetBuilder().host("web1").wait("web1", 5, ["main"]).write(tmp_path)
    assert [sums[0] for sums in rows(path, engine, Selection(), list(KEYS)).values()] == [5]


def test_wrong_choices(engine: Engine, tmp_path: Path) -> None:
    tables = open_tables(str(DatasetBuilder().host("web1", {"service": "web"}).wait("web1", 5).write(tmp_path)), engine)
    wrong: Mapping[str, Selection] = {
        "--host web9: no host": Selection(hosts=("web9",)),
        "no host has a label 'servce' (labels: service)": Selection(labels={"servce": ("web",)}),
        "no host has service=db in the selected time (known: web)": Selection(labels={"service": ("db",)}),
        "reaches from": Selection(since_ns=BEGIN + 10 * HOUR),
    }
    for text, selection in wrong.items():
        with pytest.raises(UsageError) as problem:
            select(tables, selection)
        assert text in str(problem.value)


NOW_NS = 1_790_000_000 * 10**9


@pytest.mark.parametrize(("text", "shown"), examples("unit/examples.txt", "points in time"))
def test_times(text: str, shown: str) -> None:
    ns = parse_time("--since", text, NOW_NS)
    assert utc(ns) == shown
    assert 0 <= ns < 1 << 63  # as engines have them


@pytest.mark.parametrize("text", ["", "25:00", "now", "1790000000", "-1", "-1y", "2026-11-22T14:00Z+1"])
def test_what_is_no_time_is_shown_as_it_was_written(text: str) -> None:
    with pytest.raises(Exception, match=f"^--since: '{text.replace('+', '.')}' is not a time"):
        parse_time("--since", text, NOW_NS)


def test_values_of_labels_may_have_any_character() -> None:
    assert parse_labels("--label", ["a=x,y=z", "a=", "b=\n"]) == {"a": ("x,y=z", ""), "b": ("\n",)}


def test_all_that_was_chosen_is_described() -> None:
    chosen: dict[str, Any] = {
        "hosts": ("web1", "web2"), "labels": {"service": ("shop", "cart")}, "events": ("cpu-clock",),
        "classes": ("lock",), "objects": ("ledger*",), "comms": ("nginx",), "containers": ("0a1b",),
    }  # fmt: skip
    text = Selection(since_ns=NOW_NS, until_ns=NOW_NS + 10**9, idle="hide", **chosen).describe()
    assert text.startswith("service=shop|cart, host web1|web2, since 2026-09-21 14:13:20, until 2026-09-21 14:13:21, ")
    for part in ("event cpu-clock", "class lock", "object ledger*", "comm nginx", "container 0a1b", "work left out"):
        assert part in text
    assert Selection().describe() == "everything"
    assert Selection(idle="only").describe() == "threads that merely wait for work alone"


LOCK, DISK = ["main", "f", "futex_wait_[k]"], ["main", "g", "io_schedule_[k]"]
HALF = HOUR // 2


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """24 hosts; version 2 waits longer for locks; in the second half of the hour all wait longer for disks, web5 ten
    times."""
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
    return json.loads(output(capsys, "fleet", "diff", str(dataset), "--json", *words))


def changed(table: Any, key: str) -> dict[str, int]:
    """Return value → change in percent of the significant rows."""
    rows = (row for row in table["rows"] if row["significant"])
    return {row[key]: round(100 * row["change"] / row["before"]) for row in rows}


def test_other_hosts(dataset: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = diff(capsys, dataset, "--label", "version=2", "--baseline", "version=1")
    shown = output(capsys, "fleet", "report", str(dataset), "--label", "version=2", "--json")
    weight = json.loads(shown)["tables"][0]["weight"]
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


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One host for an hour, recorded for a half of each minute; in the last quarter waits for disks are longer."""
    random, builder, minute = np.random.default_rng(11), DatasetBuilder(), HOUR // 60
    for at in range(60):
        begin = BEGIN + at * minute
        builder.host("web", {"version": "1"}, begin_ns=begin, end_ns=begin + minute // 2)
        for second in range(30):
            times = {"time_ns": begin + second * 10**9}
            builder.wait("web", int(random.lognormal(18, 0.3)), LOCK, **times)
            builder.wait(
                "web", int(random.lognormal(18, 0.3) * (2 if at >= 45 else 1)), DISK, **{"class": "disk"}, **times
            )
    return builder.write(tmp_path_factory.mktemp("alone"))


def periods(*minutes: int) -> tuple[str, ...]:
    """Return the words that compare a period with an earlier one; begin and end of both, the later one first."""
    times = [str(np.datetime_as_string(np.datetime64(BEGIN + at * HOUR // 60, "ns"), "s")) for at in minutes]
    return "--since", times[0], "--until", times[1], "--baseline", f"since={times[2]},until={times[3]}"


@pytest.mark.long
def test_two_periods_of_one_host(alone: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = diff(capsys, alone, *periods(45, 60, 15, 30), "--sort", "version,class")
    assert found["block_ns"] == (15 * 60 - 30) * 10**9 // 60 and not found["paired"]
    assert min(found["hosts_compared"]) >= 30 and found["recorded_ns"] == 15 * 30 * 10**9
    (disk,) = [row for row in found["tables"][0]["rows"] if row["significant"]]
    assert (disk["class"], disk["version"]) == ("disk", "1") and disk["p"] < 0.05
    assert disk["before"] == pytest.approx(found["tables"][0]["rows"][1]["before"], rel=0.2), "by recorded time"
    assert 1.8 < disk["after"] / disk["before"] < 2.2 and disk["lengths"]["significant"]
    back = diff(capsys, alone, *periods(15, 30, 45, 60))["tables"][0]["rows"]
    assert [(row["class"], row["significant"]) for row in back] == [("disk", True), ("lock", False)]
    same = diff(capsys, alone, *periods(20, 40, 0, 20))
    assert not any(row["significant"] for table in same["tables"] for row in table["rows"])
    shown = text(capsys, alone, *periods(45, 60, 15, 30))
    assert "blocks of 14.5 s of one host compared with" in shown and "shifts of the second period" in shown
    words = ("fleet", "diff", str(alone), *periods(10, 30, 0, 20))
    assert "the two periods of the host overlap" in refused(capsys, *words, status=None)


@pytest.mark.long
def test_periods_that_drift_are_not_taken_for_a_change() -> None:
    """Neighbouring blocks are alike (autoregressive, 0.9): single blocks are no units, and shifts of periods are."""
    random, wrong, naive = np.random.default_rng(13), 0, 0
    for _ in range(300):
        values, drive = np.zeros((120, 3)), random.normal(size=(120, 3))
        for at in range(1, 120):
            values[at] = 0.9 * values[at - 1] + drive[at]
        wrong += bool((compare_periods(values[:60], values[60:]).p < SIGNIFICANT).any())
        naive += bool((compare_groups(values[:60:4], values[60::4]).p < SIGNIFICANT).any())
    assert naive > 0.3 * 300
    assert wrong < 0.05 * 300 + 4 * np.sqrt(300 * 0.05 * 0.95)


@pytest.fixture(scope="module")
def loop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A lock that is held twice as long in version 2: workers wait twice as long, half as often; disk waits stay; some
    are sums."""
    random, builder = np.random.default_rng(4), DatasetBuilder()
    for host in range(16):
        name, slow = f"web{host}", 1 + host % 2
        builder.host(name, {"version": str(slow)})
        for _ in range(120 // slow):
            length = int(slow * 1e6 * random.lognormal(0, 0.3))
            builder.wait(name, length, LOCK)
        for _ in range(40):
            builder.wait(name, int(3e6 * random.lognormal(0, 0.3)) * 5, DISK, **{"class": "disk", "count": 5})
    return builder.write(tmp_path_factory.mktemp("loop"))


@pytest.mark.long
def test_lengths_of_waits_in_a_closed_loop(loop: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Their time per second stays, and shows nothing."""
    found = diff(capsys, loop, "--label", "version=2", "--baseline", "version=1")
    by_class = {row["class"]: row for row in found["tables"][0]["rows"]}
    assert not any(row["significant"] for row in by_class.values())
    lock, disk = by_class["lock"]["lengths"], by_class["disk"]["lengths"]
    assert lock["mean_ns"][1] / lock["mean_ns"][0] == pytest.approx(2, rel=0.1)
    assert lock["waits"][0] / lock["waits"][1] == pytest.approx(2, rel=0.01)
    assert (lock["significant"], lock["closed_loop"]) == (True, True)
    assert (disk["significant"], disk["closed_loop"]) == (False, False) and disk["mean_ns"][0] < 4e6
    out = text(capsys, loop, "--label", "version=2", "--baseline", "version=1")
    assert "# Closed loop (lock): waits changed their length" in out
    assert re.search(r"^ +\d.*%.* lock$", out, re.M) and not re.search(r" disk$", out, re.M)


def test_percentiles_are_those_of_the_waits(loop: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = diff(capsys, loop, "--label", "version=2", "--baseline", "version=1")
    found_rows = rows_of(open_dataset(str(loop)), "samples")
    versions = {row["host_id"]: dict(row["labels"])["version"] for row in rows_of(open_dataset(str(loop)), "hosts")}
    for key in ("lock", "disk"):
        (lengths,) = [row["lengths"] for row in found["tables"][0]["rows"] if row["class"] == key]
        for side, version in enumerate("12"):
            each = [
                wait["off_ns"] / wait["count"]
                for wait in found_rows
                if wait["class"] == key and versions[wait["host_id"]] == version
                for _ in range(wait["count"])
            ]
            assert lengths["p99_ns"][side] == pytest.approx(np.quantile(each, 0.99, method="inverted_cdf"), rel=0.023)
            assert lengths["mean_ns"][side] == pytest.approx(np.mean(each))


def text(capsys: pytest.CaptureFixture[str], dataset: Path, *words: str) -> str:
    return output(capsys, "fleet", "diff", str(dataset), *words)


@pytest.mark.long
def test_more_of_the_same_waits_are_no_closed_loop(dataset: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Version 2 of the other dataset waits longer, as often."""
    found = diff(capsys, dataset, "--label", "version=2", "--baseline", "version=1")
    lock = next(row for row in found["tables"][0]["rows"] if row["class"] == "lock")
    assert lock["lengths"]["significant"] and not lock["lengths"]["closed_loop"]
    assert "Closed loop" not in text(capsys, dataset, "--label", "version=2", "--baseline", "version=1")


def test_rates_of_other_events(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    builder = DatasetBuilder()
    for host in range(6):
        builder.host(f"web{host}", {"version": str(host % 2)})
        for event, number in (("instructions", 7_200_000), ("cpu-clock", 36 * 10**9)):
            no_wait: dict[str, Any] = {"class": None, "off_ns": 0}
            builder.wait(f"web{host}", number, event=event, **no_wait)
    words = ["fleet", "diff", str(builder.write(tmp_path / "set"))]
    versions = ("--label", "version=1", "--baseline", "version=0", "--event")
    out = output(capsys, *words, *versions, "instructions")
    assert "2000.000 → 2000.000 /s of a host" in out and "# Instructions per second of a host, by class\n" in out
    out = output(capsys, *words, *versions, "cpu-clock", "--unit", "us")
    assert "10000.000 → 10000.000 us/s of a host" in out and "# Cpu-clock us per second of a host" in out
    out = output(capsys, *words, "--event", "instructions")
    assert "if it is 1 % of a host's weight" in " ".join(out.replace("#", "").split())


def test_a_host_unlike_the_others(dataset: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert [(row["host"], row["class"]) for row in diff(capsys, dataset)["rows"]] == [("web5", "disk")]
    assert "web5  disk" in text(capsys, dataset)


@pytest.mark.parametrize(("words", "sentence"), examples("unit/sentences.txt", "fleet diff"))
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
    z = robust_z(np.array([[1.0, 0], [2, 0], [3, 0], [4, 0], [100, 5]]))
    assert z[:, 0] == pytest.approx(np.array([-2, -1, 0, 1, 97]) / 1.4826)
    assert z[4, 1] == pytest.approx(5 / 1.2533) and not robust_z(np.ones((5, 1))).any()
    assert errors_needed(5, 3.5) == 3.5 and 4 < errors_needed(1000, 3.5) < 4.2


DATA = Path(__file__).resolve().parents[2] / "data"


@pytest.fixture(scope="module", params=["demo.data", "arm64/own.data"])
def recording(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("recording")
    shutil.copy(DATA / request.param, folder / "perf.data")
    assert main(["convert", "--parquet", str(folder / "waits"), "-i", str(folder / "perf.data")]) == 0
    return folder


def json_of(capsys: pytest.CaptureFixture[str], *words: str | Path) -> Any:
    return json.loads(output(capsys, *map(str, words), "--json"))


@pytest.mark.parametrize("keys", ["class", "comm,class", "pid,tid", "syscall,state", "object"])
def test_tables(recording: Path, keys: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--sort", keys)
    expected = json_of(capsys, "report", "-i", recording / "perf.data", *words)["groups"]
    (found,) = json_of(capsys, "fleet", "report", recording / "waits", *words)["tables"]
    rows = [tuple(row["values"]) for row in expected["rows"]]
    known = sums(rows, expected["rows"], "count")
    rows = [tuple(row[key] for key in keys.split(",")) for row in found["rows"]]
    assert sums(rows, found["rows"], "waits") == known
    assert found["weight"] == sum(row["weight"] for row in expected["rows"]) > 0


def sums(values: list[tuple[str, ...]], rows: Any, count: str) -> dict[tuple[str, ...], Counter[str]]:
    """Return values → weight and waits; what is not known or does not exist has one name."""
    found: dict[tuple[str, ...], Counter[str]] = {}
    for texts, row in zip(values, rows, strict=True):
        key = tuple("" if text in ("[unknown]", "[none]", "(sum)", "?", "-") else text for text in texts)
        found.setdefault(key, Counter()).update({"weight": row["weight"], "waits": row[count]})
    return found


def test_stacks(recording: Path, capsys: pytest.CaptureFixture[str]) -> None:
    expected = json_of(capsys, "report", "-i", recording / "perf.data")["stacks"]
    found = json_of(capsys, "fleet", "top", recording / "waits")

    def weights(rows: Any) -> list[tuple[int, str, list[str]]]:
        return sorted((row["weight"], row["comm"], [one["name"] for one in row["frames"]]) for row in rows)

    assert weights(found["rows"]) == weights(expected)


further = [
    pytest.param(one, marks=pytest.mark.long) for one in (("top",), ("sql", "SELECT sum(weight_ns) FROM samples"))
]


@pytest.mark.parametrize("words", [("report",), *further])
def test_a_query_during_a_compaction(
    recording: Path, tmp_path: Path, words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """Its files are gone when it opens them."""
    dataset = tmp_path / "waits"
    shutil.copytree(recording / "waits", dataset)
    for path in list(dataset.glob("*/*/*/*.parquet")):
        shutil.copy(path, path.with_name(f"again-{path.name}"))
    before = json_of(capsys, "fleet", words[0], dataset, *words[1:])
    opened = Tables.table

    def compacted(self: Tables, name: str) -> Any:
        found = opened(self, name)
        if name == "samples" and main(["fleet", "compact", str(dataset)]) == 0:
            capsys.readouterr()
        return found

    monkeypatch.setattr(Tables, "table", compacted)
    assert json_of(capsys, "fleet", words[0], dataset, *words[1:]) == before
    assert len(list((dataset / "samples").rglob("*.parquet"))) < 3
