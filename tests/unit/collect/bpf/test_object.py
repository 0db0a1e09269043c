# SPDX-License-Identifier: Apache-2.0
"""Numbers in compiled instructions that stand for others: kernel functions, late values."""

from __future__ import annotations

import struct
import sys

from perf_offcpu.collect.bpf.object import (
    KERNEL_FUNCTION,
    LATE_VALUE,
    with_kernel_functions,
    with_late_values,
)

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


def load_64(number: int) -> bytes:
    return instruction(LOAD_64, 0, number & 0x7FFFFFFF) + instruction(0, 0, number >> 32)


def test_late_values_replace_only_the_numbers_that_stand_for_them() -> None:
    address = 0xFFFF_FFFF_8123_4567
    unknown, half = load_64(LATE_VALUE + 2), instruction(LOAD_64, 0, 1) + bytes(8)
    code = load_64(LATE_VALUE) + unknown + half + load_64(LATE_VALUE + 1)
    high, low = address >> 32, address & 0xFFFFFFFF
    written = struct.pack("=iIiI", LOAD_64, low, 0, high)
    assert with_late_values(code, [5, address]) == load_64(5) + unknown + half + written
    assert with_late_values(b"", [5]) == b""
