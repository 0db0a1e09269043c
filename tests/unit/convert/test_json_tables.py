# SPDX-License-Identifier: Apache-2.0
"""Columns of numbers as JSON, against the plain way of writing them."""

from __future__ import annotations

import json
from decimal import Decimal

import numpy as np
import pytest

from perf_offcpu.convert.firefox.json_tables import array_items


def written(values: list[int], decimals: int = 0, null: list[bool] | None = None) -> list[object]:
    parts = array_items(np.array(values, np.int64), decimals, None if null is None else np.array(null))
    parsed: list[object] = json.loads(f"[{''.join(parts)}]", parse_float=Decimal)
    return parsed


EDGES = [0, 1, 9, 10, 999_999, 1_000_000, 1_000_001, 2**53 + 1, 2**63 - 1]


@pytest.mark.parametrize("decimals", [0, 3, 6])
def test_every_number_is_exact(decimals: int) -> None:
    rng = np.random.default_rng(7)
    values = [*EDGES, *(rng.integers(0, 2**62, 40_000) >> rng.integers(0, 62, 40_000)).tolist()]
    assert written(values, decimals) == [Decimal(value).scaleb(-decimals) for value in values]


def test_decimals_are_all_written() -> None:
    assert "".join(array_items(np.array([1_500, 7, 0]), 3)) == "1.500,0.007,0.000"


def test_null() -> None:
    assert written([5, -1, 12_345_678, -1], null=[False, True, False, True]) == [5, None, 12_345_678, None]
    assert written([-1], null=[True]) == [None] and written([]) == []
    assert written([-1] * 20_000, null=[True] * 20_000) == [None] * 20_000


def test_negative_numbers_are_refused() -> None:
    with pytest.raises(ValueError, match="negative"):
        list(array_items(np.array([3, -1])))
