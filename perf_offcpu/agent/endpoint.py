# SPDX-License-Identifier: Apache-2.0
"""Serve metrics and health on the loopback: GET /metrics and GET /health, nothing else.

Any user of the machine can connect, so answers hold numbers alone, and no client holds up another one: a
single thread reads requests as they arrive, a connection lives a few seconds, and of too many the oldest is
closed. A client that asks at once is answered before newer connections can displace it.

`Notifier` reports to systemd as sd_notify(3) does: a datagram of NAME=VALUE lines to the socket that
$NOTIFY_SOCKET names.
"""

import contextlib
import os
import re
import selectors
import socket
import threading
import time
from collections.abc import Callable
from http import HTTPStatus
from typing import Final

from perf_offcpu.collect.system.privileges import keep_rights
from perf_offcpu.errors import UsageError
from perf_offcpu.structs import mutable

ADDRESS: Final = "127.0.0.1"
_MOST_CLIENTS: Final = 64
_PATIENCE_S: Final = 5.0  # time from the connection to the end of the answer
_LONGEST_REQUEST: Final = 1 << 14
_ACCEPT_QUEUE: Final = 128
_REQUEST: Final = re.compile(rb"(\S+) (/[^\s?]*)\S* HTTP/1\.\d\r?\n")
_END: Final = re.compile(rb"\r?\n\r?\n")


@mutable
class _Client:
    socket: socket.socket
    deadline: float  # of time.monotonic()
    request: bytes = b""
    answer: bytes = b""  # the part that is not sent yet
    is_answered: bool = False


class Endpoint:
    """Serves /metrics and /health by HTTP in a thread, on a port; 0: any free port. `metrics` returns the text of
    /metrics, `health` the present failure as a sentence, "" for none, and `lack` what is less than wanted without one.
    Raise UsageError if the port is taken."""

    def __init__(
        self, port: int, metrics: Callable[[], str], health: Callable[[], str], lack: Callable[[], str] = str
    ) -> None:
        self._pages: dict[bytes, Callable[[], tuple[int, str]]] = {
            b"/metrics": lambda: (200, metrics()),
            b"/health": lambda: (503, f"{problem}\n") if (problem := health()) else (200, f"{lack() or 'ok'}\n"),
        }
        try:
            self._listener = socket.create_server((ADDRESS, port), backlog=_ACCEPT_QUEUE)
        except OSError as problem:
            raise UsageError(
                f"--port {port}: {ADDRESS}:{port}: {problem.strerror}; choose another (--port N) or none (--port 0)"
            ) from None
        self.port = int(self._listener.getsockname()[1])
        self._clients: dict[socket.socket, _Client] = {}  # oldest first
        self._stop, stopped = socket.socketpair()
        self._selector = selectors.DefaultSelector()
        for waited in (self._listener, stopped):
            waited.setblocking(False)
            self._selector.register(waited, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._serve, args=(stopped,), daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop the server and its thread."""
        self._stop.close()
        self._thread.join()

    def _serve(self, stopped: socket.socket) -> None:
        keep_rights()
        while True:
            first = next(iter(self._clients.values()), None)
            patience_s = None if first is None else max(0.0, first.deadline - time.monotonic())
            ready = [key.fileobj for key, _ in self._selector.select(patience_s)]
            if stopped in ready:
                break
            for client in [self._clients[key] for key in ready if key in self._clients]:
                self._go_on(client)
            if self._listener in ready:
                self._accept()
            while self._clients and next(iter(self._clients.values())).deadline <= time.monotonic():
                self._drop_oldest()
        for connection in (*self._clients, self._listener, stopped):
            connection.close()
        self._selector.close()

    def _accept(self) -> None:
        try:
            accepted, _ = self._listener.accept()
        except BlockingIOError:  # the client is gone
            return
        except OSError:  # too many open files
            self._drop_oldest()
            time.sleep(0.1)
            return
        if len(self._clients) >= _MOST_CLIENTS:
            self._drop_oldest()
        accepted.setblocking(False)
        client = _Client(accepted, time.monotonic() + _PATIENCE_S)
        self._clients[accepted] = client
        self._selector.register(accepted, selectors.EVENT_READ)
        self._go_on(client)  # its request is mostly there already

    def _go_on(self, client: _Client) -> None:
        """Read a client's request, or write its answer, as far as that does not block."""
        try:
            if not client.is_answered:
                part = client.socket.recv(_LONGEST_REQUEST)
                client.request += part
                if not part or len(client.request) > _LONGEST_REQUEST:
                    return self._drop(client)
                if not _END.search(client.request):
                    return None
                client.answer, client.is_answered = self._answer(client.request), True
            if client.answer:
                client.answer = client.answer[client.socket.send(client.answer) :]
                if client.answer:
                    self._selector.modify(client.socket, selectors.EVENT_WRITE)
                    return None
                self._selector.modify(client.socket, selectors.EVENT_READ)
                client.socket.shutdown(socket.SHUT_WR)
            elif not client.socket.recv(_LONGEST_REQUEST):  # an end with unread bytes would lose the answer
                self._drop(client)
        except BlockingIOError:
            pass
        except OSError:
            self._drop(client)

    def _answer(self, request: bytes) -> bytes:
        match = _REQUEST.match(request)
        status, text = 400, "GET /metrics or /health\n"
        if match and match[1] != b"GET":
            status = 501
        elif match:
            try:
                page = self._pages.get(match[2])
                status, text = page() if page else (404, "/metrics and /health\n")
            except Exception as problem:  # the thread answers others
                status, text = 500, f"{type(problem).__name__}\n"
        body = text.encode("utf-8", "backslashreplace")
        head = (
            f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\n"
            "Content-Type: text/plain; version=0.0.4; charset=utf-8\r\n"
            f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        )
        return head.encode() + body

    def _drop_oldest(self) -> None:
        if self._clients:
            self._drop(next(iter(self._clients.values())))

    def _drop(self, client: _Client) -> None:
        self._selector.unregister(client.socket)
        del self._clients[client.socket]
        client.socket.close()


class Notifier:
    """Sends messages to the service manager (sd_notify); without a manager nothing is sent."""

    def __init__(self) -> None:
        self._address = os.environ.pop("NOTIFY_SOCKET", "")
        pid, usec = os.environ.pop("WATCHDOG_PID", ""), os.environ.pop("WATCHDOG_USEC", "")
        is_watched = usec.isdigit() and pid in ("", str(os.getpid()))
        self.watchdog_s = int(usec) / 1e6 if is_watched else 0.0  # `alive` has to be called within it; 0 for none
        self._alive_at = 0.0

    def send(self, *lines: str) -> None:
        """Send lines such as `READY=1`; a manager that refuses them is no error."""
        if not self._address.startswith(("/", "@")):
            return
        address = f"\0{self._address[1:]}" if self._address[0] == "@" else self._address
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as out:
            out.sendto("\n".join(lines).encode(), address)

    def reloading(self) -> None:
        """Announce a reload of the configuration; READY=1 announces its end (Type=notify-reload)."""
        self.send("RELOADING=1", f"MONOTONIC_USEC={time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000}")

    def alive(self) -> None:
        """Report that the agent is alive, three times in each interval of the watchdog."""
        if self.watchdog_s and time.monotonic() - self._alive_at >= self.watchdog_s / 3:
            self._alive_at = time.monotonic()
            self.send("WATCHDOG=1")
