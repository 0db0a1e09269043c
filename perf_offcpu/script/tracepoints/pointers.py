# SPDX-License-Identifier: Apache-2.0
"""What the kernel prints as `%p…`: functions, network addresses, UUIDs.

Documentation/core-api/printk-formats.rst of the kernel; print_arg_pointer() of libtraceevent.
"""

from __future__ import annotations

import ipaddress
import uuid
from collections.abc import Callable
from typing import Literal

from perf_offcpu.script.tracepoints.parse import Node, NotUnderstood
from perf_offcpu.script.tracepoints.values import Bytes, Number, Reader, Text

Symbols = Callable[[int], tuple[str, int] | None]
"""The kernel's function at an address: (name, offset in it); None if it is not known."""

FUNCTIONS = ("pf", "pF", "ps", "pS")
_AF_INET, _AF_INET6 = 2, 10


def pointer_text(letters: str, node: Node, reader: Reader, symbols: Symbols) -> Text:
    """The function that makes the text of `%` and these letters.

    Raises:
        NotUnderstood: the kernel may know how to print that, but not this.
    """
    if letters in FUNCTIONS:
        return _function(letters, reader.number(node), symbols)
    if letters in _OF_BYTES:
        return _of_bytes(_OF_BYTES[letters], reader.content(reader.located(node)))
    if letters in ("pISpc", "pISpfsc"):
        order = reader.order
        return _of_bytes(lambda data: _socket(data, order), reader.content(reader.located(node)))
    if letters == "p":
        value = reader.number(node)
        return lambda data: f"{found:#x}" if (found := value(data)) else "(nil)"
    raise NotUnderstood(letters)


def _function(letters: str, value: Number, symbols: Symbols) -> Text:
    def function(data: bytes) -> str:
        address = value(data)
        found = symbols(address)
        if found is None:
            return f"0x{address:x}"
        return f"{found[0]}+0x{found[1]:x}" if letters in ("pF", "pS") else found[0]

    return function


def _of_bytes(show: Callable[[bytes], str], content: Bytes) -> Text:
    def text(data: bytes) -> str:
        try:
            return show(content(data))
        except ValueError:  # too few
            return "INVALIDADDRESS"

    return text


def _ip4(data: bytes) -> str:
    return str(ipaddress.IPv4Address(data[:4]))


def _ip6(data: bytes) -> str:
    address = ipaddress.IPv6Address(data[:16])
    return f"::ffff:{address.ipv4_mapped}" if address.ipv4_mapped else str(address)


def _socket(data: bytes, order: Literal["little", "big"]) -> str:
    """A struct sockaddr with its port: 127.0.0.1:80, [::1]:80."""
    family, port = int.from_bytes(data[:2], order), int.from_bytes(data[2:4], "big")
    if family == _AF_INET:
        return f"{_ip4(data[4:8])}:{port}"
    if family == _AF_INET6:
        return f"[{_ip6(data[8:24])}]:{port}"
    raise ValueError(family)


_OF_BYTES: dict[str, Callable[[bytes], str]] = {
    "pI4": _ip4,
    "pI6": lambda data: ipaddress.IPv6Address(data[:16]).exploded,
    "pI6c": _ip6,
    "pU": lambda data: str(uuid.UUID(bytes=data[:16])),
    "pUb": lambda data: str(uuid.UUID(bytes=data[:16])),
    "pUl": lambda data: str(uuid.UUID(bytes_le=data[:16])),
    "pM": lambda data: data[:6].hex(":"),
}
