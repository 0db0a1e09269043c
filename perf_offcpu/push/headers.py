# SPDX-License-Identifier: Apache-2.0
"""Read headers of requests, such as credentials, from a file: all users can see command lines."""

from __future__ import annotations

import re

from perf_offcpu.errors import UsageError
from perf_offcpu.files import read_regular
from perf_offcpu.text import printable

_MOST_BYTES = 1 << 16
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_VALUE = re.compile(r"[!-~]([ -~]*[!-~])?")
_OWN = re.compile(
    r"(content|transfer|connection|connect|proxy|grpc|sec)\b.*|host|te|trailer|upgrade|expect|user-agent"
    r"|accept-encoding|keep-alive|.*-bin",
    re.IGNORECASE,
)
"""Headers that the protocols set themselves."""


def read_headers(path: str) -> tuple[tuple[str, str], ...]:
    """Return the headers of a file: one `Name: value` a line; empty lines and lines with # are left out.

    Raises:
        UsageError: a line is no header, or one that the protocols set. The message never holds a value.
        OSError: the file cannot be read.
    """
    found: dict[str, tuple[str, str]] = {}
    for number, line in enumerate(read_regular(path, _MOST_BYTES).decode("latin-1").split("\n"), 1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        name, colon, value = (part.strip() for part in text.partition(":"))
        where = f"{printable(path)}, line {number}"
        if not colon or not _NAME.fullmatch(name) or not _VALUE.fullmatch(value):
            raise UsageError(f"{where}: not a header (Name: value, in ASCII)")
        if _OWN.fullmatch(name):
            raise UsageError(f"{where}: {name} is set by the protocol itself")
        if name.lower() in found:
            raise UsageError(f"{where}: {name} is there twice")
        found[name.lower()] = (name, value)
    return tuple(found.values())
