# SPDX-License-Identifier: Apache-2.0
"""Look up the names of the wait objects of a process in /proc: the work of a helper (`system.helper`).

A process can lock its list of mappings, and its epoll instances, for as long as it likes.
"""

from __future__ import annotations

import os
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from perf_offcpu.abi.wait_objects import ObjectKind
from perf_offcpu.collect.existing.maps import read_maps
from perf_offcpu.collect.wait_objects.epoll import EPOLL, watched_by
from perf_offcpu.collect.wait_objects.mounts import Mounts
from perf_offcpu.collect.wait_objects.names import (
    PIDFD,
    Texts,
    access_mode,
    descriptor_path,
    place_of,
    process_of,
)
from perf_offcpu.collect.wait_objects.sockets import ListeningPorts

FILES: Final = (ObjectKind.FILE, ObjectKind.DIRECTORY, ObjectKind.CHARACTER, ObjectKind.BLOCK)
SIDES: Final = {os.O_RDONLY: b"read end", os.O_WRONLY: b"write end"}


class Naming:
    """Names objects of one process at a time.

    Args:
        dtype: of `struct offcpu_object`.
        ports: finds listening ports.
    """

    def __init__(self, dtype: np.dtype[Any], ports: ListeningPorts) -> None:
        self._dtype, self._ports = dtype, ports

    def names(self, pid: int, raw: bytes) -> list[Texts]:
        """Return the texts of each object of a process.

        Args:
            raw: rows of `struct offcpu_object`.
        """
        rows = np.frombuffer(raw, self._dtype)
        maps, mounts = b"", Mounts()
        if (rows["kind"] == ObjectKind.FUTEX).any():
            try:
                maps = read_maps(pid)
            except OSError:  # it is gone
                maps = b""
        return [self._texts(row, pid, maps, mounts) for row in rows]

    def _texts(self, row: NDArray[Any], pid: int, maps: bytes, mounts: Mounts) -> Texts:
        kind = int(row["kind"])
        if kind == ObjectKind.FUTEX:
            return {"place": place_of(maps, int(row["address"]), int(row["sp"]))}
        if kind == ObjectKind.ANONYMOUS:
            fd = int(row["fd"])
            if bytes(row["name"]).startswith(EPOLL):
                return {"name": watched_by(pid, fd) or EPOLL}
            return {"name": process_of(pid, fd) or PIDFD}
        if kind == ObjectKind.SOCKET:
            is_accepted = int(row["local_port"]) in self._ports.of(pid)
            return {"place": b"accepted"} if is_accepted else {}
        return _file_texts(row, pid, mounts)


def _file_texts(row: Any, pid: int, mounts: Mounts) -> Texts:
    """Return the path of a file and the end of a pipe that is waited for."""
    fd = int(row["fd"])
    path = descriptor_path(pid, fd, int(row["inode"]))
    if row["kind"] != ObjectKind.PIPE:
        return {"name": path or mounts.path(bytes(row["name"]), int(row["device"]))}
    is_named = path and not path.startswith(b"pipe:[")
    mode = access_mode(pid, fd) if path else None
    return {"name": path if is_named else b"", "place": SIDES.get(mode if mode is not None else -1, b"")}
