# SPDX-License-Identifier: Apache-2.0
"""The agent on the running kernel: what it delivers and what it counts, when parts of it are killed."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

from kernel.agents import Place, recorder_of
from kernel.recorder import until


def test_killed_parts_lose_only_time_that_is_counted(tmp_path: Path) -> None:
    place = Place(tmp_path)
    with place.agent() as agent:
        until(lambda: place.counter("segments_total") >= 2)
        recorder = recorder_of(agent)
        agent.kill()
        agent.wait()
    until(lambda: not os.path.exists(f"/proc/{recorder}"))
    left = place.recordings()
    assert left
    with place.agent() as agent:
        until(lambda: place.counter("segments_total") >= 4 and recorder_of(agent))
        os.kill(recorder_of(agent), signal.SIGKILL)
        until(lambda: place.causes("gap_seconds_total").get("recorder"))
    assert place.recordings() == []
    place.check()
    assert place.causes("gap_seconds_total").keys() == {"stopped", "recorder"}
    assert place.counter("recorder_failures_total") == 1
    assert place.counter("segments_lost_total") == 0


def test_second_agent_is_told_that_the_spool_is_in_use(tmp_path: Path) -> None:
    place = Place(tmp_path)
    with place.agent() as agent:
        until(lambda: recorder_of(agent))
        done = subprocess.run(place.command(), capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 129
    assert "another agent, or its recorder, uses it" in done.stderr
