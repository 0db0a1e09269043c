# SPDX-License-Identifier: Apache-2.0
"""HTTP servers on real sockets: one that takes what Pyroscope, Parca and a collector take, and bad ones."""

import contextlib
import gzip
import http.client
import json
import socket
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from builders.push import rules
from builders.push.published import Malformed, parse
from builders.push.rules import Rejected, Series
from google.protobuf import json_format


@dataclass
class Reply:
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""


@dataclass
class Request:
    path: str
    headers: dict[str, str]
    body: bytes


@dataclass
class Receiver:
    """Requests that came, and what the rules made of them."""

    port: int = 0
    requests: list[Request] = field(default_factory=list)
    stored: list[Series] = field(default_factory=list)
    replies: list[Reply] = field(default_factory=list)
    """Answers to give first, before any rule is looked at."""

    def answer(self, request: Request) -> Reply:
        self.requests.append(request)
        if self.replies:
            return self.replies.pop(0)
        if request.path not in ROUTES:
            return Reply(404, {"Content-Type": "text/plain; charset=utf-8"}, b"404 page not found\n")
        needed, take = ROUTES[request.path]
        if wrong := {name for name, value in needed.items() if request.headers.get(name) != value}:
            return Reply(415, body=str(wrong).encode())
        try:
            self.stored += take(request.body)
        except (Rejected, Malformed, json_format.ParseError) as problem:
            text = {"code": "invalid_argument", "message": str(problem)}
            return Reply(400, {"Content-Type": "application/json"}, json.dumps(text).encode())
        kind = needed["content-type"]
        return Reply(200, {"Content-Type": kind}, b"{}" if kind == "application/json" else b"")


Route = tuple[dict[str, str], Callable[[bytes], list[Series]]]
ROUTES: dict[str, Route] = {
    "/push.v1.PusherService/Push": (
        {"content-type": "application/proto", "connect-protocol-version": "1"},
        rules.pyroscope_push,
    ),
    "/api/profiles/writeraw": (
        {"content-type": "application/json"},
        lambda body: rules.parca_write_raw(json_format.Parse(body, rules.WriteRawRequest())),
    ),
    "/v1development/profiles": (
        {"content-type": "application/x-protobuf", "content-encoding": "gzip"},
        lambda body: rules.otlp_export(gzip.decompress(body)),
    ),
}
METHODS: dict[str, Callable[[bytes], list[Series]]] = {
    "/opentelemetry.proto.collector.profiles.v1development.ProfilesService/Export": rules.otlp_export,
    "/parca.profilestore.v1alpha1.ProfileStoreService/WriteRaw": lambda body: rules.parca_write_raw(
        parse(rules.WriteRawRequest, body)
    ),
}
"""The calls of gRPC, and what is stored of a request."""


@contextlib.contextmanager
def receiver(context: ssl.SSLContext | None = None, *replies: Reply) -> Iterator[Receiver]:
    found = Receiver(replies=[*replies])

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            headers = {name.lower(): value for name, value in self.headers.items()}
            reply = found.answer(Request(self.path, headers, body))
            self.send_response(reply.status)
            for name, value in {"Content-Length": str(len(reply.body)), **reply.headers}.items():
                self.send_header(name, value)
            self.end_headers()
            with contextlib.suppress(ConnectionError):
                self.wfile.write(reply.body)

        def log_message(self, *_args: Any) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, *_args: Any) -> None:
            pass  # clients that do not trust the certificate hang up

    with Server(("127.0.0.1", 0), Handler) as server:
        if context is not None:
            server.socket = context.wrap_socket(server.socket, server_side=True)
        found.port = server.server_address[1]
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield found
        finally:
            server.shutdown()
            thread.join()


@contextlib.contextmanager
def raw_server(behave: Callable[[socket.socket], None]) -> Iterator[int]:
    """A server that treats each connection with a function, which gets the socket; yields the port."""
    listener = socket.create_server(("127.0.0.1", 0))
    open_: list[socket.socket] = []

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                open_.append(listener.accept()[0])
                threading.Thread(target=_behave, args=(behave, open_[-1]), daemon=True).start()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()
        for one in (listener, *open_):
            one.close()


def _behave(behave: Callable[[socket.socket], None], connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        behave(connection)


def read_request(connection: socket.socket) -> bytes:
    with connection.makefile("rb") as file:
        file.readline()
        return file.read(int(http.client.parse_headers(file)["Content-Length"]))


def make_certificates(directory: Path) -> None:
    """Make an authority (ca.pem) and a certificate that it signed (server.pem, server.key) with openssl."""

    def openssl(*words: str) -> None:
        subprocess.run(["openssl", *words], cwd=directory, check=True, capture_output=True)

    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    # Python 3.13 asks for the uses of keys and for their identifiers (VERIFY_X509_STRICT).
    uses = ("-addext", "keyUsage=critical,keyCertSign,cRLSign", "-subj", "/CN=Test CA", "-days", "2")
    openssl("req", "-x509", *key, "-keyout", "ca.key", "-out", "ca.pem", *uses)
    openssl("req", *key, "-keyout", "server.key", "-out", "server.csr", "-subj", "/CN=localhost")
    identifiers = "subjectKeyIdentifier=hash\nauthorityKeyIdentifier=keyid\n"
    (directory / "names").write_text(f"subjectAltName=DNS:localhost\n{identifiers}")
    signed = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2", "-extfile", "names")
    openssl("x509", "-req", "-in", "server.csr", *signed, "-out", "server.pem")


def server_context(directory: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(directory / "server.pem", directory / "server.key")
    return context
