# SPDX-License-Identifier: Apache-2.0
"""Stores for gathered symbols: a directory that is a build-id cache, or a tar archive."""

from __future__ import annotations

import contextlib
import os
import shutil
import tarfile
from typing import IO, Final, cast

from perf_offcpu.directories import Directory
from perf_offcpu.objects.elf.source import Source

_BLOCK: Final = 1 << 20


class DirectoryStore:
    """A directory, as perf's build-id cache; existing files stay, new ones appear whole.

    Files go into directories of this store only, never through links (`directories.Directory`).

    Args:
        root: private to the user; created if need be.
    """

    def __init__(self, root: str) -> None:
        self.root = root

    def has(self, name: str) -> bool:
        """Return True if there is a file of that name already."""
        try:
            with self._directory_of(name) as directory:
                return directory.status(os.path.basename(name)) is not None
        except FileNotFoundError:
            return False

    def add(self, name: str, source: Source) -> None:
        """Add a file.

        Raises:
            OSError: it cannot be written, or its source not be read.
        """
        with (
            self._directory_of(name, make=True) as directory,
            directory.replacing(os.path.basename(name), 0o644) as file,
        ):
            shutil.copyfileobj(_SourceFile(source), file, _BLOCK)

    def link(self, name: str, target: str) -> None:
        """Add a symbolic link, unless there is one."""
        with self._directory_of(name, make=True) as directory, contextlib.suppress(FileExistsError):
            directory.link(os.path.basename(name), target)

    def _directory_of(self, name: str, *, make: bool = False) -> Directory:
        with Directory.private(self.root, make=make) as root:
            return root.subdirectory(os.path.dirname(name), make=make)


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
