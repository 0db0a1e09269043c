# SPDX-License-Identifier: Apache-2.0
"""`--time`: exact to the nanosecond, as perf understands it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perf_offcpu.analysis.time_windows import in_windows, parse_windows
from perf_offcpu.errors import UsageError

S = 10**9
FIRST, LAST = 100 * S, 110 * S


def chosen(text: str, *times: int) -> list[int]:
    """Return the times (ns) that are inside."""
    inside = in_windows(parse_windows(text), np.array(times, np.int64), FIRST, LAST)
    return [time for time, is_in in zip(times, inside.tolist(), strict=True) if is_in]


@pytest.mark.parametrize(("text", "inside"), [
    ("102,103", [102 * S, 102 * S + 1, 103 * S]),
    ("102.000000001,103", [102 * S + 1, 103 * S]),
    (",102", [FIRST, 102 * S]),
    ("103,", [103 * S, LAST]),
    ("100,100 110,", [FIRST, LAST]),
    ("0%-20%", [FIRST]),  # its end belongs to the next part
    ("20%-30.00000001%", [102 * S, 102 * S + 1, 103 * S]),
    ("10%/3", [102 * S, 102 * S + 1]),
    ("10%", [FIRST]),
    ("50%/2", [LAST]),
    ("90%-100%", [LAST]),
    ("0%-100%", [FIRST, 102 * S, 102 * S + 1, 103 * S, LAST]),
    ("10%/1,10%/4", [FIRST, 103 * S]),
    ("0%-10% 30%-40%", [FIRST, 103 * S]),
])  # fmt: skip
def test_windows(text: str, inside: list[int]) -> None:
    assert chosen(text, FIRST, 102 * S, 102 * S + 1, 103 * S, LAST, -1) == inside


@pytest.mark.parametrize(
    "text",
    [
        "", " ", ",", "5", "a,b", "1,2,3", "3,2", "-1,2", "1e9,", "10%-", "x%", "20%-10%", "10%/0", "10%/11",
        "0%",
    ]
    + ["100%-200%", "1.0000000001,2"],
)  # fmt: skip
def test_bad_times(text: str) -> None:
    with pytest.raises(UsageError, match="--time"):
        parse_windows(text)


@given(st.integers(1, 7), st.lists(st.integers(FIRST, LAST), max_size=20))
def test_slices_are_a_partition(slices: int, times: list[int]) -> None:
    width = 100 / (1 << slices)  # exact as a decimal
    parts = [chosen(f"{width}%/{number}", *times) for number in range(1, (1 << slices) + 1)]
    assert sorted(time for part in parts for time in part) == sorted(times)
