# SPDX-License-Identifier: Apache-2.0
"""Symbol tables: sorted columns that name addresses, for symbols of any kind of file.

`Symbols` are rows as a file lists them: unsorted, with aliases and with functions that claim no size. `SymbolTable` has
the rows that the rules below leave, ready for `searchsorted`. Names stay bytes in the string section and are decoded
for the few rows that are hit.

The rules are perf's, so that both tools print the same name (tools/perf/util/symbol.c of Linux 6.16):

1. A symbol of size 0 ends where the next one starts (symbols__fixup_end). Several of them at one address keep size 0,
except the last in file order. We stop at the end of the section too, where perf would run on into the next one.

2. Of symbols with the same start one survives (symbols__fixup_duplicate, choose_best_symbol): one that covers
something; typed rather than NOTYPE; not weak; global; fewest leading underscores; the longest name; the first in file
order. A claimed size is better than one by rule 1; perf, which applies rule 1 first, cannot tell them apart. perf
compares demangled names, we the mangled ones without the underscore of `_Z` and `_R`: that differs only between aliases
in C++ or Rust, by length.

perf keeps overlapping symbols in a tree whose shape decides which one is found. Here the innermost wins, which is the
last to start; after its end, the one that reaches furthest. A label of size 0 inside a function never wins."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from perf_offcpu.binary.columnar import offsets_of
from perf_offcpu.model.callchains import spread
from perf_offcpu.model.columns import I32, I64, U8, U32, U64, Bool, Table, column

VERSION: Final = 3  # number of these rules: raise it with each change of them, so that tables in caches are made again
NO_ADDRESS: Final = np.uint64(2**64 - 1)  # stands for "no address here"; no symbol covers it
MAX_NAME: Final = 1 << 16  # bytes of the longest name that is decoded; the rest of a longer one is cut off
UNTYPED: Final = 4  # ranks from here on are those of NOTYPE symbols
_UNDERSCORES_COUNTED: Final = 8
_USUAL_NAME: Final = 256
_STEP: Final = 1 << 20
_COLUMNS: Final = {"start": "u8", "end": "u8", "reach": "i4", "name": "u4", "strings": "u1"}


class Symbols(Table):
    """Symbols as a file lists them, before sorting and choosing."""

    start: U64 = column("u8", doc="first address")
    size: U64 = column("u8", unit="bytes", doc="as the file claims; 0 if it claims none")
    name: U32 = column("u4", doc="offset of the NUL-terminated name in the string bytes")
    limit: U64 = column("u8", doc="a symbol of size 0 ends here at the latest")
    rank: U8 = column("u1", doc="preference between aliases, 0 best: see `alias_rank`")
    code: U8 = column("u1", doc="1: names code; 0: only bounds the symbol before it")


def alias_rank(untyped: Bool, weak: Bool, global_: Bool) -> U8:
    """Return uint8[n], preference among symbols of one address, 0 best: typed, not weak, global. Arguments: bool[n]."""
    return (untyped * UNTYPED + weak * 2 + ~global_).astype(np.uint8)


def join(parts: Iterable[tuple[Symbols, bytes]]) -> tuple[Symbols, bytes]:
    """Join tables, in order, to one (symbols, string bytes); the bytes of a single table are not copied."""
    tables, blobs, offset = [Symbols()], list[bytes](), 0
    for rows, strings in parts:
        if len(rows):
            tables.append(rows.take(slice(None)))
            tables[-1].name = rows.name + np.uint32(offset)
            blobs.append(strings)
            offset += len(strings)
    return Symbols.concat(tables), blobs[0] if len(blobs) == 1 else b"".join(blobs)


class SymbolTable:
    """Symbols by address: n ranges [start, end), uint64[n], ascending, no two with one start; the innermost wins."""

    def __init__(self, rows: Symbols, strings: bytes) -> None:
        self._strings: bytes | memoryview = strings
        order = np.argsort(rows.start, kind="stable")
        ordered = rows.take(order)
        end = _ends(ordered)
        keep = np.flatnonzero(ordered.code.astype(bool) & ~_labels_inside(ordered, end))
        keep = _best_aliases(keep, ordered, end, strings)
        self.start, self.end, self._name = ordered.start[keep], end[keep], ordered.name[keep]
        self.source: I32 = order[keep].astype(np.int32)  # of each row, the row of `rows` that it came from
        self._reach: I64 | I32 = _furthest_before(self.end)

    def columns(self) -> dict[str, NDArray[Any]]:
        """Return the table as arrays by name, from which `from_columns` makes it again."""
        strings, reach = np.frombuffer(self._strings, np.uint8), self._reach.astype(np.int32)
        return dict(zip(_COLUMNS, (self.start, self.end, reach, self._name, strings), strict=True))

    @classmethod
    def from_columns(cls, columns: Mapping[str, NDArray[Any]]) -> "SymbolTable | None":
        """Return the table whose `columns()` these are, without `source`; None if arrays are missing or misfit."""
        if any(name not in columns or columns[name].dtype != kind for name, kind in _COLUMNS.items()):
            return None
        start, end, reach, name, strings = (columns[name] for name in _COLUMNS)
        if any(len(column) != len(start) for column in (end, reach, name)):
            return None
        table = cls.__new__(cls)
        table.start, table.end, table._name, table._reach = start, end, name, reach
        table._strings, table.source = strings.data, np.empty(0, np.int32)
        return table

    def take(self, rows: I64) -> "SymbolTable":
        """Return a table of `rows` (ascending), with only the bytes of their names."""
        text = np.append(np.frombuffer(self._strings, np.uint8), np.uint8(0))
        ends, begins = np.flatnonzero(text == 0) + 1, self._name[rows].astype(np.int64)
        lengths = ends[np.searchsorted(ends, begins, side="right")] - begins
        offsets = offsets_of(lengths)
        table = SymbolTable(Symbols(), b"")
        table.start, table.end, table.source = self.start[rows], self.end[rows], self.source[rows]
        table._name, table._reach = offsets[:-1].astype(np.uint32), _furthest_before(table.end)
        table._strings = text[spread(begins, lengths, offsets)].data
        return table

    def __len__(self) -> int:
        return len(self.start)

    def lookup(self, addresses: U64) -> I32:
        """Return int32[n]: the row of the symbol that covers each address; -1 for none."""
        if not len(self):
            return np.full(len(addresses), -1, np.int32)
        row = np.searchsorted(self.start, addresses, side="right") - 1
        outside = (row >= 0) & (addresses >= self.end[row])
        row[outside] = self._reach[row[outside]]
        row[(row < 0) | (addresses >= self.end[row])] = -1
        return row.astype(np.int32)

    def name(self, row: int) -> str:
        """Return a symbol's name as the file spells it, decoded with surrogateescape."""
        offset = int(self._name[row])
        text = bytes(self._strings[offset : offset + _USUAL_NAME])
        if (stop := text.find(0)) < 0:
            text = bytes(self._strings[offset : offset + MAX_NAME])
            stop = text.find(0)
        return text[: stop if stop >= 0 else None].decode("utf-8", "surrogateescape")


def page_after(start: U64) -> U64:
    """Return uint64[n]: the end that perf gives a last symbol of size 0: `start` rounded up to a page, plus a page."""
    pages = start // np.uint64(4096) + (start % np.uint64(4096) != 0) + np.uint64(1)
    ends: U64 = np.maximum(start, pages * np.uint64(4096))
    return ends


def _ends(rows: Symbols) -> U64:
    """Return uint64[n]: the end of each symbol; of size 0: the next start, at most `limit`. `rows`: sorted by start."""
    room = NO_ADDRESS - rows.start
    following = np.append(rows.start[1:], page_after(rows.start[-1:]))
    open_ended = np.maximum(rows.start, np.minimum(following, rows.limit))
    ends: U64 = np.where(rows.size == 0, open_ended, rows.start + np.minimum(rows.size, room))
    return ends


def _labels_inside(rows: Symbols, end: U64) -> Bool:
    """Return bool[n]: True for NOTYPE symbols of size 0 strictly inside a symbol with a size. `end`: `_ends(rows)`."""
    reach = np.maximum.accumulate(np.where(rows.size == 0, np.uint64(0), end))
    before = np.searchsorted(rows.start, rows.start, side="left") - 1  # the last row that starts earlier
    covered = (before >= 0) & (np.append(reach, np.uint64(0))[before] > rows.start)
    inside: Bool = covered & (rows.size == 0) & (rows.rank >= UNTYPED)
    return inside


def _best_aliases(keep: I64, rows: Symbols, end: U64, strings: bytes) -> I64:
    """Return those of the rows `keep` (sorted by start) that names are taken from: the best one of each start."""
    start = rows.start[keep]
    first = np.append(True, start[1:] != start[:-1])[: len(keep)]
    group = np.cumsum(first)
    shared = np.bincount(group)[group] > 1 if len(keep) else first
    rivals = keep[shared]
    if not len(rivals):
        return keep
    underscores, length = _name_shape(rows.name[rivals], strings)
    empty, guessed, group = end[rivals] == rows.start[rivals], rows.size[rivals] == 0, group[shared]
    order = np.lexsort((-length, underscores, rows.rank[rivals], guessed, empty, group))  # stable
    ranked = group[order]
    winners = rivals[order[np.append(True, ranked[1:] != ranked[:-1])]]
    return np.sort(np.concatenate([keep[~shared], winners]))


def _name_shape(names: U32, strings: bytes) -> tuple[I64, I64]:
    """Return int64[n] twice: the number of leading underscores of each name (at most 8; 0 for `_Z…` and `_R…`), its
    length in bytes. `names`: offsets in `strings`."""
    text = np.frombuffer(strings, np.uint8)
    starts = names.astype(np.int64)
    length = _ends_of_names(starts, text) - starts

    def byte(offset: int) -> U8:
        return np.where(offset < length, text[np.minimum(starts + offset, len(text) - 1)], np.uint8(0))

    leading, underscores = np.ones(len(starts), bool), np.zeros(len(starts), np.int64)
    for offset in range(_UNDERSCORES_COUNTED):
        leading &= byte(offset) == ord("_")
        underscores += leading
    mangled = (byte(0) == ord("_")) & np.isin(byte(1), (ord("Z"), ord("R")))
    return np.where(mangled, 0, underscores), length


def _ends_of_names(starts: I64, text: U8) -> I64:
    """Return int64[n]: the offset of the first NUL at or after starts[i]; len(text) without one. The text is scanned in
    steps, and only where names begin: a table may consist of NULs."""
    order = np.argsort(starts)
    sought, ends = starts[order], np.full(len(starts), len(text), np.int64)
    done = 0
    for begin in range(0, len(text), _STEP):
        upto = int(np.searchsorted(sought, begin + _STEP))
        if done == upto:
            continue
        nul = np.flatnonzero(text[begin : begin + _STEP] == 0) + begin
        if len(nul):
            ended = done + int(np.searchsorted(sought[done:upto], nul[-1], side="right"))
            ends[done:ended] = nul[np.searchsorted(nul, sought[done:ended])]
            done = ended
    result = np.empty_like(ends)
    result[order] = ends
    return result


def _furthest_before(end: U64) -> I64:
    """Return int64[n]: for each row i, the row with the highest end among rows 0 to i."""
    rises = np.append(True, end[1:] > np.maximum.accumulate(end)[:-1])[: len(end)]
    return np.maximum.accumulate(np.where(rises, np.arange(len(end)), 0))
