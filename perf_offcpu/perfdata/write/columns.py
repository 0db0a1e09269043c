# SPDX-License-Identifier: Apache-2.0
"""Many records from whole columns at once: the inverse of `columnar`, from the same tables.

Each record has a cursor again; a field is scattered to all cursors and advances them. So one pass over the
*fields* writes any number of records.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from perf_offcpu.abi.records import RECORD_HEADER, RecordType
from perf_offcpu.abi.sample import SAMPLE, SampleShape
from perf_offcpu.binary.gather import ragged_offsets
from perf_offcpu.binary.layout import Field, Int, Layout, Order, Shape, Special
from perf_offcpu.errors import LayoutError
from perf_offcpu.perfdata.write.writer import RECORD_SIZE_MAX

I64 = NDArray[np.int64]
Ragged = tuple[I64, NDArray[Any]]
"""(offsets int64[n + 1], values): the items of record i are `values[offsets[i]:offsets[i + 1]]`."""
Column = ArrayLike | Ragged

_SAMPLE_RECORD = Layout("PERF_RECORD_SAMPLE", (*RECORD_HEADER.fields, *SAMPLE.fields), SAMPLE.source)


def pack_samples(
    shape: SampleShape, misc: Column, columns: Mapping[str, Column], count: int, order: Order = "<"
) -> bytes:
    """Whole SAMPLE records, one for each row, back to back; arguments as for `sample_records`."""
    return sample_records(shape, misc, columns, count, order)[1].tobytes()


def sample_records(
    shape: SampleShape, misc: Column, columns: Mapping[str, Column], count: int, order: Order = "<"
) -> tuple[I64, NDArray[np.uint8]]:
    """Whole SAMPLE records, one for each row, and where each begins.

    Args:
        shape: of the event that they belong to.
        misc: of each record's header.
        columns: the fields that the shape has, by the names of `abi.sample.SAMPLE`: an array of `count`
            values or one value for all; `Ragged` for arrays, whose counts need not be given.
        count: how many records.

    Returns:
        (offsets int64[count + 1], bytes): record i is `bytes[offsets[i]:offsets[i + 1]]`.

    Raises:
        LayoutError: a field is missing, or a record would be larger than its size field can say.
    """
    header: dict[str, Column] = {"type": int(RecordType.SAMPLE), "misc": misc, "size": 0}
    offsets, _ = pack_columns(_SAMPLE_RECORD, header | dict(columns), count, order, shape)
    sizes = np.diff(offsets)
    if count and int(sizes.max()) > RECORD_SIZE_MAX:
        raise LayoutError(f"a sample of {sizes.max()} bytes, at most {RECORD_SIZE_MAX}")
    return pack_columns(_SAMPLE_RECORD, header | dict(columns) | {"size": sizes}, count, order, shape)


def pack_columns(
    layout: Layout, columns: Mapping[str, Column], count: int, order: Order = "<", shape: Shape = None
) -> tuple[I64, NDArray[np.uint8]]:
    """Write `count` structures, back to back.

    Args:
        layout: integers, and arrays of integers or BYTE whose count is an earlier field.
        columns: field → an array of `count` values, one value for all, or Ragged.

    Returns:
        (offsets int64[count + 1], bytes): structure i is `bytes[offsets[i]:offsets[i + 1]]`.

    Raises:
        LayoutError: a field has no column, or the fields are not aligned to 4 bytes (or their own size).
    """
    writer = _Writer(layout, columns, count, order, shape)
    return writer.offsets, writer.scatter()


class _Writer:
    """The sizes of n structures, then their bytes."""

    def __init__(
        self, layout: Layout, columns: Mapping[str, Column], count: int, order: Order, shape: Shape
    ) -> None:
        self.name, self.order, self.count = layout.name, order, count
        self.fields = layout.active(shape)
        self.columns = _with_counts(self.fields, columns)
        missing = [field.name for field in self.fields if field.name not in self.columns]
        if missing:
            raise LayoutError(f"{layout.name}: no column for {', '.join(missing)}")
        total = np.zeros(count, np.int64)
        for field in self.fields:
            total += self._size(field)
        self.offsets = ragged_offsets(total)

    def _size(self, field: Field) -> I64 | int:
        if field.count is None:
            return _width(field) * self._present(field)
        sizes: I64 = np.diff(self.columns[field.name][0]) * _width(field)
        return sizes

    def _present(self, field: Field) -> I64 | int:
        """How many of a scalar each structure has: one, or where another field says so."""
        if field.where is None:
            return 1
        said = np.broadcast_to(np.asarray(self.columns[field.where]), self.count)
        present: I64 = (said != 0).astype(np.int64)
        return present

    def scatter(self) -> NDArray[np.uint8]:
        data = np.zeros(int(self.offsets[-1]), np.uint8)
        at = self.offsets[:-1].copy()
        for field in self.fields:
            self._scatter_field(data, at, field)
            at += self._size(field)
        return data

    def _scatter_field(self, data: NDArray[np.uint8], at: I64, field: Field) -> None:
        width, column = _width(field), self.columns[field.name]
        wire = np.dtype(f"{self.order}{'i' if _signed(field) else 'u'}{width}")
        if field.count is None:
            counts = np.broadcast_to(np.asarray(self._present(field)), self.count)
            values = np.broadcast_to(np.asarray(column), self.count)[counts != 0]
        else:
            counts, values = np.diff(column[0]), column[1]
        try:
            source = np.ascontiguousarray(values, wire).view(np.uint8)
            _scatter_bytes(data, at, counts * width, source)
        except ValueError as problem:
            raise LayoutError(f"{self.name}: field {field.name}: {problem}") from None


def _scatter_bytes(data: NDArray[np.uint8], at: I64, sizes: I64, source: NDArray[np.uint8]) -> None:
    """Put the pieces of `source`, of these sizes and back to back, to the places `at`."""
    everything = (
        (int(np.bitwise_or.reduce(at)) | int(np.bitwise_or.reduce(sizes)) | len(data)) if len(at) else 0
    )
    unit = next(unit for unit in (4, 2, 1) if not everything % unit)
    offsets = ragged_offsets(sizes // unit)
    places = np.repeat(at // unit - offsets[:-1], sizes // unit) + np.arange(offsets[-1])
    kind = np.dtype(f"u{unit}")
    data.view(kind)[places] = source[: int(offsets[-1]) * unit].view(kind)


def _with_counts(fields: tuple[Field, ...], columns: Mapping[str, Column]) -> dict[str, Any]:
    """Add the count fields that follow from their arrays."""
    full: dict[str, Any] = dict(columns)
    for field in fields:
        if isinstance(field.count, str) and isinstance(full.get(field.name), tuple):
            full.setdefault(field.count, np.diff(full[field.name][0]))
    return full


def _width(field: Field) -> int:
    if isinstance(field.type, Int):
        return field.type.size
    if field.type is Special.BYTE:
        return 1
    raise LayoutError(f"{field.name}: no columns of {field.type}")


def _signed(field: Field) -> bool:
    return isinstance(field.type, Int) and field.type.signed
