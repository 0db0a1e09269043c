# SPDX-License-Identifier: Apache-2.0
"""The Firefox Profiler opens our files; its command line runs the page's code."""

import contextlib
import json
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from browser.programs import firefox_profiler
from builders.converted import converted_bytes
from builders.profile import Code, ProfileBuilder, kernel
from builders.program import PATIENCE

from perf_offcpu.analysis.times.lanes import Lane
from perf_offcpu.analysis.times.timeline import timeline_of
from perf_offcpu.causality.critical_path import critical_path
from perf_offcpu.causality.path_rows import path_lane
from perf_offcpu.model.profile import Profile

Ask = Callable[..., Any]
MS = 10**6
HOSTILE = "<img src=x onerror=hacked=1>"


def profile() -> Profile:
    builder = ProfileBuilder(meta={"hostname": "box", "arch": "x86_64"}, build_ids={"/bin/a": "ab" * 20})
    handle = Code("handle", "/bin/a", 0x1040, file="a.c", line=12)
    for number in range(50):
        at = 10**9 + 10 * MS * number
        builder.sample(
            "reader", ["main", handle, kernel("futex_wait")], 4 * MS, time_ns=at, tid=101, state=1, syscall=202,
            waker_tid=102, waker_pid=100, wakeup_ns=at - 1_500, runq_ns=1_500, waker_path=["main", handle],
        )  # fmt: skip
        builder.sample("writer", ["main", HOSTILE, kernel("io_schedule")], 2 * MS, time_ns=at + MS, tid=102, state=2)
    return builder.build()


def path_of_reader() -> Lane:
    found = profile()
    timeline = timeline_of(found)
    reader = next(row for row, track in enumerate(timeline.tracks) if track.tid == 101)
    begin = timeline.origin_ns
    return path_lane(found, critical_path(found, timeline, reader, begin, begin + 100 * MS))


def is_up(sessions: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as one, contextlib.suppress(OSError):
        one.connect(str(sessions / "t.sock"))
        return (sessions / "t.json").exists()
    return False


@pytest.fixture(scope="module")
def ask(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ask]:
    if shutil.which("node") is None:
        pytest.skip("no node here (Debian: nodejs)")
    folder = tmp_path_factory.mktemp("ff")
    (folder / "written.json").write_bytes(converted_bytes("firefox", profile(), path=path_of_reader()))
    environment = os.environ | {"PROFILER_CLI_SESSION_DIR": str(folder / "s")}
    program = ["node", str(firefox_profiler())]

    def tried(*words: str) -> subprocess.CompletedProcess[str]:
        command = [*program, *words, "--session", "t"]
        return subprocess.run(
            command, env=environment, cwd=folder, capture_output=True, text=True, check=False, timeout=60
        )

    def run(*words: str) -> str:
        done = tried(*words)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    # `load` starts it, too, but waits only half a second, too little on a busy machine.
    server = [*program, "--daemon", str(folder / "written.json"), "--session", "t"]
    with subprocess.Popen(server, env=environment, stdout=subprocess.DEVNULL) as process:
        try:
            end = time.monotonic() + 30 * PATIENCE
            # The client cannot be asked: it takes a session that does not answer yet for a dead one.
            while not is_up(folder / "s") and process.poll() is None and time.monotonic() < end:
                time.sleep(0.05)
            yield lambda *words: json.loads(run(*words, "--json"))
        finally:
            process.kill()


def functions(ask: Ask, thread: str) -> dict[str, tuple[float, float]]:
    found = ask("thread", "functions", "--thread", thread)
    assert found["weightType"] == "tracing-ms"
    return {one["name"]: (one["selfSamples"], one["totalSamples"]) for one in found["functions"]}


def test_threads_and_totals(ask: Ask) -> None:
    threads = ask("profile", "info", "--all")["processes"][0]["threads"]
    assert [(one["name"], one["tid"]) for one in threads] == [("reader", 101), ("writer", 102)]
    assert functions(ask, "t-0") == {"futex_wait": (200, 200), "handle": (0, 200), "main": (0, 200)}
    assert functions(ask, "t-1") == {"io_schedule": (100, 100), HOSTILE: (0, 100), "main": (0, 100)}


def test_a_critical_path_is_a_thread_of_markers(ask: Ask) -> None:
    thread = ask("profile", "info", "--all")["processes"][1]["threads"][0]
    assert thread["name"] == "critical path of reader (pid 100, tid 101)"
    shown = ask("thread", "markers", "--thread", "t-2", "--list")
    assert sum(row["duration"] for row in shown["flatMarkers"]) == pytest.approx(100)
    names = {row["name"] for row in shown["flatMarkers"]}
    assert "reader: running" in names and "writer: running" in names
    assert {row["label"] for row in ask("marker", "info", shown["flatMarkers"][0]["handle"])["fields"]} == {"Through"}


def test_waits_are_markers_with_details_and_stack(ask: Ask) -> None:
    marker = ask("thread", "markers", "--thread", "t-0", "--list")["flatMarkers"][0]
    assert (marker["name"], marker["duration"]) == ("lock", 4)
    told = ask("marker", "info", marker["handle"])
    assert {one["label"]: one["formattedValue"] for one in told["fields"]} == {
        "Function": "futex_wait", "System call": "futex", "State": "interruptible sleep",
        "Woken by": "writer (pid 100, tid 102)", "Run-queue delay": "1.500μs", "Waker's stack": "main;handle",
    }  # fmt: skip
    assert [one["name"] for one in told["stack"]["frames"]] == ["futex_wait", "handle", "main"]


def test_wakeups_are_markers_of_the_waker(ask: Ask) -> None:
    found = ask("thread", "markers", "--thread", "t-1", "--search", "name:wakes", "--list")
    assert found["filteredMarkerCount"] == 50
    told = ask("marker", "info", found["flatMarkers"][0]["handle"])
    assert told["tooltipLabel"] == "wakes reader (pid 100, tid 101)"
    assert [one["name"] for one in told["stack"]["frames"]] == ["handle", "main"]


def test_code_has_its_library(ask: Ask) -> None:
    (handle,) = (one for one in ask("thread", "functions", "--thread", "t-0")["functions"] if one["name"] == "handle")
    assert handle["library"] == "/bin/a"
