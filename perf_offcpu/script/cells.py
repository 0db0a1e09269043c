# SPDX-License-Identifier: Apache-2.0
"""Format columns of numbers as text, each distinct value once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perf_offcpu.model.columns import I64, Bool

UNKNOWN_VALUE = "-"
_NS_PER_S = 10**9


def format_distinct(values: NDArray[Any], make: Callable[[int], str]) -> list[str]:
    """Return the text of each value, where `make` is called once for each distinct value."""
    distinct, row = np.unique(values, return_inverse=True)
    texts = [make(value) for value in distinct.tolist()]
    return [texts[number] for number in row.tolist()]


def where(condition: Bool, texts: list[str], others: list[str]) -> list[str]:
    """Return row by row a text where the condition holds, else the other one: np.where() for lists."""
    if condition.all():
        return texts
    return [
        one if holds else other for holds, one, other in zip(condition.tolist(), texts, others, strict=True)
    ]


def format_times(values: I64, digits: int, end: str = "") -> list[str]:
    """Return times in seconds, cut off after `digits` decimals; `-` where unknown (below 0)."""
    seconds, parts = np.divmod(values, _NS_PER_S)
    parts //= 10 ** (9 - digits)
    unknown = f"{UNKNOWN_VALUE:>{6 + digits}}{end}"
    return [
        unknown if whole < 0 else f"{whole:5}.{part:0{digits}}{end}"
        for whole, part in zip(seconds.tolist(), parts.tolist(), strict=True)
    ]


def format_known(number: int) -> str:
    """Return a number; `-` if it is negative."""
    return str(number) if number >= 0 else UNKNOWN_VALUE
