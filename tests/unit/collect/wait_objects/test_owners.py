# SPDX-License-Identifier: Apache-2.0
"""Owners of locks and timeouts of futex(2), from the memory of any process."""

import struct

import pytest

from perf_offcpu.collect.wait_objects.owners import owner_in, timeout_in

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


@pytest.mark.parametrize(("kind", "owner"), [(0, 77), (1, 77), (128, 77), (512, 77), (512 | 128, 77), (1024, 0)])
def test_the_owner_of_a_mutex_is_believed_where_the_kind_is_one_of_glibc(kind: int, owner: int) -> None:
    """512 is PTHREAD_MUTEX_NORMAL, asked for by pthread_mutexattr_settype()."""
    assert owner_in((2, 0, 77, 1, kind), WAIT, 2) == owner
