# SPDX-License-Identifier: Apache-2.0
"""Sizes of copies of user stacks: as bpf/copies.h expects them, and as far as a stack reaches."""

import re

import numpy as np
import pytest

from perf_offcpu.abi.offcpu import LARGEST_COPY
from perf_offcpu.collect.bpf.header import read_header
from perf_offcpu.collect.bpf.maps import MAP_NAMES
from perf_offcpu.collect.kernel_totals.user_stacks import registers_of, sizes_of_copies
from perf_offcpu.collect.sampling import copy_sizes
from perf_offcpu.resources import bpf_dir


@pytest.mark.parametrize(("asked", "expected"), [
    (8192, [8, 2048, 16384, 32768]), (16384, [8, 4096, 32768, 32768]), (32768, [8, 8192, 32768, 32768]),
    (1000, [8, 248, 2000, 4000]), (8, [8, 8, 16, 32]),
])  # fmt: skip
def test_sizes_are_multiples_of_a_word_and_bounded(asked: int, expected: list[int]) -> None:
    sizes = copy_sizes(asked)
    assert list(sizes.values()) == expected and set(sizes) < set(MAP_NAMES)


def test_the_largest_copy_is_that_of_the_program() -> None:
    (kilobytes,) = re.findall(r"#define MOST_COPIED \((\d+)ULL << 10\)", (bpf_dir() / "copies.h").read_text())
    assert int(kilobytes) << 10 == LARGEST_COPY


TASK = read_header(bpf_dir() / "off_cpu.h").structs["last"]
SP = 0x7FFF_0000_1000


@pytest.mark.parametrize(
    ("usual", "sizes"), [(8192, [1064, 12352, 32768, 8192, 8192]), (1024, [1064, 4096, 4096, 1024, 1024])]
)
def test_copies_end_with_the_stack_or_at_four_times_the_usual_size(usual: int, sizes: list[int]) -> None:
    tasks = np.zeros(5, TASK)
    for word in range(tasks["regs"].shape[1]):
        tasks["regs"][:, word] = SP
    assert (registers_of(tasks)["sp"] == SP).all()
    tasks["stack_end"] = [SP + 1000, SP + 12288, SP + 100_000, 0, SP - 8]
    assert sizes_of_copies(tasks, usual).tolist() == sizes
    assert sizes_of_copies(tasks, 0).tolist() == [0] * 5, "without copies"
