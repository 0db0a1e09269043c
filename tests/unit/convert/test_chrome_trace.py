# SPDX-License-Identifier: Apache-2.0
"""Trace Event JSON: what it says, in exact decimals; tests/browser opens it in speedscope."""

import json
from collections import defaultdict
from decimal import Decimal
from typing import Any

import pytest
from builders.converted import converted
from builders.large import large_profile
from builders.profile import ProfileBuilder, kernel

from perf_offcpu.convert.chrome_trace import SUMS_PID
from perf_offcpu.model.profile import Profile
from perf_offcpu.model.recording import SampleFlag

Event = dict[str, Any]


def events(profile: Profile) -> list[Event]:
    text = converted("chrome-trace", profile)
    parsed = json.loads(text, parse_float=Decimal, parse_constant=pytest.fail)  # NaN and Infinity are no JSON
    assert parsed.keys() == {"otherData", "traceEvents"}, "spall takes displayTimeUnit for the unit of ts"
    found: list[Event] = parsed["traceEvents"]
    return found


def ns(microseconds: Decimal) -> int:
    return round(microseconds * 1000)  # as Perfetto reads them


def slices(trace: list[Event], category: str) -> list[tuple[int, int, str, int, int]]:
    """(pid, tid, name, begin, duration in ns) of the slices of a category, in order."""
    chosen = [event for event in trace if event["ph"] == "X" and event["cat"] == category]
    return [(event["pid"], event["tid"], event["name"], ns(event["ts"]), ns(event["dur"])) for event in chosen]


def weights(found: list[Event]) -> int:
    moments = sum(one["args"]["weight"] for one in found if one["ph"] == "i")
    return moments + sum(one[4] for kind in ("offcpu", "cpu") for one in slices(found, kind))


@pytest.fixture
def profile() -> Profile:
    builder = ProfileBuilder()
    builder.sample("main", ["main", kernel("futex")], 1_000_001, time_ns=5_000_001, tid=100, state=1, syscall=202)
    woken: dict[str, Any] = {"runq_ns": 700, "wakeup_ns": 5_001_800}
    builder.sample("io", ["main", kernel("io")], 2_500, time_ns=5_002_500, tid=101, state=2, **woken)
    woken = {"runq_ns": 1_000, "wakeup_ns": 5_019_000, "waker_tid": 100, "waker_pid": 100}
    builder.sample("wk", ["main", "f"], 9_000, time_ns=5_020_000, tid=102, state=1, **woken)
    builder.sample("wk", ["main"], 400, time_ns=5_030_000, tid=102, state=0, flags=SampleFlag.PREEMPTED, runq_ns=400)
    builder.sample("wk", ["main"], 77, time_ns=5_031_000, tid=102, flags=SampleFlag.AGGREGATED, count=9)
    builder.sample("wk", ["main"], 23, time_ns=-1, tid=102)
    builder.sample("wk", ["main", "run"], 11, time_ns=5_032_000, tid=102, event="cpu-clock")
    return builder.build()


def test_waits_are_slices_to_the_nanosecond(profile: Profile) -> None:
    assert slices(events(profile), "offcpu") == [
        (100, 100, "futex", 0, 1_000_001), (100, 101, "io", 1_000_000, 2_500),
        (100, 102, "f", 1_011_000, 9_000), (100, 102, "main", 1_029_600, 400),
        (SUMS_PID, SUMS_PID + 3, "main", 0, 77), (SUMS_PID, SUMS_PID + 3, "main", 1_077, 23),
    ]  # fmt: skip
    queued = [(101, 1_001_800, 700), (102, 1_019_000, 1_000), (102, 1_029_600, 400)]
    assert slices(events(profile), "runqueue") == [(100, tid, "run queue", begin, ns) for tid, begin, ns in queued]


def test_an_arrow_from_waker_to_sleeper(profile: Profile) -> None:
    trace = events(profile)
    (mark,) = (event for event in trace if event.get("cat") == "wakeup" and event["ph"] == "X")
    assert (mark["tid"], mark["name"], ns(mark["ts"])) == (100, "wakes wk-102", 1_019_000)
    (start,), (end,) = ([event for event in trace if event["ph"] == phase] for phase in "sf")
    assert (start["tid"], start["ts"]) == (100, mark["ts"]) and (end["tid"], end["bp"]) == (102, "e")
    assert start["id"] == end["id"] == 1 and start["cat"] == end["cat"] and start["name"] == end["name"]


def test_interrupts_have_no_arrow_but_are_named() -> None:
    builder = ProfileBuilder().sample(
        "a", ["f"], 50, waker_tid=7, waker_pid=7, wakeup_ns=900, time_ns=1_000,
        flags=SampleFlag.WAKER_INTERRUPT | SampleFlag.BEGAN_BEFORE,
    )  # fmt: skip
    trace = events(builder.build())
    assert not [event for event in trace if event["ph"] in "sf"]
    (wait,) = (event for event in trace if event.get("cat") == "offcpu")
    details = {"state": "state unknown", "note": "began before the recording", "woken by": "an interrupt"}
    assert wait["args"] == details | {"stack": "f"}


def test_details_and_names(profile: Profile) -> None:
    trace = events(profile)
    assert weights(trace) == sum(profile.samples.period.tolist())
    assert {row["ph"] for row in trace} <= set("MXisf"), "importers warn of others"
    wait = next(row for row in trace if row["ph"] == "X" and row["tid"] == 102 and row["cat"] == "offcpu")
    assert wait["args"]["woken by"] == "main (pid 100, tid 100)" and wait["args"]["stack"] == "main;f"
    names = {(row["name"], row["pid"], row["tid"]): row["args"]["name"] for row in trace if row["ph"] == "M"}
    assert names["process_name", 100, 100] == "main" and names["thread_name", 100, 101] == "io"
    assert names["thread_name", SUMS_PID, SUMS_PID + 3] == "wk (pid 100, tid 102)"
    (moment,) = (row for row in trace if row["ph"] == "i")
    assert (moment["name"], moment["args"]) == ("cpu-clock", {"weight": 11, "stack": "main;run"})


def misplaced(trace: list[Event]) -> list[Event]:
    """Return slices that overlap others in part, in the doubles of a browser."""
    tracks: dict[tuple[int, int], list[tuple[float, float, Event]]] = defaultdict(list)
    for event in trace:
        if event["ph"] == "X":
            begin, duration = float(event["ts"]), float(event["dur"])
            tracks[event["pid"], event["tid"]].append((begin, -duration, event))
    wrong = []
    for track in tracks.values():
        open_: list[float] = []
        for begin, length, event in sorted(track, key=lambda item: item[:2]):
            while open_ and open_[-1] <= begin:
                open_.pop()
            if open_ and open_[-1] < begin - length:
                wrong.append(event)
            open_.append(begin - length)
    return wrong


@pytest.mark.long
def test_large_totals_are_exact_and_slices_nest() -> None:
    profile = large_profile(30_000, 1_000)
    trace = events(profile)
    assert weights(trace) == sum(profile.samples.period.tolist())
    assert sum(event[4] for event in slices(trace, "runqueue")) == sum(profile.samples.runq_ns.tolist())
    assert misplaced(trace) == []
    starts = {event["id"] for event in trace if event["ph"] == "s"}
    assert len(starts) > 20_000 and starts == {event["id"] for event in trace if event["ph"] == "f"}
