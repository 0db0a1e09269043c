# SPDX-License-Identifier: Apache-2.0
"""Where gathered symbols go: a directory that is a build-id cache, or a tar archive."""

from __future__ import annotations

import contextlib
import io
import os
import tarfile
from collections.abc import Iterator
from typing import Final

_BLOCK: Final = 1 << 20


class DirectoryStore:
    """A directory, as perf's build-id cache; what is there stays, files appear whole.

    Args:
        root: made if need be.
    """

    def __init__(self, root: str) -> None:
        self.root = root

    def has(self, name: str) -> bool:
        """Whether a file of that name is there already."""
        return os.path.lexists(os.path.join(self.root, name))

    def add(self, name: str, size: int, blocks: Iterator[bytes]) -> None:
        """Put a file there.

        Raises:
            OSError: that is not possible.
        """
        path = os.path.join(self.root, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        temporary = f"{path}.{os.getpid()}.tmp"
        try:
            with open(temporary, "xb") as file:
                file.writelines(blocks)
            os.replace(temporary, path)
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary)

    def link(self, name: str, target: str) -> None:
        """Put a symbolic link there, unless there is one."""
        path = os.path.join(self.root, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with contextlib.suppress(FileExistsError):
            os.symlink(target, path)


class TarStore:
    """An archive that is being written.

    Args:
        archive: open for writing.
        prefix: directory of all names in it.
    """

    def __init__(self, archive: tarfile.TarFile, prefix: str) -> None:
        self._archive, self._prefix, self._names = archive, prefix, set[str]()

    def has(self, name: str) -> bool:
        """Whether a file of that name is there already."""
        return name in self._names

    def add(self, name: str, size: int, blocks: Iterator[bytes]) -> None:
        """Put a file there.

        Raises:
            OSError: that is not possible.
        """
        self._names.add(name)
        info = self._info(name)
        info.size = size
        self._archive.addfile(info, io.BufferedReader(_Blocks(blocks)))

    def link(self, name: str, target: str) -> None:
        """Put a symbolic link there, unless there is one."""
        if name not in self._names:
            self._names.add(name)
            info = self._info(name)
            info.type, info.linkname, info.mode = tarfile.SYMTYPE, target, 0o777
            self._archive.addfile(info)

    def _info(self, name: str) -> tarfile.TarInfo:
        """Nobody's file of no time: the same symbols give the same bytes."""
        return tarfile.TarInfo(f"{self._prefix}/{name}")


class _Blocks(io.RawIOBase):
    """Blocks as a file that is read."""

    def __init__(self, blocks: Iterator[bytes]) -> None:
        self._blocks, self._rest = blocks, b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        if not self._rest:
            self._rest = next(self._blocks, b"")
        part, self._rest = self._rest[: len(buffer)], self._rest[len(buffer) :]
        buffer[: len(part)] = part
        return len(part)


def unpack(archive: tarfile.TarFile, directory: str) -> None:
    """Unpack files, directories and links inside the archive; nothing that is there is written over.

    Raises:
        tarfile.TarError: a name or link leads out of the directory, or is of another kind.
        OSError: that is not possible.
    """
    root = os.path.realpath(directory)
    for member in archive:
        name = os.path.normpath(member.name)
        path = os.path.join(root, name)
        if not _inside(name) or os.path.realpath(os.path.dirname(path)) != os.path.dirname(path):
            raise tarfile.TarError(f"{member.name!r} leads out of the directory")
        if member.isdir():
            os.makedirs(path, exist_ok=True)
            continue
        os.makedirs(os.path.dirname(path), exist_ok=True)
        if member.issym() and _inside(os.path.normpath(f"{os.path.dirname(name)}/{member.linkname}")):
            os.symlink(member.linkname, path)
        elif member.isreg():
            source = archive.extractfile(member)
            with open(path, "xb") as file:
                while source is not None and (block := source.read(_BLOCK)):
                    file.write(block)
        else:
            raise tarfile.TarError(f"{member.name!r} is neither a file nor a link inside")


def _inside(name: str) -> bool:
    """Whether a normalized relative path stays where it begins."""
    return not name.startswith(("/", "../")) and name not in (".", "..")
