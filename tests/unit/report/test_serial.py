# SPDX-License-Identifier: Apache-2.0
"""The report of serialization: a program whose workers wait for one thread, and sums."""

import json
from pathlib import Path

import numpy as np
import pytest
from builders.profile import ProfileBuilder
from builders.refused import output
from builders.waits import wait

from perf_offcpu.analysis.timeline import timeline_of
from perf_offcpu.model.profile import Profile
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
