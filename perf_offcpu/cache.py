# SPDX-License-Identifier: Apache-2.0
"""Cache data that is costly to make on disk: symbol tables, source lines, compiled BPF programs.

    $XDG_CACHE_HOME/perf-offcpu/symbols/NAME       (~/.cache/…; 0700, the user's own)
    $XDG_CACHE_HOME/perf-offcpu/programs/NAME

A file is a head (`_HEAD`), a directory (`_COLUMN` for each column) and the columns' bytes, little-endian, 8-aligned. A
file that does not fit this description to its last byte is removed and made again. Files are written under a temporary
name and renamed, never changed, so a reader keeps the file that it opened. The files used last stay, up to a limit. The
directory, and each one above it, has to belong to this user or to root and to be closed to others
(`directories.Directory.private`), so root does not use the caches of the user who called sudo. A file counts only if
this user owns it, no other user may write to it and it has no other name. Links are never followed. Other failures (a
full disk, no home) cost time only."""

import contextlib
import hashlib
import mmap
import os
import re
import stat
from collections.abc import Callable, Mapping
from typing import Any, Final, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from perf_offcpu.directories import Directory
from perf_offcpu.files import descriptor, is_shared
from perf_offcpu.units import size_bytes

Array = NDArray[Any]
T = TypeVar("T")
MAGIC: Final = b"POCACHE2"
LIMIT: Final = 1 << 30  # bytes that all files together may take, unless PERF_OFFCPU_CACHE_BYTES is set (0: no cache)
_MAX_COLUMNS: Final = 64
_NAME: Final = re.compile(r"[0-9a-zA-Z_-][0-9a-zA-Z._-]{0,199}")
_OWN_NAME: Final = re.compile(rf"{_NAME.pattern}|\.{_NAME.pattern}\.[0-9a-f]{{8}}")
"""Matches names of cache files, and of cache files that are being written (`Directory.replacing`)."""
_DTYPES: Final = frozenset({"<u8", "<u4", "<i8", "<i4", "|u1"})
_OLD_S: Final = 3600.0
_HEAD: Final = np.dtype([("magic", "S8"), ("columns", "<u8"), ("size", "<u8"), ("sum", "<u8")])
"""`size`: bytes of the whole file. `sum`: sum of all its 64-bit words but `sum` itself, modulo 2^64."""
_COLUMN: Final = np.dtype([("name", "S16"), ("dtype", "S8"), ("offset", "<u8"), ("items", "<u8")])
_SUM: Final = 3  # index of the word `sum`


class DiskCache:
    """Cache of named sets of columns (arrays of numbers), a file each, in a directory of at most `limit` bytes."""

    def __init__(self, directory: str, limit: int = LIMIT) -> None:
        self.directory, self.limit = directory, limit
        self._unchecked = limit  # bytes written since `_shrink`, which looks at all files

    @classmethod
    def usual(cls, kind: str = "symbols", limit: int = LIMIT) -> Self | None:
        """Return the user's cache of a kind of data (a directory), below $XDG_CACHE_HOME; None if the environment
        switches caches off or names no absolute path."""
        wanted = size_bytes(os.environ.get("PERF_OFFCPU_CACHE_BYTES", ""))
        base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
        bounded = limit if wanted is None else min(wanted, limit)
        return cls(os.path.join(base, "perf-offcpu", kind), bounded) if bounded and os.path.isabs(base) else None

    def read(self, name: str) -> dict[str, Array] | None:
        """Return the columns stored under a name, read-only; None if there are none, or the file is damaged."""
        try:
            with self._open(name) as directory:
                data = _map(directory, name)
                columns = None if data is None else unpack(data)
                # `_shrink` removes the files used longest ago.
                (directory.remove if columns is None else directory.touch)(name)
                return columns
        except (OSError, ValueError):
            return None

    def write(self, name: str, columns: Mapping[str, Array]) -> None:
        """Store columns under a name; errors of the file system are ignored."""
        with contextlib.suppress(OSError), self._open(name, make=True) as directory:
            with directory.replacing(name) as file:
                self._unchecked += file.write(pack(columns).data)
            if self._unchecked > self.limit // 16:
                self._shrink(directory)
                self._unchecked = 0

    def remove(self, name: str) -> None:
        """Remove the columns stored under a name."""
        with contextlib.suppress(OSError), self._open(name) as directory:
            directory.remove(name)

    def in_memory(self, name: str, make: Callable[[], T]) -> T:
        """Return the result of `make`; `KeptCache` calls it once for each name and keeps the result."""
        return make()

    def names(self) -> list[str]:
        """Return the names of all files in the cache, sorted; [] if the directory cannot be used."""
        try:
            with Directory.private(self.directory) as directory:
                return directory.names()
        except OSError:
            return []

    def _open(self, name: str, *, make: bool = False) -> Directory:
        if not _NAME.fullmatch(name):
            raise ValueError(f"{name!r} is no name for a cache file")
        return Directory.private(self.directory, make=make)

    def _shrink(self, directory: Directory) -> None:
        """Remove cache files beyond `limit`, the least recently used first, and old temporary files."""
        own_names = filter(_OWN_NAME.fullmatch, directory.names())
        files = [
            (status.st_mtime, status.st_size, name)
            for name in own_names
            if (status := directory.status(name)) and stat.S_ISREG(status.st_mode)
        ]
        newest, total = max(files, default=(0.0, 0, ""))[0], 0
        for used, size, name in sorted(files, reverse=True):
            total += size
            if total > self.limit or (name.startswith(".") and used < newest - _OLD_S):
                directory.remove(name)


class KeptCache(DiskCache):
    """DiskCache that also keeps small sets of columns in memory, the last ones read, for a process that reads the same
    files for hours: the agent. A name depends on the identity of the file, so a changed file has another name. Kept
    columns are copies: each mapping would hold a descriptor, and its pages count as memory of the agent."""

    kept_bytes = 16 << 20  # largest size of all that is kept
    small_bytes = 1 << 18  # largest size of a set that is kept: of nine files in ten, each set is smaller

    def __init__(self, directory: str, limit: int = LIMIT) -> None:
        super().__init__(directory, limit)
        self._kept: dict[str, dict[str, Array]] = {}  # the columns read last are at the end
        self._size = 0
        self._in_memory: dict[str, Any] = {}

    def in_memory(self, name: str, make: Callable[[], T]) -> T:
        """Return the object kept in memory under a name; the first call makes it by `make`. It must depend on nothing
        but the name: recordings are of other processes, and files change."""
        if name not in self._in_memory:
            self._in_memory[name] = make()
        kept: T = self._in_memory[name]
        return kept

    def read(self, name: str) -> dict[str, Array] | None:
        """Return the columns stored under a name, from memory if they are kept; see `DiskCache.read`."""
        columns = self._kept.pop(name, None)
        if columns is None:
            columns = super().read(name)
            if columns is None or _bytes_of(columns) > self.small_bytes:
                return columns
            columns = {column: values.copy() for column, values in columns.items()}
            for values in columns.values():
                values.flags.writeable = False
            self._size += _bytes_of(columns)
        self._kept[name] = columns
        while self._size > self.kept_bytes:
            self._size -= _bytes_of(self._kept.pop(next(iter(self._kept))))
        return columns

    def write(self, name: str, columns: Mapping[str, Array]) -> None:
        """Store columns under a name; see `DiskCache.write`."""
        self._forget(name)
        super().write(name, columns)

    def remove(self, name: str) -> None:
        """Remove the columns stored under a name."""
        self._forget(name)
        super().remove(name)

    def _forget(self, name: str) -> None:
        self._size -= _bytes_of(self._kept.pop(name, {}))


def _bytes_of(columns: Mapping[str, Array]) -> int:
    return sum(column.nbytes for column in columns.values())


def cache_name(kind: str, build_id: bytes, *identity: object) -> str:
    """Return the name of data made from a file, `BUILDID-HASH.KIND`; `identity`: all else that the data depends on."""
    digest = hashlib.sha256(repr((kind, build_id, identity)).encode()).hexdigest()[:24]
    return f"{build_id.hex()[:40] or 'none'}-{digest}.{kind}"


def pack(columns: Mapping[str, Array]) -> NDArray[np.uint64]:
    """Encode columns as the content of a cache file, in 64-bit words."""
    arrays = [np.ascontiguousarray(column, column.dtype.newbyteorder("<")) for column in columns.values()]
    begin = end = _HEAD.itemsize + _COLUMN.itemsize * len(arrays)
    directory = np.zeros(len(arrays), _COLUMN)
    for row, (name, array) in enumerate(zip(columns, arrays, strict=True)):
        directory[row] = (name, array.dtype.str, end, array.size)
        end += array.nbytes + -array.nbytes % 8
    data = np.zeros(end, np.uint8)
    data[: _HEAD.itemsize].view(_HEAD)[0] = (MAGIC, len(arrays), end, 0)
    data[_HEAD.itemsize : begin] = directory.view(np.uint8)
    for offset, array in zip(directory["offset"].tolist(), arrays, strict=True):
        data[offset : offset + array.nbytes] = array.reshape(-1).view(np.uint8)
    words = data.view("<u8")
    words[_SUM] = np.add.reduce(words)
    return words


def unpack(data: memoryview) -> dict[str, Array] | None:
    """Return the columns in the content of a cache file, as views of it; None if it is damaged."""
    if len(data) < _HEAD.itemsize or len(data) % 8:
        return None
    head, words = np.frombuffer(data, _HEAD, 1)[0], np.frombuffer(data, "<u8")
    if head["magic"] != MAGIC or head["size"] != len(data) or head["columns"] > _MAX_COLUMNS:
        return None
    is_sum = (int(np.add.reduce(words)) - int(head["sum"])) % 2**64 == head["sum"]
    if not is_sum or _HEAD.itemsize + int(head["columns"]) * _COLUMN.itemsize > len(data):
        return None
    rows = np.frombuffer(data, _COLUMN, int(head["columns"]), _HEAD.itemsize)
    columns = dict[str, Array]()
    for row in rows:
        name, dtype = (row[field].decode("ascii", "replace") for field in ("name", "dtype"))
        offset, items = int(row["offset"]), int(row["items"])
        if dtype not in _DTYPES or offset % 8 or offset + items * np.dtype(dtype).itemsize > len(data):
            return None
        columns[name] = np.frombuffer(data, dtype, items, offset)
    return columns if len(columns) == len(rows) else None


def _map(directory: Directory, name: str) -> memoryview | None:
    """Map a cache file read-only; return None if others can write to it or it is too small. Files are replaced, never
    truncated, so the mapping stays valid."""
    with descriptor(directory.open_regular(name, owners={os.geteuid()})) as fd:
        status = os.fstat(fd)
        if status.st_nlink != 1 or is_shared(status) or status.st_size < _HEAD.itemsize:
            return None
        return memoryview(mmap.mmap(fd, status.st_size, prot=mmap.PROT_READ))
