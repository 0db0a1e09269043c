# SPDX-License-Identifier: Apache-2.0
"""The agent without a recorder: files that end around a pause, and configurations that change."""

import errno
import io
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from perf_offcpu.agent.agent import Agent
from perf_offcpu.agent.config import AgentConfig
from perf_offcpu.agent.ledger import Mark
from perf_offcpu.agent.spool import message_name
from perf_offcpu.cli import main

DEMO = Path(__file__).resolve().parents[2] / "data" / "demo.data"
FIRST, SECOND, THIRD = (f"00000001.data.202611221402{number:02}00" for number in range(3))


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Agent]:
    config = AgentConfig(dataset=str(tmp_path / "set"), spool=str(tmp_path / "spool"), port=0)
    agent = Agent(lambda: config, lambda text: None)
    agent.ledger.begin_run("stopped")
    yield agent
    agent.spool.close()


def run(tmp_path: Path, *more: str) -> int:
    words = ["agent", "--dataset", str(tmp_path / "set"), "--spool", str(tmp_path / "spool"), "--port", "0"]
    return main([*words, *more])


def cause_between(agent: Agent, name: str, following: str) -> str:
    agent.ledger.deliver(name, ((1000, 2000),), 0)
    (missing,) = agent.ledger.missing(following, 3000, 0)
    return missing.cause


def test_file_that_ends_in_a_pause_is_followed_by_a_gap(agent: Agent) -> None:
    agent._on_recording("")
    agent._on_paused("")
    agent._on_complete(FIRST)
    assert cause_between(agent, FIRST, SECOND) == "budget"
    assert agent.metrics.value("recorded_part") == 1, "until the budget says otherwise"


def test_file_that_another_has_followed_before_the_pause_is_not(agent: Agent) -> None:
    """It gets its end when the sums of its time are complete, when the agent may have asked for a pause."""
    rotations: list[str] = []
    recorder: Any = SimpleNamespace(is_recording=True, command=rotations.append, pid=0)
    agent._recorder = recorder
    agent._on_recording("")
    agent._keeper.pauses.begin(0.0, 0.0)
    agent._on_complete(FIRST)
    agent._end_segment(time.monotonic())
    assert not rotations, "the segment that grows is not over"
    agent._on_paused("")
    assert cause_between(agent, FIRST, SECOND) != "budget"
    agent._on_complete(SECOND)
    agent._end_segment(10**9)
    assert not rotations, "no segment grows"
    assert cause_between(agent, SECOND, THIRD) == "budget"


def test_other_labels_begin_another_recorder(tmp_path: Path) -> None:
    config = AgentConfig(str(tmp_path / "set"), spool=str(tmp_path / "spool"), port=0)
    configs = [replace(config, labels=(("version", version),)) for version in "112"]
    stops: list[str] = []
    agent = Agent(lambda: configs.pop(0), lambda text: None)
    agent._recorder = SimpleNamespace(stop=lambda: stops.append(agent._next_cause))  # type: ignore[assignment]
    agent._on_reload("")
    assert stops == []
    agent._on_reload("")
    assert stops == ["reload"]
    agent.spool.close()


def test_a_reload_in_a_pause_is_its_cause_only_when_the_pause_is_over(agent: Agent) -> None:
    agent._recorder = SimpleNamespace(stop=list, was_stopped=True, is_recording=False, pid=0)  # type: ignore[assignment]
    agent._on_recording("")
    assert agent.lack() == ""
    agent._keeper.pauses.begin(0.0, 0.0)
    agent._on_paused("")
    agent._stop_recorder("reload")
    agent._on_ended("0")
    assert agent.ledger._marks[-1].cause == "budget"
    agent.ledger._marks = [Mark(1, ""), Mark(time.monotonic_ns() - 57 * 10**9, "budget")]
    assert agent.lack() == "degraded: recorded 3 s of the last 60 (budget)"
    agent._keeper.pauses.end(0.0, 0.0)
    agent.ledger.mark(agent._next_cause)
    assert agent.ledger._marks[-1].cause == "reload"


def test_messages_for_a_server_that_is_not_named_any_more_are_counted(tmp_path: Path) -> None:
    spool, said = str(tmp_path / "spool"), list[str]()
    with_server = AgentConfig(push=("otlp=http://127.0.0.1:1",), spool=spool, port=0)
    configs = [with_server, with_server, AgentConfig(dataset=str(tmp_path / "set"), spool=spool, port=0)]
    agent = Agent(lambda: configs.pop(0), said.append)
    (sink,) = agent._delivery.push
    agent.spool.write(message_name(FIRST, sink.key, 0), b"x")
    agent._on_reload("")
    assert agent.spool.messages(), "the server is still there"
    agent._on_reload("")
    assert agent.spool.messages() == [] and agent.metrics.value("push_lost_total", "no-server") == 1
    assert any("--push does not name their servers" in text for text in said)
    agent.spool.close()


def test_a_recorder_that_ends_again_and_again_is_not_healthy(agent: Agent) -> None:
    """Each start is a new one, in which it may not record yet."""
    recorder: Any = SimpleNamespace(is_recording=True, was_stopped=False)
    for attempt in range(3):
        agent._recorder, agent._started_s = recorder, time.monotonic()
        assert agent.problem() == "", attempt
        agent._on_ended("1")
    assert agent.problem() == "the recorder ends again and again"
    agent._recorder, agent._started_s = recorder, time.monotonic() - 31
    assert agent.problem() == "", "this one stays"


class NoRecorder:
    run, pid, was_stopped, is_recording = 1, 0, True, False

    def __init__(self, *_: object) -> None:
        pass

    def end(self, _timeout_s: float) -> None:
        pass

    def cpu_s(self) -> float:
        return 0.0


def test_without_its_spool_it_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing could be kept; the next agent makes it again."""
    monkeypatch.setattr("perf_offcpu.agent.agent.Recorder", NoRecorder)
    spool = tmp_path / "spool"
    monkeypatch.setattr(Agent, "_start_recorder", lambda _: spool.rename(tmp_path / "elsewhere"))
    monkeypatch.setattr("perf_offcpu.agent.agent.MEASURE_S", 0)
    assert run(tmp_path) == 1 and f"--spool {spool}: it was removed or replaced" in capsys.readouterr().err


def test_a_time_in_which_nothing_was_recorded_is_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("perf_offcpu.agent.agent.Recorder", NoRecorder)
    assert run(tmp_path, "--duration", "0.1") == 1
    assert "nothing was recorded in 0.1 s" in capsys.readouterr().err
    (tmp_path / "spool" / FIRST).write_bytes(DEMO.read_bytes())
    assert run(tmp_path, "--duration", "0.1") == 0


def test_an_agent_whose_log_cannot_be_written_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its log is on a disk that is full, or its reader has gone."""

    class Full(io.StringIO):
        def write(self, _text: str) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("perf_offcpu.agent.agent.Recorder", NoRecorder)
    monkeypatch.setattr("sys.stderr", Full())
    spool = tmp_path / "spool"
    spool.mkdir(mode=0o700)
    (spool / FIRST).write_bytes(b"garbage")  # is said
    (spool / SECOND).write_bytes(DEMO.read_bytes())
    assert run(tmp_path, "--duration", "0.1") == 0
    assert len(list((tmp_path / "set" / "samples").rglob("*.parquet"))) == 1


def test_an_agent_that_delivers_no_more_is_not_healthy(agent: Agent) -> None:
    agent._started_s = time.monotonic()
    agent._delivery.start()
    assert agent.problem() == ""
    agent._delivery.close(0.0)
    assert agent.problem() == "the thread that delivers segments has ended"
