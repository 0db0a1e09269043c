# SPDX-License-Identifier: Apache-2.0
"""Open senders for the targets, with the header files and certificates that the user names."""

import re
from collections import Counter
from collections.abc import Iterable, Sequence

from perf_offcpu.errors import UsageError
from perf_offcpu.files import read_regular
from perf_offcpu.push.sender import Sender, SendOptions
from perf_offcpu.push.targets import SERVERS, Target, parse_target
from perf_offcpu.text import printable

_MOST_HEADER_BYTES, _MOST_CA_BYTES = 1 << 16, 1 << 22
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_VALUE = re.compile(r"[!-~]([ -~]*[!-~])?")
_OWN = re.compile(
    r"(content|transfer|connection|connect|proxy|grpc|sec)\b.*|host|te|trailer|upgrade|expect|user-agent"
    r"|accept-encoding|keep-alive|.*-bin",
    re.IGNORECASE,
)
"""Names of headers that the protocols set themselves."""


def read_headers(path: str) -> tuple[tuple[str, str], ...]:
    """Read (name, value) of each header in a file of `Name: value` lines; empty lines and lines with # are skipped.
    Raise UsageError, without a value in its text, if a line is no header, or one that the protocols set; OSError."""
    headers: dict[str, tuple[str, str]] = {}
    for number, line in enumerate(read_regular(path, _MOST_HEADER_BYTES).decode("latin-1").split("\n"), 1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        name, colon, value = (part.strip() for part in text.partition(":"))
        where = f"{printable(path)}, line {number}"
        if not colon or not _NAME.fullmatch(name) or not _VALUE.fullmatch(value):
            raise UsageError(f"{where}: not a header (Name: value, in ASCII)")
        if _OWN.fullmatch(name):
            raise UsageError(f"{where}: {name} is set by the protocol itself")
        if name.lower() in headers:
            raise UsageError(f"{where}: {name} is there twice")
        headers[name.lower()] = (name, value)
    return tuple(headers.values())


def open_targets(
    texts: Iterable[str], header_files: Iterable[str] = (), ca_file: str = ""
) -> list[tuple[Target, Sender]]:
    """Parse targets (`KIND=URL`), and make a sender for each; nothing is sent yet. `header_files`: `FILE`, or
    `KIND=FILE` for one of several targets; `ca_file`: certificates of authorities, "" for the system's. Raise
    UsageError if a target, header or certificate is invalid, or grpcio is missing; OSError if a file cannot be read."""
    targets = [parse_target(text) for text in texts]
    (text, times), *_ = Counter(map(str, targets)).most_common(1) or [("", 0)]
    if times > 1:
        raise UsageError(f"{text}: given twice")
    headers = {kind: read_headers(path) for kind, path in _by_kind(header_files, targets).items()}
    ca = read_regular(ca_file, _MOST_CA_BYTES).decode("latin-1") if ca_file else ""
    options = [SendOptions(headers.get(target.server.word) or headers.get("", ()), ca) for target in targets]
    return list(zip(targets, map(open_sender, targets, options), strict=True))


def open_sender(target: Target, options: SendOptions | None = None) -> Sender:
    """Make the sender for a target, without sending; raise UsageError if grpcio is missing, or `options.ca` invalid."""
    if target.is_grpc:
        from perf_offcpu.push.grpc_sender import GrpcSender

        return GrpcSender(target, options or SendOptions())
    from perf_offcpu.push.http_sender import HttpSender

    return HttpSender(target, options or SendOptions())


def _by_kind(texts: Iterable[str], targets: Sequence[Target]) -> dict[str, str]:
    """Parse `FILE`, `KIND=FILE` to kind ("": the only target) → header file; UsageError unless it is for one target."""
    files: dict[str, str] = {}
    for text in texts:
        kind, _, path = text.partition("=")
        kind, path = (kind, path) if kind in SERVERS else ("", text)
        if not kind and len(targets) > 1:
            raise UsageError(f"--push-header-file {text}: for which target? {'|'.join(SERVERS)}=FILE")
        if kind and all(kind != target.server.word for target in targets):
            raise UsageError(f"--push-header-file {text}: there is no target {kind}")
        if kind in files:
            raise UsageError(f"--push-header-file {text}: the target has headers already")
        files[kind] = path
    return files
