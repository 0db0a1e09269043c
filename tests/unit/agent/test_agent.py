# SPDX-License-Identifier: Apache-2.0
"""Files that a recorder completes around a pause: which of them is followed by a gap."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from perf_offcpu.agent.agent import Agent
from perf_offcpu.agent.config import AgentConfig

FIRST, SECOND, THIRD = (f"00000001.data.202611221402{number:02}00" for number in range(3))


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Agent]:
    config = AgentConfig(dataset=str(tmp_path / "set"), spool=str(tmp_path / "spool"), port=0)
    agent = Agent(lambda: config, lambda text: None)
    agent.ledger.begin_run("stopped")
    yield agent
    agent.spool.close()


def cause_between(agent: Agent, name: str, following: str) -> str:
    """Return the cause of a gap between two files."""
    agent.ledger.deliver(name, [(1000, 2000)], 0)
    missing = agent.ledger.missing(following, 3000, 0)
    assert missing is not None
    return missing.cause


def test_file_that_ends_in_a_pause_is_followed_by_a_gap(agent: Agent) -> None:
    agent._on_recording("")
    agent._on_paused("")
    agent._on_complete(FIRST)
    assert cause_between(agent, FIRST, SECOND) == "budget"


def test_file_that_another_has_followed_before_the_pause_is_not(agent: Agent) -> None:
    """It gets its end when the sums of its time are complete, when the agent may have asked for a pause."""
    rotations: list[None] = []
    recorder: Any = SimpleNamespace(is_recording=True, rotate=lambda: rotations.append(None))
    agent._recorder = recorder
    agent._on_recording("")
    agent._keeper._pauses.begin(0.0, 0.0, is_short=True)
    agent._on_complete(FIRST)
    agent._end_segment(time.monotonic())
    assert not rotations, "the segment that grows is not over"
    agent._on_paused("")
    assert cause_between(agent, FIRST, SECOND) != "budget"
    agent._on_complete(SECOND)
    agent._end_segment(10**9)
    assert not rotations, "no segment grows"
    assert cause_between(agent, SECOND, THIRD) == "budget"
