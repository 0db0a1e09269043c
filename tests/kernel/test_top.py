# SPDX-License-Identifier: Apache-2.0
"""`top` on the running kernel: intervals add up to what a program counted, and nothing is left behind."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import termios
import threading
from pathlib import Path

import pytest
from builders import program
from kernel.recorder import until

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
    (recorder,) = (pid for pid in children if "record" in words[pid])
    return recorder, Path(words[recorder][words[recorder].index("-o") + 1]).parent


def colours_are_grey(shown: bytes) -> bool:
    """Whether all colours that a terminal was asked for are shades of grey."""
    colours = re.findall(rb"[34]8;2;(\d+);(\d+);(\d+)", shown)
    return all(max(map(int, colour)) - min(map(int, colour)) < 8 for colour in colours)


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
    assert least <= sum(row["blocked"] for row in sleeps) <= documents[-1]["end_ns"] - documents[0]["begin_ns"]
    assert all(row["blocked"] <= one["end_ns"] - one["begin_ns"] for one in documents for row in one["rows"])


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_nothing_is_left_whatever_ends_it(number: signal.Signals) -> None:
    command = [*program.PROGRAM, "top", "--plain", "-d", "200ms", "-p", str(os.getpid())]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as top:
        assert top.stdout is not None
        assert "blocked now" in top.stdout.readline()
        recorder, place = recorder_of(top.pid)
        assert place.stat().st_mode & 0o777 == 0o700
        top.send_signal(number)
        top.wait(30 * program.PATIENCE)
        assert top.returncode == (-number if number == signal.SIGKILL else 128 + number)
    until(lambda: not place.exists() and not os.path.exists(f"/proc/{recorder}"))


@pytest.mark.parametrize("end", ["q", "hangup"])
def test_the_full_screen_ends_with_a_key_and_with_its_terminal(end: str) -> None:
    leader, follower = os.openpty()
    termios.tcsetwinsize(follower, (24, 80))
    command = ["setsid", "-c", *program.PROGRAM, "top", "-d", "200ms", "-p", str(os.getpid())]
    environment = os.environ | {"TERM": "xterm", "NO_COLOR": "1"}
    with subprocess.Popen(command, stdin=follower, stdout=follower, stderr=follower, env=environment) as top:
        os.close(follower)
        shown = b""
        while b"blocked now" not in shown:
            shown += os.read(leader, 1 << 16)
        _, place = recorder_of(top.pid)
        assert colours_are_grey(shown)
        if end == "q":
            os.write(leader, b"q")
            threading.Thread(target=drain, args=(leader,), daemon=True).start()
        else:
            os.close(leader)
        # 120 is Python's own, where the terminal is gone before it has flushed its output.
        assert top.wait(30 * program.PATIENCE) in ((0,) if end == "q" else (128 + signal.SIGHUP, 120))
    until(lambda: not place.exists())


def test_what_cannot_be_recorded_is_one_sentence() -> None:
    done = program.run("top", "--once", "-p", "999999999", status=None)
    assert done.returncode and len(done.stderr.splitlines()) == 1 and "no process 999999999" in done.stderr
