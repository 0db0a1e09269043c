# SPDX-License-Identifier: Apache-2.0
"""Tasks of event loops and goroutines as lanes: what their spans say, without overlap, in each format in time."""

import json
from dataclasses import replace
from decimal import Decimal

import pytest
from builders.converted import converted
from builders.html_page import Page
from builders.perfetto import read
from builders.profile import ProfileBuilder
from builders.waits import wait

from perf_offcpu.abi.counters import GOROUTINES
from perf_offcpu.analysis.times import lanes
from perf_offcpu.analysis.times.lanes import task_lanes
from perf_offcpu.model.profile import Profile
from perf_offcpu.model.recording import EventLoop, LoopTask

ASYNCIO = "/usr/lib/python3.14/asyncio/"


def task(name: str, leaf: str, module: str, *, awaited: int = 0, inside: tuple[int, ...] = ()) -> LoopTask:
    frames = ((leaf, f"{ASYNCIO}{module}.py", 7), (f"do_{name}", "/app.py", 9))
    return LoopTask(len(name), name, "x", awaited, frozenset(), frozenset(inside), frames)


def goroutine(waits_for: str) -> LoopTask:
    return LoopTask(1, GOROUTINES, waits_for, 0, frozenset(), frozenset(), (("main.worker", "", 0),))


WANTS, HOLDS = task("a", "Lock.acquire", "locks", awaited=5), task("bb\x1b", "sleep", "tasks", inside=(5,))
LOOPS = (
    EventLoop(1, 1, 0, 1500, 400, (WANTS, HOLDS)),
    EventLoop(1, 1, 0, 1900, 400, (HOLDS, WANTS)),
    EventLoop(1, 1, 0, 2_001_900, 600, (HOLDS,)),
    EventLoop(1, 1, 0, 2_002_000, 300, (task("a", "Queue.get", "queues"),)),  # its begin is not after the last end
    EventLoop(1, 1, 0, 2_003_000, 0, (WANTS,)),  # the last reading stands for no time
    EventLoop(4, 4, 0, 1500, 400, (WANTS,)),  # a process without samples
    EventLoop(2, 2, 1000, 2000, 1500, (goroutine("select"), goroutine("select"))),
    EventLoop(2, 2, 1000, 2000, 500, (goroutine("select"), goroutine("sync.Mutex.Lock"))),
)
HELD = "held by bb\\x1b (sleep in do_bb\\x1b)"
MUTEX, SELECT = (f"goroutines: {what} in main.worker" for what in ("sync.Mutex.Lock", "select"))
EXPECTED = {
    "a (do_a)": [(1100, 1900, "asyncio.Lock in do_a", HELD), (2_001_700, 2_002_000, "asyncio.Queue.get in do_a", "")],
    "bb\\x1b (do_bb\\x1b)": [
        (1100, 1900, "a timer (asyncio.sleep) in do_bb\\x1b", ""),
        (2_001_300, 2_001_900, "a timer (asyncio.sleep) in do_bb\\x1b", ""),
    ],
    MUTEX: [(1000, 2000, "0.5 on average", "")],
    SELECT: [(1000, 2000, "3.5 on average", "")],
}


@pytest.fixture
def profile() -> Profile:
    builder = ProfileBuilder()
    wait(builder, 2, 1200, 1600)
    return replace(wait(builder, 1, 1300, 1900).build(), loops=LOOPS)


def test_lanes(profile: Profile, monkeypatch: pytest.MonkeyPatch) -> None:
    found = task_lanes(profile)
    rows = [zip(*(c.tolist() for c in (one.begin_ns, one.end_ns, one.name, one.detail)), strict=True) for one in found]
    assert {
        lane.title: [(begin, end, lane.names[name], lane.details[detail]) for begin, end, name, detail in spans]
        for lane, spans in zip(found, rows, strict=True)
    } == EXPECTED
    assert [lane.kinds for lane in found] == [["lock", "other"], ["sleep"], ["lock"], ["other"]]
    monkeypatch.setattr(lanes, "MOST_LANES", 2)
    assert [lane.title for lane in task_lanes(profile)] == ["a (do_a)", MUTEX, "2 more tasks"], "locks come first"
    assert task_lanes(replace(profile, loops=())) == []


def test_perfetto(profile: Profile) -> None:
    spans = [(one.track, (one.begin, one.end, one.name, one.details.get("detail", ""))) for one in read(profile).slices]
    assert {title: [span for track, span in spans if track == title] for title in EXPECTED} == EXPECTED


def test_chrome_trace(profile: Profile) -> None:
    parsed = json.loads(converted("chrome-trace", profile), parse_float=Decimal)
    events, origin = parsed["traceEvents"], int(parsed["otherData"]["origin_ns"])
    title_of = {(row["pid"], row["tid"]): row["args"]["name"] for row in events if row["name"] == "thread_name"}
    rows = [
        (title_of[row["pid"], row["tid"]], origin + int(row["ts"] * 1000), int(row["dur"] * 1000), row)
        for row in events
        if row.get("cat") == "task"
    ]
    assert {
        title: [(ts, ts + ns, row["name"], row["args"]["detail"]) for own, ts, ns, row in rows if own == title]
        for title in EXPECTED
    } == EXPECTED
    waits = [row for row in events if row.get("cat") == "offcpu"]
    assert sum(row["dur"] * 1000 for row in waits) == int(profile.samples.period.sum()), "no wait is a task's"


def test_html(profile: Profile) -> None:
    document = Page(converted("html", profile)).profile
    origin = int(document["origin"])
    assert {
        lane["title"]: [
            (origin + begin, origin + end, lane["names"][name], lane["details"][detail])
            for begin, end, name, detail in zip(lane["begin"], lane["end"], lane["name"], lane["detail"], strict=True)
        ]
        for lane in document["tasks"]
    } == EXPECTED
