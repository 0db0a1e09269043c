# SPDX-License-Identifier: Apache-2.0
"""Views of a recording's end to end: --serial and --bottlenecks."""

import json
from pathlib import Path

import numpy as np
import pytest
from builders.profile import ProfileBuilder
from builders.refused import output
from builders.waits import Waits, random_waits, wait, with_waits
from hypothesis import given
from hypothesis import strategies as st

from perf_offcpu.analysis.times.timeline import timeline_of
from perf_offcpu.causality.cascade import Held, cascade_of
from perf_offcpu.model.profile import Profile
from perf_offcpu.model.recording import SampleFlag
from perf_offcpu.report.bottlenecks import Bottlenecks, bottlenecks_of, document
from perf_offcpu.report.bottlenecks import render as render_bottlenecks
from perf_offcpu.report.serial import SerialReport, render, serial_of
from perf_offcpu.report.style import Style

DATA = Path(__file__).resolve().parents[2] / "data"


def program() -> Profile:
    """The client (1) and the server (2) wait while the third thread runs alone; before that all three run."""
    builder = ProfileBuilder()
    for tid, begin in ((1, 0), (2, 0), (3, 0)):
        wait(builder, tid, begin, begin + 1)
    wait(builder, 1, 301, 1001, waker=3)
    wait(builder, 2, 301, 1011, waker=3)
    wait(builder, 3, 1011, 1012)
    for at, function in ((200, "shared"), (400, "setup"), (600, "setup"), (800, "tail")):
        builder.sample("disk", ["main", function], 1, event="cpu-clock", tid=3, pid=3, time_ns=at)
    builder.sample("client", ["main"], 1, event="cpu-clock", tid=1, pid=1, time_ns=1012)
    return builder.build()


def serial(profile: Profile) -> SerialReport:
    timeline = timeline_of(profile)
    return serial_of(profile, timeline, np.ones(len(timeline.tracks), np.bool_), None, 10)


def test_functions_that_run_alone_weigh_most() -> None:
    found = serial(program())
    assert found.levels == [1, 701, 10, 300]
    assert sum(row.weight for row in found.rows) == found.total_ns - found.levels[0]
    assert sum(row.alone for row in found.rows) == 701
    by_name = {(row.comm, row.function): row for row in found.rows}
    setup, tail, shared = (by_name["disk", name] for name in ("setup", "tail", "shared"))
    assert setup.weight > tail.weight > shared.weight > 0 and setup.alone == 466 and shared.alone == 0
    assert by_name["client", ""].weight == 100 + 5 + 1
    assert [stack.frames[-1].label for stack in found.stacks] == ["setup", "tail", "shared"]
    shown = "\n".join(render(found, Style(unit="ns"), None))
    assert "\n  69.27%      701        1\n" in shown and "[no CPU sample]" in shown


def test_pauses_are_left_out() -> None:
    profile = program()
    profile.meta.parts = ((0, 500), (700, 1012))
    found = serial(profile)
    assert found.levels == [1, 501, 10, 300] and found.paused_ns == 200
    assert sum(row.weight for row in found.rows) == found.total_ns - found.levels[0] == 811
    assert "# 200 ns in between was not recorded, and is left out" in render(found, Style(unit="ns"), None)


def test_waits_that_one_thread_ends() -> None:
    """The server's wait ends when the third thread and the client run: it is not among them."""
    first, *_ = serial(program()).waits
    assert (first.comm, first.waker, first.waits) == ("client", "disk", 1)
    assert (first.waited, first.one, first.none) == (700, 700, 0)


@pytest.mark.parametrize("recording", ["demo.data", "perf-7.2/sched.data"])
@pytest.mark.parametrize("options", [(), ("--time", "20%-60%")])
def test_they_sum_to_wall_time(recording: str, options: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    found = json.loads(output(capsys, "report", "-f", "-i", str(DATA / recording), "--serial", "--json", *options))
    levels = found["threads_running"]
    assert sum(levels) == found["total"] == found["end_ns"] - found["begin_ns"] > 0
    assert sum(row["weight"] for row in found["rows"]) == found["total"] - levels[0]
    assert sum(row["alone"] for row in found["rows"]) == sum(levels[1:2])


def found_in(profile: Profile) -> Bottlenecks:
    timeline = timeline_of(profile)
    return bottlenecks_of(profile, timeline, cascade_of(profile, timeline))


def simple() -> Profile:
    """Two clients and a server wait for one that computes after it has slept."""
    builder = ProfileBuilder()
    wait(builder, 3, 100, 400, waker=9, flags=SampleFlag.WAKER_INTERRUPT, path=["main", "nap"])
    wait(builder, 2, 100, 1600, waker=3)
    wait(builder, 1, 100, 1700, waker=2)
    wait(builder, 4, 300, 1800, waker=2)
    for at, function in ((500, "sort"), (600, "sort"), (900, "sum")):
        builder.sample("disk", ["main", function], 1, event="cpu-clock", tid=3, pid=3, time_ns=at)
    return builder.build()


def test_who_holds_up_most_and_in_which_functions() -> None:
    found = found_in(simple())
    first, second = found.shown[:2]
    assert first.members == ("disk",) and second.members == ("[interrupt]",)
    assert first.held[Held.RUNNING] == 3 * 1200 and second.held_ns == 4 * 300 - 200
    assert [(stack.frames[-1].label, stack.weight) for stack in first.stacks] == [("sort", 2400), ("sum", 1200)]
    assert [(stack.frames[-1].label, stack.weight) for stack in second.stacks] == [("nap", 1000)]
    assert first.behind == [("server", first.held_ns + second.held_ns - 300)]
    assert first.passed_on == [("[interrupt]", 1000)]
    lines = "\n".join(render_bottlenecks(found, Style(unit="ns")))
    assert "# 1. disk: 3600 ns, " in lines and "waited for by server" in lines
    assert "[interrupt]" in lines and "66.67%  disk  2400 ns  running" in lines
    assert document(found)["bottlenecks"][0]["stacks"][0]["frames"] == ["main", "sort"]
    profile = simple()
    unsampled = found_in(profile.select(profile.is_offcpu()))
    assert unsampled.shown[0].no_stack == unsampled.shown[0].held_ns == 3600
    assert any("running without a CPU sample" in line for line in render_bottlenecks(unsampled, Style()))


@given(random_waits(60), st.lists(st.tuples(st.integers(1, 5), st.integers(0, 90)), max_size=10))
def test_stacks_sum_to_what_is_held(waits: Waits, moments: list[tuple[int, int]]) -> None:
    builder = with_waits(waits)
    for tid, time_ns in moments:
        builder.sample("x", ["main", f"f{time_ns % 3}"], 1, event="cpu-clock", tid=tid, pid=tid, time_ns=time_ns)
    bottlenecks = found_in(builder.build())
    assert sum(shown.held_ns for shown in bottlenecks.shown) + bottlenecks.other_ns == bottlenecks.total_ns
    for shown in bottlenecks.shown:
        stacks = sum(stack.weight for stack in shown.stacks) + shown.other_stacks
        not_running = sum(shown.held[how] for how in (Held.RUNNABLE, Held.NOT_RECORDED, Held.CUT))
        assert stacks + shown.no_stack + not_running == shown.held_ns
