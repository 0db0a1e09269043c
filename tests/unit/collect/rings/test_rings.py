# SPDX-License-Identifier: Apache-2.0
"""Sizes of rings. What flows through them is tested on the running kernel."""

import mmap

import pytest

from perf_offcpu.collect.rings.rings import default_ring_bytes, parse_ring_size, wakeup_bytes

PAGE = mmap.PAGESIZE
MB = 1 << 20


@pytest.mark.parametrize(
    ("text", "size"),
    [("1", PAGE), ("512", 512 * PAGE), ("513", 1024 * PAGE), ("4M", 4 * MB), ("3m", 4 * MB), ("1B", PAGE)],
)
def test_pages_and_suffixes_round_up_to_powers_of_two(text: str, size: int) -> None:
    assert parse_ring_size(text) == max(size, PAGE)


@pytest.mark.parametrize(
    ("cpus", "size"), [(1, 4 * MB), (64, 4 * MB), (65, 2 * MB), (128, 2 * MB), (5000, MB // 2)]
)
def test_default_stays_small_in_sum(cpus: int, size: int) -> None:
    assert default_ring_bytes(cpus) == size


def test_copies_have_larger_rings_as_long_as_there_are_few() -> None:
    assert [default_ring_bytes(cpus, copies=True) for cpus in (2, 16, 17, 64, 128)] == [
        16 * MB, 16 * MB, 8 * MB, 4 * MB, 2 * MB,
    ]  # fmt: skip


def test_recorder_is_woken_long_before_the_ring_is_full() -> None:
    assert wakeup_bytes(PAGE) == PAGE // 4
    assert wakeup_bytes(64 * MB) == MB
