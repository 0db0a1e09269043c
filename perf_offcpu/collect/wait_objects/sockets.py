# SPDX-License-Identifier: Apache-2.0
"""Read the sockets of a process's network namespace from /proc/PID/net (proc_pid_net(5))."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from typing import Final, NamedTuple

from perf_offcpu.collect.wait_objects.names import endpoint
from perf_offcpu.files import kernel_lines, read_kernel

_MOST_BYTES: Final = 4 << 20
_BLOCK: Final = 1 << 16
_LISTENS: Final = b"0A"
"""TCP_LISTEN in include/net/tcp_states.h."""
_UNIX_FLAGS, _UNIX_INODE, _UNIX_PATH = 3, 6, 7
_LOCAL, _REMOTE, _STATE, _INODE = 1, 2, 3, 9
"""Columns of /proc/net/unix, and of /proc/net/tcp and udp."""
_ACCEPTS: Final = 1 << 16
"""__SO_ACCEPTCON in /proc/net/unix: the socket listens."""
_TABLES: Final = {"tcp": "tcp", "tcp6": "tcp", "udp": "udp", "udp6": "udp"}


class Socket(NamedTuple):
    """A socket in these tables."""

    name: bytes  # tcp 10.0.0.7:5432, tcp listen 0.0.0.0:80, unix /run/x.sock; b"" without an address
    is_outward: bool  # it was connected here, to a port or path where others are accepted
    listens: bool


def listening_ports(pid: int) -> frozenset[int]:
    """Return the TCP ports at which sockets of a process's network namespace listen; none if it is gone.

    The tables begin with the listening sockets; no more of them is read.
    """
    ports: set[int] = set()
    for table in ("tcp", "tcp6"):
        for line in _first_lines(f"/proc/{pid}/net/{table}"):
            words = line.split(None, _STATE + 1)
            if len(words) <= _STATE or words[_STATE] != _LISTENS:
                break
            ports.add(int(words[_LOCAL].rpartition(b":")[2], 16))
    return frozenset(ports)


class ListeningPorts:
    """The listening ports of network namespaces; each is looked up again after some time.

    Where tables of connections are large, the kernel takes milliseconds to read even their begin.

    Args:
        valid_s: time after which a namespace is looked up again.
    """

    def __init__(self, valid_s: float) -> None:
        self._valid_s = valid_s
        self._known: dict[int, tuple[float, frozenset[int]]] = {}

    def of(self, pid: int) -> frozenset[int]:
        """Return the ports of a process's namespace; none if it is gone."""
        try:
            namespace = os.stat(f"/proc/{pid}/ns/net").st_ino
        except OSError:
            return frozenset()
        now = time.monotonic()
        until, ports = self._known.get(namespace, (0.0, frozenset[int]()))
        if now >= until:
            self._known = {key: one for key, one in self._known.items() if one[0] > now}
            ports = listening_ports(pid)
            self._known[namespace] = now + self._valid_s, ports
        return ports


def sockets_of(pid: int, inodes: frozenset[bytes]) -> dict[bytes, Socket]:
    """Return inode → socket, for some inodes in the network namespace of a process."""
    found: dict[bytes, Socket] = {}
    for line in _lines(pid, "unix"):
        words = line.split(None, _UNIX_PATH)
        if len(words) > _UNIX_INODE and words[_UNIX_INODE] in inodes:
            path = words[_UNIX_PATH] if len(words) > _UNIX_PATH else b""
            listens = bool(int(words[_UNIX_FLAGS], 16) & _ACCEPTS)
            found[words[_UNIX_INODE]] = Socket(b"unix " + path if path else b"", not path, listens)
    ports: set[bytes] = set()
    for table, protocol in _TABLES.items():
        for line in _lines(pid, table) if len(found) < len(inodes) else ():
            words = line.split(None, _INODE + 1)
            if len(words) <= _INODE:
                continue
            if protocol == "tcp" and words[_STATE] == _LISTENS:
                ports.add(words[_LOCAL].rpartition(b":")[2])
            if words[_INODE] in inodes:
                found[words[_INODE]] = _internet_socket(protocol.encode(), words, ports)
    return found


def _internet_socket(protocol: bytes, words: list[bytes], ports: set[bytes]) -> Socket:
    local, remote = (_address(words[column].decode()) for column in (_LOCAL, _REMOTE))
    listens = protocol == b"tcp" and words[_STATE] == _LISTENS
    name = remote or (b"listen " + local if listens else local)
    is_outward = bool(remote) and words[_LOCAL].rpartition(b":")[2] not in ports
    return Socket(protocol + b" " + name if name else b"", is_outward, listens)


def _lines(pid: int, table: str) -> list[bytes]:
    try:
        return kernel_lines(read_kernel(f"/proc/{pid}/net/{table}", _MOST_BYTES))[1:]
    except OSError:
        return []


def _first_lines(path: str) -> Iterator[bytes]:
    """Yield the lines of a table after its title, each when it is asked for."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)  # direct: of /proc, and not read to its end
    except OSError:
        return
    try:
        rest = b""
        number = 0
        while block := os.read(fd, _BLOCK):
            *lines, rest = (rest + block).split(b"\n")
            yield from lines[not number :]
            number += len(lines)
    except OSError:
        return
    finally:
        os.close(fd)


def _address(text: str) -> bytes:
    """Return an address that these tables hold as hexadecimal words; b"" for port 0, which nobody has."""
    address, _, port = text.partition(":")
    words = [bytes.fromhex(address[at : at + 8])[::-1] for at in range(0, len(address), 8)]
    family = socket.AF_INET if len(words) == 1 else socket.AF_INET6
    number = int(port, 16)
    return endpoint(family, b"".join(words).ljust(16, b"\0"), number) if number else b""
