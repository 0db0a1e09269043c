# SPDX-License-Identifier: Apache-2.0
"""Find the processes at the other ends of pipes and Unix sockets, by the inodes in /proc/*/fd."""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Collection
from typing import Final, NamedTuple

from perf_offcpu.collect.wait_objects.names import access_mode

_LINK: Final = re.compile(r"(?:pipe|socket):\[(\d+)\]")


class Holder(NamedTuple):
    """A descriptor of a pipe or socket."""

    pid: int
    fd: int


class Ends:
    """The descriptors of some pipes and sockets, found by one scan of all processes.

    Args:
        inodes: of the pipes and sockets.
    """

    def __init__(self, inodes: Collection[int]) -> None:
        self._holders: dict[int, list[Holder]] = defaultdict(list)
        wanted = {str(inode) for inode in inodes}
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                descriptors = os.listdir(f"/proc/{pid}/fd")  # direct: of the kernel
            except OSError:  # gone, or of another user
                continue
            for fd in descriptors:
                try:
                    link = _LINK.fullmatch(os.readlink(f"/proc/{pid}/fd/{fd}"))  # direct: not followed
                except OSError:
                    continue
                if link and link[1] in wanted:
                    self._holders[int(link[1])].append(Holder(int(pid), int(fd)))

    def of_pipe(self, inode: int, pid: int, mode: int | None) -> list[int]:
        """Return the pids of other processes that hold the other end of a pipe.

        Args:
            pid: the process at one end.
            mode: access mode of its descriptor; a pipe that is read has writers.
        """
        other = {os.O_RDONLY: os.O_WRONLY, os.O_WRONLY: os.O_RDONLY}.get(mode if mode is not None else -1)
        found = {
            holder.pid
            for holder in self._holders[inode]
            if holder.pid != pid and other is not None and access_mode(*holder) in (other, os.O_RDWR)
        }
        return sorted(found)

    def of_socket(self, peer_inode: int) -> list[int]:
        """Return the pids of the processes that hold a socket."""
        return sorted({holder.pid for holder in self._holders[peer_inode]})
