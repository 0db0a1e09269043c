# SPDX-License-Identifier: Apache-2.0
"""Say what an epoll instance watches: connections that it has made first, then listening sockets.

Waits that a descriptor ended have that one as their object; this is for those that are not over, or ended by
a timeout.
"""

from __future__ import annotations

import os
import re
from typing import Final

from perf_offcpu.collect.wait_objects.sockets import sockets_of
from perf_offcpu.files import read_kernel

EPOLL: Final = b"[eventpoll]"
"""The kernel's name of an epoll instance."""

_WATCHED: Final = re.compile(rb"^tfd:\s+(\d+) ", re.MULTILINE)
_SOCKET: Final = re.compile(r"socket:\[(\d+)\]")
_MOST_BYTES: Final = 4 << 20
_MOST_WATCHED: Final = 64
_MOST_NAMED: Final = 3


def watched_by(pid: int, fd: int) -> bytes:
    """Return what an epoll instance watches, or b"" if it is gone.

    [eventpoll] of unix /run/x.sock                                   one socket, next to eventfds and pipes
    [eventpoll] of tcp 10.0.0.7:5432, tcp listen 0.0.0.0:80 and 4 more   several
    [eventpoll] of 5 descriptors                                      none with a name

    A server's backend watches its client next to eventfds and pipes of its own, so that one socket among
    several descriptors is what it waits for. Of several, connections of clients are only counted.
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
    found = sockets_of(pid, frozenset(sockets)) if sockets else {}
    if len(sockets) == 1 and len(numbers) <= _MOST_WATCHED:
        only = next(iter(found.values()), None)
        name = (only.name or b"a Unix socket") if only else b""
        return EPOLL + b" of " + (name or b"%d descriptors" % len(numbers))
    outward = [one.name for one in found.values() if one.name and one.is_outward]
    listening = [one.name for one in found.values() if one.name and one.listens]
    names = list(dict.fromkeys([*sorted(outward), *sorted(listening)]))[:_MOST_NAMED]
    more = len(numbers) - sum(name in names for name in (*outward, *listening))
    if not names:
        return EPOLL + b" of %d descriptors" % len(numbers)
    return EPOLL + b" of " + b", ".join(names) + (b" and %d more" % more if more else b"")
