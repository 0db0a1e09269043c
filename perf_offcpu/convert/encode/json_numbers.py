# SPDX-License-Identifier: Apache-2.0
"""Columns of numbers as the inside of a JSON array, digit by digit for all of them at once.

Formatting a million numbers one by one takes seconds; here the digits of a block are a matrix, and what is
left of it without leading zeros is the text.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from perf_offcpu.model.columns import I64, U8, Bool

_BLOCK = 1 << 14
_COMMA, _POINT, _ZERO = b",.0"
_NULL = np.frombuffer(b"null", np.uint8)


def array_items(values: I64, decimals: int = 0, null: Bool | None = None) -> Iterator[str]:
    """The numbers between commas, in parts: joined they stand between the brackets of an array.

    Args:
        values: not negative.
        decimals: so many digits of each stand behind a point: 1500 with three is `1.500`.
        null: bool[n], of which there is `null` instead.

    Raises:
        ValueError: a number is negative.
    """
    for begin in range(0, len(values), _BLOCK):
        end = min(begin + _BLOCK, len(values))
        part = values[begin:end]
        nothing = np.zeros(len(part), np.bool_) if null is None else null[begin:end]
        text = _text(np.where(nothing, 0, part), decimals, nothing)
        yield text if end < len(values) else text[:-1]


def _text(values: I64, decimals: int, null: Bool) -> str:
    """The numbers, a comma behind each."""
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
