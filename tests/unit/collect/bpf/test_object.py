# SPDX-License-Identifier: Apache-2.0
"""Calls of kernel functions in compiled instructions."""

from __future__ import annotations

import struct
import sys

from perf_offcpu.collect.bpf.object import KERNEL_FUNCTION, with_kernel_functions

CALL, LOAD_64 = 0x85, 0x18


def instruction(code: int, source: int, imm: int) -> bytes:
    registers = source << 4 if sys.byteorder == "little" else source
    return struct.pack("=BBhi", code, registers, 0, imm)


def test_only_marked_calls_become_calls_of_kernel_functions() -> None:
    helper, constant = instruction(CALL, 0, 5), instruction(LOAD_64, 0, KERNEL_FUNCTION + 7)
    local = instruction(CALL, 1, -1)
    code = helper + instruction(CALL, 0, KERNEL_FUNCTION + 1234) + constant + bytes(8) + local
    expected = helper + instruction(CALL, 2, 1234) + constant + bytes(8) + local
    assert with_kernel_functions(code) == expected
