# SPDX-License-Identifier: Apache-2.0
"""Tables as structs of arrays: each column declared once, with dtype, unit, sentinel and meaning.

    @mutable
    class Losses(Table):
        cause: U32 = column("u4", doc="string")

A table is contiguous arrays of equal length. Conventions, everywhere: row ids int32, -1 for none; strings
uint32, row 0 is ""; times and periods int64 ns (numpy turns uint64 with int64 into float64); addresses
uint64, combined only with uint64. `check()` proves the declaration; tests call it after each stage.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

from perf_offcpu.structs import mutable

I16 = NDArray[np.int16]
I8 = NDArray[np.int8]
I32 = NDArray[np.int32]
I64 = NDArray[np.int64]
U8 = NDArray[np.uint8]
U32 = NDArray[np.uint32]
U64 = NDArray[np.uint64]
Bool = NDArray[np.bool_]


Domain = Literal[
    "", "strings", "comm", "evsels", "callchains", "snapshots", "spaces", "dsos", "stacks", "frames",
    "time", "since", "task", "cpu", "cgroup",
]  # fmt: skip
"""What the values of a column stand for: rows of that field of a Recording or Profile ("comm": rows of
strings that are names of threads), times, times since when a row holds (0: before the recording), ids of
processes and threads, CPUs, ids of cgroups. "": something that means the same in every recording."""

Renumber = Callable[[NDArray[Any]], NDArray[Any]]
"""The new values of a column."""


def column(dtype: str, *, doc: str, unit: str = "", sentinel: int | None = None, domain: Domain = "") -> Any:
    """Declare a column of a `Table`: numpy dtype, meaning, unit, the value that means "none", and domain."""
    metadata = {"dtype": np.dtype(dtype), "doc": doc, "unit": unit, "sentinel": sentinel, "domain": domain}
    return dataclasses.field(default_factory=lambda: np.empty(0, np.dtype(dtype)), metadata=metadata)


@mutable
class Table:
    """Base of all tables; subclasses are `mutable` and their fields are declared with `column`."""

    def __len__(self) -> int:
        return len(getattr(self, dataclasses.fields(self)[0].name))

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """The column names, in order."""
        return tuple(field.name for field in dataclasses.fields(cls))

    @classmethod
    def filled(cls, rows: int, **columns: Any) -> Self:
        """A table of `rows` rows: the given columns (converted to their dtype), sentinels or 0 elsewhere."""

        def made(dtype: np.dtype[Any], sentinel: int, value: Any) -> NDArray[Any]:
            return np.full(rows, sentinel, dtype) if value is None else np.ascontiguousarray(value, dtype)

        return cls._made(columns, made)

    @classmethod
    def sparse(cls, rows: int, **columns: Any) -> Self:
        """As `filled`, but single values, given or not, take no memory: such columns cannot be written."""

        def made(dtype: np.dtype[Any], sentinel: int, value: Any) -> NDArray[Any]:
            if isinstance(value, np.ndarray):
                return np.ascontiguousarray(value, dtype)
            return np.broadcast_to(np.array(sentinel if value is None else value, dtype), rows)

        return cls._made(columns, made)

    @classmethod
    def _made(cls, columns: dict[str, Any], made: Callable[[np.dtype[Any], int, Any], NDArray[Any]]) -> Self:
        """Each column from its dtype, its sentinel or 0, and what is given for it, or None."""
        if unknown := columns.keys() - set(cls.names()):
            raise TypeError(f"{cls.__name__} has no column {', '.join(sorted(unknown))}")
        given = {}
        for field in dataclasses.fields(cls):
            dtype, sentinel = field.metadata["dtype"], field.metadata["sentinel"] or 0
            given[field.name] = made(dtype, sentinel, columns.get(field.name))
        return cls(**given)

    @classmethod
    def from_rows(cls, rows: Sequence[Sequence[Any]]) -> Self:
        """A table from tuples in column order: for rare records, never for samples."""
        columns = zip(*rows, strict=True) if rows else ((),) * len(cls.names())
        fields = dataclasses.fields(cls)
        return cls(**{f.name: np.array(c, f.metadata["dtype"]) for f, c in zip(fields, columns, strict=True)})

    @classmethod
    def concat(cls, tables: Iterable[Self]) -> Self:
        """The rows of all tables, in order."""
        parts = list(tables)
        if not parts:
            return cls()
        return cls(**{name: np.concatenate([getattr(t, name) for t in parts]) for name in cls.names()})

    def take(self, rows: Any) -> Self:
        """The rows selected by an index array, slice or mask, in that order."""
        return type(self)(**{name: getattr(self, name)[rows] for name in self.names()})

    def reorder(self, rows: NDArray[np.int64]) -> None:
        """Put the rows into another order, in place, so that no table is there twice.

        Nobody else may hold the columns: what one of them was in becomes room for the next.
        """
        room: dict[np.dtype[Any], NDArray[Any]] = {}
        for name in self.names():
            old = getattr(self, name)
            if len(old) and old[0] == old[-1] and bool((old == old[0]).all()):
                continue  # a field that no sample has is in order already
            new = room.pop(old.dtype, None)
            new = np.empty_like(old) if new is None else new
            np.take(old, rows, out=new, mode="clip")  # the mode that does not make a copy first
            setattr(self, name, new)
            if old.flags.writeable:
                room[old.dtype] = old

    def with_columns(self, **columns: Any) -> Self:
        """The same table with some columns replaced."""
        return dataclasses.replace(self, **columns)

    def renumbered(self, changes: Mapping[str, Renumber]) -> Self:
        """Return the table with other values in the columns of some domains; the other columns are shared."""
        changed = {
            field.name: changes[field.metadata["domain"]](getattr(self, field.name))
            for field in dataclasses.fields(self)
            if field.metadata["domain"] in changes
        }
        return self.with_columns(**changed) if changed else self

    def check(self) -> None:
        """Raise AssertionError unless dtypes and lengths are as declared."""
        for field in dataclasses.fields(self):
            array = getattr(self, field.name)
            where = f"{type(self).__name__}.{field.name}"
            assert array.dtype == field.metadata["dtype"], f"{where}: {array.dtype}"
            assert array.shape == (len(self),), f"{where}: shape {array.shape}, {len(self)} rows"


def distinct(values: NDArray[Any]) -> NDArray[Any]:
    """The different values, ascending: np.unique() without its import of numpy.ma, some 20 ms."""
    ordered = np.sort(values)
    found: NDArray[Any] = ordered[np.append(True, ordered[1:] != ordered[:-1])[: len(ordered)]]
    return found


def is_among(values: NDArray[Any], ascending: NDArray[Any]) -> Bool:
    """bool[n]: whether each value is one of these, as np.isin() without that import."""
    if not len(ascending):
        return np.zeros(len(values), np.bool_)
    place = np.searchsorted(ascending, values)
    found: Bool = ascending[np.minimum(place, len(ascending) - 1)] == values
    return found


def as_run(rows: NDArray[np.int64]) -> NDArray[np.int64] | slice:
    """Ascending rows as a slice if none is left out."""
    if len(rows) and int(rows[-1]) - int(rows[0]) == len(rows) - 1:
        return slice(int(rows[0]), int(rows[-1]) + 1)
    return rows


def check_tables(owner: Any) -> None:
    """Raise AssertionError unless all tables of a Recording or Profile are well-formed, and every row id in
    them leads somewhere or is -1."""
    for one in dataclasses.fields(owner):
        table = getattr(owner, one.name)
        if not isinstance(table, Table):
            continue
        table.check()
        for field in dataclasses.fields(table):
            domain = field.metadata["domain"]
            rows = getattr(owner, "strings" if domain == "comm" else domain, None)
            ids = getattr(table, field.name)
            if rows is not None and len(ids):
                where = f"{one.name}.{field.name}"
                assert int(ids.min()) >= -1, f"{where}: id {ids.min()}"
                assert int(ids.max()) < len(rows), f"{where}: id {ids.max()} of {len(rows)} rows"
