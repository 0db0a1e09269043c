# SPDX-License-Identifier: Apache-2.0
"""The agent on the running kernel: what it delivers and what it counts, when parts of it are killed."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from kernel.agents import START_S, Place, recorder_of
from kernel.recorder import until

from perf_offcpu.abi.syscalls import syscall_names
from perf_offcpu.agent.sinks import DELIVERING
from perf_offcpu.collect.system.privileges import CAP_BPF, capabilities

UNIT = Path(__file__).resolve().parents[2] / "service" / "perf-offcpu-agent.service"

pytestmark = pytest.mark.beside


@pytest.mark.long
def test_killed_parts_lose_only_time_that_is_counted(tmp_path: Path) -> None:
    place = Place(tmp_path)
    with place.agent() as agent:
        place.wait_for_segments(1)
        recorder = recorder_of(agent)
        assert_few_capabilities(agent.pid)
        agent.kill()
        agent.wait()
    until(lambda: not os.path.exists(f"/proc/{recorder}"))
    left, delivered = place.recordings(), place.counter("segments_total")
    assert left, "the recorder has completed its file"
    with place.agent() as agent:
        place.wait_for_segments(len(left) + 1)
        os.kill(recorder_of(agent), signal.SIGKILL)
        until(lambda: place.causes("gap_seconds_total").get("recorder"), START_S)
    place.check()
    assert place.causes("gap_seconds_total").keys() == {"stopped", "recorder"}
    assert place.counter("recorder_failures_total") == 1
    assert place.counter("segments_total") >= delivered + len(left) + 1
    assert place.causes("segments_lost_total").keys() <= {"empty"}, "killed before its first record"
    assert {row[0] for row in place.rows("hosts", ["period_ns"])} == {50_000_000}
    assert len(set(place.rows("hosts", ["host_id", "boot_id", "hostname", "kernel", "cpus", "arch"]))) == 1


@pytest.mark.long
def test_the_unit_allows_the_system_calls_that_are_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A call that its SystemCallFilter leaves out kills the process here; in the unit the call is refused. The programs
    are compiled, and a process that starts meanwhile is symbolized."""
    filtered = [sys.executable, "-c", FILTERED, *map(str, sorted(allowed_calls())), "--"]
    place = Place(tmp_path, before=tuple(filtered))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with place.agent(), subprocess.Popen(["sleep", "100"]) as sleeper:
        place.wait_for_segments(2)
        sleeper.kill()
    assert "ended with status" not in "".join(place.said)


FILTERED = """
import ctypes, os, struct, sys
libc, calls = ctypes.CDLL(None, use_errno=True), list(map(int, sys.argv[1 : sys.argv.index("--")]))
ALLOW, KILL, LOAD, EQUAL, RETURN = 0x7FFF0000, 0x80000000, 0x20, 0x15, 0x06
each = (one for call in calls for one in ((EQUAL, 0, 1, call), (RETURN, 0, 0, ALLOW)))
code = [(LOAD, 0, 0, 0), *each, (RETURN, 0, 0, KILL)]
program = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *one) for one in code))
header = ctypes.create_string_buffer(struct.pack("@HP", len(code), ctypes.addressof(program)))
assert libc.prctl(38, 1, 0, 0, 0) == 0 and libc.prctl(22, 2, header) == 0  # no new privileges; a filter
os.execv(sys.argv[sys.argv.index("--") + 1], sys.argv[sys.argv.index("--") + 1 :])
"""
"""Run the command after -- with no other system calls than those whose numbers come first."""


def allowed_calls() -> set[int]:
    """Return the numbers of the system calls that the unit allows; systemd says what its groups have."""
    words = re.findall(r"^SystemCallFilter=(.*)$", UNIT.read_text(), re.M)
    names = {name for word in " ".join(words).split() for name in members_of(word)}
    return {number for number, name in syscall_names(os.uname().machine).items() if name in names}


def members_of(word: str) -> set[str]:
    """Return the system calls of a group of systemd; a name is that of a system call."""
    if not word.startswith("@"):
        return {word}
    done = subprocess.run(["systemd-analyze", "syscall-filter", word], capture_output=True, text=True, check=True)
    lines = [line.strip() for line in done.stdout.splitlines()[1:]]
    return {name for line in lines if line and not line.startswith("#") for name in members_of(line)}


def assert_few_capabilities(agent: int) -> None:
    """Check that the threads of the agent have few capabilities; the main thread, and those of numpy, have all."""
    held = {
        int(task.name): int(re.findall(r"CapPrm:\s*(\S+)", (task / "status").read_text())[0], 16)
        for task in Path(f"/proc/{agent}/task").iterdir()
    }
    assert held.pop(agent) >> CAP_BPF & 1
    assert {0, DELIVERING & sum(1 << number for number in capabilities())} <= set(held.values())
