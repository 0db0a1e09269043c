# SPDX-License-Identifier: Apache-2.0
"""Perfetto traces, and the protobuf messages that they are made of."""

import json
from collections import Counter
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
from builders.large import large_profile
from builders.perfetto import Read, read
from builders.profile import Code, ProfileBuilder, kernel
from builders.push.published import classes, parse
from hypothesis import given
from hypothesis import strategies as st

from perf_offcpu.convert.encode import protobuf as pb
from perf_offcpu.convert.encode.text_columns import array_items
from perf_offcpu.convert.perfetto import trace
from perf_offcpu.model.recording import SampleFlag


@pytest.fixture
def found() -> Read:
    meta = {"wall_clock_ns": 1_700_000_000_000_000_000, "wall_clock_at_ns": 4_000_000, "first_ns": 4_500_000}
    builder = ProfileBuilder(meta=meta)
    builder.sample("main", ["main", kernel("futex")], 1_000_001, time_ns=5_000_001, state=1, cpu=1)
    columns: dict[str, Any] = {"waker_tid": 100, "waker_pid": 100, "wakeup_ns": 5_019_000, "runq_ns": 1_000}
    builder.sample("wk", ["main", Code("f", "/lib/x.so")], 9_000, time_ns=5_020_000, tid=102, state=2, cpu=0, **columns)
    builder.sample("wk", ["main"], 400, time_ns=5_030_000, tid=102, cpu=1, flags=SampleFlag.PREEMPTED, runq_ns=400)
    builder.sample("wk", ["main"], 77, time_ns=5_031_000, tid=102, flags=SampleFlag.AGGREGATED, count=9)
    builder.sample("wk", ["main", "run"], 11, time_ns=5_032_000, tid=102, event="cpu-clock")
    return read(builder.build())


def test_waits_and_their_run_queue(found: Read) -> None:
    sums = "sums of short waits: no time"
    assert [(one.track, one.category, one.name, one.begin, one.end, one.depth, one.weight) for one in found.slices] == [
        ("main", "offcpu", "futex", 4_000_000, 5_000_001, 0, 1_000_001),
        (sums, "offcpu", "main", 4_000_000, 4_000_077, 0, 77),
        ("wk", "offcpu", "f", 5_011_000, 5_020_000, 0, 9_000),
        ("main", "wakeup", "wakes wk-102", 5_019_000, 5_020_000, 0, None),
        ("wk", "runqueue", "run queue", 5_019_000, 5_020_000, 1, None),
        ("wk", "offcpu", "main", 5_029_600, 5_030_000, 0, 400),
        ("wk", "runqueue", "run queue", 5_029_600, 5_030_000, 1, None),
        ("wk", "cpu", "cpu-clock", 5_032_000, 5_032_000, 0, 11),
    ]
    assert found.flows == [("wakes wk-102", "wk", 5_019_000)]


def test_stacks_details_and_clocks(found: Read) -> None:
    wait = next(one for one in found.slices if one.name == "f")
    assert wait.stack == "main;f"
    texts = {"state": "uninterruptible sleep", "woken by": "main (pid 100, tid 100)"}
    assert wait.details == texts | {"blocked_ns": 8_000, "runq_ns": 1_000}
    assert found.clocks == {3: 4_000_000, 1: 1_700_000_000_000_000_000}


def test_thread_states_and_counters(found: Read) -> None:
    sleep, deep, runnable, running = 4, 5, 2, 3
    assert sorted(found.states, key=lambda state: state[1]) == [
        (100, 4_000_000, sleep, 1), (100, 5_000_001, running, 1), (102, 5_011_000, deep, 0),
        (102, 5_019_000, runnable, 0), (102, 5_020_000, running, 0), (102, 5_029_600, runnable, 0),
        (102, 5_030_000, running, 1),
    ]  # fmt: skip
    assert found.counters["threads blocked"] == [(4_000_000, 1), (5_000_001, 0), (5_011_000, 1), (5_019_000, 0)]
    assert [value for _, value in found.counters["threads runnable"]] == [1, 0, 1, 0]


@pytest.mark.long
def test_large_totals_are_exact_and_slices_nest() -> None:
    profile = large_profile(20_000, 1_000)
    trace = read(profile)
    assert trace.weight == sum(profile.samples.period.tolist())
    depths = Counter(span.depth for span in trace.slices if span.category == "offcpu")
    assert len(trace.flows) > 10_000 and sum(depths.values()) == 20_000
    assert sum(span.end - span.begin for span in trace.slices if span.category == "offcpu") == trace.weight
    queued = sum(span.end - span.begin for span in trace.slices if span.category == "runqueue")
    assert queued == sum(profile.samples.runq_ns.tolist()) and trace.counters["threads blocked"][-1][1] == 0
    assert read(ProfileBuilder().build()).slices == []


@given(st.lists(st.tuples(st.integers(0, 3000), st.integers(1, 900)), min_size=1, max_size=40), st.integers(1, 700))
def test_mean_counts_keep_all_time(intervals: list[tuple[int, int]], step: int) -> None:
    since = np.array([begin for begin, _ in intervals], np.int64)
    until = since + np.array([length for _, length in intervals])
    times, means = trace.mean_counts(since, until, step)
    assert (
        means.sum() * step == pytest.approx((until - since).sum()) and means[-1] == 0 and (np.diff(times) == step).all()
    )
    changes, exact = trace.counts(since, until)
    each = exact[np.searchsorted(changes, np.arange(since.min(), until.max()), "right") - 1]
    assert means[:-1] == pytest.approx(
        [each[at : at + step].sum() / step for at in range(0, len(each), step)]
        + [0] * (len(means) - 1 - -(-len(each) // step))
    )


@pytest.mark.long
def test_counters_of_a_large_recording_are_means(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace, "MOST_CHANGES", 1000)
    profile = large_profile(2_000, 100)
    found = read(profile)
    name, values = next((name, values) for name, values in found.counters.items() if name.startswith("threads blocked"))
    step_ns = values[1][0] - values[0][0]
    assert name == f"threads blocked, mean of each {step_ns / 1000:.1f} us" and len(values) <= 2**16 + 2
    blocked = sum(profile.samples.period.tolist()) - sum(profile.samples.runq_ns.tolist())
    assert sum(value for _, value in values) * step_ns == pytest.approx(blocked)


TABLE_OF_ROWS = """
Table: 1 rows Row*
Row: 3 number uint64, 7 seven string, 8 real double, 200 name string
"""
MESSAGES = classes("test", TABLE_OF_ROWS)
TABLE, ROW = MESSAGES["Table"], MESSAGES["Row"]
NUMBERS = st.lists(st.integers(0, 2**64 - 1), max_size=20)


@given(NUMBERS)
def test_columns_of_numbers_are_single_numbers_in_a_row(values: list[int]) -> None:
    """A row is as long as the largest number, and readers take it for that number."""
    rows = pb.varints(np.array(values, np.uint64))
    longest = max((len(pb.varint(value)) for value in values), default=1)
    assert rows.lengths.tolist() == [longest] * len(values)
    texts = [rows.flat()[begin : begin + longest] for begin in range(0, longest * len(values), longest)]
    assert [parse(ROW, pb.varint(3 << 3) + text).number for text in texts] == values


@given(NUMBERS, st.data())
def test_messages_of_messages(values: list[int], data: st.DataObject) -> None:
    present = np.array(data.draw(st.lists(st.booleans(), min_size=len(values), max_size=len(values))), np.bool_)
    column = np.array(values, np.uint64)
    names = pb.from_bytes([b"", b"x" * 200, "größe".encode()])
    pick = np.arange(len(values)) % 3
    body = pb.joined(
        pb.numbers(3, column).where(present), pb.messages(200, names.take(pick)),
        pb.constant(pb.field(7, "seven"), len(values)), pb.fixed64(8, column.astype(np.float64)),
    )  # fmt: skip
    rows = parse(TABLE, pb.messages(1, body).flat()).rows
    assert len(rows) == len(values)
    for row, value, there, name in zip(rows, values, present.tolist(), pick.tolist(), strict=True):
        text = ["", "x" * 200, "größe"][name]
        assert (row.number, row.name, row.seven, row.real) == (value if there else 0, text, "seven", float(value))


@given(
    st.lists(st.lists(st.binary(max_size=20), min_size=3, max_size=3), max_size=8), st.binary(max_size=20), st.data()
)
def test_strings_of_any_lengths_side_by_side(texts: list[list[bytes]], same: bytes, data: st.DataObject) -> None:
    """Short strings, long strings, and mixtures of both, whose last words reach into the strings after them."""
    columns = [pb.from_bytes(list(column)) for column in zip(*texts, strict=True)] if texts else [pb.from_bytes([])]
    present = np.array(data.draw(st.lists(st.booleans(), min_size=len(texts), max_size=len(texts))), np.bool_)
    place = data.draw(st.integers(0, len(columns)))
    masked = [columns[0].where(present), *columns[1:]]
    rows = pb.joined(*masked[:place], pb.constant(same, len(texts)), *masked[place:])
    expected = [[text[0] if there else b"", *text[1:]] for text, there in zip(texts, present.tolist(), strict=True)]
    for text in expected:
        text.insert(place, same)
    assert rows.flat() == b"".join(part for text in expected for part in text)
    assert rows.lengths.tolist() == [sum(map(len, text)) for text in expected]


def test_ranges_of_rows() -> None:
    rows = pb.numbers(1, np.array([1, 300, 2, 70_000]))
    texts = pb.ragged(rows, np.array([0, 2, 2, 4]))
    assert [len(text) for text in texts] == [8, 0, 8] and b"".join(texts) == rows.flat()
    assert [parse(classes("test", "Only: 1 number uint64")["Only"], text).number for text in texts] == [300, 0, 70_000]


def test_negative_numbers_and_bytes_that_are_no_text() -> None:
    assert parse(ROW, pb.field(3, -1)).number == 2**64 - 1 and parse(ROW, pb.field(7, "a\udcff")).seven == "a?"


def written(values: list[int], decimals: int = 0, null: list[bool] | None = None) -> list[object]:
    parts = array_items(np.array(values, np.int64), decimals, None if null is None else np.array(null))
    parsed: list[object] = json.loads(f"[{''.join(parts)}]", parse_float=Decimal)
    return parsed


EDGES = [0, 1, 9, 10, 999_999, 1_000_000, 1_000_001, 2**53 + 1, 2**63 - 1]


@pytest.mark.parametrize("decimals", [0, 3, 6])
def test_every_number_is_exact(decimals: int) -> None:
    rng = np.random.default_rng(7)
    values = [*EDGES, *(rng.integers(0, 2**62, 40_000) >> rng.integers(0, 62, 40_000)).tolist()]
    assert written(values, decimals) == [Decimal(value).scaleb(-decimals) for value in values]


def test_decimals_null_and_negative_numbers() -> None:
    assert "".join(array_items(np.array([1_500, 7, 0]), 3)) == "1.500,0.007,0.000"
    with pytest.raises(ValueError, match="negative"):
        list(array_items(np.array([3, -1])))
    assert written([5, -1, 12_345_678, -1], null=[False, True, False, True]) == [5, None, 12_345_678, None]
    assert written([-1], null=[True]) == [None] and written([]) == []
    assert written([-1] * 20_000, null=[True] * 20_000) == [None] * 20_000
