# SPDX-License-Identifier: Apache-2.0
"""Write a file on disk as a whole or not at all: recordings, and what `inject` writes.

Room on the disk can be held for the end of the file, so that it gets one even if the disk runs full.

Bytes go into a new hidden file next to the wanted one, with mode 0600 (a recording shows what others do).
`commit` renames it in one step; without it, nothing is left and an older file is as it was. As `perf record`
does, the recorder keeps an older recording as NAME.old.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
from pathlib import Path
from types import TracebackType
from typing import Self

from perf_offcpu.directories import Directory
from perf_offcpu.errors import RecordingError


def _hold(directory: Path, size: int) -> int:
    """Open a file without a name that takes up room on the same disk; return -1 if there cannot be one."""
    try:
        fd = os.open(directory, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except OSError:
        return -1
    try:
        os.posix_fallocate(fd, 0, size)
    except OSError:
        os.close(fd)
        return -1
    return fd


class AtomicFile:
    """A file that is being written. Use as a context manager; it is removed at the end unless committed.

    Args:
        path: where the file shall be. A device such as /dev/null is written to directly.
        keep_old: whether a file that is already there is kept as `path`.old.
        reserve: bytes to hold until `release`; where that cannot be, none are.

    Raises:
        RecordingError: it cannot be made there.
    """

    def __init__(self, path: str | Path, keep_old: bool = False, reserve: int = 0) -> None:
        self.path, self.keep_old = Path(path), keep_old
        self._temporary: Path | None = None
        self._reserve = self._oldest = -1
        if str(path).endswith("/"):  # Path() would drop it
            raise RecordingError(f"{path}: is the name of a directory: give that of a file")
        try:
            self.fd = self._open()
        except OSError as problem:
            raise self._failure(problem) from None
        if reserve and not self._is_device():
            self._reserve = _hold(self.path.parent, reserve)

    def release(self) -> bool:
        """Free the room that is held; return whether there was any."""
        held = self._reserve >= 0
        if held:
            os.close(self._reserve)
            self._reserve = -1
        return held

    def commit(self) -> None:
        """Rename the file to its path; an older file is replaced, or kept as `path`.old.

        Raises:
            RecordingError: it cannot be renamed.
        """
        if self._temporary is None:
            return
        try:
            if self.keep_old and self._worth_keeping():
                self._make_room(Path(f"{self.path}.old"))
                self.path.rename(f"{self.path}.old")
            self._temporary.rename(self.path)
        except OSError as problem:
            raise self._failure(problem) from None
        self._temporary = None

    def _make_room(self, oldest: Path) -> None:
        """Unlink the recording before the last, and keep its pages until `close`.

        A recording runs meanwhile and its rings fill. ext4 writes a file to the disk before it lets it
        replace another (auto_da_alloc), and the pages of a large one take long to be freed: a second, or two.
        """
        try:
            self._oldest = os.open(oldest, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            oldest.unlink()
        except OSError:  # there is none, or it is no file: `rename` will say what is wrong, if anything is
            return

    def _open(self) -> int:
        flags = os.O_CLOEXEC | os.O_NOCTTY
        if self._is_device():
            return os.open(self.path, os.O_WRONLY | flags)
        if self.path.is_dir() or (self.path.exists() and not self.path.is_file()):
            raise RecordingError(f"{self.path}: is no regular file: choose another output")
        hidden = self.path.with_name(f".{self.path.name}.{secrets.token_hex(4)}")
        # O_EXCL also refuses to follow a link that someone may have put there.
        fd = os.open(hidden, os.O_RDWR | os.O_CREAT | os.O_EXCL | flags, 0o600)
        self._temporary = hidden
        return fd

    def _is_device(self) -> bool:
        """Return whether the path is a character device, to which no other user has laid a link."""
        try:
            if not stat.S_ISCHR(os.stat(self.path).st_mode):
                return False
        except FileNotFoundError:
            return False
        Directory.of_output(str(self.path))[0].close()
        return True

    def _worth_keeping(self) -> bool:
        return self.path.is_symlink() or (self.path.exists() and self.path.stat().st_size > 0)

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
        if self._temporary is not None:
            self._temporary.unlink(missing_ok=True)
            self._temporary = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
