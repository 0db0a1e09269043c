# SPDX-License-Identifier: Apache-2.0
"""The agent on the running kernel: what it delivers and what it counts, when parts of it are killed."""

import os
import re
import signal
from pathlib import Path

import pytest
from kernel.agents import START_S, Place, recorder_of
from kernel.recorder import until

from perf_offcpu.agent.sinks import DELIVERING
from perf_offcpu.collect.system.privileges import CAP_BPF, capabilities

pytestmark = pytest.mark.beside


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


def assert_few_capabilities(agent: int) -> None:
    """Check that the threads of the agent have few capabilities; the main thread, and those of numpy, have all."""
    held = {
        int(task.name): int(re.findall(r"CapPrm:\s*(\S+)", (task / "status").read_text())[0], 16)
        for task in Path(f"/proc/{agent}/task").iterdir()
    }
    assert held.pop(agent) >> CAP_BPF & 1
    assert {0, DELIVERING & sum(1 << number for number in capabilities())} <= set(held.values())
