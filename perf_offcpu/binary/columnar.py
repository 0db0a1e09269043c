# SPDX-License-Identifier: Apache-2.0
"""Read whole columns from many records at once, by the same tables as single records (`layout`). Each record has a
cursor; a field advances all cursors at once, by a constant or by that record's own count. One pass over the *fields*
reads any number of records, and no Python code runs per record. A record that does not fit its layout is dropped and
reported in `ok`; its neighbours are untouched.

Integers and arrays lie at any alignment. Their offsets are columns, and a few steps of numpy copy all of them
(`gather`, `gather_rows`, `move_rows`)."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import field
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from perf_offcpu.binary.layout import U64, Field, Int, Layout, Order, Shape, Special
from perf_offcpu.structs import mutable

BLOCK = 1 << 15  # items that are worked on at once: as many as fit a core's cache
Bytes = NDArray[np.uint8]
Words = NDArray[np.uint64]
I64 = NDArray[np.int64]
Bool = NDArray[np.bool_]


@mutable
class Rows:
    """Locate an array field of n records in a buffer; `gather_rows` and `gather_bytes` copy its items."""

    starts: I64  # int64[n], byte offsets of each record's first item in the buffer
    counts: I64  # int64[n], items in each record
    width: int  # bytes of one item

    def take(self, rows: I64 | Bool) -> Self:
        """Return the array field of the records `rows` alone (row numbers, in this order, or a mask)."""
        return type(self)(self.starts[rows], self.counts[rows], self.width)


def gather_fields(data: Bytes, starts: I64, fields: Sequence[Field], order: Order) -> dict[str, NDArray[Any]]:
    """Read adjacent integer `fields` at byte offsets `starts` (int64[n]); return name → array[n], native byte order."""
    kinds = np.dtype([(field.name, field.type.dtype(order)) for field in fields if isinstance(field.type, Int)])
    records = _windows(data, kinds.itemsize)[starts].view(kinds)
    return {field.name: records[field.name].astype(native(field.type)) for field in fields}


def gather(data: Bytes, starts: I64, type_: Int, order: Order = "<") -> NDArray[Any]:
    """Read integers of `type_` at byte offsets `starts` (int64[n], any alignment) as array[n] in native byte order."""
    return _overlapping(data, type_.size, order)[starts].astype(native(type_), copy=False)


def native(type_: object) -> np.dtype[Any]:
    """Return the dtype of an integer type in this machine's byte order."""
    assert isinstance(type_, Int)
    return np.dtype(f"{'i' if type_.signed else 'u'}{type_.size}")


def gather_u64(data: Bytes, starts: I64, order: Order = "<") -> Words:
    """Return uint64[n]: the words at byte offsets `starts` (int64[n], any alignment)."""
    words: Words = gather(data, starts, U64, order)
    return words


def _overlapping(data: Bytes, size: int, order: Order) -> NDArray[Any]:
    """Return a view of the buffer in which element i is the unsigned integer that begins at byte i."""
    return np.ndarray((max(0, len(data) - size + 1),), f"{order}u{size}", data, strides=(1,))


def _windows(data: Bytes, size: int, step: int = 1) -> NDArray[np.void]:
    """Return a view of the buffer in which element i is the `size` bytes that begin at byte `i * step`. Taking such
    elements copies each as a whole: several times faster than taking its words one by one."""
    return np.ndarray((max(0, (len(data) - size) // step + 1),), f"V{size}", data, strides=(step,))


def offsets_of(counts: I64) -> I64:
    """Return int64[n + 1]: the offsets of adjacent rows of these lengths, row i from offsets[i] to offsets[i + 1]."""
    offsets = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=offsets[1:])
    return offsets


def row_blocks(offsets: I64) -> Iterator[tuple[int, int]]:
    """Yield (first row, row after the last) of blocks of about BLOCK items, of n rows at `offsets` (int64[n + 1])."""
    cuts = np.searchsorted(offsets, np.arange(offsets[0], offsets[-1], BLOCK))
    return itertools.pairwise(sorted({0, *cuts.tolist(), len(offsets) - 1}))


def gather_rows(data: Bytes, rows: Rows, order: Order = "<") -> tuple[I64, Words]:
    """Copy all u64 items of an array field (nested layouts of u64 included). Returns (offsets int64[n + 1], values
    uint64[offsets[n]]): record i has `values[offsets[i]:offsets[i + 1]]`."""
    counts = rows.counts if rows.width == 8 else rows.counts * (rows.width // 8)
    offsets = offsets_of(counts)
    lengths = _lengths(counts)
    if lengths is None:
        return offsets, _gather_by_word(data, rows.starts, counts, offsets, order)
    wire = f"{order}u8"
    if len(lengths) == 1 and lengths[0][0]:
        values = _windows(data, 8 * lengths[0][0])[rows.starts].view(wire)
        return offsets, values.astype(np.uint64, copy=False)
    values = np.empty(offsets[-1], wire)
    for length, group in lengths:
        if length:
            places = _windows(values.view(np.uint8), 8 * length, step=8)
            places[offsets[group]] = _windows(data, 8 * length)[rows.starts[group]]
    return offsets, values.astype(np.uint64, copy=False)


_ROWS_OF_A_LENGTH = 16  # rows of one length that are worth a step of numpy


def _lengths(counts: I64) -> list[tuple[int, I64]] | None:
    """Return (length, int64 rows of it) for each distinct length; None if they are too many, or too large, for this."""
    if not len(counts):
        return []
    if bool((counts == counts[0]).all()):
        return [(int(counts[0]), np.arange(len(counts)))]
    if int(counts.max()) >= 1 << 16:
        return None
    order = np.argsort(counts.astype(np.uint16), kind="stable")  # of u16: by radix
    ordered = counts[order]
    cuts = np.flatnonzero(ordered[1:] != ordered[:-1]) + 1
    if len(cuts) * _ROWS_OF_A_LENGTH > len(counts):
        return None
    return [(int(counts[part[0]]), part) for part in np.split(order, cuts)]


def row_groups(offsets: I64) -> Iterator[tuple[int, I64 | slice]] | None:
    """Group the nonempty ones of n rows (offsets int64[n + 1]) by length; iterate over (length, rows of this length),
    at most BLOCK items at a time. Returns None if there are too many lengths, as `_lengths` does."""
    lengths = _lengths(np.diff(offsets))
    if lengths is None:
        return None
    are_equal = len(lengths) == 1

    def groups() -> Iterator[tuple[int, I64 | slice]]:
        for length, group in lengths:
            count = max(1, BLOCK // max(1, length))
            for index in range(0, len(group) if length else 0, count):
                rows = slice(index, min(index + count, len(group)))
                yield length, rows if are_equal else group[rows]

    return groups()


def rows_of(values: Words, starts: I64, length: int) -> Words:
    """Return uint64[n, length]: row i holds the `length` words of `values` that begin at index starts[i] (int64[n])."""
    return _windows(values.view(np.uint8), 8 * length, step=8)[starts].view(np.uint64).reshape(-1, length)


def _gather_by_word(data: Bytes, starts: I64, counts: I64, offsets: I64, order: Order) -> Words:
    """Return uint64[offsets[-1]], as `gather_rows` does, for rows of many different lengths: word by word."""
    shift, words = starts - 8 * offsets[:-1], _overlapping(data, 8, order)
    values = np.empty(offsets[-1], np.uint64)
    for first, stop in row_blocks(offsets):
        low, high = int(offsets[first]), int(offsets[stop])
        values[low:high] = words[np.repeat(shift[first:stop], counts[first:stop]) + np.arange(8 * low, 8 * high, 8)]
    return values


def gather_bytes(data: Bytes, rows: Rows) -> tuple[I64, Bytes]:
    """Copy all bytes of a BYTE array field; return (offsets int64[n + 1], values uint8[offsets[n]])."""
    offsets = offsets_of(rows.counts)
    byte = np.repeat(rows.starts - offsets[:-1], rows.counts) + np.arange(offsets[-1])
    return offsets, data[byte]


def move_rows(target: Bytes, places: I64, source: Bytes, starts: I64, sizes: I64) -> None:
    """Copy n pieces of bytes: piece i has sizes[i] bytes, begins at byte starts[i] of `source` and goes to byte
    places[i] of `target` (all int64[n], any alignment). Pieces must not overlap in `target`."""
    lengths = _lengths(sizes)
    for length, group in lengths or ():
        if length:
            _windows(target, length)[places[group]] = _windows(source, length)[starts[group]]
    if lengths is None:
        _move_by_item(target, places, source, starts, sizes)


def _move_by_item(target: Bytes, places: I64, source: Bytes, starts: I64, sizes: I64) -> None:
    """Do as `move_rows` for many different sizes: copy items of the largest width (8, 4, 1) that divides all sizes."""
    width = next(width for width in (8, 4, 1) if not int(np.bitwise_or.reduce(sizes)) % width)
    counts = sizes // width
    offsets = offsets_of(counts)
    into, out_of = _overlapping(target, width, "<"), _overlapping(source, width, "<")
    for first, stop in row_blocks(offsets):
        items = np.arange(width * int(offsets[first]), width * int(offsets[stop]), width)
        rows, count = slice(first, stop), counts[first:stop]
        to, since = (np.repeat((begins - width * offsets[:-1])[rows], count) for begins in (places, starts))
        into[to + items] = out_of[since + items]


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


def read_columns(layout: Layout, data: Bytes, starts: I64, ends: I64, order: Order, shape: Shape = None) -> Columns:
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

    def __init__(self, data: Bytes, starts: I64, ends: I64, order: Order, shape: Shape) -> None:
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
        fits = (self.limit - self.at >= sizes) & (np.asarray(sizes) >= 0)
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
    """Return True if the field is one integer that every record of its shape has: no array, no `where` condition."""
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
