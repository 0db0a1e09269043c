# SPDX-License-Identifier: Apache-2.0
"""Send messages over HTTP/1.1: Pyroscope's Push, Parca's gateway, OTLP/HTTP. Redirects are not followed, because they
would send credentials to another address. A whole request has a time limit: a socket's starts again with each byte."""

import http.client
import socket
import ssl
import threading
import time
from contextlib import suppress
from typing import Any

from perf_offcpu.push.answers import MOST_BYTES, Answer, error_text, export_answer, retry_after_s, shown
from perf_offcpu.push.sender import PushError, Refused, RetryLater, SendOptions, ServerRefused, tls_context
from perf_offcpu.push.targets import Target
from perf_offcpu.resources import version

_LATER = frozenset({408, 425, 429})
_NEVER = frozenset({501, 505})  # status codes of 5xx for a server that lacks the method or the version of HTTP
_SERVER = frozenset({401, 403, 404, 405, 407, 421, *_NEVER})
"""Status codes about the address or the credentials, not about the message."""


class _HeadReader:
    """File from which http.client reads the head of an answer. http.client takes the end of the connection for the end
    of the head, and so a cut `HTTP/1.1 200` for success; this class raises IncompleteRead instead."""

    def __init__(self, file: Any) -> None:
        self.file, self._lines = file, 0

    def readline(self, limit: int = -1) -> bytes:
        line: bytes = self.file.readline(limit)
        if not line.endswith(b"\n") and len(line) != limit and (line or self._lines):
            raise http.client.IncompleteRead(line)
        self._lines += 1
        return line

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)


class _Response(http.client.HTTPResponse):
    """HTTP response that raises IncompleteRead for an incomplete head."""

    def begin(self) -> None:
        """Read the head of the response."""
        self.fp: Any = _HeadReader(self.fp)
        super().begin()
        self.fp = self.fp and self.fp.file


class HttpSender:
    """`Sender` over a connection to an HTTP server, which is kept open."""

    def __init__(self, target: Target, options: SendOptions) -> None:
        self._target, self._options = target, options
        self._context = tls_context(options.ca) if target.is_tls else None
        self._connection: http.client.HTTPConnection | None = None

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def send(self, body: bytes) -> Answer:
        """Send a message and return the server's answer; raise PushError if it is not accepted."""
        try:
            return self._send(body)
        except PushError:
            raise
        except ssl.SSLCertVerificationError as problem:
            raise self._failure(ServerRefused, f"its certificate: {problem.verify_message}") from None
        except ssl.SSLError as problem:
            kind = RetryLater if isinstance(problem, ssl.SSLEOFError | ssl.SSLZeroReturnError) else ServerRefused
            raise self._failure(kind, f"TLS: {problem.reason or problem}") from None
        except TimeoutError:
            raise self._failure(RetryLater, f"no answer in {self._options.timeout_s:g} s") from None
        except (OSError, http.client.HTTPException) as problem:
            text = problem.strerror if isinstance(problem, OSError) and problem.strerror else ""
            raise self._failure(RetryLater, text or "the connection broke off") from None

    def _failure(self, kind: type[PushError], text: str) -> PushError:
        """Close the connection, which may be in the middle of an answer; return an error with the target and a text."""
        self.close()
        return kind(f"{self._target}: {shown(text.encode('utf-8', 'replace'))}")

    def _send(self, body: bytes) -> Answer:
        """Send a message on the open connection, or on a new one if the server has closed it; return the answer."""
        if self._connection is not None:
            try:
                return self._exchange(self._connection, body)
            except (ConnectionError, ssl.SSLEOFError, ssl.SSLZeroReturnError):
                self.close()
        self._connection = self._connect()
        return self._exchange(self._connection, body)

    def _connect(self) -> http.client.HTTPConnection:
        server: Any = {"host": self._target.host, "port": self._target.port, "timeout": self._options.timeout_s}
        connection = http.client.HTTPConnection(**server)
        if self._context is not None:
            connection = http.client.HTTPSConnection(**server, context=self._context)
        connection.response_class = _Response
        connection._create_connection = _connect_to  # type: ignore[attr-defined]
        return connection

    def _exchange(self, connection: http.client.HTTPConnection, body: bytes) -> Answer:
        """Send a message and read the answer; raise TimeoutError if both take longer than the limit."""
        expired = threading.Event()
        if connection.sock is None:
            connection.connect()
        timer = threading.Timer(self._options.timeout_s, _cut, (connection.sock, expired))
        timer.daemon = True
        timer.start()
        try:
            return self._request(connection, body)
        finally:
            timer.cancel()
            if expired.is_set():  # what came before the end may look like an answer
                raise TimeoutError

    def _request(self, connection: http.client.HTTPConnection, body: bytes) -> Answer:
        own = {"User-Agent": f"perf-offcpu/{version()}", "Accept-Encoding": "identity"}
        headers = {**own, **dict(self._options.headers), **self._target.server.headers}
        try:
            connection.request("POST", self._target.path, body, headers)
        except (BrokenPipeError, ConnectionResetError):
            with suppress(OSError, http.client.HTTPException):  # it may have answered before it had read all
                return self._judge(connection.getresponse())
            raise
        return self._judge(connection.getresponse())

    def _judge(self, response: http.client.HTTPResponse) -> Answer:
        """Return the Answer in a successful response; raise the PushError that another status means."""
        data = response.read(MOST_BYTES)
        if response.length and len(data) < MOST_BYTES:
            raise http.client.IncompleteRead(data)
        if response.will_close or not response.isclosed():  # more follows: not worth reading
            self.close()
        kind = (response.getheader("Content-Type") or "").partition(";")[0].strip().lower()
        status = response.status
        if 200 <= status < 300:
            is_export = self._target.server.export_answers and kind == "application/x-protobuf"
            return export_answer(data) if is_export else Answer()
        where = shown((response.getheader("Location") or "").encode("latin-1", "replace"))
        reason = f"redirected to {where or 'nowhere'}" if 300 <= status < 400 else error_text(data, kind)
        text = f"{self._target}: {status} {shown(response.reason.encode())}" + (f": {reason}" if reason else "")
        if status in _LATER or (status >= 500 and status not in _NEVER):
            after_s = retry_after_s(response.getheader("Retry-After"), time.time())
            raise RetryLater(text, after_s, was_answered=True)
        raise (ServerRefused if status in _SERVER or status < 400 else Refused)(text)


def _connect_to(address: tuple[str, int], timeout_s: float, _: object = None) -> socket.socket:
    """Connect to the first of the addresses of (host, port) that answers. All share `timeout_s`;
    socket.create_connection() would allow it for each address, of which a name may have thousands."""
    until_s, problem = time.monotonic() + timeout_s, OSError("the name has no address")
    candidates = socket.getaddrinfo(*address, type=socket.SOCK_STREAM)
    for left, (family, kind, protocol, _, candidate) in zip(range(len(candidates), 0, -1), candidates, strict=True):
        sock = socket.socket(family, kind, protocol)
        sock.settimeout(max((until_s - time.monotonic()) / left, 1e-3))
        try:
            sock.connect(candidate)
        except OSError as error:
            sock.close()
            problem = error
        else:
            sock.settimeout(timeout_s)
            return sock
    raise problem


def _cut(sock: socket.socket, expired: threading.Event) -> None:
    """Set `expired` and shut down the socket of a request that takes too long, so that its reader gets an error."""
    expired.set()
    with suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)
