# SPDX-License-Identifier: Apache-2.0
"""`perf-offcpu agent --check`: what is wrong with configuration, directories, stores, servers and port is one line."""

import os
import re
import socket
import uuid
import warnings
from dataclasses import replace
from itertools import takewhile
from pathlib import Path

import pytest

from perf_offcpu.agent.check import AGENT, check
from perf_offcpu.agent.config import AgentConfig, make_config
from perf_offcpu.dataset.store import open_store

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
