# SPDX-License-Identifier: Apache-2.0
"""Profiles to push, recorded just now, and what a server should have of them."""

import time
from collections import Counter
from dataclasses import replace

from builders.converted import converted
from builders.profile import Code, ProfileBuilder, kernel

from perf_offcpu.analysis.selection.select import select_events
from perf_offcpu.model.profile import Profile
from perf_offcpu.model.recording import SampleFlag


def recent(profile: Profile) -> Profile:
    """Return the profile as if its recording had begun a minute ago."""
    wall = time.time_ns() - 60 * 10**9
    meta = replace(profile.meta, wall_clock_ns=wall, wall_clock_at_ns=0, first_ns=0, last_ns=5 * 10**9)
    return replace(profile, meta=meta)


def some_waits() -> Profile:
    """Waits of two comms with marks, inlined functions, build-ids, CPU samples, a sample without weight."""
    events, build_ids = {"offcpu-time": "ns", "cpu-clock": "ns", "context-switches": ""}, {"/lib/libc.so.6": "c0ffee"}
    builder = ProfileBuilder(events=events, build_ids=build_ids, meta={"hostname": "db7"})
    read = Code("read", "/lib/libc.so.6", 0x1234)
    inlined = [
        Code("main", "/bin/x", 0x10, file="x.c", line=3),
        Code("outer", "/bin/x", 0x20, file="x.c", line=7),
        Code("inlined", "/bin/x", 0x20, file="y.h", line=9, inline_depth=1),
    ]
    for weight in (30, 12):
        builder.sample("a", ["main", read, kernel("do_nanosleep"), kernel("schedule")], weight, state=1, tid=7)
    builder.sample("a", ["main", read], 5, flags=SampleFlag.NO_KERNEL_STACK, tid=7)
    builder.sample("a", [*inlined, kernel("schedule")], 7, state=2, tid=9)
    builder.sample("a", ["main"], 0, tid=7)
    builder.sample("a", ["main"], 100, event="cpu-clock", tid=7)
    builder.sample("b", [], 2**53 + 1, tid=8, flags=SampleFlag.NO_USER_STACK)
    builder.sample("b", ["cut", "leaf"], 3, tid=8, flags=SampleFlag.TRUNCATED)
    builder.sample("b\n\u202e", ["m\udcff", "λ"], 11, tid=10)
    builder.sample("b", ["main"], 10_000, event="context-switches", tid=8)
    return recent(builder.build())


def folded(profile: Profile) -> Counter[tuple[str, tuple[str, ...]]]:
    """Return the values by comm and stack, root first, as `convert --folded` prints them."""
    found: Counter[tuple[str, tuple[str, ...]]] = Counter()
    for line in converted("folded", select_events(profile)).splitlines():
        stack, _, weight = line.rpartition(" ")
        comm, *frames = stack.split(";")
        found[comm, tuple(frames)] += int(weight)
    return found
