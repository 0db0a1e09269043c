# SPDX-License-Identifier: Apache-2.0
"""Write a file on disk as a whole or not at all: recordings, and what `inject` writes. Bytes go into a new hidden file
next to the wanted one, with mode 0600 (a recording shows what others do). `commit` renames it in one step; without it,
nothing is left and an older file is as it was."""

import contextlib
import errno
import os
import stat
from pathlib import Path

from perf_offcpu.directories import Directory
from perf_offcpu.errors import RecordingError
from perf_offcpu.structs import Closing


def _hold(directory: Directory, size: int) -> int:
    """Return the descriptor of an unnamed file in the directory, with `size` bytes held on disk; -1 if unsupported.
    Raises OSError: the disk is full."""
    fd = -1
    try:
        # direct: a file without a name, in a directory that is open
        fd = os.open(".", os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600, dir_fd=directory.fd)
        os.posix_fallocate(fd, 0, size)
    except OSError as problem:
        if fd >= 0:
            os.close(fd)
        if problem.errno == errno.ENOSPC:
            raise
        return -1
    return fd


class AtomicFile(Closing):
    """Writes a file: a context manager, at whose end it is removed unless committed. A device as /dev/null is written
    to directly. With `keep_old`, a file that is already there is kept as `path`.old, as `perf record` does. `reserve`
    bytes on disk are held until `release`, where possible, so that the end of the file can be written even if the disk
    runs full. Raises RecordingError if disk space or file is refused."""

    def __init__(self, path: str | Path, keep_old: bool = False, reserve: int = 0) -> None:
        self.path, self.keep_old = Path(path), keep_old
        self._hidden = ""
        self._reserve = self._oldest = -1
        if str(path).endswith("/"):  # Path() would drop it
            raise RecordingError(f"{path}: is the name of a directory: give that of a file")
        with contextlib.ExitStack() as stack:
            try:
                self._directory = stack.enter_context(Directory.named(str(self.path.parent)))
                self.fd = self._open()
            except OSError as problem:
                raise self._failure(problem) from None
            stack.pop_all()
        if reserve and self._hidden:
            try:
                self._reserve = _hold(self._directory, reserve)
            except OSError as problem:  # the file before this one has room for its end
                self.close()
                raise RecordingError(f"{path}: cannot write the recording: {problem.strerror}") from None

    def release(self) -> bool:
        """Free the room on the disk that is held by `reserve`; return False if there was none."""
        held = self._reserve >= 0
        if held:
            os.close(self._reserve)
            self._reserve = -1
        return held

    def commit(self) -> None:
        """Rename the file to its path; an older file is replaced, or kept if `keep_old`. RecordingError on failure."""
        if not self._hidden:
            return
        name = self.path.name
        try:
            status = self._directory.status(name) if self.keep_old else None
            if status is not None and status.st_size > 0:
                self._make_room(f"{name}.old")
                self._directory.rename(name, f"{name}.old")
            self._directory.rename(self._hidden, name)
        except OSError as problem:
            raise self._failure(problem) from None
        self._hidden = ""

    def withdraw(self) -> None:
        """Remove the file although it was committed, unless its name is that of another file by now."""
        status, own = self._directory.status(self.path.name), os.fstat(self.fd)
        if not stat.S_ISREG(own.st_mode):
            return
        if status is not None and (status.st_dev, status.st_ino) == (own.st_dev, own.st_ino):
            self._directory.remove(self.path.name)

    def _make_room(self, oldest: str) -> None:
        """Unlink `oldest`, the recording before the last, and keep its pages until `close`. A recording runs meanwhile
        and its rings fill. ext4 writes a file to the disk before it lets it replace another (auto_da_alloc), and the
        pages of a large one take long to be freed: a second, or two."""
        with contextlib.suppress(OSError):  # there is none, or it is no file: `rename` will say what is wrong
            self._oldest = self._directory.open_regular(oldest)
            self._directory.remove(oldest)

    def _open(self) -> int:
        if not self.path.name:
            raise RecordingError(f"{self.path}: is no regular file: choose another output")
        with contextlib.suppress(FileNotFoundError):  # a link may lead to a directory that does not exist
            directory, name = Directory.of_output(str(self.path))
            with directory:
                status = directory.status(name)
                if status is not None and stat.S_ISLNK(status.st_mode):  # of /proc/self/fd
                    status = os.stat(name, dir_fd=directory.fd)  # direct: only the kernel can follow it
                if status is not None and stat.S_ISCHR(status.st_mode):
                    flags = os.O_WRONLY | os.O_CLOEXEC | os.O_NOCTTY
                    return os.open(name, flags, dir_fd=directory.fd)  # direct: a device, in an open directory
                if status is not None and not stat.S_ISREG(status.st_mode):
                    raise RecordingError(f"{self.path}: is no regular file: choose another output")
        self._hidden, fd = self._directory.create_hidden(self.path.name)
        return fd

    def _failure(self, problem: OSError) -> RecordingError:
        remedy = ": raise the limit with ulimit -n" if problem.errno == errno.EMFILE else ""
        return RecordingError(f"{self.path}: cannot be written: {problem.strerror}{remedy}")

    def close(self) -> None:
        """Close the file; remove it unless it was committed."""
        os.close(self.fd)
        self.release()
        if self._oldest >= 0:
            os.close(self._oldest)
            self._oldest = -1
        if self._hidden:
            self._directory.remove(self._hidden)
            self._hidden = ""
        self._directory.close()
