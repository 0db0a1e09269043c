# SPDX-License-Identifier: Apache-2.0
"""Changing numbers in records where they lie, many at once.

Fields are found by the same tables as for reading: those of fixed place by `Layout.offset`, others by the
places that `columnar.read_columns` gives. Any place will do, aligned or not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perf_offcpu.binary.layout import Field, Int, Layout, Order

I64 = NDArray[np.int64]
U8 = NDArray[np.uint8]
Change = Callable[[NDArray[Any]], NDArray[Any]]
"""From old values to new ones, in the unsigned type of the field."""


class Patcher:
    """Changes numbers in a buffer.

    Args:
        data: uint8[], changed in place.
        order: byte order of the numbers.
    """

    def __init__(self, data: U8, order: Order) -> None:
        self.data, self.order = data, order

    def change(self, at: I64, size: int, change: Change) -> None:
        """Change the unsigned integers of `size` bytes at n places (byte offsets, none twice)."""
        if len(at):
            view = self._view(size)
            view[at] = change(view[at].astype(f"u{size}"))

    def change_field(self, layout: Layout, name: str, starts: I64, change: Change, shape: Any = None) -> None:
        """Change one field of fixed place in structures that begin at n places."""
        self.change(starts + layout.offset(name, shape), field_size(layout, name), change)

    def _view(self, size: int) -> NDArray[Any]:
        """Element i is the number that begins at byte i."""
        count = max(0, len(self.data) - size + 1)
        return np.ndarray((count,), f"{self.order}u{size}", self.data, strides=(1,))


def field_size(layout: Layout, name: str) -> int:
    """Bytes of an integer field."""
    field = _field(layout, name)
    assert isinstance(field.type, Int)
    return field.type.size


def _field(layout: Layout, name: str) -> Field:
    return next(field for field in layout.fields if field.name == name)


def adding(delta: int, *none: int) -> Change:
    """The change that adds a number (modulo the field's size) to all values but those that mean none."""

    def change(values: NDArray[Any]) -> NDArray[Any]:
        step = values.dtype.type(delta % 2 ** (8 * values.dtype.itemsize))
        stays = np.isin(values, np.array(none, values.dtype)) if none else np.zeros(len(values), np.bool_)
        with np.errstate(over="ignore"):
            return np.where(stays, values, values + step)

    return change
