# SPDX-License-Identifier: Apache-2.0
"""Declare tables as structs of arrays: each column once, with dtype, unit, sentinel and meaning.

    class Losses(Table):
        cause: U32 = column("u4", doc="string")

A table is contiguous arrays of equal length. Conventions, everywhere: row ids int32, -1 for none; strings
uint32, row 0 is ""; times and periods int64 ns (numpy turns uint64 with int64 into float64); addresses
uint64, combined only with uint64. `check()` proves the declaration; tests call it after each stage.

Texts come from kernels and files as bytes that need not be UTF-8 (a comm may end inside a character):
they are decoded with surrogateescape, which writes the same bytes back. Output escapes them (`text`).

All views are sums over groups of rows (`group`, `sum_by`): by (thread, stack) for folded lines, by tree node for flame
graphs, by thread for the report. Keys are packed into one integer. If the values are close together, as row ids are,
groups are found through a table in linear time, else by sorting. Sums are exact integers: 1000 threads that wait three
hours exceed 2^53 ns, the limit of exact doubles."""

import copy
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Literal, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from perf_offcpu.errors import PerfOffcpuError

I16 = NDArray[np.int16]
I8 = NDArray[np.int8]
I32 = NDArray[np.int32]
I64 = NDArray[np.int64]
U8 = NDArray[np.uint8]
U16 = NDArray[np.uint16]
U32 = NDArray[np.uint32]
U64 = NDArray[np.uint64]
Bool = NDArray[np.bool_]

Domain = Literal[
    "", "strings", "comm", "evsels", "callchains", "snapshots", "spaces", "dsos", "stacks", "frames",
    "time", "since", "task", "cpu", "cgroup", "objects", "object_ids", "places",
]  # fmt: skip
"""Meaning of a column's values. The name of a field of Recording or Profile: row ids in that table ("comm": rows of
`strings` that hold a comm). "time": ns. "since": ns from which a row is valid, 0 before the recording. "task": pid or
tid. "cpu", "cgroup", "object_ids": ids of CPUs, cgroups, wait objects. "": what means the same in every recording."""

Renumber = Callable[[NDArray[Any]], NDArray[Any]]  # returns the new values of a column


class Column(NamedTuple):
    """Declaration of a column; `sentinel` is the value that means "none", None if the column has no such value."""

    dtype: np.dtype[Any]
    doc: str
    unit: str
    sentinel: int | None
    domain: Domain


def column(dtype: str, doc: str, *, unit: str = "", sentinel: int | None = None, domain: Domain = "") -> Any:
    """Return the declaration of a column, for the body of a subclass of `Table`. `dtype`: such as "u4"."""
    return Column(np.dtype(dtype), doc, unit, sentinel, domain)


class Table:
    """Base of all tables. A subclass declares its columns with `column`, after those of its base."""

    columns: ClassVar[Mapping[str, Column]] = {}  # declarations by name, in order

    def __init_subclass__(cls) -> None:
        own = {name: attribute for name, attribute in vars(cls).items() if isinstance(attribute, Column)}
        cls.columns = {**cls.columns, **own}

    def __init__(self, *arrays: NDArray[Any], **named: NDArray[Any]) -> None:
        """Make a table of arrays in the order of the columns, or by name; columns not given are empty."""
        named |= zip(self.columns, arrays, strict=False)
        if len(arrays) > len(self.columns) or named.keys() - self.columns.keys():
            raise TypeError(f"{type(self).__name__} has the columns {', '.join(self.columns)}")
        for name, declared in self.columns.items():
            setattr(self, name, named[name] if name in named else np.empty(0, declared.dtype))

    def __len__(self) -> int:
        return len(getattr(self, next(iter(self.columns))))

    @classmethod
    def filled(cls, rows: int, **columns: Any) -> Self:
        """Make a table of `rows` rows. Given columns are converted to their dtype (a single value serves all rows, as a
        read-only column); other columns are filled with their sentinel, else 0, and are writable."""
        table = cls.sparse(rows, **columns)
        for name in cls.columns:
            if columns.get(name) is None:
                setattr(table, name, getattr(table, name).copy())
        return table

    @classmethod
    def sparse(cls, rows: int, **columns: Any) -> Self:
        """Make a table as `filled` does, but each column not given is read-only: one value in memory for all rows."""
        arrays = {}
        for name, declared in cls.columns.items():
            value = columns.pop(name, None)
            array = np.asarray((declared.sentinel or 0) if value is None else value, declared.dtype)
            arrays[name] = np.ascontiguousarray(array) if array.ndim else np.broadcast_to(array, rows)
        return cls(**arrays, **columns)

    @classmethod
    def from_rows(cls, rows: Sequence[Sequence[Any]]) -> Self:
        """Make a table of tuples, values of the first columns in order, a row each; other columns as `filled`. Slow."""
        return cls.filled(len(rows), **dict(zip(cls.columns, zip(*rows, strict=True), strict=False)))

    @classmethod
    def concat(cls, tables: Iterable[Self]) -> Self:
        """Return the rows of all tables, in order."""
        parts = list(tables)
        return cls(*(np.concatenate([getattr(t, name) for t in parts]) for name in cls.columns if parts))

    def take(self, rows: Any) -> Self:
        """Return the rows that an index array, slice or mask selects; columns of one repeated value need no memory."""
        if isinstance(rows, np.ndarray) and rows.ndim == 1:
            count = int(np.count_nonzero(rows)) if rows.dtype == np.bool_ else len(rows)
            return type(self)(*(_taken(getattr(self, name), rows, count) for name in self.columns))
        return type(self)(*(getattr(self, name)[rows] for name in self.columns))

    def reorder(self, rows: NDArray[np.int64]) -> None:
        """Make row i the old row `rows[i]`, in place. Old columns are overwritten: no other table may share them."""
        room: dict[np.dtype[Any], NDArray[Any]] = {}
        for name in self.columns:
            old = getattr(self, name)
            if len(old) and old[0] == old[-1] and bool((old == old[0]).all()):
                continue  # a field that no sample has is in order already
            new = room.pop(old.dtype, None)
            new = np.empty_like(old) if new is None else new
            np.take(old, rows, out=new, mode="clip")  # the mode that does not make a copy first
            setattr(self, name, new)
            if old.flags.writeable:
                room[old.dtype] = old

    def with_columns(self, **columns: NDArray[Any]) -> Self:
        """Return the table with some columns replaced; the others are shared."""
        if unknown := columns.keys() - self.columns.keys():
            raise TypeError(f"{type(self).__name__} has no column {', '.join(sorted(unknown))}")
        table = copy.copy(self)
        vars(table).update(columns)
        return table

    def renumbered(self, changes: Mapping[str, Renumber]) -> Self:
        """Return the table with `changes[domain]` applied to the columns whose values are of that `Domain` (rows in
        another table, ids or times); other columns are shared."""
        domains = {name: declared.domain for name, declared in self.columns.items() if declared.domain in changes}
        return self.with_columns(**{name: changes[domain](getattr(self, name)) for name, domain in domains.items()})

    def check(self, owner: object = None) -> None:
        """Raise AssertionError unless dtypes and lengths are as declared, and row ids valid for tables of `owner`."""
        for name, declared in self.columns.items():
            array, where = getattr(self, name), f"{type(self).__name__}.{name}"
            assert array.dtype == declared.dtype, f"{where}: {array.dtype}"
            assert array.shape == (len(self),), f"{where}: shape {array.shape}, {len(self)} rows"
            rows = getattr(owner, "strings" if declared.domain == "comm" else declared.domain, None)
            if rows is not None and len(array):
                assert int(array.min()) >= -1, f"{where}: id {array.min()}"
                assert int(array.max()) < len(rows), f"{where}: id {array.max()} of {len(rows)} rows"


def _taken(values: NDArray[Any], rows: NDArray[Any], count: int) -> NDArray[Any]:
    is_repeated = len(values) > 1 and values.strides == (0,)
    return np.broadcast_to(values[0], count) if is_repeated else values[rows]


def tables_of(owner: Any) -> dict[str, Table]:
    """Return field name → Table, for all tables of a Recording or Profile."""
    tables = {field.name: getattr(owner, field.name) for field in dataclasses.fields(owner)}
    return {name: table for name, table in tables.items() if isinstance(table, Table)}


_FEW = 16  # members of a set with which comparing each is faster than searching


def distinct(values: NDArray[Any]) -> NDArray[Any]:
    """Return the distinct values, ascending: np.unique() without its import of numpy.ma, some 20 ms."""
    ordered = np.sort(values)
    once: NDArray[Any] = ordered[np.append(True, ordered[1:] != ordered[:-1])[: len(ordered)]]
    return once


def is_among(values: NDArray[Any], ascending: NDArray[Any]) -> Bool:
    """Return bool[n]: True if values[i] is in `ascending` (sorted); np.isin() without its import of numpy.ma."""
    if len(ascending) <= _FEW:
        is_any = np.zeros(len(values), np.bool_)
        for value in ascending:
            is_any |= values == value
        return is_any
    place = np.searchsorted(ascending, values)
    is_in: Bool = ascending[np.minimum(place, len(ascending) - 1)] == values
    return is_in


def is_one_of(values: NDArray[Any], members: NDArray[Any]) -> Bool:
    """Return bool[n]: True if values[i] is in `members`, in any order; np.isin() without its import of numpy.ma."""
    return is_among(values, distinct(members))


def unambiguous(pairs: Iterable[tuple[int, str]]) -> dict[int, str]:
    """Return key → value for the keys that come with one value only in all (key, value) `pairs`."""
    values: dict[int, set[str]] = {}
    for key, value in pairs:
        values.setdefault(key, set()).add(value)
    return {key: own.pop() for key, own in values.items() if len(own) == 1}


_Keys = NDArray[Any]  # int32 or int64
_TABLE_PER_ROW = 8
_TABLE_MIN = 1 << 16
_BLOCK = 1 << 17  # rows added at once: their temporary columns stay in the processor's cache
_SUM_LIMIT = 2.0**62
_EXACT_LIMIT = 2.0**52
_LOW_BITS = 26
_ROW_LIMIT = 1 << 53 - _LOW_BITS


def group(*columns: NDArray[Any]) -> tuple[I64, I64]:
    """Group n rows by equality of all columns (integers, n each). Return (first, group_of): int64[groups], first row
    of each group; int64[n], group of each row. Groups are numbered in ascending order of (column 0, column 1, …)."""
    key, size = _dense(columns[0])
    for column in columns[1:]:
        other, other_size = _dense(column)
        if size * other_size > _table_size(len(key)):  # ranks are often few enough to need no sorting
            key, size = _ranked(key, size)
            if size * other_size > _table_size(len(key)):
                other, other_size = _ranked(other, other_size)
        key = key.astype(_key_type(size * other_size), copy=False)
        key *= other_size
        key += other
        size *= other_size
        del other  # columns of millions of rows: none is kept longer than it is needed
    group_of, groups = _ranked(key.astype(np.int64, copy=False), size)
    del key
    first = np.empty(groups, np.int64)
    for end in range(len(group_of), 0, -_BLOCK):
        begin = max(end - _BLOCK, 0)
        first[group_of[begin:end][::-1]] = np.arange(end - 1, begin - 1, -1)  # the last assignment stays
    return first, group_of


def sum_by(group_of: I64, values: NDArray[Any], groups: int) -> I64:
    """Return int64[groups]: the exact sum of the values of each group.

    `np.bincount` is the fastest way on all versions of numpy (`np.add.at` is 20 times slower before 1.25), but it adds
    doubles. So the high and the low bits of the values are added separately: both sums stay below 2^53, the high one
    because all values together stay below 2^62, and doubles are exact there.

    `group_of`: int64[n], the group of each value; -1 for none. `values`: integers. Raise PerfOffcpuError if a sum could
    exceed 63 bits, which means damaged weights."""
    magnitude = _magnitude(values)
    if magnitude >= _SUM_LIMIT:
        raise PerfOffcpuError("the weights add up to more than 2^62: some samples of this event are damaged")
    block, sums = min(max(_BLOCK, groups), _ROW_LIMIT), np.zeros(groups, np.int64)
    for begin in range(0, len(values), block):
        place, part = group_of[begin : begin + block] + 1, values[begin : begin + block]
        if magnitude < _EXACT_LIMIT:  # no partial sum of doubles is rounded
            sums += np.bincount(place, part, groups + 1)[1:].astype(np.int64)
            continue
        part = part.astype(np.int64)
        high, low = (
            np.bincount(place, bits, groups + 1)[1:].astype(np.int64)
            for bits in (part >> _LOW_BITS, part & ((1 << _LOW_BITS) - 1))
        )
        sums += (high << _LOW_BITS) + low
    return sums


def _magnitude(values: NDArray[Any]) -> float:
    """Return the approximate sum of the absolute values."""
    if values.dtype.kind == "u" or int(values.min(initial=0)) >= 0:
        return float(values.sum(dtype=np.float64))
    return float(np.abs(values.astype(np.float64)).sum())


def stable_order(group_of: I64) -> I64:
    """Return int64[n]: the rows sorted by group number, stable; linear for up to 2^16 groups."""
    few = len(group_of) > 0 and int(group_of.min()) >= 0 and int(group_of.max()) < 1 << 16
    order: I64 = np.argsort(group_of.astype(np.uint16) if few else group_of, kind="stable")
    return order


def max_by(group_of: I64, values: NDArray[Any], groups: int) -> I64:
    """Return int64[groups]: the largest of the `values` of each group, which are at least -1; -1 for an empty group.
    `group_of`: int64[n], the group of each value; -1 for none."""
    largest = np.full(groups + 1, -1, np.int64)
    np.maximum.at(largest, group_of, values)
    return largest[:-1]


def _key_type(size: int) -> type[np.int32 | np.int64]:
    """Return the dtype for keys below `size`: int32 if it suffices, because it takes half the memory and time."""
    return np.int32 if size <= 1 << 31 else np.int64


def _dense(column: NDArray[Any]) -> tuple[_Keys, int]:
    """Map values to codes from 0 in the order of the values; return (integers[n], number of possible codes)."""
    if not len(column):
        return column.astype(np.int32), 1
    low, high = int(column.min()), int(column.max())
    if high - low < _table_size(len(column)):
        dense = np.empty(len(column), _key_type(high - low + 1))
        if column.dtype.itemsize < dense.itemsize:
            column = column.astype(dense.dtype)
        np.subtract(column, column.dtype.type(low), out=dense, casting="unsafe")  # the difference is small
        return dense, high - low + 1
    values, rank = np.unique(column, return_inverse=True)
    return rank, len(values)


def _ranked(key: _Keys, size: int) -> tuple[_Keys, int]:
    """Map keys below `size` to ranks among distinct keys: (integers[n], number of ranks). May overwrite `key`."""
    if size > _table_size(len(key)):
        values, rank = np.unique(key, return_inverse=True)
        return rank, len(values)
    seen = np.zeros(size, np.bool_)
    seen[key] = True
    values = np.flatnonzero(seen)
    if len(values) == size:
        return key, size
    rank_of = np.empty(size, key.dtype)
    rank_of[values] = np.arange(len(values))
    return np.take(rank_of, key, out=key, mode="clip"), len(values)  # the mode that does not make a copy first


def _table_size(rows: int) -> int:
    return max(_TABLE_MIN, rows * _TABLE_PER_ROW)


class Strings:
    """Interns texts: each distinct text has one row, which never changes; row 0 is ""."""

    def __init__(self, texts: Iterable[str] = ()) -> None:
        self._texts: list[str] = [""]
        self._ids: dict[str, int] = {"": 0}
        for text in texts:
            self.intern(text)

    def __len__(self) -> int:
        return len(self._texts)

    def __getitem__(self, row: int) -> str:
        return self._texts[row]

    def __iter__(self) -> Iterator[str]:
        return iter(self._texts)

    def intern(self, text: str | bytes) -> int:
        """Return the row of a text, which is appended if it is new; bytes are decoded with surrogateescape."""
        if isinstance(text, bytes):
            text = text.decode("utf-8", "surrogateescape")
        row = self._ids.setdefault(text, len(self._texts))
        if row == len(self._texts):
            self._texts.append(text)
        return row

    def intern_all(self, texts: Iterable[str | bytes]) -> U32:
        """Return uint32[n]: the rows of n texts, interned in order; each distinct text is decoded once."""
        listed = list(texts)
        row_of = {text: self.intern(text) for text in dict.fromkeys(listed)}
        return np.array([row_of[text] for text in listed], np.uint32)

    def find(self, text: str) -> int:
        """Return the row of a text; -1 if it is not interned."""
        return self._ids.get(text, -1)

    def copy(self) -> Self:
        """Return a copy with the same rows; texts added to one are not in the other."""
        other = type(self)()
        other._texts, other._ids = list(self._texts), dict(self._ids)
        return other
