# SPDX-License-Identifier: Apache-2.0
"""Columns that grow at their end, for readers that do not know the number of rows. `np.concatenate` of parts needs
memory for everything twice. Here a column has a mapping of its own, which the kernel makes longer without copying it,
and numpy reads it in place. Reserved pages take no memory; used ones are huge where the kernel has such pages: faulting
in a gigabyte by 4 KB takes longer than decoding it."""

import contextlib
import mmap
from collections.abc import Sequence
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from perf_offcpu.model.columns import I64, Table

_FIRST = 1 << 14
_HUGE = 4 << 20  # bytes from which on a column gets huge pages (of 2 MB on most machines)
_ADVICE = getattr(mmap, "MADV_HUGEPAGE", None)


class GrowingArray:
    """Array of one dtype that grows at its end without being copied."""

    def __init__(self, dtype: np.dtype[Any] | str) -> None:
        self.dtype = np.dtype(dtype)
        self._room: mmap.mmap | None = None
        self._used = 0

    def __len__(self) -> int:
        return self._used // self.dtype.itemsize

    def append(self, values: NDArray[Any]) -> None:
        """Append values of the array's dtype; raise BufferError if the mapping must grow while a view of it exists."""
        if len(values):
            self.extend(len(values))[:] = values

    def extend(self, count: int) -> NDArray[Any]:
        """Append `count` (at least 1) values and return a view of them, for the caller to fill at once."""
        begin, end = self._used, self._used + count * self.dtype.itemsize
        room = self._with_room_for(end)
        self._used = end
        return np.frombuffer(room, self.dtype, count, begin)

    def _with_room_for(self, size: int) -> mmap.mmap:
        # Rounded up to a power of two: a mapping of whole huge pages begins at one, and moves as a whole.
        room, rounded = self._room, max(_FIRST, 1 << (size - 1).bit_length())
        if room is None:
            room = self._room = mmap.mmap(-1, rounded, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        elif size > len(room):
            room.resize(rounded)
        else:
            return room
        if len(room) >= _HUGE and _ADVICE is not None:
            with contextlib.suppress(OSError):  # a kernel without huge pages
                room.madvise(_ADVICE)
        return room

    def view(self) -> NDArray[Any]:
        """Return the values so far, not copied."""
        if self._room is None:
            return np.empty(0, self.dtype)
        return np.frombuffer(self._room, self.dtype, len(self))

    def cut(self, length: int) -> None:
        """Forget all values after the first `length`."""
        self._used = length * self.dtype.itemsize

    def release(self) -> NDArray[Any]:
        """Return the values, not copied, and leave the array empty."""
        values, self._room, self._used = self.view(), None, 0
        return values


Kind = TypeVar("Kind", bound=Table)


class GrowingColumn:
    """Column that grows, and takes no memory as long as all of its values are equal, as in a third of the columns of a
    recording with millions of samples: fields that no sample has."""

    def __init__(self, dtype: np.dtype[Any]) -> None:
        self._array = GrowingArray(dtype)
        self._repeated = 0  # number of rows with the value of `_value`, while the array is empty
        self._value = np.zeros(1, dtype)

    def interleave(self, parts: Sequence[NDArray[Any]], runs: Sequence[I64 | slice], count: int) -> None:
        """Append `count` values. `runs[i]`: the rows of `parts[i]`, counted from the old end; every row is in one."""
        if not len(self._array):
            if not self._repeated:
                self._value = next(part[:1].copy() for part in parts if len(part))
            if all(_repeats(part, self._value) for part in parts):
                self._repeated += count
                return
            if self._repeated:
                self._array.extend(self._repeated)[:] = self._value
        room = self._array.extend(count)
        for part, run in zip(parts, runs, strict=True):
            room[run] = part

    def release(self) -> NDArray[Any]:
        """Return the values, not copied, and leave the column empty. An array of one repeated value is read-only."""
        repeated, self._repeated = self._repeated, 0
        if repeated and not len(self._array):
            return np.broadcast_to(self._value[0], repeated)
        return self._array.release()


def _repeats(part: NDArray[Any], value: NDArray[Any]) -> bool:
    if part.strides == (0,) or not len(part):
        return bool((part[:1] == value).all())
    return bool(part[0] == value[0] and part[-1] == value[0] and (part == value).all())


class GrowingTable(Generic[Kind]):
    """Table of one class whose columns grow at their end."""

    def __init__(self, kind: type[Kind]) -> None:
        self._kind = kind
        self._columns = {name: GrowingColumn(declared.dtype) for name, declared in kind.columns.items()}

    def append(self, table: Kind) -> None:
        """Append the rows of a table."""
        self.interleave([table], [np.arange(len(table))])

    def interleave(self, tables: Sequence[Kind], places: Sequence[I64]) -> None:
        """Append rows. `places[i]`: int64, ascending, the new rows of `tables[i]`, counted from the old end."""
        count = sum(map(len, places))
        runs = [_as_run(place) for place in places]
        for name, column in self._columns.items() if count else ():
            column.interleave([getattr(table, name) for table in tables], runs, count)

    def release(self) -> Kind:
        """Return the rows, not copied, and leave the table empty. Columns of one repeated value are read-only."""
        return self._kind(**{name: column.release() for name, column in self._columns.items()})


def _as_run(rows: I64) -> I64 | slice:
    """Return ascending row numbers as a slice if they are consecutive, else as they are."""
    if len(rows) and int(rows[-1]) - int(rows[0]) == len(rows) - 1:
        return slice(int(rows[0]), int(rows[-1]) + 1)
    return rows
