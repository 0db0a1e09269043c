# SPDX-License-Identifier: Apache-2.0
"""Unpack archives of symbols from any sender: inside a directory, over no file, within bounds of size."""

import bz2
import contextlib
import gzip
import lzma
import os
import tarfile
from typing import IO, Any, Final, cast

from perf_offcpu.directories import Directory
from perf_offcpu.files import open_regular

_BLOCK: Final = 1 << 20
_MAX_READ: Final = 16 << 20
MAX_MEMBERS: Final = 200_000
MAX_RATIO: Final = 100  # symbol tables and debug information shrink to a tenth; a bomb to a thousandth and less
_BASE_SIZE: Final = 16 << 20


class Unpacker:
    """Unpacks an archive into a directory; nothing that exists is written over, and no link leads outside. Links are
    created last, and only if no part of their target is itself a link of the archive, so that no chain of them leads
    out either. All files together may have `limit` bytes. After a failure all files and links created are removed."""

    def __init__(self, directory: Directory, limit: int) -> None:
        self._directory, self._room = directory, limit
        self._links, self._created = dict[str, str](), list[str]()

    def unpack(self, archive: tarfile.TarFile) -> None:
        """Unpack all members. Raises tarfile.TarError: a member leads outside, or is neither file nor link nor
        directory; there are too many members or bytes; OSError: a member cannot be written."""
        try:
            for number, member in enumerate(archive):
                if number >= MAX_MEMBERS:
                    raise tarfile.TarError(f"it has more than {MAX_MEMBERS} members")
                self._member(archive, member)
            for name, target in self._links.items():
                self._link(name, target)
        except BaseException:
            for name in reversed(self._created):
                with contextlib.suppress(OSError), self._parent(name) as parent:
                    parent.remove(os.path.basename(name))
            raise

    def _member(self, archive: tarfile.TarFile, member: tarfile.TarInfo) -> None:
        name = os.path.normpath(member.name)
        if not _is_inside(name):
            raise tarfile.TarError(f"{member.name!r} leads out of the directory")
        if member.isdir():
            self._directory.subdirectory(name, make=True).close()
        elif member.issym():
            self._links[name] = member.linkname
        elif member.isreg() and not member.issparse():
            self._file(archive, member, name)
        else:
            raise tarfile.TarError(f"{member.name!r} is neither a file nor a link inside")

    def _file(self, archive: tarfile.TarFile, member: tarfile.TarInfo, name: str) -> None:
        self._room -= member.size
        if self._room < 0:
            raise tarfile.TarError("it unpacks to more than an archive of symbols does")
        source = archive.extractfile(member)
        with self._parent(name, make=True) as parent:
            fd = parent.create(os.path.basename(name), 0o666)
        self._created.append(name)
        with open(fd, "wb") as file:
            while source is not None and (block := source.read(_BLOCK)):
                file.write(block)

    def _link(self, name: str, target: str) -> None:
        if not self._stays_inside(name, target):
            raise tarfile.TarError(f"the link {name!r} leads out of the directory, or to another link")
        with self._parent(name, make=True) as parent:
            parent.link(os.path.basename(name), target)
        self._created.append(name)

    def _stays_inside(self, name: str, target: str) -> bool:
        """Return True if link `name` → `target` stays inside at each step, and passes no other link of the archive."""
        place = name.split("/")[:-1]
        for step in target.split("/"):
            if step == "..":
                if not place:
                    return False
                place.pop()
            elif step not in ("", "."):
                place.append(step)
            if "/".join(place) in self._links:
                return False
        return not target.startswith("/")

    def _parent(self, name: str, *, make: bool = False) -> Directory:
        return self._directory.subdirectory(os.path.dirname(name), make=make)


class BoundedStream:
    """Reads a decompressed, seekable archive for tarfile, which trusts sizes in headers. Raises tarfile.TarError for a
    read of more than _MAX_READ bytes, and for a read or seek that begins more than `limit` bytes from the start."""

    def __init__(self, stream: IO[bytes], limit: int) -> None:
        self._stream, self._limit = stream, limit
        self.tell = stream.tell

    def read(self, size: int = -1) -> bytes:
        """Return `size` bytes, fewer at the end; raise tarfile.TarError beyond the limit, or for too many at once."""
        if not 0 <= size <= _MAX_READ or self._stream.tell() > self._limit:
            raise tarfile.TarError("it is larger than an archive of symbols is")
        return self._stream.read(size)

    def seek(self, position: int, whence: int = 0) -> int:
        """Move to a byte from the start; raise tarfile.TarError beyond the limit, or for another `whence`."""
        if whence or position > self._limit:
            raise tarfile.TarError("it is larger than an archive of symbols is")
        return self._stream.seek(position)


def unpack(path: str, directory: str) -> None:
    """Unpack an archive, whether compressed or not, into a directory that is made if it does not exist. Raises
    tarfile.TarError: it is damaged or hostile; OSError: it cannot be read or written."""
    fd = open_regular(path)
    with open(fd, "rb") as packed:
        limit = _BASE_SIZE + MAX_RATIO * os.fstat(fd).st_size
        magic = packed.read(6)
        packed.seek(0)
        bounded: Any = BoundedStream(_unpacked(packed, magic), limit)
        with Directory.named(directory, make=True) as target, tarfile.open(fileobj=bounded, mode="r:") as archive:
            Unpacker(target, limit).unpack(archive)


def _unpacked(file: IO[bytes], magic: bytes) -> IO[bytes]:
    if magic.startswith(b"\x1f\x8b"):
        return cast(IO[bytes], gzip.GzipFile(fileobj=file))
    if magic.startswith(b"BZh"):
        return bz2.BZ2File(file)
    return lzma.LZMAFile(file) if magic.startswith(b"\xfd7zXZ\0") else file


def _is_inside(name: str) -> bool:
    """Return True if a normalized path is relative, not empty, and leads to a place below where it begins."""
    return not name.startswith(("/", "../")) and name not in (".", "..")
