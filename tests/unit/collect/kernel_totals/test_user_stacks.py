# SPDX-License-Identifier: Apache-2.0
"""Copies of the stacks of threads that still wait reach as far as the stack, if its end is known."""

from __future__ import annotations

import numpy as np
import pytest

from perf_offcpu.collect.bpf.header import read_header
from perf_offcpu.collect.kernel_totals.user_stacks import registers_of, sizes_of_copies
from perf_offcpu.resources import bpf_dir

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


def test_without_copies_there_are_none() -> None:
    tasks = np.zeros(1, TASK)
    tasks["stack_end"] = SP
    assert sizes_of_copies(tasks, 0).tolist() == [0]
