# SPDX-License-Identifier: Apache-2.0
"""Timeouts of futex(2), from the memory of any process."""

import struct

import pytest

from perf_offcpu.collect.wait_objects.owners import timeout_in

WAIT, WAIT_BITSET, LONGEST = 0, 9, 2**63 - 1


@pytest.mark.parametrize(
    ("operation", "seconds", "asked_ns"),
    [
        (WAIT, 2, 2_000_000_000),
        (WAIT_BITSET, 7, 2_000_000_000),
        (WAIT_BITSET, 3, 0),
        (WAIT, LONGEST, LONGEST),
        (WAIT_BITSET, LONGEST, LONGEST),
        (WAIT, -LONGEST, 0),
    ],
)
def test_timeouts_are_times_whatever_the_memory_holds(operation: int, seconds: int, asked_ns: int) -> None:
    assert timeout_in(operation, struct.pack("=2q", seconds, 0), since_ns=5_000_000_000) == asked_ns
