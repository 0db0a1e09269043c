# SPDX-License-Identifier: Apache-2.0
"""Write many records from whole columns at once, the reverse of `binary.columnar`; merge the records of chunks.

Each record has a cursor; a field is scattered to all cursors and advances them: one pass writes all records."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from perf_offcpu.abi.records import RECORD_HEADER, RecordType
from perf_offcpu.abi.sample import SAMPLE, SampleShape
from perf_offcpu.binary.columnar import I64, is_scalar, item_size, move_rows, offsets_of
from perf_offcpu.binary.layout import Field, Int, Layout, Order, Shape
from perf_offcpu.errors import LayoutError
from perf_offcpu.perfdata.scan import Chunk
from perf_offcpu.perfdata.write.writer import RECORD_SIZE_MAX

U8 = NDArray[np.uint8]
Ragged = tuple[I64, NDArray[Any]]
"""(offsets int64[n + 1], values): the items of record i are `values[offsets[i]:offsets[i + 1]]`."""


class Pieces(NamedTuple):
    """Locates the arrays of n records in a buffer that has the byte order to be written."""

    data: U8
    starts: I64  # int64[n], byte offset of each array
    sizes: I64  # int64[n], bytes


Column = ArrayLike | Ragged | Pieces
Columns = Mapping[str, Column]
_SAMPLE_RECORD = Layout("PERF_RECORD_SAMPLE", *RECORD_HEADER.fields, *SAMPLE.fields, source=SAMPLE.source)
_ALIGNMENT = 8
_ROOM = 8  # bytes that the data of any chunk has at least


def sample_sizes(shape: SampleShape, columns: Columns, count: int) -> I64:
    """Return int64[count]: the bytes of each record that `sample_records` would write."""
    return np.diff(_sample_writer(shape, 0, columns, count, "<").offsets)


def sample_records(shape: SampleShape, misc: Column, columns: Columns, count: int, order: Order) -> tuple[I64, U8]:
    """Write `count` SAMPLE records, back to back; return (offsets int64[count + 1], bytes). `columns`: field of
    `abi.sample.SAMPLE` → array of `count` values or one value for all; for array fields `Ragged` or `Pieces`, whose
    counts need not be given. A count that is given may be larger than its array: zeros follow. Raises LayoutError if a
    field of the shape is missing, or a record would be larger than its size field can say."""
    writer = _sample_writer(shape, misc, columns, count, order)
    sizes = np.diff(writer.offsets)
    if count and int(sizes.max()) > RECORD_SIZE_MAX:
        raise LayoutError(f"a sample of {sizes.max()} bytes, at most {RECORD_SIZE_MAX}")
    writer.columns["size"] = sizes
    return writer.offsets, writer.written()


def pack_samples(shape: SampleShape, misc: Column, columns: Columns, count: int, order: Order = "<") -> bytes:
    """Return the bytes of `sample_records`."""
    return sample_records(shape, misc, columns, count, order)[1].tobytes()


def pack_columns(layout: Layout, columns: Columns, count: int, order: Order, shape: Shape = None) -> tuple[I64, U8]:
    """Write `count` structures, back to back; return (offsets int64[count + 1], bytes). The layout has integers, and
    arrays of items of fixed size whose count is an earlier field; `columns` are as for `sample_records`. Raises
    LayoutError if a field has no column, or one of another size."""
    writer = _Writer(layout, columns, count, order, shape, 1)
    return writer.offsets, writer.written()


class _Writer:
    """Writes `count` structures of one layout from columns; `offsets`, int64[count + 1], are their places in the bytes
    that `written` returns, multiples of `align`."""

    def __init__(self, layout: Layout, columns: Columns, count: int, order: Order, shape: Shape, align: int) -> None:
        self.name, self.order, self.count, self.shape = layout.name, order, count, shape
        self.fields = layout.active(shape)
        self.columns: dict[str, Any] = dict(columns)
        for field in self.fields:
            if field.count is not None and field.name in columns:
                self.columns[field.name] = pieces = self._as_pieces(columns[field.name], field)
                if isinstance(field.count, str):
                    self.columns.setdefault(field.count, pieces.sizes // item_size(field, self.shape))
        missing = [field.name for field in self.fields if field.name not in self.columns]
        if missing:
            raise LayoutError(f"{layout.name}: no column for {', '.join(missing)}")
        total = np.zeros(count, np.int64)
        for field in self.fields:
            total += self._sizes(field)
        self.offsets = offsets_of(-(-total // align) * align)

    def _as_pieces(self, column: Any, field: Field) -> Pieces:
        """Return an array column as Pieces, in the byte order that is written."""
        if isinstance(column, Pieces):
            return column
        offsets, values = column
        kind = self._wire(field) if isinstance(field.type, Int) else values.dtype.newbyteorder(self.order)
        wire = np.ascontiguousarray(values, kind)
        return Pieces(wire.view(np.uint8), kind.itemsize * offsets[:-1], kind.itemsize * np.diff(offsets))

    def _sizes(self, field: Field) -> I64 | int:
        """Return the bytes that a field takes in each structure: int64[n], or one number for all."""
        if isinstance(field.count, str):
            return self._broadcast(field.count).astype(np.int64) * item_size(field, self.shape)
        if field.count is not None:
            sizes: I64 = self.columns[field.name].sizes
            return sizes
        size = item_size(field, self.shape)
        return size if field.where is None else (self._broadcast(field.where) != 0).astype(np.int64) * size

    def _broadcast(self, name: str) -> NDArray[Any]:
        return np.broadcast_to(np.asarray(self.columns[name]), self.count)

    def written(self) -> U8:
        """Return the bytes of all structures."""
        data, offsets = np.zeros(int(self.offsets[-1]), np.uint8), self.offsets[:-1].copy()
        for is_fixed, fields in itertools.groupby(self.fields, is_scalar):
            if is_fixed:
                offsets += self._write_fixed(data, offsets, tuple(fields))
                continue
            for field in fields:
                self._write_some(data, offsets, field)
                offsets += self._sizes(field)
        return data

    def _write_fixed(self, data: U8, offsets: I64, fields: tuple[Field, ...]) -> int:
        """Write adjacent integers that all structures have, at byte offsets int64[n]; return their size in bytes."""
        rows = np.empty(self.count, [(field.name, self._wire(field)) for field in fields])
        for field in fields:
            try:
                rows[field.name] = self.columns[field.name]
            except ValueError as problem:
                raise LayoutError(f"{self.name}: field {field.name}: {problem}") from None
        size = rows.dtype.itemsize
        move_rows(data, offsets, rows.view(np.uint8), size * np.arange(self.count), np.full(self.count, size))
        return size

    def _write_some(self, data: U8, offsets: I64, field: Field) -> None:
        """Write a field that is an array, or an integer that some structures lack, at byte offsets int64[n]."""
        column = self.columns[field.name]
        if field.count is None:
            sizes = np.broadcast_to(np.asarray(self._sizes(field)), self.count)
            values = np.ascontiguousarray(self._broadcast(field.name), self._wire(field))
            column = Pieces(values.view(np.uint8), np.arange(self.count) * values.itemsize, sizes)
        if len(column.sizes) != self.count or bool((column.sizes > self._sizes(field)).any()):
            raise LayoutError(f"{self.name}: field {field.name}: more than its count says")
        move_rows(data, offsets, *column)

    def _wire(self, field: Field) -> np.dtype[Any]:
        assert isinstance(field.type, Int)
        return field.type.dtype(self.order)


def _sample_writer(shape: SampleShape, misc: Column, columns: Columns, count: int, order: Order) -> _Writer:
    header: dict[str, Column] = {"type": int(RecordType.SAMPLE), "misc": misc, "size": 0}
    return _Writer(_SAMPLE_RECORD, header | dict(columns), count, order, shape, _ALIGNMENT)


def merged_records(parts: Sequence[tuple[I64, Chunk]]) -> Chunk:
    """Merge the records of several chunks into a new chunk. A part is (int64[n], chunk with n records): all records are
    sorted by these numbers; those of equal numbers are in the order of the parts."""
    columns = zip(*((place, chunk.types, chunk.miscs, chunk.sizes) for place, chunk in parts), strict=True)
    places, types, miscs, sizes = map(np.concatenate, columns)
    order = np.argsort(places, kind="stable")
    offsets = offsets_of(sizes[order])
    targets = np.empty(len(order), np.int64)
    targets[order] = offsets[:-1]
    data = np.empty(max(_ROOM, int(offsets[-1])), np.uint8)
    for place, chunk in parts:
        move_rows(data, targets[: len(place)], chunk.data, chunk.starts, chunk.sizes)
        targets = targets[len(place) :]
    return Chunk(data, offsets[:-1], types[order], miscs[order], sizes[order], file_offset=0)


def sample_chunk(shape: SampleShape, miscs: NDArray[np.uint16], columns: Columns, count: int, order: Order) -> Chunk:
    """Return a chunk of the records that `sample_records` writes."""
    offsets, data = sample_records(shape, miscs, columns, count, order)
    types = np.full(count, RecordType.SAMPLE, np.uint32)
    room = data if len(data) else np.zeros(_ROOM, np.uint8)
    return Chunk(room, offsets[:-1], types, miscs, np.diff(offsets), file_offset=0)


def bytes_of(chunk: Chunk) -> memoryview:
    """Return the bytes of all records of a chunk, without a copy where they lie back to back."""
    if not len(chunk):
        return memoryview(b"")
    if (chunk.starts[1:] != chunk.starts[:-1] + chunk.sizes[:-1]).any():
        chunk = merged_records([(np.arange(len(chunk)), chunk)])
    return chunk.data.data[int(chunk.starts[0]) : int(chunk.starts[-1] + chunk.sizes[-1])]
