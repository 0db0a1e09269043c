# SPDX-License-Identifier: Apache-2.0
"""Push targets as the command line names them, header files with credentials, and the agent's queue of messages."""

import gzip
import re
from pathlib import Path

import pytest
from builders.examples import examples
from builders.push.servers import Receiver, Reply, receiver
from builders.push.waits import some_waits

from perf_offcpu.agent import sinks
from perf_offcpu.agent.config import make_config
from perf_offcpu.agent.metrics import Metrics
from perf_offcpu.agent.sinks import PushSink
from perf_offcpu.agent.spool import Spool
from perf_offcpu.commands.push import TARGETS
from perf_offcpu.errors import UsageError
from perf_offcpu.push.opening import open_targets, read_headers
from perf_offcpu.push.targets import SERVERS, parse_target


@pytest.mark.parametrize(("text", "address", "path"), examples("unit/push/targets.txt", "targets"))
def test_targets(text: str, address: str, path: str) -> None:
    target = parse_target(text)
    assert (target.address, target.path) == (address, path)
    assert target.is_tls == ("https:" in text or "grpcs:" in text)
    assert str(target) == text.rstrip("/")


UNSAFE = [("otlp=http://host/a\r\nX:y", "otlp=http://host/a\\r\\nX:y: the path"), ("otlp=http://host/a\n", "%-escapes")]


@pytest.mark.parametrize(("text", "reason"), [*examples("unit/sentences.txt", "push targets"), *UNSAFE])
def test_what_is_no_target(text: str, reason: str) -> None:
    with pytest.raises(UsageError) as problem:
        parse_target(text)
    assert reason in str(problem.value) and "\r" not in str(problem.value)


def test_each_server_is_named_in_the_help_and_no_password_repeated() -> None:
    assert re.findall(r"(\w+)=URL", TARGETS) == list(SERVERS)
    with pytest.raises(UsageError, match="--push-header-file") as problem:
        parse_target("otlp=https://user:geheim@host")
    assert "geheim" not in str(problem.value)


def test_headers(tmp_path: Path) -> None:
    path = tmp_path / "headers"
    path.write_text("# tenants\n\nX-Scope-OrgID: 7\r\n  Authorization:Bearer a:b c  \n")
    assert read_headers(str(path)) == (("X-Scope-OrgID", "7"), ("Authorization", "Bearer a:b c"))


@pytest.mark.parametrize(("line", "reason"), examples("unit/sentences.txt", "headers"))
def test_what_is_no_header(tmp_path: Path, line: str, reason: str) -> None:
    path = tmp_path / "headers"
    path.write_bytes(f"One: 1\n{line.encode().decode('unicode_escape')}\n".encode())
    with pytest.raises(UsageError) as problem:
        read_headers(str(path))
    assert reason in str(problem.value) and "geheim" not in str(problem.value)


def test_a_file_that_is_too_long_or_none(tmp_path: Path) -> None:
    (tmp_path / "long").write_bytes(b"#" * (1 << 17))
    for name in ("long", "none", "."):
        with pytest.raises(OSError):
            read_headers(str(tmp_path / name))


RECORDING = "00000001.data.2026010100000000"


def deliver(found: Receiver, tmp_path: Path) -> tuple[Metrics, list[str], list[str]]:
    """Push one segment with credentials; return metrics, what was said, and what is left in the spool."""
    (tmp_path / "token").write_text("Authorization: Bearer geheim\n")
    target = f"otlp=http://127.0.0.1:{found.port}"
    values = {"push": [target], "push-header-file": str(tmp_path / "token"), "spool": str(tmp_path / "spool")}
    config = make_config(values)
    ((to, sender),) = open_targets(config.push, config.push_header_file, config.push_ca)
    spool, metrics, said = Spool(config.spool), Metrics(), list[str]()
    sink = PushSink(to, sender, {"service": "web"}, spool, metrics, said.append)
    assert sink.keep(RECORDING, some_waits()) > 0
    sink.close(20)
    left = spool.messages()
    spool.close()
    return metrics, said, left


def test_a_segment_is_pushed_with_the_credentials_of_the_file(tmp_path: Path) -> None:
    with receiver() as found:
        metrics, said, left = deliver(found, tmp_path)
    assert len(found.stored) == 1 and (said, left) == ([], [])
    assert found.requests[0].headers["authorization"] == "Bearer geheim"
    assert metrics.value("pushed_total", "otlp") == 1 and metrics.value("push_lost_total") == 0


def test_messages_have_the_labels_of_the_recording_if_servers_take_them(tmp_path: Path) -> None:
    spool = Spool(str(tmp_path / "spool"))
    ((to, sender),) = open_targets(["otlp=http://127.0.0.1:1"])
    sink = PushSink(to, sender, {"service": "now"}, spool, Metrics(), lambda text: None)
    for number, labels in enumerate(({"service": "then"}, {"k8s-pod": "x"}, None)):
        sink.keep(f"{number:08}{RECORDING[8:]}", some_waits(), labels)
    texts = [gzip.decompress(spool.read(name)) for name in spool.messages()]
    sink.close(0)
    spool.close()
    assert [b"then" in text for text in texts] == [True, False, False]
    assert [b"now" in text for text in texts] == [False, True, True]


@pytest.mark.parametrize(("reply", "cause", "text"), [
    (Reply(200, {"Content-Type": "application/x-protobuf"}, b"\x0a\x08\x08\x01\x12\x04nope"), "rejected", "nope"),
    (Reply(400), "refused", "400 Bad Request"),
])  # fmt: skip
def test_what_a_server_does_not_want_is_counted(tmp_path: Path, reply: Reply, cause: str, text: str) -> None:
    with receiver(None, reply) as found:
        metrics, said, left = deliver(found, tmp_path)
    assert metrics.value("push_lost_total", cause) == 1 and left == []
    assert text in "".join(said) and "geheim" not in "".join(said)


@pytest.mark.parametrize("status", [503, 401])
def test_what_a_server_may_want_later_stays(tmp_path: Path, status: int) -> None:
    with receiver(None, Reply(status)) as found:
        metrics, _, left = deliver(found, tmp_path)
    assert len(left) == 1 and metrics.value("push_lost_total") == 0


def test_a_message_that_is_put_off_for_too_long_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sinks, "LATEST_S", 0.0)
    with receiver(None, Reply(429)) as found:
        metrics, said, left = deliver(found, tmp_path)
    assert left == [] and metrics.value("push_lost_total", "overdue") == 1
    assert "429" in "".join(said)
    metrics, _, left = deliver(found, tmp_path)
    assert len(left) == 1 and metrics.value("push_lost_total") == 0, "nobody listens: such a message stays"


def test_options_that_are_not_possible() -> None:
    for option, value, text in (("push-ca", 5, "--push-ca 5: not"), ("push-header-file", {"a": "b"}, "--push-header")):
        with pytest.raises(UsageError, match=text):
            make_config({"push": "otlp=http://a", option: value})
