# SPDX-License-Identifier: Apache-2.0
"""The stacks of wakers in every format that shows them."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from builders.converted import converted
from builders.perfetto import read
from builders.profile import Code, ProfileBuilder, kernel

from perf_offcpu.callpaths.options import NameKind
from perf_offcpu.convert.flamegraph.page import describe
from perf_offcpu.convert.registry import Options
from perf_offcpu.model.profile import Profile
from perf_offcpu.model.recording import SampleFlag
from perf_offcpu.script.fields import choose_fields
from perf_offcpu.script.samples import TextOptions
from perf_offcpu.script.samples import write as write_text

WAKES = ["main", Code("un;lock", "/bin/w"), kernel("try_to_wake_up")]


@pytest.fixture
def profile() -> Profile:
    builder = ProfileBuilder()
    builder.sample("w 1", ["main"], 3, time_ns=10_000, tid=7, pid=7)
    waker: dict[str, Any] = {"waker_pid": 7, "waker_tid": 7, "waker_path": WAKES}
    builder.sample("s", ["main", "lock"], 500, time_ns=20_000, tid=8, wakeup_ns=19_900, runq_ns=100, **waker)
    builder.sample("s", ["main", "lock"], 700, time_ns=30_000, tid=8, wakeup_ns=29_000, **waker)
    interrupt = dict[str, Any](flags=SampleFlag.WAKER_INTERRUPT, waker_path=[kernel("hrtimer_wakeup")])
    builder.sample(
        "s", ["main", "sleep"], 40, time_ns=40_000, tid=8, wakeup_ns=39_999, waker_pid=7, waker_tid=7,
        **interrupt,
    )  # fmt: skip
    builder.sample("s", ["main"], 50, time_ns=50_000, tid=8, waker_pid=7, waker_tid=7)
    builder.sample("s", ["main", "run"], 60, time_ns=60_000, tid=8)
    return builder.build()


def test_folded_stacks_continue_with_the_waker_upside_down(profile: Profile) -> None:
    assert converted("folded", profile, waker_stack=True).splitlines() == [
        "s;main;--;w 1_[w] 50", "s;main;lock;--;try_to_wake_up_[w];un:lock_[w];main_[w];w 1_[w] 1200",
        "s;main;run 60", "s;main;sleep;--;hrtimer_wakeup_[w];[interrupt] 40", "w_1;main 3",
    ]  # fmt: skip


def test_labels_by_options(profile: Profile) -> None:
    folded = converted("folded", profile, waker_stack=True, tid=True, kernel=True, state=True)
    waker = "try_to_wake_up_[w];un:lock_[w];main_[w];w 1-7/7_[w]"
    assert folded.splitlines()[1] == f"s-100/8;main;lock;[state unknown];--;{waker} 1200"


def test_wakers_have_kinds_of_their_own_in_the_flame_graph(profile: Profile) -> None:
    names = describe(profile, Options(waker_stack=True))["names"]
    kinds = dict(zip(names["label"], names["kind"], strict=True))
    assert kinds["try_to_wake_up_[w]"] == kinds["w 1_[w]"] == NameKind.WAKER
    assert kinds["--"] == kinds["[interrupt]"] == NameKind.MARK
    assert all("_[w]" not in label for label in describe(profile, Options())["names"]["label"])


def test_waker_stacks_in_the_details_of_chrome_traces(profile: Profile) -> None:
    events = json.loads(converted("chrome-trace", profile))["traceEvents"]
    waits = [one["args"] for one in events if one.get("cat") == "offcpu"]
    whole = "main;un:lock;try_to_wake_up"
    assert [one.get("waker stack") for one in waits] == [None, whole, whole, "hrtimer_wakeup", None, None]
    assert [one["stack"] for one in waits] == [
        "main", "main;lock", "main;lock", "main;sleep", "main", "main;run"
    ]  # fmt: skip


def test_waker_stacks_at_the_marks_and_in_the_details_of_perfetto(profile: Profile) -> None:
    slices = read(profile).slices
    assert [one.stack for one in slices if one.category == "wakeup"] == ["main;un;lock;try_to_wake_up"] * 2
    found = [one.details["waker stack"] for one in slices if "waker stack" in one.details]
    assert found == ["main;un:lock;try_to_wake_up"] * 2 + ["hrtimer_wakeup"]


def test_waker_stacks_as_a_field_of_script(profile: Profile) -> None:
    out = io.StringIO()
    write_text(profile, out, TextOptions(choose_fields(["comm,waker_stack"])))
    lines = [line.split() for line in out.getvalue().splitlines() if line.startswith(" ")]
    found = [line[-1].partition("=")[2] for line in lines]
    assert found == ["-", *["main;un:lock;try_to_wake_up"] * 2, "hrtimer_wakeup", "-", "-"]
