# SPDX-License-Identifier: Apache-2.0
"""Look up source lines and inlined functions of one object, for all addresses at once.

The tables are those of a symcache, which the `symbolic` package makes of DWARF (see `worker`). Its format is
simple: code ranges by start, each with a source location {file, line, function, location inlined into}, then
files, functions and strings. So numpy reads it, a million addresses a second, without the package.

Source: symbolic-symcache/src/raw.rs and lookup.rs of symbolic 13, format version 9; numbers are in the byte
order of the machine that made it, here always little-endian u32, and 0xffffffff means "none"."""

import posixpath
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from perf_offcpu.binary.layout import BYTE, U32, Field, Layout
from perf_offcpu.errors import FormatError
from perf_offcpu.model.columns import I32, I64, U64, Table, column
from perf_offcpu.model.columns import U32 as U32Array

VERSION: Final = 9
MAX_DEPTH: Final = 256  # nested inlined functions that are shown: real code has less than 100
_NONE: Final = 0xFFFFFFFF
_MAX_TEXT: Final = 1 << 16
_MAX_LENGTH_BYTES: Final = 5

_HEADER: Final = Layout(
    "symcache header",
    Field("magic", BYTE, count=4),
    ("version", U32),
    Field("debug_id", BYTE, count=32),
    ("arch num_files num_functions num_source_locations num_ranges string_bytes", U32),
    Field("reserved", BYTE, count=16),
)
_FILE: Final = Layout(
    "symcache file",
    ("comp_dir directory path_name", U32),
    Field("more", U32, count=3, doc="new in version 9: of the file's origin"),
)
_FUNCTION: Final = Layout("symcache function", ("name comp_dir entry_pc lang", U32))
_LOCATION: Final = Layout("symcache source location", ("file line function inlined_into", U32))


class Calls(Table):
    """Holds the functions at n addresses, sorted by row of the address; of inlined ones, the innermost first."""

    row: I32 = column("i4", doc="row of the address")
    function: U32Array = column("u4", doc="index for `Symcache.function_name`")
    file: U32Array = column("u4", doc="index for `Symcache.file_path`; 0xffffffff unknown")
    line: I32 = column("i4", sentinel=0, doc="source line: of the innermost, the code's; else the call's")


class Symcache:
    """Reads the tables of one symcache; `path` names it in errors. Raises FormatError: another version, or cut."""

    def __init__(self, data: memoryview, path: str) -> None:
        nothing: dict[str, Any] = {"magic": b"", "version": 0}
        header = _HEADER.unpack(data) if len(data) >= _HEADER.size() else nothing
        if header["magic"] != b"SYMC" or header["version"] != VERSION:
            problem = f"version {header['version']} is not {VERSION}: another release of symbolic made it"
            raise FormatError(path, "source line table", problem)
        self._at, self._data, self._path = _HEADER.size(), data, path
        self._files = self._take(_FILE.dtype("<"), header["num_files"])
        self._functions = self._take(_FUNCTION.dtype("<"), header["num_functions"])
        locations = self._take(_LOCATION.dtype("<"), header["num_source_locations"])
        self._locations = {name: locations[name] for name in locations.dtype.names or ()}
        self._starts = self._take("<u4", header["num_ranges"])
        self._strings = self._take("|u1", header["string_bytes"]).tobytes()
        if len(self._starts) > len(locations):
            raise FormatError(path, "source line table", "more code ranges than source locations")

    def _take(self, dtype: Any, items: int) -> NDArray[Any]:
        kind = np.dtype(dtype)
        end = self._at + items * kind.itemsize
        if end > len(self._data):
            raise FormatError(self._path, "source line table", f"{end} bytes, it has {len(self._data)}")
        array = np.frombuffer(self._data, kind, items, self._at)
        self._at = end + -end % 8
        return array

    def __len__(self) -> int:
        return len(self._starts)

    def has_lines(self) -> bool:
        """Return True if any address has a source line."""
        return bool(np.any((self._locations["file"] < len(self._files)) & (self._locations["line"] > 0)))

    def lookup(self, addresses: U64) -> Calls:
        """Return functions at n addresses (bytes from the object's first segment): the innermost, and those that it is
        inlined into; an address without a source line has no rows."""
        location = self._location(addresses)
        rows = np.flatnonzero(location >= 0)
        location, levels = location[rows], list[Calls]()
        while len(location) and len(levels) < MAX_DEPTH:
            function, file, line = (self._locations[name][location] for name in ("function", "file", "line"))
            shown = np.where(line < 2**31, line, np.uint32(0))
            levels.append(Calls.filled(len(rows), row=rows, function=function, file=file, line=shown))
            outer = self._locations["inlined_into"][location].astype(np.int64)
            inside = outer < len(self._locations["line"])
            rows, location = rows[inside], outer[inside]
        calls = Calls.concat([Calls(), *levels])
        return calls.take(np.argsort(calls.row, kind="stable"))

    def _location(self, addresses: U64) -> I64:
        """Return int64[n]: row in `_locations` (file, line, innermost function) of each address; -1 without a line."""
        if not len(self._starts):
            return np.full(len(addresses), -1, np.int64)
        slot = np.searchsorted(self._starts, np.minimum(addresses, np.uint64(_NONE)), side="right") - 1
        # Locations that others are inlined into come first; the last ones belong to the ranges.
        slot_of = slot + len(self._locations["line"]) - len(self._starts)
        has_line = (slot >= 0) & (addresses < np.uint64(_NONE))
        has_line &= self._locations["function"][slot_of] < len(self._functions)
        has_line &= (self._locations["file"][slot_of] < len(self._files)) & (self._locations["line"][slot_of] != _NONE)
        return np.where(has_line, slot_of, -1)

    def function_name(self, index: int) -> str:
        """Return a function's name as the DWARF spells it; "" unknown."""
        return self._text(int(self._functions["name"][index])) if index < len(self._functions) else ""

    def file_path(self, index: int) -> str:
        """Return a source file's path, with the directory it was compiled in; "" unknown."""
        if index >= len(self._files):
            return ""
        row = self._files[index]
        parts = [self._text(int(row[name])) for name in ("comp_dir", "directory", "path_name")]
        return posixpath.join(*parts)[:_MAX_TEXT]

    def _text(self, offset: int) -> str:
        """Return the string at a byte offset: its length as LEB128, then its bytes; "" if it is damaged."""
        length = 0
        for byte_at, byte in enumerate(self._strings[offset : offset + _MAX_LENGTH_BYTES]):
            length |= (byte & 0x7F) << 7 * byte_at
            if byte < 0x80:
                start = offset + byte_at + 1
                return self._strings[start : start + min(length, _MAX_TEXT)].decode("utf-8", "surrogateescape")
        return ""
