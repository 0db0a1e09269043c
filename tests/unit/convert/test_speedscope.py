# SPDX-License-Identifier: Apache-2.0
"""speedscope files: what they say, read by the rules of speedscope's importer; tests/browser opens them."""

import json
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from builders.converted import converted
from builders.large import large_profile
from builders.profile import Code, ProfileBuilder, kernel

from perf_offcpu.convert.speedscope import NO_PLACE
from perf_offcpu.model.profile import Profile
from perf_offcpu.model.recording import SampleFlag


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
    profiles = {}
    for profile in parsed["profiles"]:
        assert profile["type"] == "sampled" and profile["unit"] == "nanoseconds"
        assert len(profile["samples"]) == len(profile["weights"]) and profile["startValue"] == 0
        thread, weight_before = Read(profile["endValue"]), 0
        for stack, weight in zip(profile["samples"], profile["weights"], strict=True):
            assert weight >= 0
            if stack:
                thread.samples.append((";".join(names[frame] for frame in stack), weight_before, weight))
            weight_before += weight
        assert weight_before == thread.end
        profiles[profile["name"]] = thread
    return profiles


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
