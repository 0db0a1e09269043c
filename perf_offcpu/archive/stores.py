# SPDX-License-Identifier: Apache-2.0
"""Stores for gathered symbols: a directory that is a build-id cache, or a tar archive."""

from __future__ import annotations

import contextlib
import os
import shutil
import tarfile
from typing import IO, Final, cast

from perf_offcpu.objects.elf.source import Source

_BLOCK: Final = 1 << 20


class DirectoryStore:
    """A directory, as perf's build-id cache; existing files stay, new ones appear whole.

    Args:
        root: created if need be.
    """

    def __init__(self, root: str) -> None:
        self.root = root

    def has(self, name: str) -> bool:
        """Return True if there is a file of that name already."""
        return os.path.lexists(os.path.join(self.root, name))

    def add(self, name: str, source: Source) -> None:
        """Add a file.

        Raises:
            OSError: it cannot be written, or its source not be read.
        """
        path = os.path.join(self.root, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        temporary = f"{path}.{os.getpid()}.tmp"
        try:
            with open(temporary, "xb") as file:
                shutil.copyfileobj(_SourceFile(source), file, _BLOCK)
            os.replace(temporary, path)
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary)

    def link(self, name: str, target: str) -> None:
        """Add a symbolic link, unless there is one."""
        path = os.path.join(self.root, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with contextlib.suppress(FileExistsError):
            os.symlink(target, path)


class TarStore:
    """An archive that is being written; members have no owner and no time, so equal symbols give equal bytes.

    Args:
        archive: open for writing.
        prefix: directory of all names in it.
    """

    def __init__(self, archive: tarfile.TarFile, prefix: str) -> None:
        self._archive, self._prefix, self._names = archive, prefix, set[str]()

    def has(self, name: str) -> bool:
        """Return True if there is a file of that name already."""
        return name in self._names

    def add(self, name: str, source: Source) -> None:
        """Add a file.

        Raises:
            OSError: it cannot be written, or its source not be read.
        """
        self._names.add(name)
        info = tarfile.TarInfo(f"{self._prefix}/{name}")
        info.size = source.size
        self._archive.addfile(info, cast(IO[bytes], _SourceFile(source)))

    def link(self, name: str, target: str) -> None:
        """Add a symbolic link, unless there is one."""
        if name not in self._names:
            self._names.add(name)
            info = tarfile.TarInfo(f"{self._prefix}/{name}")
            info.type, info.linkname, info.mode = tarfile.SYMTYPE, target, 0o777
            self._archive.addfile(info)


class _SourceFile:
    """A source as a file that is read from start to end, zeros where it has become shorter."""

    def __init__(self, source: Source) -> None:
        self._source, self._at = source, 0

    def read(self, size: int = _BLOCK, /) -> bytes:
        size = min(size, self._source.size - self._at)
        data = self._source.read(self._at, size).ljust(size, b"\0")
        self._at += size
        return data


def unpack(archive: tarfile.TarFile, directory: str) -> None:
    """Unpack files, directories and links of an archive; existing files are not overwritten.

    Raises:
        tarfile.TarError: a name or link leads out of the directory, or is of another kind.
        OSError: a file exists or cannot be written.
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
    """Return True if a normalized path is relative and does not lead upwards."""
    return not name.startswith(("/", "../")) and name not in (".", "..")
