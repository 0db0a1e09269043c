# SPDX-License-Identifier: Apache-2.0
"""Intervals of `top`: times inside the interval, whole waits, what is blocked now; text and JSON; bad arguments."""

import json
from typing import Any

import numpy as np
import pytest
from builders.examples import examples
from builders.profile import ProfileBuilder, kernel
from builders.refused import refused

from perf_offcpu.commands.top import KEYS
from perf_offcpu.model.profile import Profile
from perf_offcpu.model.recording import Budget, SampleFlag
from perf_offcpu.report.style import Style
from perf_offcpu.top.interval import Interval, Row, interval_of
from perf_offcpu.top.plain import document, render

S = 10**9
COST = {"top": 1.25, "recorder": 0.5}
BLOCKED, BEFORE = SampleFlag.STILL_BLOCKED, SampleFlag.BEGAN_BEFORE


def interval(**options: Any) -> Interval:
    return interval_of(profile(), **options)


def profile() -> Profile:
    """Return two seconds, from 10 s to 12 s: threads of `a` and `b`, an idle one, and one that only runs."""
    comms = [(1, 1, 0, "a"), (2, 1, 0, "a"), (3, 3, 0, "b"), (4, 4, 0, "idle"), (5, 5, 0, "runs\x1b[31m")]
    builder = ProfileBuilder(meta={"begin_ns": 10 * S, "end_ns": 12 * S}, comms=comms, losses={"some": 3})
    lock = builder.thing("m in a")
    at_futex = ["main", kernel("futex_wait")]
    builder.sample("a", at_futex, 3 * S, tid=1, pid=1, time_ns=11 * S, runq_ns=S // 4, object=lock)  # 8 s to 11 s
    builder.sample("a", at_futex, S // 2, tid=1, pid=1, time_ns=12 * S, flags=BLOCKED, object=lock)
    builder.sample("a", ["main"], S, tid=2, pid=1, time_ns=11 * S, flags=SampleFlag.AGGREGATED, count=70, longest_ns=9)
    builder.sample("b", ["main", kernel("io_schedule")], 7 * S, tid=3, pid=3, time_ns=12 * S, flags=BLOCKED | BEFORE)
    builder.sample("idle", [kernel("do_epoll_wait")], 2 * S, tid=4, pid=4, time_ns=12 * S, flags=BLOCKED, syscall=232)
    built = builder.build()
    columns = "pid tid running_ns runnable_ns interruptible_ns uninterruptible_ns".split()
    rows = [(1, 1, S // 2, S // 4, S + S // 4, 0), (1, 2, S, 0, S, 0), (3, 3, 0, 0, 0, 2 * S)]
    rows += [(4, 4, 0, 0, 2 * S, 0), (5, 5, 2 * S, 0, 0, 0)]
    spent = {name: np.array(column) for name, column in zip(columns, zip(*rows, strict=True), strict=True)}
    built.budget = Budget.filled(len(rows), begin_ns=10 * S, end_ns=12 * S, **spent)
    return built


def row(label: str, *times: int | None, now: int = 0, since: int = 0, least: bool = False) -> dict[str, Any]:
    names = "blocked runnable running waits average longest".split()
    others = {"now": now, "since": since, "since_is_least": least}
    return {"label": label} | dict(zip(names, times, strict=True)) | others


def rows(*arguments: str, **options: Any) -> list[dict[str, Any]]:
    found = interval(**options)
    return document(found, arguments[0], found.rows(arguments[0]), None, COST, 0)["rows"]


def test_rows_of_threads_have_the_counted_times_and_whole_waits() -> None:
    a = row("a", 2 * S + S // 4, S // 4, S + S // 2, 71, round(4 * S / 71), 3 * S, now=1, since=S // 2)
    b = row("b", 2 * S, 0, 0, 0, None, None, now=1, since=7 * S, least=True)
    runs = row("runs\\x1b[31m", 0, 0, 2 * S, 0, None, None)
    assert rows("comm") == [a, b, runs]
    assert rows("process") == [a | {"label": "a 1"}, b | {"label": "b 3"}, runs | {"label": "runs\\x1b[31m 5"}]
    assert [(one["label"], one["waits"]) for one in rows("thread")] == [
        ("b 3", 0), ("a 1", 1), ("a 2", 70), ("runs\\x1b[31m 5", 0),
    ]  # fmt: skip


def test_rows_by_other_keys_have_the_times_inside_the_interval() -> None:
    """The wait from 8 s to 11 s has one second of this interval, a quarter of it for a CPU."""
    assert rows("object")[:3] == [
        row("[none]", 2 * S, 0, None, 0, None, None, now=1, since=7 * S, least=True),
        row("m in a", S + S // 4, S // 4, None, 1, 3 * S, 3 * S, now=1, since=S // 2),
        row("(sum)", S, 0, None, 70, round(S / 70), 9),
    ]
    for key in KEYS:
        assert sum(one["waits"] for one in rows(key, idle="show")) == 71, key
        assert sum(one["now"] for one in rows(key, idle="show")) == 3, key


def test_rows_of_stacks_begin_with_the_function_that_explains_the_wait() -> None:
    assert {one["label"]: one["blocked"] for one in rows("stack")} == {
        "main: futex_wait < main": S + S // 4, "main: main": S, "main: io_schedule < main": 2 * S,
    }  # fmt: skip


def test_idle_threads_are_hidden_shown_or_alone() -> None:
    labels = {idle: {one["label"] for one in rows("comm", idle=idle)} for idle in ("hide", "show", "only")}
    assert labels["only"] == {"idle"} and "idle" not in labels["hide"]
    assert labels["show"] == labels["hide"] | labels["only"]


def test_rows_narrow_an_interval_and_a_process_is_left_out() -> None:
    shown = interval()
    part = shown.narrowed("comm", "b")
    assert [row.label for row in part.rows("thread")] == ["b 3"] and part.by_class() == {"disk": 2 * S}
    assert [row.label for row in shown.narrowed("class", "disk").rows("object")] == ["[none]"]
    assert [row.label for row in shown.narrowed("class", "lock").rows("thread")] == ["a 1"]
    assert not shown.narrowed("comm", "gone").rows("thread")
    (stack,) = part.stacks(5)
    assert (stack.labels, stack.weight) == (["main", "io_schedule"], 2 * S)
    assert {row["label"] for row in rows("comm", without_pid=1)} == {"b", "runs\\x1b[31m"}


def test_head_and_table_as_text() -> None:
    found = interval()
    lines = list(render(found, "comm", found.rows("comm"), 2, COST, 1, Style()))
    assert lines[0].endswith(
        "2.00 s: 2 threads blocked now; running 1.750, for a CPU 0.125 s/s; cost 1.8 % of a CPU (top 1.2, recorder 0.5)"
    )
    assert lines[1] == "# Blocked, s/s: disk 1.000, lock 0.625, other 0.500"
    assert lines[2].startswith("# First cause: ") and "disk" in lines[2]
    assert lines[3] == "# Lost: 3 some; 1 interval: read too late"
    cells = [line.split() for line in lines[6:8]]
    assert cells[0] == ["1.125", "0.125", "0.750", "35.5", "56.338", "3000.000", "1", "0.5", "a"]
    assert cells[1] == ["1.000", "0.000", "0.000", "0.0", "-", "-", "1", ">7.0", "b"]
    assert lines[8:] == ["# and 1 more row", ""]
    assert all(len(line) <= 80 for line in render(found, "comm", found.rows("comm"), 2, COST, 0, Style(width=80)))


def test_a_document_is_json_and_cut_at_the_limit() -> None:
    found = interval()
    made = json.loads(json.dumps(document(found, "comm", found.rows("comm"), 1, COST, 2)))
    assert made["more"] == 2 and len(made["rows"]) == 1 and made["unread"] == 2
    assert made["classes"] == {"disk": 2 * S, "lock": S + S // 4, "other": S}
    assert (made["now"], made["losses"], made["cost"]) == (2, {"some": 3}, COST)


def test_an_interval_without_waits_has_no_rows() -> None:
    empty = interval_of(ProfileBuilder(meta={"begin_ns": 1, "end_ns": 2}).build())
    assert [empty.rows(key) for key in KEYS] == [list[Row]()] * len(KEYS)
    assert list(render(empty, "comm", [], None, COST, 0, Style()))[2] == "# First cause: none"


@pytest.mark.parametrize(("words", "sentence"), examples("unit/sentences.txt", "top"))
def test_bad_arguments_are_one_sentence(words: str, sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert sentence in refused(capsys, "top", *words.split(), status=129)
