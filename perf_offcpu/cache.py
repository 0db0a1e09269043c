# SPDX-License-Identifier: Apache-2.0
"""Keep on disk what is costly to make: ELF headers, symbol tables, source lines, compiled BPF programs.

    $XDG_CACHE_HOME/perf-offcpu/symbols/NAME       (~/.cache/…; 0700, the user's own)
    $XDG_CACHE_HOME/perf-offcpu/programs/NAME

A file is a header, a directory of columns and the bytes of the columns, little-endian, 8-aligned:

    magic "POCACHE1" · u32 number of columns · u32 0 · u64 size of the file · u64 sum, u64 xor of the rest
    for each column: 16 bytes name, 8 bytes numpy dtype, u64 offset, u64 number of items
    …

Damage: a file that does not fit this description to its last byte is removed and made again. Races: files
are written under another name and renamed, never changed; a reader keeps the file that it opened. Size: the
files used last stay, up to a limit. Other failures (a full disk, no home) cost only time. Trust: a file is
used if it belongs to this user, has no other name, and no other user may write to it.
"""

from __future__ import annotations

import contextlib
import hashlib
import mmap
import os
import re
import stat
from collections.abc import Iterator, Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from perf_offcpu.binary.layout import BYTE, U32, U64, Field, Layout
from perf_offcpu.errors import LayoutError

Array = NDArray[Any]

MAGIC: Final = b"POCACHE1"
LIMIT: Final = 1 << 30
"""Bytes that all files together may take, if PERF_OFFCPU_CACHE_BYTES is not set; 0: no cache."""
_MAX_COLUMNS: Final = 64
_NAME: Final = re.compile(r"[0-9a-zA-Z._-]{1,200}")
_DTYPES: Final = frozenset({"<u8", "<u4", "<i8", "<i4", "|u1"})
_OLD_S: Final = 3600.0

_HEAD: Final = Layout(
    "cache file",
    (
        Field("magic", BYTE, count=8),
        Field("columns", U32),
        Field("reserved", U32),
        Field("size", U64, doc="of the whole file"),
        Field("sum", U64, doc="of the three numbers before and all words after, modulo 2^64"),
        Field("xor", U64, doc="of the same words"),
    ),
)
_COLUMN: Final = Layout(
    "cache column",
    (
        Field("name", BYTE, count=16),
        Field("dtype", BYTE, count=8),
        Field("offset", U64),
        Field("items", U64),
    ),
)


class DiskCache:
    """Columns of numbers and bytes by name.

    Args:
        directory: created at the first write. It is used only if it belongs to this user alone.
        limit: bytes that its files may take together.
    """

    def __init__(self, directory: str, limit: int = LIMIT) -> None:
        self.directory, self.limit = directory, limit
        self._unchecked = limit
        """Bytes written since `_shrink`, which looks at all files."""

    @classmethod
    def usual(cls, kind: str = "symbols", limit: int = LIMIT) -> DiskCache | None:
        """Return the user's cache of one kind of content; None if the environment says that there is none."""
        wanted = os.environ.get("PERF_OFFCPU_CACHE_BYTES", "")
        base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
        bounded = min(int(wanted), limit) if wanted.isascii() and wanted.isdigit() else limit
        return (
            cls(os.path.join(base, "perf-offcpu", kind), bounded) if bounded and os.path.isabs(base) else None
        )

    def read(self, name: str) -> dict[str, Array] | None:
        """Return the columns written under a name, read-only; None if there are none or they are damaged."""
        path = self._path(name)
        try:
            data = _mapped(path)
            columns = None if data is None else unpack(data)
            if columns is None:
                os.unlink(path)
            else:
                os.utime(path)  # the files used last stay
            return columns
        except (OSError, ValueError):
            return None

    def write(self, name: str, columns: Mapping[str, Array]) -> None:
        """Write columns under a name, if that is possible."""
        path = self._path(name)
        temporary = f"{path}.{os.getpid()}.tmp"
        with contextlib.suppress(OSError):
            if not self._is_mine():
                return
            try:
                with open(temporary, "xb", opener=_private) as file:
                    file.writelines(pack(columns))
                    self._unchecked += file.tell()
                os.replace(temporary, path)
            finally:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(temporary)
            if self._unchecked > self.limit // 16:
                self._shrink()
                self._unchecked = 0

    def remove(self, name: str) -> None:
        """Remove the columns of a name."""
        with contextlib.suppress(OSError):
            os.unlink(self._path(name))

    def _path(self, name: str) -> str:
        if not _NAME.fullmatch(name):
            raise ValueError(f"{name!r} is no name for a cache file")
        return os.path.join(self.directory, name)

    def _is_mine(self) -> bool:
        _make_private(self.directory)
        return _is_own(os.stat(self.directory))

    def _shrink(self) -> None:
        """Remove leftovers of crashes, and the least recently used files until the others fit."""
        with os.scandir(self.directory) as entries:
            found = [(entry.stat(follow_symlinks=False), entry) for entry in entries]
        files = [(one.st_mtime, one.st_size, entry.path) for one, entry in found if entry.is_file()]
        newest, total = max(files, default=(0.0, 0, ""))[0], 0
        for used, size, path in sorted(files, reverse=True):
            total += size
            if total > self.limit or (path.endswith(".tmp") and used < newest - _OLD_S):
                os.unlink(path)


def cache_name(kind: str, build_id: bytes, *identity: object) -> str:
    """Return a name for content made from certain files: build-id, for people, and hash of all arguments."""
    digest = hashlib.sha256(repr((kind, build_id, identity)).encode()).hexdigest()[:24]
    return f"{build_id.hex()[:40] or 'none'}-{digest}.{kind}"


def pack(columns: Mapping[str, Array]) -> Iterator[bytes | memoryview]:
    """Yield the parts of a file, in order."""
    arrays = {name: _plain(array) for name, array in columns.items()}
    at = _HEAD.size() + _COLUMN.size() * len(arrays)
    directory, parts = bytearray(), list[memoryview]()
    for name, array in arrays.items():
        fields = {"name": _text(name, 16), "dtype": _text(array.dtype.str, 8)}
        directory += _COLUMN.pack({**fields, "offset": at, "items": array.size})
        padded = array.data.cast("B") if array.nbytes else memoryview(b"")
        parts += [padded, memoryview(bytes(-array.nbytes % 8))]
        at += array.nbytes + -array.nbytes % 8
    head = {"magic": MAGIC, "columns": len(arrays), "reserved": 0, "size": at}
    total, xor = _checks([_own(head), np.frombuffer(directory, "<u8"), *map(_words, arrays.values())])
    yield _HEAD.pack({**head, "sum": total, "xor": xor})
    yield bytes(directory)
    yield from parts


def unpack(data: memoryview) -> dict[str, Array] | None:
    """Return the columns in the bytes of a file, without copying them; None if it is damaged."""
    try:
        head = _HEAD.unpack(data)
    except LayoutError:
        return None
    if head["magic"] != MAGIC or head["size"] != len(data) or len(data) % 8 or head["columns"] > _MAX_COLUMNS:
        return None
    if _checks([_own(head), np.frombuffer(data[_HEAD.size() :], "<u8")]) != (head["sum"], head["xor"]):
        return None
    if _HEAD.size() + head["columns"] * _COLUMN.size() > len(data):
        return None
    rows = np.frombuffer(data, _COLUMN.dtype("<"), head["columns"], _HEAD.size())
    columns = {_name(row): _column(data, row) for row in rows}
    sound = {name: column for name, column in columns.items() if column is not None}
    return sound if len(sound) == head["columns"] else None


def _name(row: Any) -> str:
    return bytes(row["name"]).rstrip(b"\0").decode("ascii", "replace")


def _column(data: memoryview, row: Any) -> Array | None:
    dtype = bytes(row["dtype"]).rstrip(b"\0").decode("ascii", "replace")
    offset, items = int(row["offset"]), int(row["items"])
    if dtype not in _DTYPES or offset % 8 or offset + items * np.dtype(dtype).itemsize > len(data):
        return None
    return np.frombuffer(data, dtype, items, offset)


def _plain(array: Array) -> Array:
    """Return the array, contiguous and little-endian."""
    return np.ascontiguousarray(array, array.dtype.newbyteorder("<"))


def _text(text: str, size: int) -> bytes:
    return text.encode("ascii").ljust(size, b"\0")


def _words(array: Array) -> NDArray[np.uint64]:
    """Return the bytes of an array as words, the last one padded with zeros."""
    data = array.reshape(-1).view(np.uint8)
    whole = len(data) - len(data) % 8
    if whole == len(data):
        return data.view("<u8")
    tail = np.zeros(8, np.uint8)
    tail[: len(data) - whole] = data[whole:]
    return np.concatenate([data[:whole].view("<u8"), tail.view("<u8")])


def _own(head: Mapping[str, Any]) -> NDArray[np.uint64]:
    """Return the words of the header that the checksums cover."""
    return np.array([head["columns"], head["reserved"] + 1, head["size"]], np.uint64)


def _checks(parts: list[NDArray[np.uint64]]) -> tuple[int, int]:
    total, xor = 0, 0
    for words in parts:
        total += int(np.add.reduce(words, dtype=np.uint64))
        xor ^= int(np.bitwise_xor.reduce(words))
    return total % 2**64, xor


def _mapped(path: str) -> memoryview | None:
    """Map the bytes of a file: these files are replaced, never truncated, so the mapping stays valid."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        status = os.fstat(fd)
        whole = stat.S_ISREG(status.st_mode) and status.st_nlink == 1 and status.st_size >= _HEAD.size()
        if not whole or not _is_own(status):
            return None
        return memoryview(mmap.mmap(fd, status.st_size, prot=mmap.PROT_READ))
    finally:
        os.close(fd)


def _is_own(status: os.stat_result) -> bool:
    return status.st_uid == os.geteuid() and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def _make_private(directory: str) -> None:
    """Create a directory and its missing parents, all of them for this user alone."""
    if not os.path.isdir(directory):
        _make_private(os.path.dirname(directory))
        with contextlib.suppress(FileExistsError):
            os.mkdir(directory, 0o700)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
