# SPDX-License-Identifier: Apache-2.0
"""Directories in which other users may have prepared entries, opened component by component.

A path is resolved one component at a time, each opened with O_PATH and O_NOFOLLOW relative to the one before
(openat(2)), so nothing can be exchanged between a check and its use. Whose directories and links are accepted is the
policy of the call: `Directory.private` for caches, `Directory.named` and `of_output` for places that the user names.
What happens inside a directory happens relative to its descriptor, by names of entries.

All methods raise FileRefusedError for a link, owner or mode that the policy refuses, or another OSError."""

import contextlib
import errno
import os
import stat
from collections import deque
from collections.abc import Callable, Collection, Iterator
from functools import partial
from typing import BinaryIO, Final, Self

from perf_offcpu.files import FileRefusedError, descriptor, is_shared, open_regular
from perf_offcpu.structs import Closing

_HANDLE: Final = os.O_PATH | os.O_CLOEXEC
_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_NEW: Final = os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
_MAX_LINKS: Final = 40  # the kernel's limit of symbolic links in one path (MAXSYMLINKS)


class Directory(Closing):
    """Open directory with a readable descriptor; its methods take names of entries, never paths."""

    def __init__(self, fd: int, path: str) -> None:
        self.fd, self.path = fd, path

    @classmethod
    def private(cls, path: str, *, make: bool = False) -> Self:
        """Open a directory that only its user and root can change, like every directory above it. Every component,
        directory or link, has to belong to root or to the user; a directory that others may write to needs the sticky
        bit (as /tmp has). So root does not use another user's HOME, which sudo may keep. The path is absolute; with
        `make`, missing components are created with mode 0700."""
        user = os.geteuid()
        with descriptor(_resolve(path, partial(_check_private, {0, user}), make=make)) as handle:
            status = os.fstat(handle)
            if status.st_uid != user or is_shared(status):
                raise FileRefusedError(path, "the directory is not private to its user")
            return cls(_reopen_directory(handle, path), path)

    @classmethod
    def named(cls, path: str, *, make: bool = False) -> Self:
        """Open a directory that the user named, wherever it is; with `make`, create missing components. In a directory
        that all may write to (sticky, as /tmp), only links of the caller or of the owner of that directory are
        followed: the kernel's own rule (fs.protected_symlinks), enforced also where it is switched off."""
        with descriptor(_resolve(os.path.abspath(path), partial(_check_protected, os.geteuid()), make=make)) as handle:
            return cls(_reopen_directory(handle, path), path)

    @classmethod
    def of_process(cls, path: str) -> Self:
        """Open a magic link of /proc, as /proc/PID/root, which only the kernel can follow."""
        return cls(os.open(path, _DIRECTORY), path)

    @classmethod
    def of_output(cls, path: str) -> tuple[Self, str]:
        """Open the directory of a file that the user wants written, and return it with the file's name in it. A link at
        the end of the path is followed, by the rule of `named`, so the name is never that of a link and the file can be
        replaced without replacing the link; but for links of /proc/self/fd."""
        wanted = os.path.abspath(path)
        for _ in range(_MAX_LINKS):
            directory = cls.named(os.path.dirname(wanted))
            try:
                name = os.path.basename(wanted)
                status = directory.status(name) if name else None
                if status is None or not stat.S_ISLNK(status.st_mode):
                    return directory, name
                place = os.fstat(directory.fd)
                _check_protected(os.geteuid(), path, status, place)
                if place.st_dev == os.stat("/proc").st_dev:
                    return directory, name
                target = os.readlink(name, dir_fd=directory.fd)
            except BaseException:
                directory.close()
                raise
            directory.close()
            wanted = os.path.join(os.path.dirname(wanted), target)
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)

    def close(self) -> None:
        """Close the descriptor."""
        os.close(self.fd)

    def status(self, name: str) -> os.stat_result | None:
        """Return the status of an entry (of a link, not of its target); None if there is no such entry."""
        try:
            return os.stat(_entry(name), dir_fd=self.fd, follow_symlinks=False)
        except FileNotFoundError:
            return None

    def target_of_link(self, name: str, *, owners: Collection[int]) -> str:
        """Return the target of a link, "" if there is no such link; OSError if its owner is not in `owners` (uids)."""
        status = self.status(name)
        if status is None or not stat.S_ISLNK(status.st_mode):
            return ""
        if status.st_uid not in owners:
            raise FileRefusedError(name, f"it is a symbolic link of user {status.st_uid}")
        return os.readlink(_entry(name), dir_fd=self.fd)

    def names(self) -> list[str]:
        """Return the names of all entries, sorted."""
        with self._listed() as listed:
            return sorted(os.listdir(listed))

    def names_of_others(self) -> list[str]:
        """Return the names of entries such as links: neither regular files nor directories."""
        with self._listed() as listed, os.scandir(listed) as entries:
            return sorted(
                entry.name
                for entry in entries
                if not (entry.is_dir(follow_symlinks=False) or entry.is_file(follow_symlinks=False))
            )

    def _listed(self) -> contextlib.AbstractContextManager[int]:
        """Return a new descriptor of the directory: threads that list it by one descriptor would share its position."""
        return descriptor(os.open(".", _DIRECTORY, dir_fd=self.fd))

    def open_regular(self, name: str, *, owners: Collection[int] | None = None, max_bytes: int | None = None) -> int:
        """Open a regular file, never through a link; return its descriptor. See `files.open_regular`."""
        return open_regular(_entry(name), dir_fd=self.fd, follow=False, owners=owners, max_bytes=max_bytes)

    def create(self, name: str, mode: int = 0o600) -> int:
        """Create a file, unless the name exists (then OSError); return its descriptor, readable and writable."""
        return os.open(_entry(name), _NEW, mode, dir_fd=self.fd)

    def create_hidden(self, name: str, mode: int = 0o600) -> tuple[str, int]:
        """Create a file under a hidden name, to be renamed to `name` later; return (hidden name, descriptor)."""
        hidden = f".{os.fsdecode(os.fsencode(_entry(name))[:200])}.{os.urandom(4).hex()}"
        return hidden, self.create(hidden, mode)

    @contextlib.contextmanager
    def replacing(self, name: str, mode: int = 0o600) -> Iterator[BinaryIO]:
        """Write a file that appears under its name, whole, when the block ends without an exception. Until then it has
        a name of its own in the same directory; after an exception nothing is left."""
        hidden, fd = self.create_hidden(name, mode)
        try:
            with open(fd, "wb") as file:
                yield file
            self.rename(hidden, name)
        except BaseException:
            self.remove(hidden)
            raise

    def rename(self, name: str, new: str) -> None:
        """Give an entry another name, in place of the entry that has it."""
        os.rename(_entry(name), _entry(new), src_dir_fd=self.fd, dst_dir_fd=self.fd)

    def rename_new(self, name: str, new: str) -> bool:
        """Give a file a name that no entry has, and return True; return False if an entry has it."""
        try:
            os.link(_entry(name), _entry(new), src_dir_fd=self.fd, dst_dir_fd=self.fd, follow_symlinks=False)
        except FileExistsError:
            return False
        self.remove(name)
        return True

    def remove(self, name: str) -> None:
        """Remove a file or link, if it exists."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(_entry(name), dir_fd=self.fd)

    def touch(self, name: str) -> None:
        """Set the times of a file, never of a link's target, to now."""
        os.utime(_entry(name), dir_fd=self.fd, follow_symlinks=False)

    def link(self, name: str, target: str) -> None:
        """Create a symbolic link to `target`; an existing name is an OSError."""
        os.symlink(target, _entry(name), dir_fd=self.fd)

    def subdirectory(self, path: str, *, make: bool = False) -> Self:
        """Open the directory at a relative path below this one, never through a link; with `make`, create it."""
        fd = os.dup(self.fd)
        try:
            for part in path.split("/") if path else ():
                if make:
                    with contextlib.suppress(FileExistsError):
                        os.mkdir(_entry(part), dir_fd=fd)
                inner = os.open(_entry(part), _DIRECTORY | os.O_NOFOLLOW, dir_fd=fd)
                os.close(fd)
                fd = inner
            return type(self)(fd, os.path.join(self.path, path))
        except BaseException:
            os.close(fd)
            raise


def _check_private(users: Collection[int], path: str, status: os.stat_result, parent: os.stat_result) -> None:
    """Raise FileRefusedError if a component is not of `users` (uids), or writable for others and not sticky."""
    if status.st_uid not in users:
        raise FileRefusedError(path, f"a part of the path belongs to user {status.st_uid}")
    # The mode of a link means nothing; what belongs to whom in a sticky directory is its owner's affair.
    if is_shared(status) and not stat.S_ISLNK(status.st_mode) and not status.st_mode & stat.S_ISVTX:
        raise FileRefusedError(path, "others may write to a directory of the path")


def _check_protected(user: int, path: str, status: os.stat_result, parent: os.stat_result) -> None:
    """Raise FileRefusedError for another user's link in a directory that all may write to."""
    is_open = parent.st_mode & stat.S_IWOTH and parent.st_mode & stat.S_ISVTX
    if stat.S_ISLNK(status.st_mode) and is_open and status.st_uid not in (user, parent.st_uid):
        raise FileRefusedError(path, "a symbolic link of another user leads there")


def _resolve(path: str, check: Callable[[str, os.stat_result, os.stat_result], None], *, make: bool) -> int:
    """Open an absolute path as an O_PATH descriptor of a directory, and check each component on the way."""
    if not path.startswith("/"):
        raise FileRefusedError(path, "the path is not absolute")
    parts, links = deque(path.split("/")), 0
    fd = os.open("/", _HANDLE | os.O_DIRECTORY)
    try:
        while parts:
            part = parts.popleft()
            if part in ("", "."):
                continue
            inner = _component(part, fd, make=make)
            try:
                status = os.fstat(inner)
                check(path, status, os.fstat(fd))
                if stat.S_ISLNK(status.st_mode):
                    links += 1
                    if links > _MAX_LINKS:
                        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
                    target = os.readlink("", dir_fd=inner)
                    parts.extendleft(reversed(target.split("/")))
                    if not target.startswith("/"):
                        continue
                    following = os.open("/", _HANDLE | os.O_DIRECTORY)
                elif stat.S_ISDIR(status.st_mode):
                    following = os.dup(inner)
                else:
                    raise OSError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
            finally:
                os.close(inner)
            os.close(fd)
            fd = following
        return fd
    except BaseException as problem:
        os.close(fd)
        if isinstance(problem, OSError):
            problem.filename = path  # not only the component at which it happened
        raise


def _component(name: str, dir_fd: int, *, make: bool) -> int:
    """Return an O_PATH descriptor of one entry, never of a link's target; with `make`, create a missing directory."""
    try:
        return os.open(name, _HANDLE | os.O_NOFOLLOW, dir_fd=dir_fd)
    except FileNotFoundError:
        if not make:
            raise
    with contextlib.suppress(FileExistsError):
        os.mkdir(name, 0o700, dir_fd=dir_fd)
    return os.open(name, _HANDLE | os.O_NOFOLLOW, dir_fd=dir_fd)


def _reopen_directory(handle: int, path: str) -> int:
    try:
        return os.open(".", _DIRECTORY, dir_fd=handle)
    except OSError as problem:  # it names "."
        raise OSError(problem.errno, problem.strerror, path) from None


def _entry(name: str) -> str:
    """Return the name if it names an entry of a directory; raise ValueError if it is empty, `.`, `..`, or a path."""
    if name in ("", ".", "..") or "/" in name or "\0" in name:
        raise ValueError(f"{name!r} is not the name of a directory entry")
    return name
