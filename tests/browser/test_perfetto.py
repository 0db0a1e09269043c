# SPDX-License-Identifier: Apache-2.0
"""Perfetto's trace processor and page, and chrome://tracing's importer, open our files; see `perfetto_ui`. They are
those of 2021: the native format's arrows and thread states are younger. That trace processor cuts off what is left of a
Chrome trace's times below a nanosecond, so they may be 1 ns too early."""

import json
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from browser.perfetto_ui import TraceProcessor, imported, served
from browser.programs import perfetto
from browser.webdriver import Browser, javascript
from builders.converted import converted_bytes
from builders.large import large_profile
from builders.profile import ProfileBuilder, kernel

from perf_offcpu.analysis.times.lanes import Lane
from perf_offcpu.analysis.times.timeline import Timeline, timeline_of
from perf_offcpu.analysis.times.wakeups import Wakeups, wakeups_of
from perf_offcpu.causality.critical_path import critical_path
from perf_offcpu.causality.path_rows import path_lane
from perf_offcpu.model.profile import Profile
from perf_offcpu.model.recording import SampleFlag

pytestmark = pytest.mark.long

MS = 10**6
WINDOW = (1400, 900)
HOSTILE = "<img src=x onerror=hacked=1>"
FILES: dict[str, bytes] = {}


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with served(perfetto(), FILES) as found:
        yield found


def mixed() -> Profile:
    """Waits with and without wakers and run queue, sums, a CPU sample, a hostile name."""
    builder = ProfileBuilder(meta={"hostname": "box", "arch": "x86_64"})
    for number in range(40):
        end = 10**9 + 10 * MS * number
        builder.sample(
            "reader", ["main", kernel("futex_wait")], 4 * MS + number, time_ns=end, tid=101, state=1, waker_tid=102,
            waker_pid=100, wakeup_ns=end - 7 * number, runq_ns=7 * number, waker_path=["main", "unlock"],
        )  # fmt: skip
        builder.sample("writer", ["main", HOSTILE], 2 * MS, time_ns=end + 3 * MS, tid=102, state=2)
    builder.sample("reader", ["main"], 9 * MS, tid=101, flags=SampleFlag.AGGREGATED, count=30, time_ns=10**9)
    builder.sample("writer", ["main"], MS, tid=102, event="cpu-clock", time_ns=10**9 + 5)
    return builder.build()


both_profiles = pytest.mark.parametrize("made", [
    pytest.param(mixed, id="mixed"),
    pytest.param(lambda: large_profile(3000, 50, threads=16), id="large", marks=pytest.mark.long),
])  # fmt: skip


def placed(profile: Profile) -> tuple[Timeline, Wakeups]:
    timeline = timeline_of(profile)
    return timeline, wakeups_of(profile, timeline)


def waits_of(profile: Profile) -> Counter[tuple[int, int, int]]:
    """Return (tid, begin, length) of all waits, ns since the origin."""
    timeline = timeline_of(profile)
    rows = timeline.waits
    columns = (profile.samples.tid, timeline.begin_ns, timeline.end_ns - timeline.begin_ns)
    return Counter(zip(*(column[rows].tolist() for column in columns), strict=True))


@both_profiles
def test_native_slices_are_the_waits_to_the_nanosecond(browser: Browser, address: str, made: Any) -> None:
    profile = made()
    timeline, wakeups = placed(profile)
    trace = TraceProcessor(browser, address, converted_bytes("perfetto", profile))
    found = trace.query(
        "select tid, ts, dur from slice join thread_track on slice.track_id = thread_track.id "
        "join thread using (utid) where category = 'offcpu' and thread_track.name is null"
    )
    origin = timeline.origin_ns
    assert Counter((tid, ts - origin, dur) for tid, ts, dur in found) == waits_of(profile)
    late = timeline.waits & ((wakeups.queued_ns < timeline.end_ns) | _has(wakeups.arrows, profile))
    queues = trace.query("select count(*), sum(dur) from slice where category = 'runqueue'")
    assert queues == [(int(late.sum()), int((timeline.end_ns - wakeups.queued_ns)[late].sum()))]
    assert trace.query("select count(*) from slice where category = 'wakeup'") == [(len(wakeups.arrows),)]
    assert trace.query("select sum(dur) from slice where category = 'offcpu'")[0][0] == int(
        profile.samples.period[profile.is_offcpu()].sum()
    )
    # After each change, the number of threads that are blocked; none in the end.
    values = trace.query(
        "select value from counter join counter_track on track_id = counter_track.id "
        "where name = 'threads blocked' order by ts"
    )
    assert values[-1] == (0,) and min(values) == (0,)
    assert trace.query("select name, value from stats where severity != 'info' and value > 0") == []


def _has(rows: Any, profile: Profile) -> Any:
    chosen = np.zeros(len(profile.samples), np.bool_)
    chosen[rows] = True
    return chosen


@both_profiles
def test_chrome_trace_in_perfetto(browser: Browser, address: str, made: Any) -> None:
    profile = made()
    text = converted_bytes("chrome-trace", profile)
    events = Counter((one["ph"], one.get("cat")) for one in json.loads(text)["traceEvents"])
    trace = TraceProcessor(browser, address, text)
    counts = trace.query("select category, count(*) from slice group by category")
    assert dict(counts) == {category: number for (phase, category), number in events.items() if phase in "Xi"}
    assert trace.query("select count(*) from flow") == [(events["f", "wakeup"],)]
    select = "select tid, ts, dur from slice join thread_track on slice.track_id = thread_track.id "
    found = sorted(trace.query(f"{select}join thread using (utid) where category = 'offcpu' and tid < 4194304"))
    # A time that came out 1 ns too early must not change the order of the waits.
    waits = sorted(waits_of(profile).elements())
    assert len(found) == len(waits)
    for (tid, ts, dur), (of, begin, length) in zip(found, waits, strict=True):
        assert tid == of and 0 <= begin - ts <= 1 and 0 <= length - dur <= 1
    names = dict(trace.query("select tid, name from thread where tid is not null"))
    assert names.items() >= dict(_names(profile)).items()
    assert trace.query("select name, value from stats where severity != 'info' and value > 0") == []


def _names(profile: Profile) -> Iterator[tuple[int, str]]:
    for track in timeline_of(profile).tracks:
        yield track.tid, track.comm


@both_profiles
def test_chrome_trace_in_chrome_tracing_without_a_warning(browser: Browser, address: str, made: Any) -> None:
    profile = made()
    text = converted_bytes("chrome-trace", profile).decode()
    events = Counter((one["ph"], one.get("cat")) for one in json.loads(text)["traceEvents"])
    trace = imported(browser, address, text)
    assert trace["warnings"] == []
    assert Counter(category for _, category, *_ in trace["slices"]) == {
        category: number for (phase, category), number in events.items() if phase in "Xi"
    }
    assert trace["flows"] == events["f", "wakeup"]
    origin = min(begin for _, _, _, begin, _ in trace["slices"])
    waits = Counter(
        (tid, round((begin - origin) * MS), round(length * MS))
        for tid, category, _, begin, length in trace["slices"]
        if category == "offcpu" and tid < 2**22
    )
    assert waits == waits_of(profile)
    assert {(tid, name) for _, tid, name in trace["threads"]} >= set(_names(profile))


@pytest.mark.parametrize("name", ["perfetto", pytest.param("chrome-trace", marks=pytest.mark.long)])
def test_the_whole_page_shows_the_trace(browser: Browser, address: str, name: str) -> None:
    FILES["/trace"] = converted_bytes(name, mixed())
    FILES["/shown.html"] = (
        f'<body><div id="timeline_data_source" style="display:none">{address}/trace</div>'
        '<main id="timeline_main" style="height:100vh"></main>'
        '<script src="/frontend_bundle.js"></script></body>'
    ).encode()
    browser.open(f"{address}/shown.html")
    colours = javascript("perfetto_colours")
    end = time.monotonic() + 60
    while (number := browser.run(colours)) < 20 and time.monotonic() < end:
        time.sleep(0.2)
    assert number >= 20, "an empty timeline has few colours"
    assert browser.run("return typeof hacked") == "undefined"


def path_of_reader(profile: Profile) -> Lane:
    """The path of 100 ms that begin before the first wait."""
    timeline = timeline_of(profile)
    reader = next(row for row, track in enumerate(timeline.tracks) if track.comm == "reader")
    begin = timeline.origin_ns - 3 * MS
    return path_lane(profile, critical_path(profile, timeline, reader, begin, begin + 100 * MS))


def segments(path: Lane) -> list[tuple[str, int, int]]:
    columns = (path.name.tolist(), path.begin_ns.tolist(), path.end_ns.tolist())
    return [(path.names[name], begin, end - begin) for name, begin, end in zip(*columns, strict=True)]


def test_a_critical_path_is_a_track_of_the_native_format(browser: Browser, address: str) -> None:
    profile = mixed()
    path = path_of_reader(profile)
    trace = TraceProcessor(browser, address, converted_bytes("perfetto", profile, path=path))
    found = trace.query(
        "select slice.name, ts, dur, depth, track.name from slice join track on track_id = track.id "
        "where category = 'critical path' order by ts"
    )
    assert [one[:3] for one in found] == segments(path)
    assert {one[3:] for one in found} == {(0, "critical path of reader (pid 100, tid 101)")}
    assert trace.query("select name, value from stats where severity != 'info' and value > 0") == []


def test_a_critical_path_is_a_process_of_a_chrome_trace(browser: Browser, address: str) -> None:
    profile = mixed()
    path = path_of_reader(profile)
    found = imported(browser, address, converted_bytes("chrome-trace", profile, path=path).decode())
    assert found["warnings"] == []
    origin = int(path.begin_ns[0])
    slices = sorted(
        (start, title, length) for _, category, title, start, length in found["slices"] if category == "critical path"
    )
    assert [(title, round(start * MS) + origin, round(ms * MS)) for start, title, ms in slices] == segments(path)
    assert path.title in {name for _, name in found["processes"]}
