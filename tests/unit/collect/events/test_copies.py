# SPDX-License-Identifier: Apache-2.0
"""Sizes of copies of user stacks, as bpf/copies.h expects them."""

from __future__ import annotations

import re

import pytest

from perf_offcpu.abi.offcpu import LARGEST_COPY
from perf_offcpu.collect.bpf.maps import MAP_NAMES
from perf_offcpu.collect.events.copies import copy_sizes
from perf_offcpu.resources import bpf_dir


@pytest.mark.parametrize(("asked", "expected"), [
    (8192, [8, 2048, 16384, 32768]), (16384, [8, 4096, 32768, 32768]), (32768, [8, 8192, 32768, 32768]),
    (1000, [8, 248, 2000, 4000]), (8, [8, 8, 16, 32]),
])  # fmt: skip
def test_sizes_are_multiples_of_a_word_and_bounded(asked: int, expected: list[int]) -> None:
    sizes = copy_sizes(asked)
    assert list(sizes.values()) == expected
    assert set(sizes) < set(MAP_NAMES)


def test_the_largest_copy_is_that_of_the_program() -> None:
    (kilobytes,) = re.findall(r"#define MOST_COPIED \((\d+)ULL << 10\)", (bpf_dir() / "copies.h").read_text())
    assert int(kilobytes) << 10 == LARGEST_COPY
