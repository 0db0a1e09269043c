# SPDX-License-Identifier: Apache-2.0
"""The shift of a time namespace, from the text of /proc/PID/timens_offsets."""

from __future__ import annotations

import pytest

from perf_offcpu.collect.system.clock import shift_from_text


@pytest.mark.parametrize("text, shift_ns", [
    ("monotonic        1000         0\nboottime         2000         0\n", 1000 * 10**9),
    ("monotonic          -2 500000000\nboottime            0         0\n", -1_500_000_000),
    ("boottime         2000         0\n", 0),
    ("", 0),
])  # fmt: skip
def test_the_shift_of_the_monotonic_clock(text: str, shift_ns: int) -> None:
    assert shift_from_text(text) == shift_ns
