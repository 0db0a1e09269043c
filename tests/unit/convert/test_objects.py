# SPDX-License-Identifier: Apache-2.0
"""Objects, holders and a critical path in every format that has details of waits, and in text."""

import gzip
import io
import json
from collections import Counter
from decimal import Decimal
from typing import Any

import pytest
from builders.converted import converted, converted_bytes
from builders.html_page import Page
from builders.perfetto import read
from builders.profile import ProfileBuilder
from builders.waits import wait

from perf_offcpu.abi.wait_objects import ObjectKind
from perf_offcpu.analysis.selection.select import Selection
from perf_offcpu.analysis.times.lanes import Lane
from perf_offcpu.analysis.times.timeline import timeline_of
from perf_offcpu.causality.critical_path import choose_thread, critical_path
from perf_offcpu.causality.path_rows import path_lane
from perf_offcpu.model.profile import Profile
from perf_offcpu.model.recording import SampleFlag
from perf_offcpu.script.fields import choose_fields
from perf_offcpu.script.samples import TextOptions, write

LOCK, FILE = "ledger_lock in bank", "/tmp/\x1b[31m <b>"


def bank() -> Profile:
    tasks = [(11, 10, 0, -1), (12, 10, 0, -1)]
    builder = ProfileBuilder(meta={"arch": "x86_64"}, tasks=tasks, comms=[(12, 10, 0, "b")])
    lock, file = builder.thing(LOCK), builder.thing(FILE)
    columns: dict[str, Any] = {"state": 1, "syscall": 202, "pid": 10, "switch_out_ns": 5000, "time_ns": 9000}
    builder.sample("a", ["main", "f"], 4000, tid=11, object=lock, holder_tid=12, asked_ns=70, **columns)
    builder.sample("b", ["main", "g"], 4000, tid=12, object=lock, holder_tid=99, **columns)  # not believed
    builder.sample("b", ["main", "g"], 4000, tid=12, object=file, **columns | {"time_ns": 20_000})
    return builder.sample("b", ["main"], 4000, tid=12, **columns | {"time_ns": 30_000}).build()


HOLDER = "b (pid 10, tid 12)"
DETAILS = [(LOCK, HOLDER), (LOCK, None), ("/tmp/\\x1b[31m <b>", None), (None, None)]


def test_chrome_trace() -> None:
    events = json.loads(converted("chrome-trace", bank()))["traceEvents"]
    waits = [one["args"] for one in events if one.get("cat") == "offcpu"]
    assert [(one.get("object"), one.get("held by")) for one in waits] == DETAILS


def test_firefox() -> None:
    profile = json.loads(converted("firefox", bank()))
    strings = profile["shared"]["stringArray"]
    found = [
        tuple(strings[row[key]] if key in row else None for key in ("object", "holder"))
        for thread in profile["threads"]
        for row in thread["markers"]["data"]
        if row and row.get("type") == "Wait"
    ]
    assert sorted(found, key=str) == sorted(DETAILS, key=str)
    assert {"object", "holder"} <= {field["key"] for row in profile["meta"]["markerSchema"] for field in row["fields"]}


def test_perfetto_and_pprof() -> None:
    for data in (converted_bytes("perfetto", bank()), gzip.decompress(converted_bytes("pprof", bank()))):
        for text in (LOCK, HOLDER, "object", "held by", "/tmp/\\x1b[31m <b>"):
            assert text.encode() in data, text
        assert b"\x1b[31m" not in data


def test_the_cause_of_a_wait_for_a_connection() -> None:
    builder = ProfileBuilder(meta={"arch": "x86_64"})
    peer = builder.thing("tcp 10.0.0.7:80", ObjectKind.SOCKET, protocol="tcp", connected=True)
    facts = {"state": 1, "tick_us": 4000, "sent_ticks": 40, "segments_in": 5, "rtt_us": 200, "min_rtt_us": 100}
    columns: dict[str, Any] = {"syscall": 45, "state": 1, "object": peer, "runq_ns": 0, "time_ns": 10**9}
    builder.sample("a", ["main"], 160_000_000, **columns | {f"tcp_{name}": fact for name, fact in facts.items()})
    profile = builder.sample("a", ["main"], 5, **columns | {"object": -1, "time_ns": 2 * 10**9}).build()
    (key,) = [key for key in Page(converted("html", profile)).profile["keys"] if key["key"] == "network"]
    assert (key["title"], key["labels"][1]) == ("Network or peer", "peer slow")
    for form in ("chrome-trace", "firefox"):
        assert "peer slow" in converted(form, profile), form
    for data in (converted_bytes("perfetto", profile), gzip.decompress(converted_bytes("pprof", profile))):
        assert b"network" in data and b"peer slow" in data
    assert "Network or peer" not in converted("html", bank())


def test_script() -> None:
    out = io.StringIO()
    write(bank(), out, TextOptions(choose_fields(["tid,object,holder,asked"])))
    assert [" ".join(line.split()) for line in out.getvalue().splitlines()] == [
        "11 object=ledger_lock_in_bank holder=12 asked=70", "12 object=ledger_lock_in_bank holder=- asked=-",
        "12 object=/tmp/\\x1b[31m_<b> holder=- asked=-", "12 object=- holder=- asked=-",
    ]  # fmt: skip


EXPECTED = [
    ("client: running", 50, 100, "client"), ("disk: other wait in nap", 100, 1100, "client, server, disk"),
    ("disk: running", 1100, 1600, "client, server, disk"), ("server: running", 1600, 1850, "client, server"),
    ("client: runnable", 1850, 1900, "client"), ("client: running", 1900, 2000, "client"),
]  # fmt: skip


@pytest.fixture
def profile() -> Profile:
    builder = ProfileBuilder()
    wait(builder, 3, 100, 1100, waker=9, flags=SampleFlag.WAKER_INTERRUPT, path=["main", "nap"])
    wait(builder, 2, 100, 1600, waker=3)
    return wait(builder, 1, 100, 1900, waker=2, queued=50).build()


@pytest.fixture
def track(profile: Profile) -> Lane:
    """The path begins before the first wait."""
    timeline = timeline_of(profile)
    thread = choose_thread(timeline, Selection(tids=(1,)))
    return path_lane(profile, critical_path(profile, timeline, thread, 50, 2000))


def test_the_track_of_a_path(track: Lane) -> None:
    rows = zip(*(column.tolist() for column in (track.name, track.begin_ns, track.end_ns, track.detail)), strict=True)
    assert [(track.names[name], begin, end, track.details[chain]) for name, begin, end, chain in rows] == EXPECTED
    assert track.title == "critical path of client (pid 1, tid 1)"


def test_a_path_in_perfetto(profile: Profile, track: Lane) -> None:
    segments = [span for span in read(profile, path=track).slices if span.track == track.title]
    assert [(span.name, span.begin, span.end, span.details["through"]) for span in segments] == EXPECTED
    assert {(span.depth, span.weight) for span in segments} == {(0, None)}, "segments lie side by side"


def test_a_path_in_a_chrome_trace(profile: Profile, track: Lane) -> None:
    parsed = json.loads(converted("chrome-trace", profile, path=track), parse_float=Decimal)
    origin = int(parsed["otherData"]["origin_ns"])
    segments = [
        (event["name"], int(event["ts"] * 1000) + origin, event["dur"] * 1000, event["args"]["through"])
        for event in parsed["traceEvents"]
        if event.get("cat") == "critical path"
    ]
    assert [(name, begin, begin + int(ns), through) for name, begin, ns, through in segments] == EXPECTED
    assert min(event["ts"] for event in parsed["traceEvents"] if "ts" in event) == 0
    waits = [event for event in parsed["traceEvents"] if event.get("cat") == "offcpu"]
    assert sum(event["dur"] * 1000 for event in waits) == int(profile.samples.period.sum())


def test_a_path_in_firefox(profile: Profile, track: Lane) -> None:
    parsed = json.loads(converted("firefox", profile, path=track), parse_float=Decimal)
    thread = parsed["threads"][-1]
    assert thread["name"] == track.title and len(parsed["threads"]) - 1 in parsed["meta"]["initialVisibleThreads"]
    markers, strings = thread["markers"], parsed["shared"]["stringArray"]
    rows = zip(markers["name"], markers["startTime"], markers["endTime"], markers["data"], strict=True)
    assert [
        (strings[name], int(begin * 10**6) + 50, int(end * 10**6) + 50, strings[data["through"]])
        for name, begin, end, data in rows
    ] == EXPECTED
    assert "Critical path" in {one["name"] for one in parsed["meta"]["markerSchema"]}
    assert Counter(len(values) for key, values in markers.items() if key != "length") == {markers["length"]: 6}
    assert "ritical path" not in converted("firefox", profile), "without a path nothing changes"
