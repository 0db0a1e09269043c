# SPDX-License-Identifier: Apache-2.0
"""Read the bytes of an ELF file: of a regular file, or of memory.

Files are read with pread, not mapped: a file that is truncated while it is read causes an error, not SIGBUS.
"""

from __future__ import annotations

import functools
import hashlib
import lzma
import os
import zlib
from typing import Final

from perf_offcpu.errors import FormatError

_LZMA_MEMORY: Final = 1 << 27  # xz -9 takes 65 MiB
_GZIP: Final = 31  # zlib's wbits for a gzip header


def uncompress(kind: str, data: bytes, most: int) -> bytes:
    """Uncompress all of `data`, of the kind "zlib", "gzip", "xz" or "zstd", to at most `most` bytes.

    Raises ValueError if it is damaged, becomes more, is of another kind, or its package is not installed.
    """
    if kind == "zstd":
        return _uncompress_zstd(data, most)
    unpacker: lzma.LZMADecompressor | zlib._Decompress
    try:
        if kind == "xz":
            unpacker = lzma.LZMADecompressor(memlimit=_LZMA_MEMORY)
        elif kind in ("zlib", "gzip"):
            unpacker = zlib.decompressobj(zlib.MAX_WBITS if kind == "zlib" else _GZIP)
        else:
            raise ValueError(f"it is compressed in an unknown way ({kind})")
        unpacked = unpacker.decompress(data, most + 1)
    except (lzma.LZMAError, zlib.error) as problem:
        raise ValueError(str(problem)) from None
    if not unpacker.eof or len(unpacked) > most:
        raise ValueError(f"it is cut off, or unpacks to more than {most} bytes")
    return unpacked


def _uncompress_zstd(data: bytes, most: int) -> bytes:
    try:
        import zstandard
    except ImportError:
        raise ValueError("the Python package zstandard is not installed") from None
    try:
        with zstandard.ZstdDecompressor().stream_reader(data) as reader:
            unpacked = bytes(reader.read(most + 1))
    except zstandard.ZstdError as problem:
        raise ValueError(str(problem)) from None
    if len(unpacked) > most:
        raise ValueError(f"it unpacks to more than {most} bytes")
    return unpacked


MAX_SECTION: Final = 1 << 30
"""Bytes read at once, of one section: symbol and string tables of the largest programs have some 100 MB."""


class Source:
    """Bytes of known size: of an open file, or the bytes themselves; `path` names them in errors.

    Attributes:
        fd: the open file; -1 for bytes in memory.
        changed_ns: wall-clock time of the last change of the file; 0 for bytes in memory.
    """

    def __init__(self, path: str, content: int | bytes) -> None:
        self.path, self._content = path, content
        if isinstance(content, bytes):
            self.fd, self.size, self.changed_ns = -1, len(content), 0
        else:
            self._status = os.fstat(content)
            self.fd, self.size, self.changed_ns = content, self._status.st_size, self._status.st_mtime_ns

    @functools.cached_property
    def identity(self) -> tuple[object, ...]:
        """Key of these bytes: inode, size and time of change of a file; a hash of memory."""
        if isinstance(self._content, bytes):
            return (hashlib.sha256(self._content).digest(),)
        return (self._status.st_dev, self._status.st_ino, self.size, self.changed_ns)

    def read(self, offset: int, size: int) -> bytes:
        """Return up to `size` bytes at an offset; fewer at the end, or if the file has become shorter.

        Raises OSError if the disk or the file system fails.
        """
        if isinstance(self._content, bytes):
            return self._content[offset : offset + size]
        parts: list[bytes] = []
        while size > 0 and (part := os.pread(self.fd, size, offset)):
            parts.append(part)
            offset, size = offset + len(part), size - len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def read_exactly(self, what: str, offset: int, size: int, ceiling: int = MAX_SECTION) -> bytes:
        """Return `size` bytes at an offset; `what` names them in errors.

        Raises FormatError if they lie outside the file, or are more than `ceiling`; OSError as `read`.
        """
        if size > ceiling or offset + size > self.size:
            problem = f"{size} bytes, the file has {self.size}, at most {ceiling} are read"
            raise FormatError(self.path, what, problem, offset)
        data = self.read(offset, size)
        if len(data) != size:
            raise FormatError(self.path, what, f"{size} bytes wanted, {len(data)} could be read", offset)
        return data
