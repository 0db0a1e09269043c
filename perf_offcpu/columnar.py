# SPDX-License-Identifier: Apache-2.0
"""Whole columns from many records at once, read by the same tables as single records (`layout`).

Each record has a cursor; a field advances all cursors at once, by a constant or by that record's own
count. So one pass over the *fields* reads any number of records, and no Python code runs per record.
A record that does not fit its layout is dropped and reported in `ok`; its neighbours are untouched.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perf_offcpu.layout import Field, Int, Layout, Order, Shape, Special

BLOCK = 1 << 15
"""Items that are worked on at once: what a core's cache holds, and worth a step of its own."""

I64 = NDArray[np.int64]
Bool = NDArray[np.bool_]


@dataclass(slots=True)
class Rows:
    """One array field of n records: where its items lie, before anyone copies them.

    Args:
        starts: int64[n], byte offsets of each record's first item in the buffer.
        counts: int64[n], items in each record.
        width: bytes of one item.
    """

    starts: I64
    counts: I64
    width: int


@dataclass(slots=True)
class Columns:
    """The fields of n records.

    Args:
        ok: bool[n], False where the record did not fit its layout; its values mean nothing.
        scalars: name → array[n] in native byte order; 0 where a `where` field is absent.
        arrays: name → Rows; read them with `gather_u64`, `gather_bytes`.
    """

    ok: Bool
    scalars: dict[str, NDArray[Any]] = field(default_factory=dict)
    arrays: dict[str, Rows] = field(default_factory=dict)
    ends: I64 = field(default_factory=lambda: np.empty(0, np.int64))
    """int64[n]: where the last field of each record ended."""


def read_columns(
    layout: Layout, data: NDArray[np.uint8], starts: I64, ends: I64, order: Order = "<", shape: Shape = None
) -> Columns:
    """Read all fields that records of one shape have.

    Args:
        layout: integers, integer arrays, nested layouts of fixed size, and BYTE arrays with a count.
        data: the buffer that holds the records.
        starts, ends: int64[n], each record's first byte and the byte behind its last.

    Returns:
        Columns of n records, in the given order.
    """
    reader = _Columnar(data, starts, ends, order, shape)
    fields = layout.active(shape)
    for one in fields[reader.read_prefix(fields) :]:
        reader.read(one)
    reader.columns.ends = reader.at
    return reader.columns


class _Columnar:
    """n cursors that advance together."""

    def __init__(self, data: NDArray[np.uint8], starts: I64, ends: I64, order: Order, shape: Shape) -> None:
        self.data, self.order, self.shape = data, order, shape
        self.at, self.limit = starts.astype(np.int64), ends
        self.columns = Columns(ok=np.ones(len(starts), np.bool_))

    def read_prefix(self, fields: tuple[Field, ...]) -> int:
        """Read the scalars in front of the first field of any other kind, at once if no record is too short.

        Returns:
            How many fields have been read.
        """
        prefix = list(itertools.takewhile(_is_scalar, fields))
        size = sum(one.type.size for one in prefix if isinstance(one.type, Int))
        if not bool((self.limit - self.at >= size).all()):
            return 0
        if prefix:
            self.columns.scalars.update(_gather_fields(self.data, self.at, prefix, self.order))
        self.at = self.at + size
        return len(prefix)

    def read(self, one: Field) -> None:
        present = None if one.where is None else self.columns.scalars[one.where] != 0
        if one.count is None and isinstance(one.type, Int):
            self._scalar(one, one.type, present)
        else:
            self._array(one, present)

    def _claim(self, sizes: I64 | int) -> I64:
        """Advance the cursors; records that are too short stop being `ok` and stay where they are."""
        left = self.limit - self.at
        fits = (left >= sizes) & (np.asarray(sizes) >= 0)
        self.columns.ok &= fits
        start = self.at
        self.at = start + np.where(fits, sizes, 0)
        return start

    def _scalar(self, one: Field, type_: Int, present: Bool | None) -> None:
        sizes = type_.size if present is None else np.where(present, type_.size, 0).astype(np.int64)
        start = self._claim(sizes)
        readable = self.columns.ok if present is None else self.columns.ok & present
        values = gather(self.data, np.where(readable, start, 0), type_, self.order)
        if not readable.all():
            values[~readable] = 0
        self.columns.scalars[one.name] = values

    def _array(self, one: Field, present: Bool | None) -> None:
        width = _item_size(one, self.shape)
        counts = self._counts(one)
        if present is not None:
            counts = np.where(present, counts, 0)
        # A count from a hostile file may be 2^63: compare before multiplying.
        sound = (counts >= 0) & (counts <= (self.limit - self.at) // width) & self.columns.ok
        self.columns.ok &= sound
        counts = np.where(sound, counts, 0)
        start = self._claim(counts * width)
        self.columns.arrays[one.name] = Rows(start, counts, width)

    def _counts(self, one: Field) -> I64:
        if isinstance(one.count, str):
            counts = self.columns.scalars[one.count]
            return counts.astype(np.int64)  # 2^63 and more turn negative, and are refused
        fixed = one.count(self.shape) if callable(one.count) else one.count
        return np.full(len(self.at), 1 if fixed is None else fixed, np.int64)


def _is_scalar(one: Field) -> bool:
    """Whether every record of its shape has the field, and once."""
    return isinstance(one.type, Int) and one.count is None and one.where is None


def _item_size(one: Field, shape: Shape) -> int:
    if isinstance(one.type, Layout):
        return one.type.size(shape)
    if isinstance(one.type, Int):
        return one.type.size
    if one.type is Special.BYTE:
        return 1
    raise TypeError(f"{one.name}: no columns of {one.type}")


def gather_structs(
    data: NDArray[np.uint8], at: I64, layout: Layout, order: Order = "<"
) -> dict[str, NDArray[Any]]:
    """The integers of a layout that holds nothing else, by name, at byte offsets `at` (int64[n])."""
    return _gather_fields(data, at, layout.active(), order)


def _gather_fields(
    data: NDArray[np.uint8], at: I64, fields: Sequence[Field], order: Order
) -> dict[str, NDArray[Any]]:
    """Neighbouring integers, each record copied once."""
    kinds = np.dtype([(one.name, one.type.dtype(order)) for one in fields if isinstance(one.type, Int)])
    records = _windows(data, kinds.itemsize)[at].view(kinds)
    return {one.name: records[one.name].astype(_native(one.type)) for one in fields}


def gather(data: NDArray[np.uint8], at: I64, type_: Int, order: Order = "<") -> NDArray[Any]:
    """The integers of one type at byte offsets `at` (int64[n], of any alignment), in native byte order."""
    return _overlapping(data, type_.size, order)[at].astype(_native(type_), copy=False)


def _native(type_: object) -> np.dtype[Any]:
    """The native dtype of an integer type."""
    assert isinstance(type_, Int)
    return np.dtype(f"{'i' if type_.signed else 'u'}{type_.size}")


def gather_u64(data: NDArray[np.uint8], at: I64, order: Order = "<") -> NDArray[np.uint64]:
    """uint64[n]: the words at byte offsets `at` (RAW data lies at 4 mod 8, compressed records anywhere)."""
    words: NDArray[np.uint64] = _overlapping(data, 8, order)[at].astype(np.uint64, copy=False)
    return words


def _overlapping(data: NDArray[np.uint8], size: int, order: Order) -> NDArray[Any]:
    """A view of the buffer in which element i is the unsigned integer that begins at byte i."""
    return np.ndarray((max(0, len(data) - size + 1),), f"{order}u{size}", data, strides=(1,))


def _windows(data: NDArray[np.uint8], size: int, step: int = 1) -> NDArray[np.void]:
    """A view of the buffer in which element i is the `size` bytes that begin at byte `i * step`.

    Taking such elements copies each as a whole: several times faster than taking its words one by one.
    """
    return np.ndarray((max(0, (len(data) - size) // step + 1),), f"V{size}", data, strides=(step,))


def ragged_offsets(counts: I64) -> I64:
    """int64[n + 1]: where rows of these lengths begin and end, back to back."""
    offsets = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=offsets[1:])
    return offsets


def row_blocks(offsets: I64, items: int = BLOCK) -> Iterator[tuple[int, int]]:
    """Cut ragged rows into runs (first, behind the last) of about so many items: work that stays in cache."""
    cuts = np.searchsorted(offsets, np.arange(offsets[0], offsets[-1], items))
    return itertools.pairwise(sorted({0, *cuts.tolist(), len(offsets) - 1}))


def gather_rows(data: NDArray[np.uint8], rows: Rows, order: Order = "<") -> tuple[I64, NDArray[np.uint64]]:
    """All u64 items of an array field (nested layouts of u64 included).

    Returns:
        (offsets int64[n + 1], values uint64[offsets[n]]); the items of record i are
        `values[offsets[i]:offsets[i + 1]]`.
    """
    counts = rows.counts if rows.width == 8 else rows.counts * (rows.width // 8)
    offsets = ragged_offsets(counts)
    lengths = _lengths(counts)
    if lengths is None:
        return offsets, _gather_by_word(data, rows.starts, counts, offsets, order)
    native = f"{order}u8"
    if len(lengths) == 1 and lengths[0][0]:
        values = _windows(data, 8 * lengths[0][0])[rows.starts].view(native)
        return offsets, values.astype(np.uint64, copy=False)
    values = np.empty(offsets[-1], native)
    for length, which in lengths:
        if length:
            places = _windows(values.view(np.uint8), 8 * length, step=8)
            places[offsets[which]] = _windows(data, 8 * length)[rows.starts[which]]
    return offsets, values.astype(np.uint64, copy=False)


_ROWS_OF_A_LENGTH = 16
"""Rows of one length that are worth a step of their own."""


def _lengths(counts: I64) -> list[tuple[int, I64]] | None:
    """(length, which rows) of rows of n lengths, each length once; None if there are too many for that."""
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
    """Cut ragged rows into groups of one length, of at most `BLOCK` items: (length, which rows).

    Rows of length 0 are in none. None if there are too many lengths for that.
    """
    lengths = _lengths(np.diff(offsets))
    if lengths is None:
        return None
    whole = len(lengths) == 1

    def groups() -> Iterator[tuple[int, I64 | slice]]:
        for length, which in lengths:
            count = max(1, BLOCK // max(1, length))
            for at in range(0, len(which) if length else 0, count):
                yield length, slice(at, min(at + count, len(which))) if whole else which[at : at + count]

    return groups()


def rows_of(values: NDArray[np.uint64], starts: I64, length: int) -> NDArray[np.uint64]:
    """uint64[n, length]: the words from each of `starts` (int64[n]) on."""
    found = _windows(values.view(np.uint8), 8 * length, step=8)[starts]
    return found.view(np.uint64).reshape(-1, length)


def _gather_by_word(
    data: NDArray[np.uint8], starts: I64, counts: I64, offsets: I64, order: Order
) -> NDArray[np.uint64]:
    """The items of rows of many different lengths."""
    shift = starts - 8 * offsets[:-1]
    words = _overlapping(data, 8, order)
    values = np.empty(offsets[-1], np.uint64)
    for first, behind in row_blocks(offsets):
        low, high = int(offsets[first]), int(offsets[behind])
        at = np.repeat(shift[first:behind], counts[first:behind])
        at += np.arange(8 * low, 8 * high, 8)
        values[low:high] = words[at]
    return values


def gather_bytes(data: NDArray[np.uint8], rows: Rows) -> tuple[I64, NDArray[np.uint8]]:
    """All bytes of a BYTE array field, as `gather_rows`."""
    offsets = ragged_offsets(rows.counts)
    at = np.repeat(rows.starts - offsets[:-1], rows.counts) + np.arange(offsets[-1])
    return offsets, data[at]
