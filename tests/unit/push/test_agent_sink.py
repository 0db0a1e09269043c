# SPDX-License-Identifier: Apache-2.0
"""The agent's queue of messages for a server: credentials, answers, and what is lost."""

import gzip
from pathlib import Path

import pytest
from builders.push.servers import Receiver, Reply, receiver
from builders.push.waits import some_waits

from perf_offcpu.agent import sinks
from perf_offcpu.agent.config import make_config
from perf_offcpu.agent.metrics import Metrics
from perf_offcpu.agent.sinks import PushSink
from perf_offcpu.agent.spool import Spool
from perf_offcpu.errors import UsageError
from perf_offcpu.push.opening import open_targets

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


def test_a_message_that_a_server_puts_off_for_too_long_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
