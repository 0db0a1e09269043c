# SPDX-License-Identifier: Apache-2.0
"""Declare tables as structs of arrays: each column once, with dtype, unit, sentinel and meaning.

    class Losses(Table):
        cause: U32 = column("u4", doc="string")

A table is contiguous arrays of equal length. Conventions, everywhere: row ids int32, -1 for none; strings
uint32, row 0 is ""; times and periods int64 ns (numpy turns uint64 with int64 into float64); addresses
uint64, combined only with uint64. `check()` proves the declaration; tests call it after each stage.

Texts come from kernels and files as bytes that need not be UTF-8 (a comm may end inside a character):
they are decoded with surrogateescape, which writes the same bytes back. Output escapes them (`text`)."""

import copy
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Literal, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

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
    """Declaration of a column; `sentinel` is the value that means "none", None if it has no such value."""

    dtype: np.dtype[Any]
    doc: str
    unit: str
    sentinel: int | None
    domain: Domain


def column(dtype: str, doc: str, *, unit: str = "", sentinel: int | None = None, domain: Domain = "") -> Any:
    """Return the declaration of a column of a `Table`, for the body of its class."""
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
        """Make a table of `rows` rows. Given columns are converted to their dtype (one value for all rows makes a
        read-only column); other columns are filled, writable, with their sentinel or 0."""
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
        """Make a table of equally long tuples, values of the first columns, in order. Slow: for rare records only."""
        return cls.filled(len(rows), **dict(zip(cls.columns, zip(*rows, strict=True), strict=False)))

    @classmethod
    def concat(cls, tables: Iterable[Self]) -> Self:
        """Return the rows of all tables, in order."""
        parts = list(tables)
        return cls(*(np.concatenate([getattr(t, name) for t in parts]) for name in cls.columns if parts))

    def take(self, rows: Any) -> Self:
        """Return a table of the rows that an index array, slice or mask selects; broadcast columns stay broadcast."""
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
        """Return the table with `changes[domain]` applied to the columns of that `Domain`; other columns are shared."""
        domains = {name: declared.domain for name, declared in self.columns.items() if declared.domain in changes}
        return self.with_columns(**{name: changes[domain](getattr(self, name)) for name, domain in domains.items()})

    def check(self, owner: object = None) -> None:
        """Raise AssertionError unless dtypes and lengths are as declared, and row ids lead to rows of `owner`."""
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


def group_rows(*columns: NDArray[Any]) -> tuple[I64, I64]:
    """Group n rows by equality of all columns. Return (first, group_of): int64[groups], the first row of each group, in
    ascending order of (column 0, column 1, …) as int64; int64[n], the group of each row."""
    keys = np.stack([column.astype(np.int64) for column in columns])
    _, first, group_of = np.unique(keys, axis=1, return_index=True, return_inverse=True)
    return first, group_of.reshape(-1)


def is_one_of(values: NDArray[Any], members: NDArray[Any]) -> Bool:
    """Return bool[n]: True if values[i] is one of `members`, in any order; as `is_among`."""
    return is_among(values, distinct(members))


def unambiguous(pairs: Iterable[tuple[int, str]]) -> dict[int, str]:
    """Return key → value, for the keys that have the same value in all `pairs`."""
    values: dict[int, set[str]] = {}
    for key, value in pairs:
        values.setdefault(key, set()).add(value)
    return {key: own.pop() for key, own in values.items() if len(own) == 1}


class Strings:
    """Interns texts: a growing list in which each text has one row, for ever; row 0 is ""."""

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
