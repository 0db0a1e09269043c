# SPDX-License-Identifier: Apache-2.0
"""Serve metrics and health: GET /metrics and GET /health, nothing else.

On the loopback any user of the machine can connect, so answers hold numbers alone, and no client holds up another one:
a single thread reads requests as they arrive, a connection lives a few seconds, and of too many the oldest is closed,
on a Unix socket the oldest of the user who has most. A client that asks at once is answered before newer connections
can displace it. Other addresses need a token, which each request has to show."""

import contextlib
import errno
import hmac
import ipaddress
import os
import re
import selectors
import socket
import stat
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable
from http import HTTPStatus
from typing import Final

from perf_offcpu.collect.system.privileges import keep_rights
from perf_offcpu.errors import UsageError
from perf_offcpu.files import read_regular
from perf_offcpu.structs import mutable

ANOTHER: Final = "choose another place (--listen, --port N) or none (--port 0)"
_UNIX: Final = "unix:"
_CREDENTIALS: Final = struct.Struct("iII")  # struct ucred: pid, uid, gid
_MOST_CLIENTS: Final = 64
_PATIENCE_S: Final = 5.0  # time from the connection to the end of the answer
_LONGEST_REQUEST: Final = 1 << 14
_ACCEPT_QUEUE: Final = 4096  # a client that waits for its turn there is behind others for less than a second
_REQUEST: Final = re.compile(rb"(\S+) (/[^\s?]*)\S* HTTP/1\.\d\r?\n")
_END: Final = re.compile(rb"\r?\n\r?\n")
_SHOWN: Final = re.compile(rb"\nauthorization:[ \t]*bearer[ \t]+([!-~]+)[ \t]*\r?\n", re.IGNORECASE)
_TOKEN: Final = re.compile(rb"[!-~]{16,4096}")
_ADDRESS: Final = re.compile(r"\[?([0-9a-fA-F.:]+?)\]?:(\d{1,5})", re.ASCII)


def is_open_to_others(where: str) -> bool:
    """Return True if other machines can reach `unix:PATH` or `ADDRESS:PORT`; raise UsageError for any other text."""
    if where.startswith(_UNIX):
        return False
    match = _ADDRESS.fullmatch(where)
    try:
        address = ipaddress.ip_address(match[1] if match and int(match[2]) < 1 << 16 else "")
    except ValueError:
        raise UsageError(f"--listen {where}: give unix:PATH, or ADDRESS:PORT as 0.0.0.0:9811 or [::]:9811") from None
    return not address.is_loopback


def listen_at(where: str) -> socket.socket:
    """Return a socket that listens at `unix:PATH` or `ADDRESS:PORT`; raise OSError if that fails. A Unix socket is for
    its owner and group; one that a killed agent left is replaced."""
    if not where.startswith(_UNIX):
        host, _, port = where.rpartition(":")
        family = socket.AF_INET6 if host.startswith("[") else socket.AF_INET
        return socket.create_server((host.strip("[]"), int(port)), family=family, backlog=_ACCEPT_QUEUE)
    path, listener = where.removeprefix(_UNIX), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if listener.connect_ex(path) == 0:
            raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
        with contextlib.suppress(FileNotFoundError):
            if stat.S_ISSOCK(os.lstat(path).st_mode):  # direct: asks, and opens nothing
                os.unlink(path)  # direct: a socket that nothing listens at
        listener.bind(path)
        os.chmod(path, 0o660)  # direct: the socket made by this call
        listener.listen(_ACCEPT_QUEUE)
    except OSError:
        listener.close()
        raise
    return listener


def leave(listener: socket.socket) -> None:
    """Close a socket of `listen_at`, and remove the file of a Unix socket."""
    path = listener.getsockname() if listener.family == socket.AF_UNIX else ""
    listener.close()
    if path:
        with contextlib.suppress(OSError):
            os.unlink(path)  # direct: made by `listen_at`


def read_token(path: str) -> bytes:
    """Read the token in the file `path` ("": none, returns b""). Raise UsageError if the file cannot be read, or the
    token is too short or not ASCII without spaces."""
    try:
        token = read_regular(path, 1 << 16).strip() if path else b""
    except OSError as problem:
        raise UsageError(f"--token-file {path}: {problem.strerror}") from None
    if path and not _TOKEN.fullmatch(token):
        raise UsageError(f"--token-file {path}: not a token: 16 characters or more, in ASCII, without spaces")
    return token


@mutable
class _Client:
    """Connection of a client, and how far its request is."""

    socket: socket.socket
    uid: int  # of the process at the other end of a Unix socket; -1 for others
    deadline: float  # of time.monotonic()
    request: bytes = b""
    answer: bytes = b""  # the part that is not sent yet
    is_answered: bool = False


class Endpoint:
    """HTTP server of /metrics and /health, in a thread, at the address `where` (`listen_at`). `metrics`: returns the
    text of /metrics; `health`: returns what fails at present, "" for nothing; `lack`: returns how the service is
    degraded, for /health if nothing fails; `token`: of requests, b"" none. Raise UsageError if it cannot listen."""

    def __init__(
        self,
        where: str,
        metrics: Callable[[], str],
        health: Callable[[], str],
        lack: Callable[[], str] = str,
        token: bytes = b"",
    ) -> None:
        self.token = token
        self._pages: dict[bytes, Callable[[], tuple[int, str]]] = {
            b"/metrics": lambda: (200, metrics()),
            b"/health": lambda: (503, f"{problem}\n") if (problem := health()) else (200, f"{lack() or 'ok'}\n"),
        }
        try:
            self._listener = listen_at(where)
        except OSError as problem:
            raise UsageError(f"{where}: {problem.strerror or problem}; {ANOTHER}") from None
        self.port = 0 if where.startswith(_UNIX) else int(self._listener.getsockname()[1])
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
        """Serve clients, in the thread, until the other end of `stopped` is closed."""
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
            while (oldest := next(iter(self._clients.values()), None)) and oldest.deadline <= time.monotonic():
                self._drop(oldest)
        for connection in (*self._clients, stopped):
            connection.close()
        leave(self._listener)
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
        client = _Client(accepted, _uid_of(accepted), time.monotonic() + _PATIENCE_S)
        self._clients[accepted] = client
        self._selector.register(accepted, selectors.EVENT_READ)
        self._go_on(client)  # its request is mostly there already

    def _go_on(self, client: _Client) -> None:
        """Read the request of a client, or write its answer, as far as that does not block."""
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
        status, text, more = 400, "GET /metrics or /health\n", ""
        shown = _SHOWN.search(request)
        if self.token and not hmac.compare_digest(shown[1] if shown else b"", self.token):
            status, text, more = 401, "the token is missing or wrong\n", "WWW-Authenticate: Bearer\r\n"
        elif match and match[1] != b"GET":
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
            f"{more}Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        )
        return head.encode() + body

    def _drop_oldest(self) -> None:
        """Close the oldest connection of the user who has most."""
        users = Counter(client.uid for client in self._clients.values())
        for uid, _ in users.most_common(1):
            self._drop(next(client for client in self._clients.values() if client.uid == uid))

    def _drop(self, client: _Client) -> None:
        self._selector.unregister(client.socket)
        del self._clients[client.socket]
        client.socket.close()


def _uid_of(accepted: socket.socket) -> int:
    """Return the user id of the client of a Unix socket; -1 for other sockets."""
    if accepted.family != socket.AF_UNIX:
        return -1
    credentials = accepted.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return int(_CREDENTIALS.unpack(credentials)[1])


class Notifier:
    """Sender of messages to the service manager, as sd_notify(3): a datagram of NAME=VALUE lines to the socket that
    $NOTIFY_SOCKET names. Without that variable nothing is sent."""

    def __init__(self) -> None:
        self._address = os.environ.pop("NOTIFY_SOCKET", "")
        pid, usec = os.environ.pop("WATCHDOG_PID", ""), os.environ.pop("WATCHDOG_USEC", "")
        is_watched = usec.isdigit() and pid in ("", str(os.getpid()))
        self.watchdog_s = int(usec) / 1e6 if is_watched else 0.0  # longest time between calls of `alive`; 0 no limit
        self._alive_at = 0.0

    def send(self, *lines: str) -> None:
        """Send lines such as `READY=1`; errors are ignored."""
        if not self._address.startswith(("/", "@")):
            return
        address = f"\0{self._address[1:]}" if self._address[0] == "@" else self._address
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as out:
            out.sendto("\n".join(lines).encode(), address)

    def reloading(self) -> None:
        """Announce a reload of the configuration to systemd; READY=1 announces its end (Type=notify-reload)."""
        self.send("RELOADING=1", f"MONOTONIC_USEC={time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000}")

    def alive(self) -> None:
        """Tell systemd's watchdog that the agent is alive, if a third of its interval is over since the last time."""
        if self.watchdog_s and time.monotonic() - self._alive_at >= self.watchdog_s / 3:
            self._alive_at = time.monotonic()
            self.send("WATCHDOG=1")
