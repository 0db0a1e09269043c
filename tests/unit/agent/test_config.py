# SPDX-License-Identifier: Apache-2.0
"""Options of the agent: file, command line, environment, service files agree; `--check`: what is wrong with
configuration, directories, stores, servers and port is one line; the agent without a recorder."""

import errno
import io
import os
import re
import shlex
import shutil
import socket
import subprocess
import time
import uuid
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import takewhile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from builders.examples import examples

from perf_offcpu.agent.agent import Agent
from perf_offcpu.agent.check import AGENT, check
from perf_offcpu.agent.config import KEYS, AgentConfig, default_spool, load_config, make_config
from perf_offcpu.agent.ledger import Mark
from perf_offcpu.agent.sinks import DatasetSink, LeaseKeeper
from perf_offcpu.agent.spool import message_name
from perf_offcpu.cli import main
from perf_offcpu.commands.agent import config_of
from perf_offcpu.commands.shared.parsers import make_parsers
from perf_offcpu.dataset.store import open_store
from perf_offcpu.errors import PerfOffcpuError, UsageError

ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "Documentation" / "perf-offcpu-agent.txt"
UNIT, DAEMONSET = (ROOT / "service" / name for name in ("perf-offcpu-agent.service", "daemonset.yaml"))


def from_text(directory: Path, text: str, values: Mapping[str, Any] | None = None) -> AgentConfig:
    file = directory / "agent.toml"
    file.write_text(text)
    return load_config(str(file), dict(values or {}))


def parsed(*words: str) -> AgentConfig:
    return config_of(make_parsers(("agent",))[1]["agent"].parse_args(words))


def test_file_and_command_line_say_the_same(tmp_path: Path) -> None:
    file = tmp_path / "agent.toml"
    file.write_text(
        'dataset = "d"\noff-cpu-period = 20\nsegment = "5m"\nmax-cpu = 2\nmax-bytes = "2G"\nspool = "/s"\n'
        'spool-size = "64M"\nport = 0\nrecord = ["-G", "shop"]\npush = ["parca=http://a"]\n'
        '[label]\nservice = "shop"\n'
    )
    words = "--dataset d --off-cpu-period 20 --segment 5m --max-cpu 2% --max-bytes 2G --spool /s".split()
    more = "--spool-size 64M --port 0 --push parca=http://a --label service=shop -- -G shop".split()
    from_file, from_line = parsed("-c", str(file)), parsed(*words, *more)
    assert from_file == from_line and from_file.max_bytes == 2 << 30
    assert from_file.record == ("-e", "none", "-m", "2M", "--compression-level", "0", "-G", "shop")
    record = parsed("--dataset", "d", "--", "-ecpu-clock", "-F", "19").record
    usual = ("-m", "2M", "--compression-level", "0")
    assert record == (*usual, "-ecpu-clock", "-F", "19"), "options of record replace the agent's defaults"


def test_command_line_holds_over_the_file_and_labels_add_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PERF_OFFCPU_LABELS", "a=0,z=0")
    config = from_text(tmp_path, 'dataset = "d"\nmax-cpu = 2\nlabel = ["a=1", "b=1"]\n', {"max-cpu": 3.0})
    assert (config.dataset, config.max_cpu) == ("d", 0.03)
    assert dict(config.labels) == {"a": "1", "b": "1", "z": "0"}


def test_labels_with_dots_are_one_name_in_the_file(tmp_path: Path) -> None:
    config = from_text(tmp_path, 'dataset = "d"\n[label]\nk8s.pod.name = "a-1"\n"service.name" = "b"\nshard = 7\n')
    assert dict(config.labels) == {"k8s.pod.name": "a-1", "service.name": "b", "shard": "7"}


def test_a_bad_label_of_the_environment_is_said_to_be_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PERF_OFFCPU_LABELS", "a=1,b")
    with pytest.raises(UsageError, match="PERF_OFFCPU_LABELS in the environment: --label b: not NAME=VALUE"):
        make_config({"dataset": "d"})


@pytest.mark.parametrize(("words", "text"), examples("unit/sentences.txt", "agent"))
def test_what_is_not_possible_is_one_sentence(words: str, text: str) -> None:
    with pytest.raises(UsageError, match=re.escape(text)):
        parsed(*shlex.split(words))


VALUES = ("[" * 5000, "9" * 5000, "0x" + "9" * 5000, "\udc80")
UNREADABLE = [(f"segment = {value}", "not a TOML file") for value in VALUES]


@pytest.mark.parametrize(("content", "text"), [*examples("unit/sentences.txt", "agent.toml"), *UNREADABLE])
def test_a_bad_file_is_named(tmp_path: Path, content: str, text: str) -> None:
    file = tmp_path / "agent.toml"
    file.write_bytes(content.replace("⏎", "\n").encode("utf-8", "surrogateescape"))
    with pytest.raises(UsageError, match=re.escape(text)) as caught:
        load_config(str(file), {})
    assert str(file) in str(caught.value)


def test_keys_are_the_long_options_and_stand_in_the_page() -> None:
    actions = make_parsers(("agent",))[1]["agent"]._actions
    options = {name[2:] for one in actions for name in one.option_strings if name.startswith("--")}
    assert options - KEYS == {"help", "check", "config", "duration", "quiet", "takeover"} and KEYS - options == {
        "record"
    }


def test_defaults_are_those_of_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("STATE_DIRECTORY", raising=False)
    config, page = make_config({"dataset": "d"}), " ".join([*PAGE.read_text().split(), "=::"])
    for option, value in {
        "off-cpu-period": f"{config.period_ns / 1e6:g}", "segment": f"{config.segment_s}s",
        "max-cpu": f"{config.max_cpu * 100:g}", "max-bytes": f"{config.max_bytes >> 30}G",
        "spool-size": f"{config.spool_bytes >> 20}M", "port": config.listen.rpartition(":")[2],
    }.items():  # fmt: skip
        entry = page[page.index(f"--{option}=::") + 1 :]
        assert f"Default: {value}" in entry[: entry.index("=::", 20)], option


def test_the_unit_bounds_what_the_agent_may_take() -> None:
    text = UNIT.read_text()
    assert "\nSystemCallFilter=@system-service bpf perf_event_open\n" in text and "\nCPUQuota=50%\n" in text
    assert "\nRestrictRealtime=" not in text, "the thread that empties the rings is SCHED_FIFO"


def test_systemd_takes_every_line_of_the_unit(tmp_path: Path) -> None:
    assert shutil.which("systemd-analyze"), "apt install systemd"

    def said(text: str) -> str:
        (tmp_path / UNIT.name).write_text(text)
        words = ["systemd-analyze", "verify", "--man=no", str(tmp_path / UNIT.name)]
        return subprocess.run(words, capture_output=True, text=True, check=False).stderr

    text = UNIT.read_text()
    assert said(text) == ""
    assert "Unknown" in said(text.replace("KillMode=", "KilMode="))


def test_capabilities_are_the_same_everywhere() -> None:
    unit = re.findall(r"CAP_(\w+)", re.search(r"^CapabilityBoundingSet=(.*)$", UNIT.read_text(), re.M)[1])  # type: ignore[index]
    assert unit == re.findall(r"- (\w+)", DAEMONSET.read_text().partition("add:\n")[2].partition("resources:")[0])


def test_example_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PERF_OFFCPU_LABELS", raising=False)
    usual = AgentConfig(dataset="/var/lib/perf-offcpu/dataset", spool=default_spool())
    assert load_config(str(ROOT / "service" / "agent.toml"), {}) == usual


def test_configuration_of_the_daemonset(tmp_path: Path) -> None:
    text = DAEMONSET.read_text().partition("agent.toml: |\n")[2].partition("---")[0]
    config = from_text(tmp_path, "\n".join(line.strip() for line in text.splitlines()))
    assert config.spool == "/var/lib/perf-offcpu/spool"
    assert f"{config.listen}/health" in DAEMONSET.read_text()


def test_state_directory_of_systemd_has_the_spool(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STATE_DIRECTORY", "/var/lib/one:/var/lib/two")
    assert default_spool() == "/var/lib/one/spool"


DEMO = Path(__file__).resolve().parents[2] / "data" / "demo.data"
FIRST, SECOND, THIRD = (f"00000001.data.202611221402{number:02}00" for number in range(3))


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Agent]:
    config = AgentConfig(dataset=str(tmp_path / "set"), spool=str(tmp_path / "spool"), listen="")
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
    config = AgentConfig(str(tmp_path / "set"), spool=str(tmp_path / "spool"), listen="")
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
    with_server = AgentConfig(push=("otlp=http://127.0.0.1:1",), spool=spool, listen="")
    configs = [with_server, with_server, AgentConfig(dataset=str(tmp_path / "set"), spool=spool, listen="")]
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

    def __init__(self, *_: object, **__: object) -> None:
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


def test_a_second_agent_of_the_host_is_refused_on_the_dataset(agent: Agent, tmp_path: Path) -> None:
    """Its rows would be counted twice. Taken over, the first one ends when it renews its lease."""
    other = replace(agent.config, spool=str(tmp_path / "other"))
    refusal = f"{tmp_path}/set: another agent of this host writes there (pid {os.getpid()}, spool {agent.spool.path}; "
    with pytest.raises(UsageError, match=re.escape(refusal)):
        Agent(lambda: other, lambda text: None)
    taker = Agent(lambda: replace(other, spool=str(tmp_path / "third")), lambda text: None, take_over=True)
    first = agent.outlets.lease
    assert first is not None
    first._due_s = 0.0
    first.wake()
    kind, text = agent._mail.get(timeout=20)
    assert (kind, str(taker.spool.path) in text) == ("lost", True)
    agent._on_lost(text)
    with pytest.raises(PerfOffcpuError, match="another agent of this host writes there"):
        agent.run()
    assert len(list((tmp_path / "set" / "_leases").iterdir())) == 1, "it is the other one's"
    taker._delivery.start()
    taker._end()
    assert list((tmp_path / "set" / "_leases").iterdir()) == []


def test_a_dead_store_does_not_keep_the_agent_from_recording(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    said, store = list[str](), DatasetSink(agent.config.dataset, {}).dataset.store

    def broken(path: str) -> io.BytesIO:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(store, "reader", broken)
    keeper = LeaseKeeper(store, agent.spool, said.append, said.append, take_over=False)
    assert "the lease of the dataset cannot be renewed: [Errno 5] Input/output error; again in 1 s" in said[0]
    keeper.close(0)


def test_a_reload_with_a_dataset_that_is_taken_changes_nothing(agent: Agent, tmp_path: Path) -> None:
    taken = replace(agent.config, dataset=str(tmp_path / "taken"))
    other = Agent(lambda: replace(taken, spool=str(tmp_path / "other")), lambda text: None)
    before, agent._load = agent.outlets.lease, lambda: taken
    agent._on_reload("")
    assert agent.metrics.value("reloads_total", "failed") == 1 and agent.outlets.lease is before
    other._delivery.start()
    other._end()
    agent._on_reload("")
    assert agent.metrics.value("reloads_total", "done") == 1 and agent.outlets.lease is not before
    assert [len(list((tmp_path / name / "_leases").iterdir())) for name in ("set", "taken")] == [0, 1]


NOBODY = 65534
STATES = {"works": "", "limited": "?", "missing": "!"}


def found(config: AgentConfig) -> dict[str, str]:
    """Part → its finding, after a sign for its state."""
    findings = takewhile(lambda finding: finding.group == AGENT, check(lambda: config))
    return {finding.part: STATES[finding.state] + finding.found for finding in findings}


@pytest.fixture
def config(tmp_path: Path) -> AgentConfig:
    return AgentConfig(dataset=str(tmp_path / "set"), spool=str(tmp_path / "state" / "spool"), listen="")


def test_nothing_is_made_and_nothing_stays(config: AgentConfig, tmp_path: Path) -> None:
    assert [text[-18:] for text in list(found(config).values())[1:]] == [": not there, will be made"[-18:]] * 2
    assert list(tmp_path.iterdir()) == []
    for path in (Path(config.spool), Path(config.dataset)):
        path.mkdir(0o700, parents=True)
    assert all(text.endswith(" GB free") for text in list(found(config).values())[1:])
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == []


def test_directories_that_cannot_be_written_are_said(config: AgentConfig, tmp_path: Path) -> None:
    Path(config.spool).mkdir(0o700, parents=True)
    Path(config.spool).chmod(0o777)
    (tmp_path / "file").touch()
    findings = found(replace(config, dataset=str(tmp_path / "file" / "set")))
    assert findings["spool"] == f"!{config.spool}: others may write to a directory of the path"
    assert findings["dataset"] == f"!{tmp_path}/file/set: Not a directory"
    # In a process of its own: libc changes the user of all threads, and aborts if one has no right to.
    readable, writable = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12, where threads exist
        child = os.fork()
    if not child:
        try:
            os.seteuid(os.geteuid() or NOBODY)
            os.write(writable, found(replace(config, dataset="/nosuch/set"))["dataset"].encode())
        finally:
            os._exit(0)
    os.close(writable)
    with open(readable) as pipe:
        assert pipe.read() == "!/nosuch/set: not there, and cannot be made in /"
    os.waitpid(child, 0)


def test_stores_are_tried(config: AgentConfig) -> None:
    url = f"memory://{uuid.uuid4()}/set"
    assert found(replace(config, dataset=url))["dataset"] == f"{url}: an object was written and removed"
    assert open_store(url, make=False).names("") == []
    assert found(replace(config, dataset="nosuch://a/b"))["dataset"].startswith("!nosuch://a/b: ")


def test_servers_get_nothing(config: AgentConfig, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        target = f"otlp=http://127.0.0.1:{server.getsockname()[1]}"
        assert found(replace(config, push=(target,)))["push"] == f"{target}: 127.0.0.1, nothing was sent"
        with pytest.raises(BlockingIOError):
            server.accept()
    (tmp_path / "ca").write_text("no certificate")
    for push, text in (
        (replace(config, push=("otlp=https://localhost",), push_ca=str(tmp_path / "ca")), "!.*certificate"),
        (replace(config, push=("otlp=https://localhost",), push_ca=str(tmp_path / "none")), "!.*none: No such file"),
        (replace(config, push=("otlp=http://a.invalid",)), "!otlp=http://a.invalid: a.invalid: .*"),
        (replace(config, push=("other=http://localhost",)), "!'other=http://localhost' is not a push target"),
    ):
        assert re.match(text, found(push)["push"]), found(push)["push"]


@pytest.mark.long
def test_port_and_configuration(config: AgentConfig) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert found(replace(config, listen=f"127.0.0.1:{port}"))["metrics"] == f"?127.0.0.1:{port}: {os.strerror(98)}"
    first, second = list(check(lambda: make_config({"dataset": 5})))[:2]
    assert (first.part, first.state, first.found) == ("configuration", "missing", "--dataset 5: not a text")
    assert second.group == "recording", "the machine is examined all the same"
