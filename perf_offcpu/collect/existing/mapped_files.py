# SPDX-License-Identifier: Apache-2.0
"""Read the build-ids of what running processes have mapped: files and the vDSO.

Files are opened through /proc/PID/map_files, which leads to the mapped file itself even if it was deleted or
replaced, or lies in another mount namespace.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Hashable
from typing import Any

from perf_offcpu.build_ids import build_id_of
from perf_offcpu.files import open_regular

MOST_KNOWN = 1 << 16
"""Files that are remembered at once: a recording of weeks meets any number of them."""


class MappedBuildIds:
    """Build-ids of mapped files; each file is read once, however many tasks map it.

    Attributes:
        files: path → build-id of each file that has one.
    """

    def __init__(self) -> None:
        self.files: dict[bytes, bytes] = {}
        self._known: dict[Hashable, bytes] = {}

    def of_mapping(
        self, pid: int, start: int, end: int, device: Hashable, inode: int, path: bytes, *, maps: bool = False
    ) -> bytes | None:
        """Return the build-id of a mapped file; b"" if it has none, None if it is not found.

        Args:
            maps: the mapping has just been read from /proc/PID/maps, so the link leads to the same file; its
                inode may differ (overlayfs).
        """
        key = (device, inode, path)
        if key not in self._known:
            found = build_id_at(f"/proc/{pid}/map_files/{start:x}-{end:x}", None if maps else inode)
            if found is None:
                found = build_id_at(path, inode)
            if found is None:
                return None
            remember(self._known, key, found)
            if found:
                remember(self.files, path, found)
        return self._known[key]


def remember(known: dict[Any, bytes], key: Hashable, found: bytes) -> None:
    """Add an entry to a table of at most MOST_KNOWN; the one that was added first goes."""
    if len(known) >= MOST_KNOWN:
        del known[next(iter(known))]
    known[key] = found


def build_id_at(path: str | bytes, inode: int | None = None) -> bytes | None:
    """Return the build-id of a regular file; b"" if it has none, None if it is not there.

    Args:
        inode: of the file that is expected there; None for any.
    """
    try:
        fd = open_regular(os.fsdecode(path))
    except OSError:
        return None
    try:
        return build_id_of(fd) if inode in (None, os.fstat(fd).st_ino) else None
    finally:
        os.close(fd)


def build_id_of_memory(address: int, size: int) -> bytes:
    """Return the build-id of an ELF image in this process's own memory: the vDSO, which is the same in all.

    Args:
        address, size: a readable mapping, as /proc/self/maps shows it.
    """
    fd = os.memfd_create("image", os.MFD_CLOEXEC)
    try:
        os.write(fd, ctypes.string_at(address, size))
        return build_id_of(fd)
    finally:
        os.close(fd)
