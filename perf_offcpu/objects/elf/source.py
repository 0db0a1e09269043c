# SPDX-License-Identifier: Apache-2.0
"""Where the bytes of an ELF image come from: a regular file or memory.

Only regular files are opened, for opening a device or FIFO can act or block. Files are read with pread, not
mapped: one that is truncated while it is read gives an error, not SIGBUS.
"""

from __future__ import annotations

import os
import stat
from typing import Protocol

from perf_offcpu.errors import FormatError


class NotRegularError(FormatError):
    """A directory, device, FIFO or socket stands where a file was named."""

    def __init__(self, path: str) -> None:
        super().__init__(path, "ELF file", "this is not a regular file")


class Source(Protocol):
    """Bytes of known size, anywhere."""

    size: int

    identity: tuple[int, ...]
    """What tells this file, as it is now, from all others; () if nothing does."""

    def read(self, offset: int, size: int) -> bytes:
        """Up to `size` bytes at an offset; fewer if the source ends."""

    def fileno(self) -> int:
        """The open file; -1 for an image in memory."""


class BytesSource:
    """An image in memory."""

    def __init__(self, data: bytes) -> None:
        self._data, self.size, self.identity = data, len(data), tuple[int, ...]()

    def read(self, offset: int, size: int) -> bytes:
        """As Source.read."""
        return self._data[offset : offset + size]

    def fileno(self) -> int:
        """As Source.fileno."""
        return -1


class FileSource:
    """An open file, read with pread."""

    def __init__(self, fd: int) -> None:
        status = os.fstat(fd)
        self._fd, self.size = fd, status.st_size
        self.identity: tuple[int, ...] = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)

    def read(self, offset: int, size: int) -> bytes:
        """As Source.read; fewer bytes too if the file has become shorter.

        Raises:
            OSError: the disk, or what stands for it, fails.
        """
        parts: list[bytes] = []
        while size > 0 and (part := os.pread(self._fd, size, offset)):
            parts.append(part)
            offset, size = offset + len(part), size - len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def fileno(self) -> int:
        """As Source.fileno."""
        return self._fd


def open_regular(path: str) -> int:
    """Open a regular file for reading, and nothing else: opening a device or FIFO can act or block.

    Raises:
        OSError: it cannot be opened.
        NotRegularError: it is not a regular file.
    """
    if stat.S_ISREG(os.stat(path).st_mode):  # before opening, for devices; after it, for races
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
        if stat.S_ISREG(os.fstat(fd).st_mode):
            return fd
        os.close(fd)
    raise NotRegularError(path)
