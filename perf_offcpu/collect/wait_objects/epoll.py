# SPDX-License-Identifier: Apache-2.0
"""Say what an epoll instance watches: its one socket, or the number of its descriptors."""

from __future__ import annotations

import os
import re
import socket
from typing import Final

from perf_offcpu.collect.wait_objects.names import endpoint
from perf_offcpu.files import kernel_lines, read_kernel

EPOLL: Final = b"[eventpoll]"
"""The kernel's name of an epoll instance."""

_WATCHED: Final = re.compile(rb"^tfd:\s+(\d+) ", re.MULTILINE)
_SOCKET: Final = re.compile(r"socket:\[(\d+)\]")
_MOST_BYTES: Final = 4 << 20
_MOST_WATCHED: Final = 64
_UNIX_PATH, _INET_INODE = 7, 9
"""Columns of /proc/net/unix and of /proc/net/tcp (proc_pid_net(5))."""
_TABLES = {"tcp": "tcp", "tcp6": "tcp", "udp": "udp", "udp6": "udp"}


def watched_by(pid: int, fd: int) -> bytes:
    """Return what an epoll instance watches: `[eventpoll] of unix /run/x.sock`; b"" if it is gone.

    A server's backend watches its client next to eventfds and pipes of its own, so that one socket among
    several descriptors is what it waits for. Of several sockets only the number of descriptors is given.
    """
    try:
        text = read_kernel(f"/proc/{pid}/fdinfo/{fd}", _MOST_BYTES)
    except OSError:
        return b""
    numbers = [int(number) for number in _WATCHED.findall(text)]
    if not numbers:
        return b""
    sockets = []
    for number in numbers[:_MOST_WATCHED]:
        try:
            link = _SOCKET.fullmatch(os.readlink(f"/proc/{pid}/fd/{number}"))  # direct: not followed
        except OSError:
            continue
        if link:
            sockets.append(link[1].encode())
    name = _socket_name(pid, sockets[0]) if len(sockets) == 1 and len(numbers) <= _MOST_WATCHED else b""
    return EPOLL + b" of " + (name or b"%d descriptors" % len(numbers))


def _socket_name(pid: int, inode: bytes) -> bytes:
    """Return the name of a socket by its inode, from the tables of the process's network namespace."""
    for line in _lines(pid, "unix"):
        words = line.split(None, _UNIX_PATH)
        if len(words) > _UNIX_PATH - 1 and words[_UNIX_PATH - 1] == inode:
            return b"unix " + words[_UNIX_PATH] if len(words) > _UNIX_PATH else b"a Unix socket"
    for table, protocol in _TABLES.items():
        for line in _lines(pid, table):
            words = line.split(None, _INET_INODE + 1)
            if len(words) > _INET_INODE and words[_INET_INODE] == inode:
                local, remote = (_address(word.decode()) for word in words[1:3])
                return protocol.encode() + b" " + (remote or b"listen " + local)
    return b""


def _lines(pid: int, table: str) -> list[bytes]:
    try:
        return kernel_lines(read_kernel(f"/proc/{pid}/net/{table}", _MOST_BYTES))[1:]
    except OSError:
        return []


def _address(text: str) -> bytes:
    """Return an address that these tables hold as hexadecimal words; b"" for port 0, which nobody has."""
    address, _, port = text.partition(":")
    words = [bytes.fromhex(address[at : at + 8])[::-1] for at in range(0, len(address), 8)]
    family = socket.AF_INET if len(words) == 1 else socket.AF_INET6
    number = int(port, 16)
    return endpoint(family, b"".join(words).ljust(16, b"\0"), number) if number else b""
