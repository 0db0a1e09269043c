# SPDX-License-Identifier: Apache-2.0
"""Types and rows of layouts (`layout.Layout`): integers, names, arrays, and when a field is there."""

import enum
import sys
from collections.abc import Callable, Mapping
from typing import Any, Final, Literal, NamedTuple, Protocol, TypeAlias

import numpy as np

from perf_offcpu.structs import frozen

Order = Literal["<", ">"]
NATIVE: Final[Order] = "<" if sys.byteorder == "little" else ">"
Buffer = bytes | bytearray | memoryview


class Int(NamedTuple):
    """An integer type of `size` bytes: 1, 2, 4 or 8."""

    size: int
    signed: bool = False

    @property
    def code(self) -> str:
        """The format character of the struct module, such as "I"."""
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


class Structure(Protocol):
    """The protocol of a layout that is the type of a field, a nested struct (`layout.Layout`)."""

    name: str
    fields: "tuple[Field, ...]"


Type: TypeAlias = Int | Special | Structure
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
        """Return whether records of this shape have the field."""
        if self.if_ is None:
            return True
        if isinstance(self.if_, enum.IntFlag):
            flags: Any = getattr(shape, "flags", shape)
            return bool(int(flags) & int(self.if_))
        return bool(self.if_(shape))

    def items(self, shape: Shape, values: Mapping[str, Any]) -> int | None:
        """Return the number of items; None if the field is no array, or its count is a field that `values` lacks."""
        if isinstance(self.count, str):
            return int(values[self.count]) if self.count in values else None
        return self.count(shape) if callable(self.count) else self.count


def to_int(data: Buffer, order: Order) -> int:
    """Return the bytes as an unsigned integer."""
    return int.from_bytes(data, "little" if order == "<" else "big")


def padding(size: int) -> int:
    """Return the number of bytes, 0 to 7, that bring `size` to a multiple of 8."""
    return -size % 8
