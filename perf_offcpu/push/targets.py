# SPDX-License-Identifier: Apache-2.0
"""Declare the kinds of servers that take profiles, and parse targets of the command line: `parca=grpc://host:7070`."""

import re
from collections.abc import Mapping
from typing import Final
from urllib.parse import SplitResult, urlsplit

from perf_offcpu.errors import UsageError
from perf_offcpu.push.messages import OTLP_GRPC, OTLP_HTTP, PARCA_GRPC, PARCA_HTTP, PYROSCOPE, Form
from perf_offcpu.structs import frozen
from perf_offcpu.text import printable


@frozen
class Server:
    """Kind of servers, such as Pyroscope."""

    word: str  # name of the kind in a target, before the equals sign
    path: str  # path of the request over HTTP
    whole_path: str  # `path` is appended to URLs that do not end with this
    headers: Mapping[str, str]  # of HTTP
    http: Form  # form of messages over HTTP
    grpc: Form | None = None  # form of messages over gRPC; None: the server has no gRPC
    method: str = ""  # path of the gRPC method
    export_answers: bool = False  # answers are OTLP's, with the number of refused profiles


SERVERS: Final = {
    server.word: server
    for server in (
        # Connect's unary call, api/push/v1/push.proto of https://github.com/grafana/pyroscope
        Server(
            "pyroscope",
            "/push.v1.PusherService/Push",
            "/Push",
            {"Content-Type": "application/proto", "Connect-Protocol-Version": "1"},
            PYROSCOPE,
        ),
        # the gateway of proto/parca/profilestore/v1alpha1/profilestore.proto, mounted by pkg/server/server.go of
        # https://github.com/parca-dev/parca
        Server(
            "parca",
            "/api/profiles/writeraw",
            "/profiles/writeraw",
            {"Content-Type": "application/json"},
            PARCA_HTTP,
            PARCA_GRPC,
            "/parca.profilestore.v1alpha1.ProfileStoreService/WriteRaw",
        ),
        # https://opentelemetry.io/docs/specs/otlp/#otlphttp-request
        Server(
            "otlp",
            "/v1development/profiles",
            "/profiles",
            {"Content-Type": "application/x-protobuf", "Content-Encoding": "gzip"},
            OTLP_HTTP,
            OTLP_GRPC,
            "/opentelemetry.proto.collector.profiles.v1development.ProfilesService/Export",
            export_answers=True,
        ),
    )
}
_PORTS = {"http": 80, "https": 443}
_HOST = re.compile(r"[A-Za-z0-9._-]+|[0-9A-Fa-f:.]+")
_PATH = re.compile(r"[A-Za-z0-9._~!$&'()*+,;=:@%/-]*")


@frozen
class Target:
    """Server to push to: its address, and the form of its messages."""

    server: Server
    url: str  # as given, without a slash at its end
    host: str
    port: int
    path: str  # path of the request over HTTP, or of the gRPC method
    form: Form
    is_grpc: bool
    is_tls: bool

    def __str__(self) -> str:
        """Return `pyroscope=https://host/path`, as given."""
        return f"{self.server.word}={self.url}"

    @property
    def address(self) -> str:
        """Return `host:port`, an IPv6 address in brackets."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_target(text: str) -> Target:
    """Parse a target `KIND=URL`; raise UsageError for other texts, and for URLs with query, user or fragment."""
    kind, equals, url = text.partition("=")
    if not equals or kind not in SERVERS:
        raise UsageError(f"'{printable(text)}' is not a push target: {', '.join(f'{word}=URL' for word in SERVERS)}")
    server = SERVERS[kind]
    parts, port = _split(server, url)
    grpc = server.grpc if parts.scheme.startswith("grpc") else None
    path = parts.path.rstrip("/")
    if grpc and (path or not port):
        raise UsageError(f"{kind}={printable(url)}: gRPC takes {parts.scheme}://HOST:PORT, without a path")
    if not path.endswith(server.whole_path):
        path += server.path
    return Target(
        server,
        url.rstrip("/"),
        parts.hostname or "",
        port or _PORTS[parts.scheme],
        server.method if grpc else path,
        grpc or server.http,
        grpc is not None,
        parts.scheme in {"https", "grpcs"},
    )


def _split(server: Server, url: str) -> tuple[SplitResult, int | None]:
    """Split a URL; return its parts and port (None: not given). Raise UsageError if the server has no such URLs."""
    shown = f"{server.word}={printable(url)}"
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as problem:
        raise UsageError(f"{shown}: {problem}") from None
    if parts.username is not None or parts.password is not None:  # without showing it
        raise UsageError(
            "a push target's URL holds a user or password, which others can see in the list of processes: "
            "put an Authorization header into a file and name it with --push-header-file"
        )
    schemes = ["http", "https", *(["grpc", "grpcs"] if server.grpc else [])]
    if parts.scheme not in schemes:
        raise UsageError(f"{shown}: {server.word} takes URLs with {', '.join(f'{scheme}://' for scheme in schemes)}")
    if parts.query or parts.fragment or not _HOST.fullmatch(parts.hostname or "") or port == 0:
        raise UsageError(f"{shown}: not a URL with a host and, perhaps, port and path alone")
    if not _PATH.fullmatch(parts.path) or printable(url) != url or url.split() != [url]:
        raise UsageError(f"{shown}: the path has characters that need %-escapes")
    return parts, port
