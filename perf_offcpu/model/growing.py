# SPDX-License-Identifier: Apache-2.0
"""Columns that grow at their end, for readers that do not know how many rows will come.

Joining parts with `np.concatenate` needs room for everything twice. Here a column is memory of its own that
the kernel makes longer without copying it, and numpy looks at it where it lies. Room that is only reserved
takes no memory; what is used comes in huge pages where the kernel has them, for to fault in a gigabyte by
pages of 4 KB takes longer than to decode it.
"""

from __future__ import annotations

import contextlib
import mmap
from collections.abc import Sequence
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from perf_offcpu.model.columns import I64, Table, as_run

_FIRST = 1 << 14
_HUGE = 4 << 20
"""Bytes from which on a column is worth huge pages (of 2 MB on most machines)."""

_ADVICE = getattr(mmap, "MADV_HUGEPAGE", None)


class GrowingArray:
    """An array of one dtype that grows."""

    def __init__(self, dtype: np.dtype[Any] | str) -> None:
        self.dtype = np.dtype(dtype)
        self._room: mmap.mmap | None = None
        self._used = 0

    def __len__(self) -> int:
        return self._used // self.dtype.itemsize

    def append(self, values: NDArray[Any]) -> None:
        """Add values of that dtype.

        Raises:
            BufferError: there is no room left, and a view is alive: what is looked at cannot move.
        """
        if len(values):
            self.extend(len(values))[:] = values

    def extend(self, count: int) -> NDArray[Any]:
        """Make it longer by so many values, at least one; gives them, to be set and not to be kept."""
        begin, end = self._used, self._used + count * self.dtype.itemsize
        room = self._with_room_for(end)
        self._used = end
        return np.frombuffer(room, self.dtype, count, begin)

    def _with_room_for(self, size: int) -> mmap.mmap:
        room = self._room
        if room is None:
            room = self._room = mmap.mmap(-1, _rounded(size), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        elif size > len(room):
            room.resize(_rounded(size))
        else:
            return room
        if len(room) >= _HUGE and _ADVICE is not None:
            with contextlib.suppress(OSError):  # a kernel without huge pages
                room.madvise(_ADVICE)
        return room

    def view(self) -> NDArray[Any]:
        """The values so far, not copied."""
        if self._room is None:
            return np.empty(0, self.dtype)
        return np.frombuffer(self._room, self.dtype, len(self))

    def cut(self, length: int) -> None:
        """Forget all values but the first ones."""
        self._used = length * self.dtype.itemsize

    def release(self) -> NDArray[Any]:
        """The values so far, not copied and no longer held here: the array is empty again."""
        values, self._room, self._used = self.view(), None, 0
        return values


def _rounded(size: int) -> int:
    """A power of two: what is as long as some huge pages begins where one does, and moves as a whole."""
    return max(_FIRST, 1 << (size - 1).bit_length())


Kind = TypeVar("Kind", bound=Table)


class GrowingTable(Generic[Kind]):
    """A table that grows.

    Args:
        kind: the table's class.
    """

    def __init__(self, kind: type[Kind]) -> None:
        self._kind = kind
        self._columns = {name: GrowingArray(array.dtype) for name, array in _columns_of(kind()).items()}

    def append(self, table: Kind) -> None:
        """Add rows."""
        for name, column in self._columns.items():
            column.append(getattr(table, name))

    def interleave(self, tables: Sequence[Kind], places: Sequence[I64]) -> None:
        """Add the rows of several tables, each at its place; all places together are 0 to the number of rows.

        Args:
            places: int64[n], ascending, for each table.
        """
        count = sum(map(len, places))
        runs = [as_run(place) for place in places]
        for name, column in self._columns.items() if count else ():
            room = column.extend(count)
            for table, run in zip(tables, runs, strict=True):
                room[run] = getattr(table, name)

    def release(self) -> Kind:
        """The rows so far, not copied and no longer held here: the table is empty again."""
        return self._kind(**{name: column.release() for name, column in self._columns.items()})


def _columns_of(table: Table) -> dict[str, NDArray[Any]]:
    """The columns of a table by name."""
    return {name: getattr(table, name) for name in table.names()}
