# SPDX-License-Identifier: Apache-2.0
"""Sums of a dataset equal a plain computation over the same rows; how users choose rows."""

import fnmatch
import tempfile
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from builders.dataset import BEGIN, HOUR, DatasetBuilder
from hypothesis import given, settings
from hypothesis import strategies as st

from perf_offcpu.errors import UsageError
from perf_offcpu.fleet.engine import Engine, connect
from perf_offcpu.fleet.queries import KEYS, column_of, grouped, ranked, select
from perf_offcpu.fleet.selection import Selection, parse_labels, parse_time, utc
from perf_offcpu.fleet.tables import open_tables

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
    for key in KEYS:
        assert [sums[0] for sums in rows(path, engine, Selection(), [key]).values()] == [5]


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


@pytest.mark.parametrize(("text", "shown"), [
    ("2026-11-22T14:00", "2026-11-22 14:00:00"), ("2026-11-22T14:00+02:00", "2026-11-22 12:00:00"),
    ("23:59:01", "2026-09-21 23:59:01"), ("-2h", "2026-09-21 12:13:20"), ("-999999999w", "1970-01-01 00:00:00"),
    ("0001-01-01", "1970-01-01 00:00:00"), ("9999-12-31T23:59:59-14:00", "2200-01-01 00:00:00"),
])  # fmt: skip
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
