# SPDX-License-Identifier: Apache-2.0
"""Trace Event JSON, in exact decimals, and speedscope files, by the rules of its importer; tests/browser opens both."""

import json
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import pytest
from builders.converted import converted
from builders.large import large_profile
from builders.profile import Code, ProfileBuilder, kernel

from perf_offcpu.convert.chrome_trace import SUMS_PID
from perf_offcpu.convert.speedscope import NO_PLACE
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


def slices(found: list[Event], category: str) -> list[tuple[int, int, str, int, int]]:
    """(pid, tid, name, begin, duration in ns) of the slices of a category, in order."""
    chosen = [one for one in found if one["ph"] == "X" and one["cat"] == category]
    return [(one["pid"], one["tid"], one["name"], ns(one["ts"]), ns(one["dur"])) for one in chosen]


def weights(found: list[Event]) -> int:
    """Everything the trace shows of the profile's weights."""
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
    found = events(profile)
    (mark,) = (one for one in found if one.get("cat") == "wakeup" and one["ph"] == "X")
    assert (mark["tid"], mark["name"], ns(mark["ts"])) == (100, "wakes wk-102", 1_019_000)
    (start,), (end,) = ([one for one in found if one["ph"] == phase] for phase in "sf")
    assert (start["tid"], start["ts"]) == (100, mark["ts"]) and (end["tid"], end["bp"]) == (102, "e")
    assert start["id"] == end["id"] == 1 and start["cat"] == end["cat"] and start["name"] == end["name"]


def test_interrupts_have_no_arrow_but_are_named() -> None:
    builder = ProfileBuilder().sample(
        "a", ["f"], 50, waker_tid=7, waker_pid=7, wakeup_ns=900, time_ns=1_000,
        flags=SampleFlag.WAKER_INTERRUPT | SampleFlag.BEGAN_BEFORE,
    )  # fmt: skip
    found = events(builder.build())
    assert not [one for one in found if one["ph"] in "sf"]
    (wait,) = (one for one in found if one.get("cat") == "offcpu")
    details = {"state": "state unknown", "note": "began before the recording", "woken by": "an interrupt"}
    assert wait["args"] == details | {"stack": "f"}


def test_details_and_names(profile: Profile) -> None:
    found = events(profile)
    assert weights(found) == sum(profile.samples.period.tolist())
    assert {one["ph"] for one in found} <= set("MXisf"), "importers warn of others"
    wait = next(one for one in found if one["ph"] == "X" and one["tid"] == 102 and one["cat"] == "offcpu")
    assert wait["args"]["woken by"] == "main (pid 100, tid 100)" and wait["args"]["stack"] == "main;f"
    names = {(one["name"], one["pid"], one["tid"]): one["args"]["name"] for one in found if one["ph"] == "M"}
    assert names["process_name", 100, 100] == "main" and names["thread_name", 100, 101] == "io"
    assert names["thread_name", SUMS_PID, SUMS_PID + 3] == "wk (pid 100, tid 102)"
    (moment,) = (one for one in found if one["ph"] == "i")
    assert (moment["name"], moment["args"]) == ("cpu-clock", {"weight": 11, "stack": "main;run"})


def misplaced(found: list[Event]) -> list[Event]:
    """Return slices that overlap others in part, in the doubles of a browser."""
    tracks: dict[tuple[int, int], list[tuple[float, float, Event]]] = defaultdict(list)
    for one in found:
        if one["ph"] == "X":
            at, duration = float(one["ts"]), float(one["dur"])
            tracks[one["pid"], one["tid"]].append((at, -duration, one))
    wrong = []
    for track in tracks.values():
        open_: list[float] = []
        for at, length, one in sorted(track, key=lambda item: item[:2]):
            while open_ and open_[-1] <= at:
                open_.pop()
            if open_ and open_[-1] < at - length:
                wrong.append(one)
            open_.append(at - length)
    return wrong


def test_large_totals_are_exact_and_slices_nest() -> None:
    profile = large_profile(30_000, 1_000)
    found = events(profile)
    assert weights(found) == sum(profile.samples.period.tolist())
    assert sum(one[4] for one in slices(found, "runqueue")) == sum(profile.samples.runq_ns.tolist())
    assert misplaced(found) == []
    starts = {one["id"] for one in found if one["ph"] == "s"}
    assert len(starts) > 20_000 and starts == {one["id"] for one in found if one["ph"] == "f"}


def document(profile: Profile, **options: Any) -> Any:
    return json.loads(converted("speedscope", profile, **options))


@dataclass
class Read:
    """A profile as speedscope sees it: (path, where it begins, weight) of each sample that is no gap."""

    end: int
    samples: list[tuple[str, int, int]] = field(default_factory=list)

    @property
    def total(self) -> int:
        return sum(weight for _, _, weight in self.samples)


def read(parsed: dict[str, Any]) -> dict[str, Read]:
    names = [frame["name"] for frame in parsed["shared"]["frames"]]
    found = {}
    for profile in parsed["profiles"]:
        assert profile["type"] == "sampled" and profile["unit"] == "nanoseconds"
        assert len(profile["samples"]) == len(profile["weights"]) and profile["startValue"] == 0
        one, at = Read(profile["endValue"]), 0
        for stack, weight in zip(profile["samples"], profile["weights"], strict=True):
            assert weight >= 0
            if stack:
                one.samples.append((";".join(names[frame] for frame in stack), at, weight))
            at += weight
        assert at == one.end
        found[profile["name"]] = one
    return found


def sample_profile() -> Profile:
    builder = ProfileBuilder(meta={"hostname": "box"})
    builder.sample("a", ["main", Code("read", "/lib/libc.so.6"), kernel("schedule")], 30, time_ns=1_050, tid=1)
    builder.sample("b", ["main"], 500, time_ns=1_520, tid=2)
    builder.sample("a", ["main"], 40, time_ns=1_200, tid=1)
    return builder.sample("a", ["main"], 7, time_ns=1_300, tid=1, flags=SampleFlag.AGGREGATED, count=3).build()


def test_threads_in_time_with_gaps() -> None:
    profiles = read(document(sample_profile()))
    assert list(profiles) == ["all threads", "b (pid 100, tid 2)", "a (pid 100, tid 1)"]
    assert profiles["a (pid 100, tid 1)"].samples == [
        ("main;read;schedule", 0, 30), ("main", 140, 40), (f"{NO_PLACE};main", 500, 7),
    ]  # fmt: skip
    assert profiles["b (pid 100, tid 2)"].samples == [("main", 0, 500)]
    assert profiles["all threads"].samples == [
        ("a (pid 100, tid 1);main", 0, 47), ("a (pid 100, tid 1);main;read;schedule", 47, 30),
        ("b (pid 100, tid 2);main", 77, 500),
    ]  # fmt: skip


def test_frames_say_their_file_and_options_their_marks() -> None:
    parsed = document(sample_profile(), kernel=True, state=True, title="<Mine>")
    frames = {frame["name"]: frame.get("file") for frame in parsed["shared"]["frames"]}
    assert frames["read"] == "libc.so.6" and frames["schedule_[k]"] == "[kernel.kallsyms]"
    assert parsed["name"] == "<Mine>"
    assert list(Counter(path for path, _, _ in read(parsed)["b (pid 100, tid 2)"].samples)) == ["main;[state unknown]"]


def test_overlapping_samples_have_no_gap_and_keep_their_weight() -> None:
    builder = ProfileBuilder()
    builder.sample("a", ["f"], 100, time_ns=1_000).sample("a", ["g"], 90, time_ns=1_010)
    assert read(document(builder.build()))["a (pid 100, tid 100)"].samples == [("f", 0, 100), ("g", 100, 90)]
    builder = ProfileBuilder(events={"cycles": ""}).sample("a", ["f"], 5, event="cycles")
    assert {one["unit"] for one in document(builder.build())["profiles"]} == {"none"}


def test_large_totals_are_exact() -> None:
    profile = large_profile(50_000, 2_000)
    profiles = read(document(profile))
    whole = profiles.pop("all threads")
    assert whole.total == sum(one.total for one in profiles.values()) == sum(profile.samples.period.tolist())
    last = int(profile.samples.time_ns.max()) - int((profile.samples.time_ns - profile.samples.period).min())
    assert {one.end for one in profiles.values()} == {last}, "threads share one axis"
