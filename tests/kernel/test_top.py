# SPDX-License-Identifier: Apache-2.0
"""`top` on the running kernel: intervals add up to what a program counted, and nothing is left behind."""

import contextlib
import itertools
import json
import os
import re
import select
import signal
import subprocess
import sys
import termios
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import program
from kernel.agents import Place
from kernel.recorder import recorder, until

from perf_offcpu import losses
from perf_offcpu.decode.load import load_recording
from perf_offcpu.model.recording import SampleFlag
from perf_offcpu.report.thread_budgets import BLOCKED
from perf_offcpu.top.agent_segments import AgentSegments
from perf_offcpu.top.segments import Segments

pytestmark = pytest.mark.beside

NAPS, SHORT_NAPS = 300, 300
SLEEPS = f"""
import time
for _ in range({NAPS}):
    time.sleep(0.004)
for _ in range({SHORT_NAPS}):
    time.sleep(0.0002)
"""


def recorder_of(top: int) -> tuple[str, Path]:
    """Return the recorder of a `top`, and the directory of its files."""
    children = [pid for task in Path(f"/proc/{top}/task").iterdir() for pid in (task / "children").read_text().split()]
    words = {pid: Path(f"/proc/{pid}/cmdline").read_text().split("\0") for pid in children}
    (process,) = (pid for pid in children if "record" in words[pid])
    return process, Path(words[process][words[process].index("-o") + 1]).parent


def drain(leader: int) -> None:
    with contextlib.suppress(OSError):
        while os.read(leader, 1 << 16):
            pass


def test_intervals_add_up_to_what_the_program_did() -> None:
    words = ["--json", "-d", "300ms", "-s", "syscall", "--idle", "show", "--", sys.executable, "-c", SLEEPS]
    documents = list(map(json.loads, program.run("top", *words).stdout.splitlines()))
    assert len(documents) > 1
    assert all(later["begin_ns"] == earlier["end_ns"] for earlier, later in zip(documents, documents[1:], strict=False))
    sleeps = [row for one in documents for row in one["rows"] if row["label"] == "clock_nanosleep"]
    assert sum(row["waits"] for row in sleeps) == NAPS + SHORT_NAPS
    least = NAPS * 4_000_000 + SHORT_NAPS * 200_000
    # The timer runs a moment before the thread leaves its CPU.
    assert 0.99 * least <= sum(row["blocked"] for row in sleeps) <= documents[-1]["end_ns"] - documents[0]["begin_ns"]
    assert all(row["blocked"] <= one["end_ns"] - one["begin_ns"] for one in documents for row in one["rows"])


@pytest.mark.long
def test_what_an_agent_records_is_shown_without_a_recorder(tmp_path: Path) -> None:
    """Each recording that it completes is an interval, and can be written, also after it has left the spool."""
    place = Place(tmp_path)
    napper = [sys.executable, "-c", "import time\nwhile True: time.sleep(0.4)"]
    with subprocess.Popen(napper) as process, place.agent():
        until(place.recordings)
        with AgentSegments(str(place.spool)) as segments:
            written: list[str] = []
            segments.keep(written.extend)
            with contextlib.chdir(tmp_path):
                profiles = list(itertools.islice(segments, 2))
        done = program.run("top", "--agent", place.spool, "--json", "-n", "1", "-s", "thread")
        process.kill()
    document = json.loads(done.stdout)
    (row,) = (row for row in document["rows"] if row["label"].endswith(f" {process.pid}"))
    (begin, end), (later, _) = (profile.meta.recorded[0] for profile in profiles)
    assert 0 <= later - end < end - begin and segments.unread == 0
    (name,) = written
    assert load_recording(tmp_path / name).meta.begin_ns == begin
    assert row["blocked"] + row["runnable"] >= 0.9 * (document["end_ns"] - document["begin_ns"]) and row["waits"]


@pytest.fixture(
    params=["waiter", *(pytest.param(f"messaging{one}", marks=pytest.mark.long) for one in ("", " for long"))]
)
def command(request: pytest.FixtureRequest, waiter: Path) -> list[str | Path]:
    """Return a command with known waits, in other threads than its first one."""
    if request.param == "waiter":
        return [waiter]
    loops = "20000" if "long" in request.param else "500"
    return ["perf", "bench", "sched", "messaging", "-t", "-g", "2", "-l", loops]


def test_intervals_add_up_to_what_a_recording_of_the_same_time_says(command: list[str | Path], tmp_path: Path) -> None:
    """A recorder and `top` both watch a shell from before it becomes the command to its end."""
    shell = ["sh", "-c", 'read _ && exec "$@"', "sh", *map(str, command)]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(shell, stdin=subprocess.PIPE, cwd=tmp_path, **pipes) as target:
        options = ["--json", "-d", "200ms", "-s", "thread", "--idle", "show", "-p", str(target.pid)]
        with (
            recorder("-e", "none", "-p", str(target.pid), cwd=tmp_path) as record,
            subprocess.Popen([*program.PROGRAM, "top", *options], **pipes) as top,
        ):
            assert top.stdout is not None
            lines = [top.stdout.readline()]
            target.communicate("\n")
            lines += top.stdout.read().splitlines()
            record.communicate()
    documents = list(map(json.loads, lines))
    assert len(documents) > 2 and not any(document["unread"] for document in documents)
    waits, times = Counter[int](), Counter[int]()
    for row in (row for document in documents for row in document["rows"]):
        tid = int(row["label"].split()[-1])
        waits[tid] += row["waits"]
        times[tid] += row["blocked"] + row["runnable"]
    recording = load_recording(tmp_path / "perf.data")
    samples, budget = recording.samples, recording.budget
    ended, expected = ~samples.has(SampleFlag.STILL_BLOCKED), Counter[int]()
    for tid, count in zip(samples.tid[ended].tolist(), samples.count[ended].tolist(), strict=True):
        expected[tid] += count
    for tids in (waits, expected):
        del tids[target.pid]  # it waited before either of them began
    assert waits == expected and sum(waits.values()) > 500
    states = [getattr(budget, name) for name in ("runnable_ns", "preempted_ns", *BLOCKED.values())]
    all_ns = sum(int(state[np.isin(budget.tid, list(expected))].sum()) for state in states)
    assert abs(sum(times[tid] for tid in expected) - all_ns) <= all_ns // 1000


@pytest.mark.parametrize("number", [
    signal.SIGINT, pytest.param(signal.SIGHUP, marks=pytest.mark.long), signal.SIGKILL,
])  # fmt: skip
def test_nothing_is_left_whatever_ends_it(number: signal.Signals) -> None:
    command = [*program.PROGRAM, "top", "--plain", "-d", "200ms", "-p", str(os.getpid())]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as top:
        assert top.stdout is not None
        assert "blocked now" in top.stdout.readline()
        process, place = recorder_of(top.pid)
        assert place.stat().st_mode & 0o777 == 0o700
        top.send_signal(number)
        top.wait(30 * program.PATIENCE)
        assert top.returncode == (128 + number if number == signal.SIGINT else -number)
    until(lambda: not place.exists() and not os.path.exists(f"/proc/{process}"))


@pytest.fixture
def terminal() -> Iterator[tuple[int, int]]:
    """Return both ends of a terminal of 80 columns: the descriptor of its master, and that of programs."""
    leader, follower = os.openpty()
    termios.tcsetwinsize(follower, (24, 80))
    yield leader, follower
    for descriptor in (leader, follower):
        with contextlib.suppress(OSError):
            os.close(descriptor)


@contextmanager
def screen(follower: int, *before: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run `top` on a terminal, which this process then closes; kill it if it has not ended after the block."""
    command = [*before, "setsid", "-c", *program.PROGRAM, "top", "-d", "200ms", "-p", str(os.getpid())]
    environment = os.environ | {"TERM": "xterm", "NO_COLOR": "1"}
    with subprocess.Popen(command, stdin=follower, stdout=follower, stderr=follower, env=environment) as top:
        try:
            os.close(follower)
            yield top
        finally:
            top.kill()


def read_until(leader: int, text: bytes) -> bytes:
    shown = b""

    def is_shown() -> bool:
        nonlocal shown
        while select.select([leader], [], [], 0)[0] and text not in shown:
            shown += os.read(leader, 1 << 16)
        return text in shown

    until(is_shown)
    return shown


def test_the_full_screen_ends_with_a_key(terminal: tuple[int, int]) -> None:
    leader, follower = terminal
    with screen(follower) as top:
        colours = re.findall(rb"[34]8;2;(\d+);(\d+);(\d+)", read_until(leader, b"blocked now"))
        assert all(max(map(int, colour)) - min(map(int, colour)) < 8 for colour in colours), "all are grey"
        _, place = recorder_of(top.pid)
        os.write(leader, b"q")
        threading.Thread(target=drain, args=(leader,), daemon=True).start()
        assert top.wait(60 * program.PATIENCE) == 0
    until(lambda: not place.exists())


@pytest.mark.parametrize("before", [
    pytest.param([], id="", marks=pytest.mark.long), pytest.param(["env", "--ignore-signal=HUP"], id="without SIGHUP"),
])  # fmt: skip
@pytest.mark.parametrize("shown", [b"\x1b[?1049h", b"blocked now"], ids=["start", "shown"])
def test_the_full_screen_ends_with_its_terminal(terminal: tuple[int, int], shown: bytes, before: list[str]) -> None:
    """A shell says 129 both of a status and of a process that SIGHUP has ended."""
    leader, follower = terminal
    with screen(follower, *before) as top:
        read_until(leader, shown)
        _, place = recorder_of(top.pid)
        os.close(leader)
        assert top.wait(60 * program.PATIENCE) in (128 + signal.SIGHUP, -signal.SIGHUP)
    until(lambda: not place.exists())


@pytest.mark.long  # it waits ten seconds for the terminal
def test_a_signal_ends_it_while_its_terminal_reads_nothing(terminal: tuple[int, int]) -> None:
    leader, follower = terminal
    with screen(follower) as top:
        read_until(leader, b"blocked now")
        process, place = recorder_of(top.pid)
        sizes = itertools.cycle([(24, 80), (60, 200)])

        def is_stuck() -> bool:
            termios.tcsetwinsize(leader, next(sizes))  # draws all of it
            tasks = Path(f"/proc/{top.pid}/task").iterdir()
            return any("n_tty_write" in (task / "stack").read_text() for task in tasks)

        until(is_stuck)
        top.send_signal(signal.SIGTERM)
        assert top.wait(60 * program.PATIENCE) == 128 + signal.SIGTERM
    until(lambda: not place.exists() and not os.path.exists(f"/proc/{process}"))


@pytest.mark.long
def test_the_last_minute_is_written_as_recordings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    written: list[str] = []
    with Segments(["-p", str(os.getpid())], 0.2) as segments:
        profiles = iter(segments)
        spans = [next(profiles).meta.recorded[0] for _ in range(3)]
        segments.keep(written.extend)
        while not written:
            spans.append(next(profiles).meta.recorded[0])
    recording = load_recording(tmp_path / written[-1])
    assert spans.index((spans[3][0], recording.meta.end_ns)) == 3 and recording.meta.begin_ns == spans[0][0]
    blocked = recording.samples.has(SampleFlag.STILL_BLOCKED)
    assert (recording.samples.time_ns[blocked] == recording.meta.end_ns).all(), "what goes on is no wait of its own"
    assert not recording.losses.get(losses.NO_END) and len(written) == 1


def test_what_cannot_be_recorded_is_one_sentence() -> None:
    done = program.run("top", "--once", "-p", "999999999", status=None)
    assert done.returncode and len(done.stderr.splitlines()) == 1 and "no process 999999999" in done.stderr
