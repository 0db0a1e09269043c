# SPDX-License-Identifier: Apache-2.0
"""Look up rows that hold for ids at times, many at once: the result is that of single look-ups."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from perf_offcpu.model.lookup import rows_at

IDS = st.sampled_from([-1, 0, 1, 5, 6, 2**22, 2**31 - 1])
ROWS = st.lists(st.tuples(IDS, st.integers(0, 9)), max_size=12)


def expected(rows: list[tuple[int, int]], wanted: int, time: int) -> int:
    mine = [row for row, (one, _) in enumerate(rows) if one == wanted]
    begun = [row for row in mine if time < 0 or rows[row][1] <= time]
    return begun[-1] if begun else mine[0] if mine else -1


@given(ROWS, st.lists(st.tuples(IDS, st.integers(-1, 10)), max_size=12))
def test_the_row_that_held(rows: list[tuple[int, int]], questions: list[tuple[int, int]]) -> None:
    rows.sort()
    ids, begins = (np.array(column, kind) for column, kind in zip(_columns(rows), ("i4", "i8"), strict=True))
    wanted, times = (np.array(one, kind) for one, kind in zip(_columns(questions), ("i4", "i8"), strict=True))
    found = rows_at(ids, begins, wanted, times)
    assert found.dtype == np.int32
    assert found.tolist() == [expected(rows, *question) for question in questions]


def _columns(rows: list[tuple[int, int]]) -> tuple[list[int], list[int]]:
    return [row[0] for row in rows], [row[1] for row in rows]
