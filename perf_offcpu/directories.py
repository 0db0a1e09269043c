# SPDX-License-Identifier: Apache-2.0
"""Open directories in which other users may have prepared entries, component by component.

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
    """Open directory (`fd`, readable). Methods take names of its entries, not paths, except `subdirectory`."""

    def __init__(self, fd: int, path: str) -> None:
        self.fd, self.path = fd, path

    @classmethod
    def private(cls, path: str, *, make: bool = False) -> Self:
        """Open a directory that only this user and root can change, as every directory above it. Each component of the
        absolute path, directory or link, has to belong to root or to this user; a directory above that others may write
        to needs the sticky bit (as /tmp has). So root does not use another user's HOME, which sudo may keep. With
        `make`, missing components are created with mode 0700."""
        user = os.geteuid()
        with descriptor(_resolve(path, partial(_check_private, {0, user}), make=make)) as handle:
            status = os.fstat(handle)
            if status.st_uid != user or is_shared(status):
                raise FileRefusedError(path, "the directory is not private to its user")
            return cls(_reopen_directory(handle, path), path)

    @classmethod
    def named(cls, path: str, *, make: bool = False) -> Self:
        """Open a directory that the user named, of any owner; with `make`, create missing components. In a directory
        that all may write to (sticky, as /tmp), only links of the caller or of the owner of that directory are
        followed: the kernel's own rule (fs.protected_symlinks), enforced also where it is switched off."""
        with descriptor(_resolve(os.path.abspath(path), partial(_check_protected, os.geteuid()), make=make)) as handle:
            return cls(_reopen_directory(handle, path), path)

    @classmethod
    def of_process(cls, path: str) -> Self:
        """Open the directory behind a magic link of /proc, such as /proc/PID/root, which only the kernel can follow."""
        return cls(os.open(path, _DIRECTORY), path)

    @classmethod
    def of_output(cls, path: str) -> tuple[Self, str]:
        """Open the directory of an output file that the user named; return it with the name of the file in it. A link
        at the end of the path is followed, by the rule of `named`, so that the file can be replaced without replacing
        the link. The name is that of a link only in /proc (/proc/self/fd)."""
        wanted = os.path.abspath(path)
        for _ in range(_MAX_LINKS):
            directory = cls.named(os.path.dirname(wanted))
            try:
                name = os.path.basename(wanted)
                status = directory.status(name) if name else None
                if status is None or not stat.S_ISLNK(status.st_mode):
                    return directory, name
                parent = os.fstat(directory.fd)
                _check_protected(os.geteuid(), path, status, parent)
                if parent.st_dev == os.stat("/proc").st_dev:
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
        """Return the stat of an entry (of a link, not of its target); None if there is no such entry."""
        try:
            return os.stat(_entry(name), dir_fd=self.fd, follow_symlinks=False)
        except FileNotFoundError:
            return None

    def target_of_link(self, name: str, *, owners: Collection[int]) -> str:
        """Return the target of a symbolic link, "" if the entry is missing or no link; raise FileRefusedError if its
        owner is not in `owners` (uids)."""
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
        """Return the names of entries that are neither regular files nor directories, such as links, sorted."""
        with self._listed() as listed, os.scandir(listed) as entries:
            return sorted(
                entry.name
                for entry in entries
                if not (entry.is_dir(follow_symlinks=False) or entry.is_file(follow_symlinks=False))
            )

    def _listed(self) -> contextlib.AbstractContextManager[int]:
        """Yield another descriptor of the directory for a listing: threads would share the position of a common one."""
        return descriptor(os.open(".", _DIRECTORY, dir_fd=self.fd))

    def open_regular(self, name: str, *, owners: Collection[int] | None = None, max_bytes: int | None = None) -> int:
        """Open a regular file for reading, never through a link; return its descriptor. See `files.open_regular`."""
        return open_regular(_entry(name), dir_fd=self.fd, follow=False, owners=owners, max_bytes=max_bytes)

    def create(self, name: str, mode: int = 0o600) -> int:
        """Create a file and return its descriptor, readable and writable; raise FileExistsError if the name exists."""
        return os.open(_entry(name), _NEW, mode, dir_fd=self.fd)

    def create_hidden(self, name: str, mode: int = 0o600) -> tuple[str, int]:
        """Create a file under a hidden name, to be renamed to `name` later; return that name and a descriptor."""
        hidden = f".{os.fsdecode(os.fsencode(_entry(name))[:200])}.{os.urandom(4).hex()}"
        return hidden, self.create(hidden, mode)

    @contextlib.contextmanager
    def replacing(self, name: str, mode: int = 0o600) -> Iterator[BinaryIO]:
        """Open a file for writing that gets its name, in place of an older file, when the `with` block ends. Until then
        it has a hidden name in the same directory; after an exception it is removed."""
        hidden, fd = self.create_hidden(name, mode)
        try:
            with open(fd, "wb") as file:
                yield file
            self.rename(hidden, name)
        except BaseException:
            self.remove(hidden)
            raise

    def rename(self, name: str, new: str) -> None:
        """Rename an entry, in place of an entry that has the new name."""
        os.rename(_entry(name), _entry(new), src_dir_fd=self.fd, dst_dir_fd=self.fd)

    def rename_new(self, name: str, new: str) -> bool:
        """Rename a file and return True; return False, and do nothing, if an entry has the new name."""
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
        """Set the times of an entry (of a link, not of its target) to now."""
        os.utime(_entry(name), dir_fd=self.fd, follow_symlinks=False)

    def link(self, name: str, target: str) -> None:
        """Create a symbolic link to `target`; raise FileExistsError if the name exists."""
        os.symlink(target, _entry(name), dir_fd=self.fd)

    def subdirectory(self, path: str, *, make: bool = False) -> Self:
        """Open the directory at a relative path ("": this one), never through links; `make`: create what is missing."""
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
    """Raise FileRefusedError if a component of `path` (its `status`) does not belong to one of `users` (uids), or if
    others may write to it and it is not sticky: the policy of `Directory.private`."""
    if status.st_uid not in users:
        raise FileRefusedError(path, f"a part of the path belongs to user {status.st_uid}")
    # The mode of a link means nothing; what belongs to whom in a sticky directory is its owner's affair.
    if is_shared(status) and not stat.S_ISLNK(status.st_mode) and not status.st_mode & stat.S_ISVTX:
        raise FileRefusedError(path, "others may write to a directory of the path")


def _check_protected(user: int, path: str, status: os.stat_result, parent: os.stat_result) -> None:
    """Raise FileRefusedError if a component of `path` (its `status`) is another user's link in a sticky directory that
    all may write to: the policy of `Directory.named`."""
    is_open = parent.st_mode & stat.S_IWOTH and parent.st_mode & stat.S_ISVTX
    if stat.S_ISLNK(status.st_mode) and is_open and status.st_uid not in (user, parent.st_uid):
        raise FileRefusedError(path, "a symbolic link of another user leads there")


def _resolve(path: str, check: Callable[[str, os.stat_result, os.stat_result], None], *, make: bool) -> int:
    """Open the directory at an absolute path and return an O_PATH descriptor. `check`: is called for each component
    with (path, its stat, the stat of the directory that it is in), and may raise; `make`: create missing components."""
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
    """Return an O_PATH descriptor of an entry (a link itself, not its target); `make`: create a missing directory."""
    try:
        return os.open(name, _HANDLE | os.O_NOFOLLOW, dir_fd=dir_fd)
    except FileNotFoundError:
        if not make:
            raise
    with contextlib.suppress(FileExistsError):
        os.mkdir(name, 0o700, dir_fd=dir_fd)
    return os.open(name, _HANDLE | os.O_NOFOLLOW, dir_fd=dir_fd)


def _reopen_directory(handle: int, path: str) -> int:
    """Return a readable descriptor of the directory of an O_PATH descriptor; `path`: its name in errors."""
    try:
        return os.open(".", _DIRECTORY, dir_fd=handle)
    except OSError as problem:  # it names "."
        raise OSError(problem.errno, problem.strerror, path) from None


def _entry(name: str) -> str:
    """Return the name; raise ValueError if it cannot be that of a directory entry: empty, `.`, `..`, or a path."""
    if name in ("", ".", "..") or "/" in name or "\0" in name:
        raise ValueError(f"{name!r} is not the name of a directory entry")
    return name
