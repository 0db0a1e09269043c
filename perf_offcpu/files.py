# SPDX-License-Identifier: Apache-2.0
"""Open, create, replace, list and remove files that other users may have prepared.

perf-offcpu runs as root on machines that it shares with others. A name in /tmp, in a home directory that sudo kept,
below /proc/PID/root or in a recording may be a link to /etc/shadow, a FIFO that never answers, a device that acts
when it is opened, or a hole of 40 GB. Every such file is opened here, or in a `directories.Directory`:

*Kinds*: only regular files are opened for reading. The kind is checked on an O_PATH descriptor, which neither acts
nor blocks, and the same inode is then opened through /proc/self/fd. *Owner and size* are checked on the opened
descriptor. *Leases*: O_NONBLOCK makes open(2) fail at once where another process holds a lease, instead of waiting
for it (fcntl(2), F_SETLEASE: 45 s). Whose *links* are followed on the way is the policy of a Directory.

All functions raise FileRefusedError for a file that exists and is not used, other OSErrors as the system calls give
them. Files of the kernel (/proc, /sys) have a function of their own: who made them is certain, their text is not."""

import errno
import os
import stat
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Final

_HANDLE: Final = os.O_PATH | os.O_CLOEXEC
_READ: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NOCTTY | os.O_NONBLOCK
_READ_KERNEL: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NOCTTY | os.O_NOFOLLOW
_BLOCK: Final = 1 << 20
_FIRST_BLOCK: Final = 1 << 14
"""Bytes of a read until one fills them: most files of /proc are smaller, and memory for more is mapped each time."""
_MOST_HOLES: Final = 16
"""Largest ratio of the size of a file to its blocks on the disk; file systems that compress reach 10."""


class FileRefusedError(OSError):
    """A file exists and is refused; `reason`: a sentence, in place of the strerror of other OSErrors."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(errno.EACCES, reason, path)


def open_regular(
    path: str,
    *,
    dir_fd: int | None = None,
    follow: bool = True,
    fifo: bool = False,
    owners: Collection[int] | None = None,
    max_bytes: int | None = None,
) -> int:
    """Open a regular file for reading and return its descriptor.

    Args:
        dir_fd: descriptor of the directory to which a relative path refers; None: the working directory.
        follow: follow a symbolic link at the end of the path.
        fifo: open a FIFO as well; reading from the descriptor does not wait (O_NONBLOCK).
        owners: user ids that may own the file; None: any.
        max_bytes: largest size; None: any.
    """
    with descriptor(os.open(path, _HANDLE | (0 if follow else os.O_NOFOLLOW), dir_fd=dir_fd)) as handle:
        status = os.fstat(handle)
        if stat.S_ISLNK(status.st_mode):
            raise FileRefusedError(path, "it is a symbolic link")
        if not stat.S_ISREG(status.st_mode) and not (fifo and stat.S_ISFIFO(status.st_mode)):
            raise FileRefusedError(path, "it is not a regular file")
        if owners is not None and status.st_uid not in owners:
            raise FileRefusedError(path, f"it belongs to user {status.st_uid}")
        if max_bytes is not None and status.st_size > max_bytes:
            raise FileRefusedError(path, f"it is larger than {max_bytes} bytes")
        try:
            return os.open(f"/proc/self/fd/{handle}", _READ)
        except OSError as problem:
            problem.filename = path
            raise


@contextmanager
def descriptor(fd: int) -> Iterator[int]:
    """Yield a descriptor, and close it at the end of the `with` block."""
    try:
        yield fd
    finally:
        os.close(fd)


def read_regular(path: str, max_bytes: int, *, owners: Collection[int] | None = None) -> bytes:
    """Return the content of a regular file; raise FileRefusedError if it has, or grows to, more than `max_bytes`, or if
    its owner is not in `owners` (uids; None: any)."""
    with descriptor(open_regular(path, owners=owners, max_bytes=max_bytes)) as fd:
        return read_bounded(fd, max_bytes, path)


def read_kernel(path: str, max_bytes: int = 1 << 28) -> bytes:
    """Return the content of a file of /proc, /sys or tracefs, which have no size until they are read. It has names that
    any user can choose: so it is bytes, to be split by `kernel_lines` (`bytes.splitlines` would also split at `\\r`,
    which the kernel does not escape)."""
    with descriptor(os.open(path, _READ_KERNEL)) as fd:
        return read_bounded(fd, max_bytes, path)


def read_kernel_if_any(path: str, max_bytes: int = 1 << 28) -> bytes:
    """Return the content of a file of the kernel, as `read_kernel` does; b"" if it cannot be read."""
    try:
        return read_kernel(path, max_bytes)
    except OSError:
        return b""


def read_kernel_begin(path: str, most_bytes: int) -> bytes:
    """Return the first `most_bytes` of a file of /proc, /sys or tracefs, or the whole content if it is shorter."""
    with descriptor(os.open(path, _READ_KERNEL)) as fd:
        return _read_begin(fd, most_bytes)


def kernel_lines(text: bytes) -> list[bytes]:
    """Split a text of the kernel into lines, at `\\n` only; an empty last line is left out."""
    lines = text.split(b"\n")
    return lines if lines[-1] else lines[:-1]


def read_bounded(fd: int, max_bytes: int, shown: str) -> bytes:
    """Read a descriptor to its end; raise FileRefusedError for more than `max_bytes`. `shown`: its name in errors."""
    content = _read_begin(fd, max_bytes + 1)
    if len(content) > max_bytes:
        raise FileRefusedError(shown, f"it is larger than {max_bytes} bytes")
    return content


def _read_begin(fd: int, most_bytes: int) -> bytes:
    content, block = bytearray(), _FIRST_BLOCK
    while len(content) < most_bytes and (part := os.read(fd, min(block, most_bytes - len(content)))):
        content += part
        block = _BLOCK if len(part) == block else block
    return bytes(content)


def allocated_bytes(status: os.stat_result) -> int:
    """Return the bytes of a file that have blocks on the disk: holes, free to make but slow to read, do not count."""
    return min(status.st_size, status.st_blocks * 512)


def is_mostly_holes(status: os.stat_result) -> bool:
    """Return True for a sparse file whose size is far larger than its blocks on the disk."""
    return status.st_size > _MOST_HOLES * (allocated_bytes(status) + _BLOCK)


def is_shared(status: os.stat_result) -> bool:
    """Return True if others than the owner may write to a file. A group with the owner's number is the owner's own:
    distributions make one for each user and let it write (USERGROUPS_ENAB of login.defs)."""
    by_group = status.st_mode & stat.S_IWGRP and status.st_gid != status.st_uid
    return bool(status.st_mode & stat.S_IWOTH or by_group)
