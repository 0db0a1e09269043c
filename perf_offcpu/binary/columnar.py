# SPDX-License-Identifier: Apache-2.0
"""Read whole columns from many records at once, by the same tables as single records (`layout`). Each record has a
cursor; a field advances all cursors at once, by a constant or by that record's own count. One pass over the *fields*
reads any number of records, and no Python code runs per record. A record that does not fit its layout is dropped and
reported in `ok`; its neighbours are untouched."""

import itertools
from dataclasses import field
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from perf_offcpu.binary.gather import I64, Rows, gather, gather_fields
from perf_offcpu.binary.layout import Field, Int, Layout, Order, Shape, Special
from perf_offcpu.structs import mutable

Bool = NDArray[np.bool_]


@mutable
class Columns:
    """Hold the fields of n records as columns: integers as numpy arrays, arrays as Rows (where they are in `data`)."""

    ok: Bool  # bool[n], False where the record did not fit its layout; its values mean nothing
    # name → array[n] in native byte order; 0 where a `where` field is absent
    scalars: dict[str, NDArray[Any]] = field(default_factory=dict)
    arrays: dict[str, Rows] = field(default_factory=dict)  # name → Rows, for `gather_rows` or `gather_bytes`
    ends: I64 = field(default_factory=lambda: np.empty(0, np.int64))  # int64[n], offset in `data` after the last field

    def take(self, rows: I64 | Bool) -> Self:
        """Return the columns of the records `rows` alone (row numbers, in this order, or a mask)."""
        arrays = {name: array.take(rows) for name, array in self.arrays.items()}
        scalars = {name: values[rows] for name, values in self.scalars.items()}
        return type(self)(self.ok[rows], scalars, arrays, self.ends[rows])


def read_columns(
    layout: Layout, data: NDArray[np.uint8], starts: I64, ends: I64, order: Order = "<", shape: Shape = None
) -> Columns:
    """Read all fields of n records of one shape; `starts` and `ends` (int64[n]) bound each record in `data`. The layout
    may hold integers, integer arrays, nested layouts of fixed size, and BYTE arrays with a count."""
    reader = _Columnar(data, starts, ends, order, shape)
    fields = layout.active(shape)
    for row in fields[reader.read_prefix(fields) :]:
        reader.read(row)
    reader.columns.ends = reader.at
    return reader.columns


class _Columnar:
    """Read n records field by field: `at` is a cursor for each record (offset in `data`), and all advance together."""

    def __init__(self, data: NDArray[np.uint8], starts: I64, ends: I64, order: Order, shape: Shape) -> None:
        self.data, self.order, self.shape = data, order, shape
        self.at, self.limit = starts.astype(np.int64), ends
        self.columns = Columns(ok=np.ones(len(starts), np.bool_))

    def read_prefix(self, fields: tuple[Field, ...]) -> int:
        """Read the leading scalar fields of all records at once; return their number, 0 if a record is too short."""
        prefix = list(itertools.takewhile(is_scalar, fields))
        size = sum(field.type.size for field in prefix if isinstance(field.type, Int))
        if not bool((self.limit - self.at >= size).all()):
            return 0
        if prefix:
            self.columns.scalars.update(gather_fields(self.data, self.at, prefix, self.order))
        self.at = self.at + size
        return len(prefix)

    def read(self, field: Field) -> None:
        is_present = None if field.where is None else self.columns.scalars[field.where] != 0
        if field.count is None and isinstance(field.type, Int):
            self._scalar(field, field.type, is_present)
        else:
            self._array(field, is_present)

    def _claim(self, sizes: I64 | int) -> I64:
        """Advance the cursors by `sizes` bytes, return where they were; a record too short stays, its `ok` False."""
        left = self.limit - self.at
        fits = (left >= sizes) & (np.asarray(sizes) >= 0)
        self.columns.ok &= fits
        start = self.at
        self.at = start + np.where(fits, sizes, 0)
        return start

    def _scalar(self, field: Field, type_: Int, is_present: Bool | None) -> None:
        sizes = type_.size if is_present is None else np.where(is_present, type_.size, 0).astype(np.int64)
        start = self._claim(sizes)
        readable = self.columns.ok if is_present is None else self.columns.ok & is_present
        values = gather(self.data, np.where(readable, start, 0), type_, self.order)
        if not readable.all():
            values[~readable] = 0
        self.columns.scalars[field.name] = values

    def _array(self, field: Field, is_present: Bool | None) -> None:
        width = item_size(field, self.shape)
        if isinstance(field.count, str):
            counts = self.columns.scalars[field.count].astype(np.int64)  # from 2^63 on negative, and refused
        else:
            fixed = field.items(self.shape, {})
            counts = np.full(len(self.at), 1 if fixed is None else fixed, np.int64)
        if is_present is not None:
            counts = np.where(is_present, counts, 0)
        # A count from a hostile file may be 2^63: compare before multiplying.
        sound = (counts >= 0) & (counts <= (self.limit - self.at) // width) & self.columns.ok
        self.columns.ok &= sound
        counts = np.where(sound, counts, 0)
        self.columns.arrays[field.name] = Rows(self._claim(counts * width), counts, width)


def is_scalar(field: Field) -> bool:
    """Return whether the field is a single integer that every record of its shape has."""
    return isinstance(field.type, Int) and field.count is None and field.where is None


def item_size(field: Field, shape: Shape) -> int:
    """Return the size in bytes of one item of an array field; raise TypeError for TEXT and STRING."""
    if isinstance(field.type, Layout):
        return field.type.size(shape)
    if isinstance(field.type, Int):
        return field.type.size
    if field.type is Special.BYTE:
        return 1
    raise TypeError(f"{field.name}: no columns of {field.type}")
