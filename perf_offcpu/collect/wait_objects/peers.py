# SPDX-License-Identifier: Apache-2.0
"""Find the processes at the other ends of pipes and Unix sockets, by the inodes in /proc/*/fd."""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Collection, Iterable
from typing import Final, NamedTuple

from perf_offcpu.collect.wait_objects.names import access_mode

Plain = tuple[int, int, int | None]
FIRST: Final = 4096
"""Descriptors of each process that are looked at first; the others follow if there is time."""
_LINK: Final = re.compile(r"(pipe|socket):\[(\d+)\]")


class Holder(NamedTuple):
    """A descriptor of a pipe or socket. `mode`: access mode of a pipe; None for a socket, or if it is gone."""

    pid: int
    inode: int
    mode: int | None


def holders_in(pid: int, inodes: Collection[str], first: int, end: int) -> tuple[list[Plain], bool]:
    """Look at some descriptors of a process, which may be within execve and let its readers wait.

    `inodes`: of the pipes and sockets that are looked for. `first`, `end`: the descriptors, by their place in the list.

    Returns:
        Those of the pipes and sockets, as plain `Holder`; and whether there are more descriptors.
    """
    try:
        descriptors = os.listdir(f"/proc/{pid}/fd")  # direct: of the kernel
    except OSError:  # gone, or of another user
        return [], False
    found: list[Plain] = []
    for fd in descriptors[first:end]:
        try:
            link = _LINK.fullmatch(os.readlink(f"/proc/{pid}/fd/{fd}"))  # direct: not followed
        except OSError:
            continue
        if link and link[2] in inodes:
            mode = access_mode(pid, int(fd)) if link[1] == "pipe" else None
            found.append((pid, int(link[2]), mode))
    return found, len(descriptors) > end


class Ends:
    """The descriptors of some pipes and sockets."""

    def __init__(self) -> None:
        self._holders: dict[int, list[Holder]] = defaultdict(list)

    def add(self, holders: Iterable[Plain]) -> None:
        """Add what `holders_in` has found."""
        for holder in map(Holder._make, holders):
            self._holders[holder.inode].append(holder)

    def of_pipe(self, inode: int, pid: int, mode: int | None) -> list[int]:
        """Return the pids of other processes that hold the other end of a pipe. `pid`: the process at one end. `mode`:
        access mode of its descriptor; a pipe that is read has writers."""
        other = {os.O_RDONLY: os.O_WRONLY, os.O_WRONLY: os.O_RDONLY}.get(mode if mode is not None else -1)
        found = {
            holder.pid
            for holder in self._holders[inode]
            if holder.pid != pid and other is not None and holder.mode in (other, os.O_RDWR)
        }
        return sorted(found)

    def of_socket(self, peer_inode: int) -> list[int]:
        """Return the pids of the processes that hold a socket."""
        return sorted({holder.pid for holder in self._holders[peer_inode]})
