# SPDX-License-Identifier: Apache-2.0
"""Reports of serialization and of bottlenecks; as JSON; the memory that a large report takes."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from builders.large_recording import write_large_recording
from builders.profile import Code, ProfileBuilder, kernel
from builders.refused import output
from builders.waits import wait

from perf_offcpu.analysis.timeline import timeline_of
from perf_offcpu.model.profile import Profile
from perf_offcpu.model.recording import SampleFlag, Samples
from perf_offcpu.report.document import document
from perf_offcpu.report.serial import SerialReport, render, serial_of
from perf_offcpu.report.style import Style
from perf_offcpu.report.summary import Limits, summarize

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


def test_document() -> None:
    meta = {"hostname": "box", "source": "p.data", "cmdline": ("a", "b")}
    builder = ProfileBuilder(losses={"records lost": 3}, meta=meta)
    builder.sample("sh", [Code("main", "/bin/sh"), kernel("schedule")], 2**60 + 1, tid=7, state=1)
    builder.sample("old", [], 5, flags=SampleFlag.AGGREGATED | SampleFlag.UNTIMED)
    builder.sample("sh", ["main"], 4, event="cpu-clock", tid=7)
    made = document(summarize(builder.build(), limits=Limits(stacks=1)))
    assert json.loads(json.dumps(made)) == made
    assert made["subject"] == {
        "events": ["offcpu-time"], "offcpu": True, "unit": "ns", "weight": 2**60 + 6, "count": 2,
        "count_is_exact": False, "average": None, "longest": 2**60 + 1,
    }  # fmt: skip
    assert made["stacks"] == [
        {
            "comm": "sh", "weight": 2**60 + 1, "count": 1, "count_is_exact": True, "average": 2**60 + 1,
            "longest": 2**60 + 1, "states": {"S": 2**60 + 1}, "classes": {"other": 2**60 + 1}, "syscalls": {},
            "still_blocked": 0, "error_ns": 0,
            "frames": [
                {"name": "main", "dso": "sh", "kind": "user"},
                {"name": "schedule", "dso": "[kernel.kallsyms]", "kind": "kernel"},
            ],
        }
    ]  # fmt: skip
    assert made["more_stacks"] == {"rows": 1, "weight": 5}
    threads = [(row["comm"], row["tid"], row["weight"]) for row in made["threads"]]
    assert threads == [("sh", 7, 2**60 + 1), ("old", 100, 5)]
    assert made["threads"][0]["beside"] == {"event": "cpu-clock", "weight": 4, "count": 1}
    assert [event["name"] for event in made["events"]] == ["offcpu-time", "cpu-clock"]
    assert (made["losses"], made["recording"]["command"]) == ({"records lost": 3}, ["a", "b"])


def test_names_are_printable() -> None:
    builder = ProfileBuilder(losses={"\x1b": 1}, meta={"hostname": "\udcff"}).sample("\n", ["\u2028"], 5)
    made = document(summarize(builder.build()))
    assert json.dumps(made, ensure_ascii=False).isprintable()
    assert made["threads"][0]["beside"] is None
    assert made["threads"][0]["comm"] == "\\n" and made["recording"]["hostname"] == "\\xff"


BYTES_PER_SAMPLE = 235
"""That of all columns is 149, and steps need more; 267 before columns of one value took none."""


REPORT = """
import contextlib, os, re, sys
from perf_offcpu.cli import main
with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
    status = main(["report", "-i", sys.argv[1]])
print(re.search(r"VmHWM:\\s+(\\d+) kB", open("/proc/self/status").read())[1])
sys.exit(status)
"""


def memory_of_report(path: Path) -> int:
    """Return the largest number of resident bytes of `report`, in a process of its own. The kernel's figure for a child
    that has ended (ru_maxrss) begins with that of its parent."""
    done = subprocess.run([sys.executable, "-c", REPORT, str(path)], capture_output=True, text=True, check=True)
    return int(done.stdout) << 10


def test_memory_grows_with_the_samples(tmp_path: Path) -> None:
    counts, memory = (300_000, 900_000), []
    for count in counts:
        path = tmp_path / "x.data"
        write_large_recording(path, count, processes=8, deferred=0, storm=0, stacks=500, depth=30)
        memory.append(memory_of_report(path))
    each = (memory[1] - memory[0]) / (counts[1] - counts[0])
    assert 50 < each < BYTES_PER_SAMPLE
    assert sum(one.dtype.itemsize for one in Samples.columns.values()) < BYTES_PER_SAMPLE
