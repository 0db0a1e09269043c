# SPDX-License-Identifier: Apache-2.0
"""`top` on the running kernel: intervals add up to what a program counted, and nothing is left behind."""

import json
import os
import signal
import subprocess
import sys
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


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP, signal.SIGKILL])
def test_nothing_is_left_whatever_ends_it(number: signal.Signals) -> None:
    command = [*program.PROGRAM, "top", "--plain", "-d", "200ms", "-p", str(os.getpid())]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as top:
        assert top.stdout is not None
        assert "blocked now" in top.stdout.readline()
        children = Path(f"/proc/{top.pid}/task/{top.pid}/children").read_text().split()
        words = {pid: Path(f"/proc/{pid}/cmdline").read_text().split("\0") for pid in children}
        (recorder,) = (pid for pid in children if "record" in words[pid])
        place = Path(words[recorder][words[recorder].index("-o") + 1]).parent
        assert place.stat().st_mode & 0o777 == 0o700
        top.send_signal(number)
        top.wait(30 * program.PATIENCE)
        assert top.returncode == (-number if number == signal.SIGKILL else 128 + number)
    until(lambda: not place.exists() and not os.path.exists(f"/proc/{recorder}"))


def test_what_cannot_be_recorded_is_one_sentence() -> None:
    done = program.run("top", "--once", "-p", "999999999", status=None)
    assert done.returncode and len(done.stderr.splitlines()) == 1 and "no process 999999999" in done.stderr
