# SPDX-License-Identifier: Apache-2.0
"""Write the tables of a Firefox profile as JSON: strings by number, and columns of numbers.

Formatting a million numbers one by one takes seconds; here the digits of a block of numbers are a matrix, and
the matrix without its leading zeros is the text.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import numpy as np

from perf_offcpu.model.columns import I64, U8, Bool
from perf_offcpu.text import printable

_MINUS_ONE = frozenset({"address", "lib", "resource"})
"""Columns in which -1 stands for none; in the others null does."""
_BLOCK = 1 << 14
_COMMA, _POINT, _ZERO = b",.0"
_NULL = np.frombuffer(b"null", np.uint8)


class StringArray:
    """The strings of a profile, numbered as they come."""

    def __init__(self) -> None:
        self._rows: dict[str, int] = {}

    def row(self, text: str) -> int:
        """Return the number of a text, printable or not."""
        return self._rows.setdefault(printable(text), len(self._rows))

    def rows(self, texts: list[str]) -> I64:
        """Return int64[texts], the number of each text."""
        return np.array([self.row(text) for text in texts], np.int64)

    def json(self) -> str:
        """Return all strings as a JSON array."""
        return json.dumps(list(self._rows), separators=(",", ":"))


def table(length: int, **columns: I64 | bool | None) -> Iterator[str]:
    """Write a table; None or a truth value stands for a column of that value."""
    yield "{"
    for name, values in columns.items():
        yield f'"{name}":['
        if values is None or isinstance(values, bool):
            yield ",".join([json.dumps(values)] * length)
        elif name in _MINUS_ONE:
            yield ",".join(map(str, values.tolist()))
        else:
            yield from array_items(values, null=values < 0)
        yield "],"
    yield f'"length":{length}}}'


def array_items(values: I64, decimals: int = 0, null: Bool | None = None) -> Iterator[str]:
    """Write numbers as the items of a JSON array, with commas and without brackets, in parts.

    Args:
        values: not negative.
        decimals: number of digits after the point: 1500 with three is `1.500`.
        null: bool[n], where to write `null` instead.
    """
    for begin in range(0, len(values), _BLOCK):
        end = min(begin + _BLOCK, len(values))
        part = values[begin:end]
        nothing = np.zeros(len(part), np.bool_) if null is None else null[begin:end]
        text = _digits(np.where(nothing, 0, part), decimals, nothing)
        yield text if end < len(values) else text[:-1]


def _digits(values: I64, decimals: int, null: Bool) -> str:
    if int(values.min(initial=0)) < 0:
        raise ValueError("digits of a negative number")
    width = max(len(str(int(values.max(initial=0)))), decimals + 1, len(_NULL))
    point = width - decimals
    text: U8 = np.full((len(values), width + (decimals > 0) + 1), _COMMA, np.uint8)
    shown = np.ones(text.shape, np.bool_)
    rest = values.astype(np.uint64)
    for place in range(width - 1, -1, -1):
        column = place + (1 if decimals and place >= point else 0)
        if place < point - 1:
            shown[:, column] = rest != 0
        rest, digit = np.divmod(rest, np.uint64(10))
        text[:, column] = digit.astype(np.uint8) + np.uint8(_ZERO)
    if decimals:
        text[:, point] = _POINT
    shown[null] = False
    text[null, -1 - len(_NULL) : -1] = _NULL
    shown[null, -1 - len(_NULL) :] = True
    return text[shown].tobytes().decode("ascii")
