# SPDX-License-Identifier: Apache-2.0
"""Sending over gRPC to a server on a real socket, which applies the rules or answers with a status."""

import base64
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from builders.push.servers import make_certificates
from builders.push.waits import some_waits

from perf_offcpu.errors import UsageError
from perf_offcpu.push.messages import messages
from perf_offcpu.push.opening import open_sender
from perf_offcpu.push.targets import parse_target

TESTS = Path(__file__).resolve().parents[2]


def text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def run(*calls: dict[str, Any]) -> list[dict[str, Any]]:
    """Run calls (fields of `builders.push.grpc_exchange.Call`) and return what became of each."""
    environment = os.environ | {"PYTHONPATH": f"{TESTS}:{TESTS.parent}"}
    done = subprocess.run(
        [sys.executable, "-m", "builders.push.grpc_exchange"], input=json.dumps(calls), env=environment,
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stderr == "", "the library logs what servers send"
    return json.loads(done.stdout)


def body_for(server: str) -> str:
    (message,) = messages(parse_target(f"{server}=grpc://host:1").form, some_waits(), {"service": "web"})
    return text(message.body)


def retry_info(seconds: int) -> str:
    delay, url = bytes([0x0A, 2, 0x08, seconds]), b"type.googleapis.com/google.rpc.RetryInfo"
    any_ = bytes([0x0A, len(url)]) + url + bytes([0x12, len(delay)]) + delay
    return text(b"\x08\x08" + bytes([0x1A, len(any_)]) + any_)


def test_servers_take_messages_and_their_rules_hold() -> None:
    total = sum(some_waits().samples.period[some_waits().is_offcpu()].tolist())
    headers = [("Authorization", "Bearer geheim")]
    calls = [{"server": name, "body": body_for(name), "times": 2, "headers": headers} for name in ("otlp", "parca")]
    broken = [{"server": server, "body": text(b"\x0a\x03abc")} for server in ("otlp", "parca")]
    large = {"server": "otlp", "body": text(bytes(5 << 20))}
    partial = {"server": "otlp", "body": body_for("otlp"), "answer": text(b"\x0a\x08\x08\x01\x12\x04nope")}
    *taken, one, other, huge, some = run(*calls, *broken, large, partial)
    for answer in taken:
        assert answer["stored"] == [total, total] and (answer["rejected"], answer["text"]) == (0, "")
        assert {one["authorization"] for one in answer["metadata"]} == {"Bearer geheim"}
        assert answer["metadata"][0]["user-agent"].startswith("perf-offcpu/")
    for answer in (one, other):
        assert answer["error"] == "Refused" and "INVALID_ARGUMENT" in answer["text"]
    assert huge["error"] == "Refused" and "larger than max" in huge["text"]
    assert (some["rejected"], some["text"]) == (1, "nope")


def test_statuses() -> None:
    later = "CANCELLED DEADLINE_EXCEEDED ABORTED OUT_OF_RANGE UNAVAILABLE DATA_LOSS RESOURCE_EXHAUSTED".split()
    never = "UNKNOWN INVALID_ARGUMENT ALREADY_EXISTS FAILED_PRECONDITION INTERNAL".split()
    server = "UNAUTHENTICATED PERMISSION_DENIED UNIMPLEMENTED NOT_FOUND".split()
    codes = [*later, *never, *server]
    found = run(*({"server": "otlp", "code": code, "details": "why\x1b[2J"} for code in codes))
    kinds = {code: one["error"] for code, one in zip(codes, found, strict=True)}
    expected = (("RetryLater", later), ("Refused", never), ("ServerRefused", server))
    assert kinds == {code: kind for kind, group in expected for code in group}
    assert all(one["text"].endswith("why\\x1b[2J") and one["text"].isprintable() for one in found)


def test_when_to_come_back() -> None:
    exhausted = {"server": "otlp", "code": "RESOURCE_EXHAUSTED", "status": retry_info(7)}
    away = {"server": "otlp", "code": "UNAVAILABLE", "status": retry_info(3)}
    damaged = {"server": "otlp", "code": "UNAVAILABLE", "status": text(b"\x1a\xff\xff\x07")}
    found = [(one["error"], one["after_s"]) for one in run(exhausted, away, damaged)]
    assert found == [("RetryLater", 7.0), ("RetryLater", 3.0), ("RetryLater", None)]


def test_servers_that_are_away_slow_or_others(tmp_path: Path) -> None:
    make_certificates(tmp_path)
    tls = {"server": "otlp", "body": body_for("otlp"), "server_pem": str(tmp_path), "grpcs": True}
    ca = str(tmp_path / "ca.pem")
    down, slow, foreign, good, unknown, named, plain = run(
        {"server": "parca", "down": True}, {"server": "parca", "delay_s": 2, "timeout_s": 0.3},
        {"server": "parca", "foreign": True}, tls | {"ca": ca, "host": "localhost"},
        tls | {"host": "localhost"}, tls | {"ca": ca}, tls | {"grpcs": False},
    )  # fmt: skip
    assert down["error"] == slow["error"] == plain["error"] == "RetryLater"
    assert foreign["error"] == unknown["error"] == named["error"] == "ServerRefused"
    assert "DEADLINE_EXCEEDED" in slow["text"] and "CERTIFICATE_VERIFY_FAILED" in unknown["text"]
    assert (len(good["stored"]), named["stored"], plain["stored"]) == (1, [], [])


def frame(kind: int, flags: int = 0, stream: int = 0, data: bytes = b"") -> bytes:
    """Return a frame of HTTP/2 (RFC 9113, section 4.1)."""
    return len(data).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + data


def test_servers_that_misbehave() -> None:
    settings, headers = frame(4), b"\x88\x00\x0ccontent-type\x10application/grpc"
    calm = frame(7, data=bytes(7) + b"\x0b\x1b[2J\x1b]0;owned\x07")  # GOAWAY, ENHANCE_YOUR_CALM
    field = b"\x00\x01x\x7f\x81\x4d" + b"a" * 10_000
    sent = {
        "not HTTP/2": (b"\xff" * 1000, b""), "calm": (settings + calm, b""), "settings": (settings, settings * 100),
        "pings": (settings, frame(6, data=bytes(8)) * 100), "silence": (settings, b""),
        "headers without end": (settings + frame(1, 0, 1, headers), frame(9, 0, 1, field)),
        "data without end": (settings + frame(1, 4, 1, headers), frame(0, 0, 1, bytes(16_000))),
    }  # fmt: skip
    calls = [
        {"server": "otlp", "raw": text(raw), "again": text(again), "delay_s": 100, "timeout_s": 1}
        for raw, again in sent.values()
    ]
    for name, answer in zip(sent, run(*calls), strict=True):
        assert answer["error"] in {"RetryLater", "Refused"} and answer["text"].isprintable(), name


def test_without_grpcio(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "grpc", None)
    with pytest.raises(UsageError, match=r"need grpcio: pip install 'perf-offcpu\[push\]'"):
        open_sender(parse_target("otlp=grpc://host:4317"))
    open_sender(parse_target("otlp=http://host:4318")).close()
