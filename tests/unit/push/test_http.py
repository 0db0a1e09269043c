# SPDX-License-Identifier: Apache-2.0
"""Sending over HTTP to real sockets: servers that take, refuse, are slow, break off, redirect, or lie."""

import contextlib
import gzip
import socket
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from builders.program import PATIENCE
from builders.push.servers import Reply, make_certificates, raw_server, read_request, receiver, server_context
from builders.push.waits import some_waits

from perf_offcpu.errors import UsageError
from perf_offcpu.push.answers import Answer
from perf_offcpu.push.messages import messages
from perf_offcpu.push.opening import open_sender
from perf_offcpu.push.sender import PushError, Refused, RetryLater, Sender, SendOptions, ServerRefused, send_until
from perf_offcpu.push.targets import SERVERS, parse_target

SHORT = SendOptions(timeout_s=0.3)


def body_for(server: str) -> bytes:
    (message,) = messages(parse_target(f"{server}=http://host").form, some_waits(), {"service": "web"})
    return message.body


def sender(
    server: str, port: int, options: SendOptions | None = None, url: str = "http://127.0.0.1"
) -> contextlib.closing[Sender]:
    return contextlib.closing(open_sender(parse_target(f"{server}={url}:{port}"), options))


def send(
    server: str, port: int, body: bytes = b"x", options: SendOptions | None = None, url: str = "http://127.0.0.1"
) -> Answer:
    with sender(server, port, options, url) as one:
        return one.send(body)


def failure(server: str, port: int, body: bytes = b"x", options: SendOptions | None = None) -> PushError:
    with pytest.raises(PushError) as problem:
        send(server, port, body, options)
    return problem.value


@pytest.mark.parametrize("server", SERVERS)
def test_servers_take_messages_on_one_connection(server: str) -> None:
    total = sum(some_waits().samples.period[some_waits().is_offcpu()].tolist())
    options = SendOptions((("Authorization", "Bearer geheim"),))
    with receiver() as found, sender(server, found.port, options) as one:
        assert [(one.send(body_for(server)).rejected) for _ in range(2)] == [0, 0]
        assert [series.total for series in found.stored] == [total, total]
        assert {request.headers["authorization"] for request in found.requests} == {"Bearer geheim"}
        assert all(request.headers["user-agent"].startswith("perf-offcpu/") for request in found.requests)


@pytest.mark.parametrize("server", SERVERS)
def test_a_message_against_the_rules_is_refused(server: str) -> None:
    headers, body = SERVERS[server].headers, b"\x0a\x03abc"
    body = b"{}}" if "json" in headers["Content-Type"] else body
    body = gzip.compress(body) if "Content-Encoding" in headers else body
    with receiver() as found:
        problem = failure(server, found.port, body)
        assert type(problem) is Refused and f"{server}=http://127.0.0.1:{found.port}: 400 Bad Request: " in str(problem)


@pytest.mark.parametrize(("status", "kind"), [
    (301, ServerRefused), (307, ServerRefused), (400, Refused), (401, ServerRefused), (403, ServerRefused),
    (404, ServerRefused), (408, RetryLater), (413, Refused), (415, Refused), (422, Refused), (429, RetryLater),
    (500, RetryLater), (501, ServerRefused), (502, RetryLater), (503, RetryLater), (504, RetryLater),
])  # fmt: skip
def test_statuses(status: int, kind: type[PushError]) -> None:
    with receiver(None, Reply(status, body=b"why")) as found:
        problem = failure("otlp", found.port)
        assert type(problem) is kind and str(status) in str(problem)


def test_redirects_carry_no_credentials() -> None:
    options = SendOptions((("Authorization", "Bearer geheim"),))
    with receiver() as other:
        where = f"http://127.0.0.1:{other.port}/v1development/profiles"
        with receiver(None, Reply(307, {"Location": where})) as found:
            problem = failure("otlp", found.port, options=options)
        assert isinstance(problem, ServerRefused) and f"redirected to {where}" in str(problem)
        assert other.requests == []


def test_nobody_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    problem = failure("parca", port)
    assert isinstance(problem, RetryLater)
    assert str(problem) == f"parca=http://127.0.0.1:{port}: Connection refused"


def drip(connection: socket.socket) -> None:
    read_request(connection)
    for byte in b"HTTP/1.1 200 OK\r\nX: " + b"x" * 1_000_000:
        connection.send(bytes([byte]))
        time.sleep(0.02)


def silent(connection: socket.socket) -> None:
    time.sleep(100 * PATIENCE)


@pytest.mark.parametrize("behave", [drip, silent])
def test_slow_servers(behave: Callable[[socket.socket], None]) -> None:
    with raw_server(behave) as port:
        problem = failure("otlp", port, options=SHORT)
        assert isinstance(problem, RetryLater) and "no answer in 0.3 s" in str(problem)


def test_the_addresses_of_a_name_share_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full, contextlib.ExitStack() as stack:
        for _ in range(4):  # then the kernel drops further ones
            waiting = stack.enter_context(contextlib.closing(socket.socket()))
            waiting.setblocking(False)
            waiting.connect_ex(full.getsockname())
        (place,) = socket.getaddrinfo("127.0.0.1", full.getsockname()[1], type=socket.SOCK_STREAM)
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [place] * 100)
        begin = time.monotonic()
        problem = failure("otlp", full.getsockname()[1], options=SendOptions(timeout_s=1))
        assert isinstance(problem, RetryLater) and "no answer in 1 s" in str(problem)
        assert time.monotonic() - begin < 20 * PATIENCE


@pytest.mark.parametrize("data", [
    b"\xff" * 100_000, b"\x15\x03\x03\x00\x02\x02\x28", b"\x15\x03\x03\x00\x02\x01\x5a" * 100,
    b"\x16\x03\x03\xff\xff" + b"a" * 70_000, b"\x16\x03\x03\x3f\xff\x02\xff\xff\xff" + b"a" * 70_000, b"",
], ids=["garbage", "alert", "warnings", "long record", "long hello", "silence"])  # fmt: skip
def test_handshakes_of_tls_that_come_to_nothing(data: bytes) -> None:
    def behave(connection: socket.socket) -> None:
        connection.recv(1 << 16)
        connection.sendall(data)
        time.sleep(0 if data else 100 * PATIENCE)

    with raw_server(behave) as port:
        with pytest.raises(RetryLater if not data else PushError) as problem:
            send("otlp", port, b"x", SHORT, "https://localhost")
        assert ("TLS: " if data else "no answer in 0.3 s") in str(problem.value)


@pytest.mark.parametrize("data", [
    b"", *(b"HTTP/1.1", b"HTTP/1.1 200", b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 1"),
    b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc",
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab", b"SSH-2.0-OpenSSH_9.2\r\n", b"\0" * 9,
])  # fmt: skip
def test_answers_that_break_off(data: bytes) -> None:
    def behave(connection: socket.socket) -> None:
        read_request(connection)
        connection.sendall(data)
        connection.shutdown(socket.SHUT_RDWR)

    with raw_server(behave) as port:
        assert isinstance(failure("otlp", port), RetryLater)


def test_an_answer_before_the_message_was_read() -> None:
    """Servers that limit the size answer and close; their reason must not be lost for a broken pipe."""

    def behave(connection: socket.socket) -> None:
        connection.recv(100)
        connection.sendall(b"HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        time.sleep(0.2)
        connection.close()

    with raw_server(behave) as port:
        problem = failure("otlp", port, bytes(32 << 20))
        assert type(problem) is Refused and "413" in str(problem)


def test_a_connection_that_was_closed_meanwhile_is_opened_again() -> None:
    bodies: list[bytes] = []

    def behave(connection: socket.socket) -> None:
        bodies.append(read_request(connection))
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        connection.shutdown(socket.SHUT_RDWR)

    with raw_server(behave) as port, sender("otlp", port) as one:
        for body in (b"a", b"b", b"c"):
            one.send(body)
        assert bodies == [b"a", b"b", b"c"]


def test_texts_of_servers_are_escaped_and_bounded() -> None:
    evil = b"\x1b]0;owned\x07 \xff" + b"x" * 100_000
    with receiver(None, Reply(400, {"Content-Type": "text/plain"}, evil)) as found:
        text = str(failure("otlp", found.port))
        assert text.isprintable() and "\\x1b]0;owned" in text and len(text) < 500
    with receiver(None, Reply(302, {"Location": "\x1b[2J" + "x" * 9000})) as found:
        assert str(failure("otlp", found.port)).isprintable()


@pytest.mark.parametrize(("body", "rejected", "text"), [
    (b"", 0, ""), (b"\x0a\x00", 0, ""), (b"\x0a\x08\x08\x01\x12\x04nope", 1, "nope"),
    (b"\x0a\x06\x12\x04hint", 0, "hint"), (b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\x7f", 0, ""),
    (b"\xff" * 99, 0, ""), (b"\x08", 0, ""), (b"<html>", 0, ""),
])  # fmt: skip
def test_partial_success(body: bytes, rejected: int, text: str) -> None:
    with receiver(None, Reply(200, {"Content-Type": "application/x-protobuf"}, body)) as found:
        answer = send("otlp", found.port)
        assert (answer.rejected, answer.text) == (rejected, text)


def test_tls(tmp_path: Path) -> None:
    make_certificates(tmp_path)
    ca = (tmp_path / "ca.pem").read_text()
    with receiver(server_context(tmp_path)) as found:
        send("otlp", found.port, body_for("otlp"), SendOptions(ca=ca), "https://localhost")
        assert len(found.stored) == 1
        for host, options, reason in (
            ("localhost", SendOptions(), "unable to get local issuer certificate"),
            ("127.0.0.1", SendOptions(ca=ca), "IP address mismatch"),
        ):
            with pytest.raises(ServerRefused, match=reason):
                send("otlp", found.port, b"x", options, f"https://{host}")
        with pytest.raises(PushError):  # plain HTTP to a server with TLS
            send("otlp", found.port, b"x", SHORT)
        assert len(found.requests) == 1
    with receiver() as plain, pytest.raises(ServerRefused, match="TLS"):
        send("otlp", plain.port, b"x", None, "https://localhost")
    for text in ("nonsense", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", "ä"):
        with pytest.raises(UsageError, match="--push-ca"):
            open_sender(parse_target("otlp=https://host"), SendOptions(ca=text))


def test_again_until_the_server_takes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perf_offcpu.push.sender.FIRST_PAUSE_S", 0.1)
    pauses: list[float] = []
    replies = [Reply(503), Reply(429, {"Retry-After": "1"}), Reply(500)]
    with receiver(None, *replies) as found, sender("otlp", found.port) as one:
        send_until(one, body_for("otlp"), time.monotonic() + 3600, lambda _problem, pause: pauses.append(pause))
        assert len(found.stored) == 1 and len(found.requests) == 4
    assert 0.05 <= pauses[0] <= 0.1 and pauses[1] == 1 and 0.2 <= pauses[2] <= 0.4


def test_not_after_the_deadline() -> None:
    with receiver(None, Reply(503, {"Retry-After": "60"})) as found, sender("otlp", found.port) as one:
        with pytest.raises(RetryLater, match="503"):
            send_until(one, b"x", time.monotonic() + 30, lambda *_: None)
        assert len(found.requests) == 1
