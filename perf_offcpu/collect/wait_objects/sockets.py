# SPDX-License-Identifier: Apache-2.0
"""Read the sockets of a process's network namespace (proc_pid_net(5)); name an epoll instance by its files, an io_uring
by its requests."""

import contextlib
import itertools
import os
import re
import socket
import time
from typing import Final, NamedTuple

from perf_offcpu.collect.wait_objects.names import MOST_NAME, RING, endpoint, requests_in
from perf_offcpu.files import kernel_lines, read_kernel_if_any

_MOST_BYTES: Final = 4 << 20
_BLOCK: Final = 1 << 16
_LISTENS: Final = b"0A"  # TCP_LISTEN in include/net/tcp_states.h
_UNIX_FLAGS, _UNIX_INODE, _UNIX_PATH = 3, 6, 7
_LOCAL, _REMOTE, _STATE, _INODE = 1, 2, 3, 9  # columns of /proc/net/unix, and of /proc/net/tcp and udp
_ACCEPTS: Final = 1 << 16  # __SO_ACCEPTCON in /proc/net/unix: the socket listens

EPOLL: Final = b"[eventpoll]"  # the kernel's name of an epoll instance

_WATCHED: Final = re.compile(rb"^tfd:\s+(\d+) ", re.MULTILINE)
_SOCKET: Final = re.compile(r"socket:\[(\d+)\]")
_MOST_WATCHED: Final = 64
_MOST_NAMED: Final = 3
_ON_FILES: Final = frozenset((1, 2, 3, 4, 5, 8, 17, 22, 23))
"""Codes of requests for files (include/uapi/linux/io_uring.h): reads, writes, syncs, fallocate."""
_ON_SOCKETS: Final = frozenset((1, 2, 9, 10, 16, 22, 23, 26, 27))  # reads, writes, sends, receives, connects
_TIMEOUT, _IS_INDEX = 11, 1  # IORING_OP_TIMEOUT, IOSQE_FIXED_FILE
_MADE: Final = (b"tcp", b"udp")


class Socket(NamedTuple):
    """A socket as /proc/PID/net shows it: printable name, True if this end is the client, True if it listens."""

    name: bytes  # tcp 10.0.0.7:5432, tcp listen 0.0.0.0:80, unix /run/x.sock; b"" without an address
    is_outward: bool  # a client's: it has no path of its own, or no socket listens on its local port
    listens: bool


def listening_ports(pid: int) -> frozenset[int]:
    """Return the TCP ports at which sockets of a process's network namespace listen; empty if the process has ended.
    Tables in /proc begin with the listening sockets; only these are read."""
    ports: set[int] = set()
    for table in ("tcp", "tcp6"):
        # direct: a file of /proc
        with contextlib.suppress(OSError), open(f"/proc/{pid}/net/{table}", "rb", buffering=_BLOCK) as lines:
            for line in itertools.islice(lines, 1, None):
                words = line.split(None, _STATE + 1)
                if len(words) <= _STATE or words[_STATE] != _LISTENS:
                    break
                ports.add(int(words[_LOCAL].rpartition(b":")[2], 16))
    return frozenset(ports)


class ListeningPorts:
    """Read and remember the listening ports of network namespaces: with many connections, the kernel takes milliseconds
    for even the begin of its tables. `valid_s`: time after which the ports of a namespace are read again."""

    def __init__(self, valid_s: float) -> None:
        self._valid_s = valid_s
        self._known: dict[int, tuple[float, frozenset[int]]] = {}

    def of(self, pid: int) -> frozenset[int]:
        """Return the listening TCP ports of a process's network namespace; empty if the process has ended."""
        try:
            namespace = os.stat(f"/proc/{pid}/ns/net").st_ino
        except OSError:
            return frozenset()
        now = time.monotonic()
        until, ports = self._known.get(namespace, (0.0, frozenset[int]()))
        if now >= until:
            self._known = {key: answer for key, answer in self._known.items() if answer[0] > now}
            ports = listening_ports(pid)
            self._known[namespace] = now + self._valid_s, ports
        return ports


def socket_inode(pid: int, fd: int) -> bytes:
    """Return the inode (decimal text) of a process's socket; b"" if the descriptor is of another file, or gone."""
    try:
        link = _SOCKET.fullmatch(os.readlink(f"/proc/{pid}/fd/{fd}"))  # direct: not followed
    except OSError:
        return b""
    return link[1].encode() if link else b""


def sockets_of(pid: int, inodes: frozenset[bytes]) -> dict[bytes, Socket]:
    """Return inode → socket for the sockets with these `inodes` (decimal text) in a process's network namespace."""
    sockets: dict[bytes, Socket] = {}
    for line in _lines(pid, "unix"):
        words = line.split(None, _UNIX_PATH)
        if len(words) > _UNIX_INODE and words[_UNIX_INODE] in inodes:
            path = words[_UNIX_PATH] if len(words) > _UNIX_PATH else b""
            listens = bool(int(words[_UNIX_FLAGS], 16) & _ACCEPTS)
            sockets[words[_UNIX_INODE]] = Socket(b"unix " + path if path else b"", not path, listens)
    ports: set[bytes] = set()
    for table in ("tcp", "tcp6", "udp", "udp6"):
        protocol = table.removesuffix("6")
        for line in _lines(pid, table) if len(sockets) < len(inodes) else ():
            words = line.split(None, _INODE + 1)
            if len(words) <= _INODE:
                continue
            if protocol == "tcp" and words[_STATE] == _LISTENS:
                ports.add(words[_LOCAL].rpartition(b":")[2])
            if words[_INODE] in inodes:
                sockets[words[_INODE]] = _internet_socket(protocol.encode(), words, ports)
    return sockets


def _internet_socket(protocol: bytes, words: list[bytes], ports: set[bytes]) -> Socket:
    local, remote = (_address(words[column].decode()) for column in (_LOCAL, _REMOTE))
    listens = protocol == b"tcp" and words[_STATE] == _LISTENS
    name = remote or (b"listen " + local if listens else local)
    is_outward = bool(remote) and words[_LOCAL].rpartition(b":")[2] not in ports
    return Socket(protocol + b" " + name if name else b"", is_outward, listens)


def _lines(pid: int, table: str) -> list[bytes]:
    return kernel_lines(read_kernel_if_any(f"/proc/{pid}/net/{table}", _MOST_BYTES))[1:]


def _address(text: str) -> bytes:
    """Convert an address of /proc/PID/net, ADDRESS:PORT in hexadecimal, to the form of `endpoint`; b"" for port 0."""
    address, _, port = text.partition(":")
    words = [bytes.fromhex(address[offset : offset + 8])[::-1] for offset in range(0, len(address), 8)]
    family = socket.AF_INET if len(words) == 1 else socket.AF_INET6
    number = int(port, 16)
    return endpoint(family, b"".join(words).ljust(16, b"\0"), number) if number else b""


def watched_by(pid: int, fd: int) -> bytes:
    """Return a name for the epoll instance `fd` by the files that it watches; b"" if it watches none or is closed.

    [eventpoll] of unix /run/x.sock                                   one socket, next to eventfds and pipes
    [eventpoll] of tcp 10.0.0.7:5432, tcp listen 0.0.0.0:80 and 4 more   several
    [eventpoll] of 5 descriptors                                      none with a name

    If one socket is among several descriptors, it names the instance: a server's backend watches its client next to
    eventfds and pipes of its own. Of several sockets, connections accepted from clients are counted only. A wait that a
    ready descriptor ended has that descriptor as its object: this name is for all other waits for the instance."""
    text = read_kernel_if_any(f"/proc/{pid}/fdinfo/{fd}", _MOST_BYTES)
    numbers = [int(number) for number in _WATCHED.findall(text)]
    if not numbers:
        return b""
    sockets = [inode for number in numbers[:_MOST_WATCHED] if (inode := socket_inode(pid, number))]
    watched = [*sockets_of(pid, frozenset(sockets)).values()] if sockets else []
    if len(sockets) == 1 and len(numbers) <= _MOST_WATCHED:
        names, more = [only.name or b"a Unix socket" for only in watched], 0
    else:
        outward = [socket.name for socket in watched if socket.name and socket.is_outward]
        listening = [socket.name for socket in watched if socket.name and socket.listens]
        names = list(dict.fromkeys([*sorted(outward), *sorted(listening)]))[:_MOST_NAMED]
        more = len(numbers) - sum(name in names for name in (*outward, *listening))
    if not names:
        return EPOLL + b" of %d descriptors" % len(numbers)
    return EPOLL + b" of " + b", ".join(names) + (b" and %d more" % more if more else b"")


def requested_of(pid: int, fd: int) -> bytes:
    """Return `[io_uring] of /path` or `[io_uring] of 3 files` if all requests of a ring are for files, `[io_uring] of
    time` if they are timeouts, `[io_uring] of tcp 10.0.0.7:80` if they are for one connection made here; else b""."""
    requests = requests_in(pid, fd)
    codes = {code for code, *_ in requests}
    if codes == {_TIMEOUT}:
        return RING + b" of time"
    if not codes <= _ON_FILES | _ON_SOCKETS or any(flags & _IS_INDEX for _, flags, *_ in requests):
        return b""
    numbers = {number for *_, number in requests}
    links = {f"/proc/{pid}/fd/{number}".encode() for number in numbers}
    try:
        paths = {os.readlink(link)[:MOST_NAME] for link in links}  # direct: not followed
    except OSError:
        return b""
    if len(numbers) == 1 and (inode := socket_inode(pid, *numbers)):
        sockets = sockets_of(pid, frozenset((inode,))).values()
        return next((RING + b" of " + only.name for only in sockets if only.name[:3] in _MADE and only.is_outward), b"")
    if not paths or not codes <= _ON_FILES or not all(path.startswith(b"/") for path in paths):
        return b""
    return RING + b" of " + (paths.pop() if len(paths) == 1 else b"%d files" % len(paths))
