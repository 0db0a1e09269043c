# SPDX-License-Identifier: Apache-2.0
"""Serve metrics and health on the loopback: GET /metrics and GET /health, nothing else.

Any user of the machine can ask, so answers hold numbers alone, and slow or many clients delay nothing: each
request has a short time limit, and at most `_AT_ONCE` are answered at the same time.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar, Final

from perf_offcpu.errors import UsageError

ADDRESS: Final = "127.0.0.1"
_AT_ONCE: Final = 8
_PATIENCE_S: Final = 5.0


class Endpoint:
    """The server, in threads of its own.

    Args:
        port: 0 for any that is free.
        metrics: returns the text of /metrics.
        health: returns the present failure as a sentence; "" for none.

    Raises:
        UsageError: the port is taken.
    """

    def __init__(self, port: int, metrics: Callable[[], str], health: Callable[[], str]) -> None:
        class Handler(_Handler):
            pages: ClassVar = {"/metrics": lambda: (200, metrics()), "/health": lambda: _health(health())}

        try:
            self._server = _Server((ADDRESS, port), Handler)
        except OSError as problem:
            raise UsageError(
                f"--port {port}: {ADDRESS}:{port}: {problem.strerror}; "
                "choose another (--port N) or none (--port 0)"
            ) from None
        self.port = int(self._server.server_address[1])
        threading.Thread(target=self._server.serve_forever, args=(0.5,), daemon=True).start()

    def close(self) -> None:
        """Stop answering."""
        self._server.shutdown()
        self._server.server_close()


def _health(problem: str) -> tuple[int, str]:
    return (503, f"{problem}\n") if problem else (200, "ok\n")


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 16

    def __init__(self, *arguments: Any) -> None:
        self._free = threading.BoundedSemaphore(_AT_ONCE)
        super().__init__(*arguments)

    def server_bind(self) -> None:
        """Bind without asking name servers for the host's name, as HTTPServer does."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = ADDRESS, self.server_address[1]

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a thread, or close the connection if too many are answered."""
        if self._free.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print nothing about clients that disconnect."""


class _Handler(BaseHTTPRequestHandler):
    pages: ClassVar[dict[str, Callable[[], tuple[int, str]]]] = {}
    timeout = _PATIENCE_S
    server_version, sys_version = "perf-offcpu", ""

    def do_GET(self) -> None:
        """Answer a request."""
        page = self.pages.get(self.path.partition("?")[0])
        status, text = page() if page else (404, "/metrics and /health\n")
        body = text.encode("utf-8", "backslashreplace")
        with contextlib.suppress(OSError):
            self.send_response(status)
            self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Connection", "close")
            self.end_headers()
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: requests would fill the journal."""
