# SPDX-License-Identifier: Apache-2.0
"""Tables of fields: one declaration of a binary layout serves reading, writing, numpy and documents.

A `Layout` is a tuple of `Field` rows, in wire order, spelled as the kernel's and perf's headers spell them.
A row depends on at most two things, which is enough for every structure of perf.data:

* the *shape*, known before the record is read (`if_`): the attr's sample_type, read_format, …
* an earlier row of the same record (`count`, `where`): `nr` before `ips[nr]`, `abi` before the registers.

    COMM = Layout("PERF_RECORD_COMM", ("pid tid", U32), ("comm", TEXT))

A row is a Field, or (names, type) or (names, type, condition) for neighbours that have nothing else to say.

Every read is checked against the end of the record; a violation is a `LayoutError`, never an over-read.
Whole columns of one field over many records are read by `columnar`, from the same tables."""

import enum
import itertools
import struct
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, Literal, NamedTuple, TypeAlias

import numpy as np

from perf_offcpu.errors import LayoutError
from perf_offcpu.structs import frozen

Order = Literal["<", ">"]
NATIVE: Final[Order] = "<" if sys.byteorder == "little" else ">"
Buffer = bytes | bytearray | memoryview


class Int(NamedTuple):
    """Describe an integer type of `size` bytes: 1, 2, 4 or 8."""

    size: int
    signed: bool = False

    @property
    def code(self) -> str:
        """Return the format character of the struct module, such as "I"."""
        letter = {1: "B", 2: "H", 4: "I", 8: "Q"}[self.size]
        return letter.lower() if self.signed else letter

    def dtype(self, order: Order) -> np.dtype[Any]:
        """Return the numpy dtype of this integer in a byte order."""
        return np.dtype(f"{order}{'i' if self.signed else 'u'}{self.size}")


class Special(enum.Enum):
    """Field types that are not integers."""

    BYTE = "byte"  # opaque bytes; with a count, one `bytes` value
    TEXT = "text"  # NUL-terminated name to the end of the record, NUL-padded to 8
    STRING = "string"  # perf string: u32 length, then that many bytes, NUL-padded to 64


U8, U16, U32, U64 = Int(1), Int(2), Int(4), Int(8)
S32, S64 = Int(4, signed=True), Int(8, signed=True)
BYTE, TEXT, STRING = Special.BYTE, Special.TEXT, Special.STRING
REST: Final = "<rest>"  # a `count`: the items that fit before the end of the record
Shape = Any  # known before a record is read: a word of flags, or an object whose `flags` is one; hashable
Condition = enum.IntFlag | Callable[[Shape], object]
Count = int | str | Callable[[Shape], int]
Type: TypeAlias = "Int | Special | Layout"
Neighbours = tuple[str, Type] | tuple[str, Type, Condition]
"""(names of neighbouring fields, with blanks in between; their type; condition on which they are present, if any)."""


@frozen
class Field:
    """Describe one field of a layout: its name, type, number of items and when it is present."""

    name: str  # the header's own spelling
    type: Type  # an integer type, BYTE, TEXT, STRING, or a Layout (a nested struct)
    # None for one value; else the number of items: fixed, the name of an earlier field, REST, or a function
    # of the shape
    count: Count | None = None
    # present only if this flag is in the shape's flags, or the function of the shape is true
    if_: Condition | None = None
    where: str | None = None  # present only in records where this earlier field is not zero
    unknown: int = 0  # the value of an integer that stands for "not known", where a format has one
    doc: str = ""  # meaning and unit, for `dump` and the documents

    def present(self, shape: Shape) -> bool:
        """Return True if records of this shape have the field: by its condition `if_`, or always if it has none."""
        if self.if_ is None:
            return True
        if isinstance(self.if_, enum.IntFlag):
            flags: Any = getattr(shape, "flags", shape)
            return bool(int(flags) & int(self.if_))
        return bool(self.if_(shape))

    def items(self, shape: Shape, values: Mapping[str, Any]) -> int | None:
        """Return the number of items of an array; None for a single value, for REST, or if `values` (field name →
        value) lacks the field that holds the count."""
        if isinstance(self.count, str):
            return int(values[self.count]) if self.count in values else None
        return self.count(shape) if callable(self.count) else self.count


def to_int(data: Buffer, order: Order) -> int:
    """Decode all bytes of `data` as one unsigned integer."""
    return int.from_bytes(data, "little" if order == "<" else "big")


def padding(size: int) -> int:
    """Return the number of bytes, 0 to 7, that bring `size` to a multiple of 8."""
    return -size % 8


class Layout:
    """Describe a binary structure as a sequence of fields, in wire order; `source` names the file that defines it."""

    def __init__(self, name: str, *fields: Field | Neighbours, source: str = "") -> None:
        self.name, self.source = name, source
        self.fields = tuple(itertools.chain.from_iterable(map(_fields_of, fields)))
        self._active: dict[Shape, tuple[Field, ...]] = {}
        self._plans: dict[tuple[Order, Shape], tuple[_Run | Field, ...]] = {}

    def active(self, shape: Shape = None) -> tuple[Field, ...]:
        """Return the fields that records of this shape have, in wire order."""
        if shape not in self._active:
            if len(self._active) >= _MAX_PLANS:  # a hostile file may ask for a new shape in each record
                self._active.clear()
            self._active[shape] = tuple(field for field in self.fields if field.present(shape))
        return self._active[shape]

    def unpack(
        self, data: Buffer, order: Order = "<", shape: Shape = None, start: int = 0, end: int | None = None
    ) -> dict[str, Any]:
        """Read one structure from `data[start:end]`: field name to value; raise LayoutError if it does not fit. A value
        is an int, a list of ints or dicts for a count, or bytes for BYTE, TEXT (without its padding) and STRING. Bytes
        after the last field are ignored: newer kernels append fields."""
        return self.unpack_from(data, order, shape, start, len(data) if end is None else end)[0]

    def unpack_from(self, data: Buffer, order: Order, shape: Shape, start: int, end: int) -> tuple[dict[str, Any], int]:
        """Read one structure as `unpack` does; return (values, offset in `data` after it)."""
        values, stop, problem = self.unpack_sound(data, order, shape, start, end)
        if problem is not None:
            raise problem
        return values, stop

    def unpack_sound(
        self, data: Buffer, order: Order, shape: Shape, start: int, end: int
    ) -> tuple[dict[str, Any], int, LayoutError | None]:
        """Read one structure as `unpack_from` does; of a damaged one, only the fields before the damage. Returns
        (values, offset in `data` where reading stopped, the error or None)."""
        reader = _Reader(self.name, data, order, shape, start, end)
        try:
            for step in self._plan(order, shape):
                if isinstance(step, _Run):
                    reader.read_run(step)
                elif step.where is None or reader.values[step.where]:
                    reader.read(step)
        except LayoutError as problem:
            return reader.values, reader.at, problem
        return reader.values, reader.at, None

    def _plan(self, order: Order, shape: Shape) -> "tuple[_Run | Field, ...]":
        """Return the runs and fields that read a structure of this shape, in order; computed once for each shape."""
        if (order, shape) not in self._plans:
            if len(self._plans) >= _MAX_PLANS:
                self._plans.clear()
            self._plans[order, shape] = tuple(_runs(self.active(shape), order))
        return self._plans[order, shape]

    def pack(self, values: Mapping[str, Any], order: Order = "<", shape: Shape = None) -> bytes:
        """Write one structure, the inverse of `unpack`. Absent counts are taken from their arrays. Raises LayoutError
        if a value is missing, out of range, or contradicts its count."""
        fields = self.active(shape)
        full = dict(values)
        for field in fields:
            if isinstance(field.count, str) and field.count != REST and field.name in full:
                full.setdefault(field.count, len(full[field.name]))
        try:
            present = (field for field in fields if field.where is None or full[field.where])
            return b"".join(_pack_field(field, full, order, shape) for field in present)
        except KeyError as missing:
            raise LayoutError(f"{self.name}: no value for field {missing}") from None
        except struct.error as problem:
            raise LayoutError(f"{self.name}: {problem}") from None

    def size(self, shape: Shape = None) -> int:
        """Return the size of a structure in bytes; raise LayoutError if it depends on the content."""
        return sum(_fixed_size(self.name, field, shape) for field in self.active(shape))

    def offset(self, name: str, shape: Shape = None) -> int:
        """Return the byte offset of a field; raise LayoutError if a field before it has no fixed size."""
        fields = list(itertools.takewhile(lambda field: field.name != name, self.active(shape)))
        if len(fields) == len(self.active(shape)):
            raise LayoutError(f"{self.name}: no field {name} in this shape")
        return sum(_fixed_size(self.name, field, shape) for field in fields)

    def prefix(self, size: int) -> "Layout":
        """Return the layout of the leading fields that lie wholly in `size` bytes; all must have a fixed size."""
        ends = itertools.accumulate(_fixed_size(self.name, field, None) for field in self.fields)
        fields = (field for field, end in zip(self.fields, ends, strict=True) if end <= size)
        return Layout(self.name, *fields, source=self.source)

    def dtype(self, order: Order = "<", shape: Shape = None) -> np.dtype[Any]:
        """Return the packed numpy dtype of a structure of fixed size."""
        return np.dtype([(f.name, *_numpy_type(self.name, f, order, shape)) for f in self.active(shape)])


def _fields_of(row: Field | Neighbours) -> Iterable[Field]:
    if isinstance(row, Field):
        return (row,)
    names, type_ = row[0], row[1]
    return (Field(name, type_, if_=row[2] if len(row) == 3 else None) for name in names.split())


_MAX_PLANS = 256


class _Run(NamedTuple):
    """A group of adjacent fields of fixed size that one call of the struct module reads."""

    fields: tuple[Field, ...]
    names: tuple[str, ...]
    struct: struct.Struct


def _runs(fields: Iterable[Field], order: Order) -> Iterator[_Run | Field]:
    """Yield the fields in order, adjacent ones of fixed size joined into a _Run."""
    for code, group in itertools.groupby(fields, lambda field: _fixed_code(field) is not None):
        if code:
            run = tuple(group)
            codes = "".join(_fixed_code(field) or "" for field in run)
            yield _Run(run, tuple(field.name for field in run), struct.Struct(order + codes))
        else:
            yield from group


def _fixed_code(field: Field) -> str | None:
    """Return the struct module's format of a field that is one value in all records of a shape; None for others."""
    if field.where is not None:
        return None
    if field.type is Special.BYTE and isinstance(field.count, int | None):
        return f"{1 if field.count is None else field.count}s"
    return field.type.code if isinstance(field.type, Int) and field.count is None else None


class _Reader:
    """Read one record field by field into `values`; raise LayoutError where a field reaches over its end."""

    def __init__(self, name: str, data: Buffer, order: Order, shape: Shape, start: int, end: int) -> None:
        self.name, self.data, self.order, self.shape = name, data, order, shape
        self.at, self.end = start, min(end, len(data))
        self.values: dict[str, Any] = {}

    def _claim(self, size: int, field: str) -> int:
        """Advance by `size` bytes and return the offset where they begin; raise LayoutError if fewer are left."""
        start = self.at
        if size < 0 or size > self.end - start:
            raise LayoutError(f"{self.name}: field {field} needs {size} bytes at {start}, {self.end - start} are left")
        self.at += size
        return start

    def read_run(self, run: _Run) -> None:
        if self.end - self.at < run.struct.size:
            for field in run.fields:  # fields before the end are sound
                self.read(field)
        values = run.struct.unpack_from(self.data, self.at)
        self.at += run.struct.size
        self.values.update(zip(run.names, values, strict=True))

    def read(self, field: Field) -> None:
        if isinstance(field.type, Special):
            self.values[field.name] = self._special(field)
        elif isinstance(field.type, Layout):
            self.values[field.name] = self._nested(field, field.type)
        elif isinstance(field.type, Int):
            items = self._ints(field.type, 1 if field.count is None else self._count(field), field.name)
            self.values[field.name] = items[0] if field.count is None else list(items)

    def _ints(self, type_: Int, count: int, name: str) -> tuple[int, ...]:
        start = self._claim(count * type_.size, name)
        return struct.unpack_from(f"{self.order}{count}{type_.code}", self.data, start)

    def _count(self, field: Field) -> int:
        if field.count == REST:
            return (self.end - self.at) // (field.type.size if isinstance(field.type, Int) else 1)
        return field.items(self.shape, self.values) or 0

    def _special(self, field: Field) -> bytes:
        if field.type is Special.TEXT:
            size = self.end - self.at
        elif field.type is Special.STRING:
            size = self._ints(U32, 1, field.name)[0]
        else:
            size = 1 if field.count is None else self._count(field)
        start = self._claim(size, field.name)
        content = bytes(self.data[start : start + size])
        return content if field.type is Special.BYTE else content.split(b"\0", 1)[0]

    def _nested(self, field: Field, layout: Layout) -> Any:
        if field.count is None:
            return self._struct(field, layout)
        if field.count != REST:
            return [self._struct(field, layout) for _ in range(self._count(field))]
        rows = []
        while self.at < self.end:
            rows.append(self._struct(field, layout))
        return rows

    def _struct(self, field: Field, layout: Layout) -> dict[str, Any]:
        before = self.at
        values, self.at = layout.unpack_from(self.data, self.order, self.shape, self.at, self.end)
        if self.at == before and field.count is not None:
            raise LayoutError(f"{self.name}: empty {layout.name} repeats in {field.name}")
        return values


def _pack_field(field: Field, values: Mapping[str, Any], order: Order, shape: Shape) -> bytes:
    value = values[field.name]
    if isinstance(field.type, Special):
        return _pack_special(field, bytes(value), order, field.items(shape, values))
    rows = [value] if field.count is None else list(value)
    wanted = field.items(shape, values)
    if wanted is not None and wanted != len(rows):
        raise LayoutError(f"field {field.name}: {len(rows)} items, its count says {wanted}")
    if isinstance(field.type, Layout):
        return b"".join(field.type.pack(row, order, shape) for row in rows)
    assert isinstance(field.type, Int)
    return struct.pack(f"{order}{len(rows)}{field.type.code}", *rows)


def _pack_special(field: Field, value: bytes, order: Order, wanted: int | None) -> bytes:
    if field.type is Special.TEXT:
        return value + bytes(8 - len(value) % 8)  # always at least one NUL
    if field.type is Special.STRING:
        padded = value + bytes(64 - len(value) % 64)
        return struct.pack(f"{order}I", len(padded)) + padded
    size = len(value) if wanted is None else wanted
    if len(value) > size:
        raise LayoutError(f"field {field.name}: {len(value)} bytes, at most {size}")
    return value + bytes(size - len(value))


def _fixed_count(name: str, field: Field, shape: Shape) -> int:
    count = 1 if field.count is None else field.items(shape, {})
    if count is None or field.type in (Special.TEXT, Special.STRING) or field.where is not None:
        raise LayoutError(f"{name}: the size of {field.name} depends on the record")
    return count


def _fixed_size(name: str, field: Field, shape: Shape) -> int:
    count = _fixed_count(name, field, shape)
    if isinstance(field.type, Layout):
        return count * field.type.size(shape)
    return count * (field.type.size if isinstance(field.type, Int) else 1)


def _numpy_type(name: str, field: Field, order: Order, shape: Shape) -> tuple[Any, ...]:
    count = _fixed_count(name, field, shape)
    if isinstance(field.type, Layout):
        inner: Any = field.type.dtype(order, shape)
    elif isinstance(field.type, Int):
        inner = field.type.dtype(order)
    else:
        return (f"V{count}",)
    return (inner,) if field.count is None else (inner, (count,))
