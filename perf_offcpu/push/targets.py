# SPDX-License-Identifier: Apache-2.0
"""Parse push targets: `pyroscope=https://host/path`, `parca=grpc://host:7070`, `otlp=http://host:4318`."""

from __future__ import annotations

import enum
import re
from urllib.parse import SplitResult, urlsplit

from perf_offcpu.errors import UsageError
from perf_offcpu.structs import frozen
from perf_offcpu.text import printable


class Server(enum.Enum):
    """Kinds of servers; the value is the word before the equals sign of a target."""

    PYROSCOPE = "pyroscope"
    PARCA = "parca"
    OTLP = "otlp"


_SCHEMES = {
    Server.PYROSCOPE: ("http", "https"),
    Server.PARCA: ("http", "https", "grpc", "grpcs"),
    Server.OTLP: ("http", "https", "grpc", "grpcs"),
}
_PATHS = {
    # Connect's unary call, api/push/v1/push.proto of https://github.com/grafana/pyroscope
    Server.PYROSCOPE: "/push.v1.PusherService/Push",
    # the gateway of proto/parca/profilestore/v1alpha1/profilestore.proto, mounted by pkg/server/server.go of
    # https://github.com/parca-dev/parca
    Server.PARCA: "/api/profiles/writeraw",
    # https://opentelemetry.io/docs/specs/otlp/#otlphttp-request
    Server.OTLP: "/v1development/profiles",
}
_WHOLE_PATHS = {Server.PYROSCOPE: "/Push", Server.PARCA: "/profiles/writeraw", Server.OTLP: "/profiles"}
_METHODS = {
    Server.PARCA: "/parca.profilestore.v1alpha1.ProfileStoreService/WriteRaw",
    Server.OTLP: "/opentelemetry.proto.collector.profiles.v1development.ProfilesService/Export",
}
_PORTS = {"http": 80, "https": 443}
_HOST = re.compile(r"[A-Za-z0-9._-]+|[0-9A-Fa-f:.]+")
_PATH = re.compile(r"[A-Za-z0-9._~!$&'()*+,;=:@%/-]*")


@frozen
class Target:
    """A server that accepts profiles."""

    server: Server
    url: str  # as given, without a slash at its end; for messages to people
    host: str
    port: int
    path: str  # of HTTP the path of the request, of gRPC that of the method
    is_grpc: bool
    is_tls: bool

    def __str__(self) -> str:
        """Return `pyroscope=https://host/path`, as given."""
        return f"{self.server.value}={self.url}"

    @property
    def address(self) -> str:
        """Return `host:port`, an IPv6 address in brackets."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_target(text: str) -> Target:
    """Return the target that a command line names.

    Raises:
        UsageError: it is not KIND=URL, or the URL has parts without a meaning here.
    """
    kind, equals, url = text.partition("=")
    servers = [server.value for server in Server]
    if not equals or kind not in servers:
        raise UsageError(
            f"'{printable(text)}' is not a push target: {', '.join(f'{one}=URL' for one in servers)}"
        )
    server = Server(kind)
    parts, port = _split(server, url)
    is_grpc, path = parts.scheme.startswith("grpc"), parts.path.rstrip("/")
    if is_grpc and (path or not port):
        raise UsageError(f"{kind}={printable(url)}: gRPC takes {parts.scheme}://HOST:PORT, without a path")
    if not path.endswith(_WHOLE_PATHS[server]):
        path += _PATHS[server]
    return Target(
        server,
        url.rstrip("/"),
        parts.hostname or "",
        port or _PORTS[parts.scheme],
        _METHODS[server] if is_grpc else path,
        is_grpc,
        parts.scheme in {"https", "grpcs"},
    )


def _split(server: Server, url: str) -> tuple[SplitResult, int | None]:
    """Return the parts of a URL and its port; raise UsageError."""
    shown = f"{server.value}={printable(url)}"
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
    if parts.scheme not in _SCHEMES[server]:
        schemes = ", ".join(f"{scheme}://" for scheme in _SCHEMES[server])
        raise UsageError(f"{shown}: {server.value} takes URLs with {schemes}")
    if parts.query or parts.fragment or not _HOST.fullmatch(parts.hostname or "") or port == 0:
        raise UsageError(f"{shown}: not a URL with a host and, perhaps, port and path alone")
    if not _PATH.fullmatch(parts.path) or printable(url) != url or url.split() != [url]:
        raise UsageError(f"{shown}: the path has characters that need %-escapes")
    return parts, port
