# SPDX-License-Identifier: Apache-2.0
"""Registers of the machines whose stacks are unwound."""

from __future__ import annotations

import pytest

from perf_offcpu.abi.cfi import MACHINE_OF_ARCH, REGISTERS, arch_of_registers


@pytest.mark.parametrize("arch", MACHINE_OF_ARCH)
def test_registers_of_samples_tell_the_machine(arch: str) -> None:
    assert arch_of_registers(REGISTERS[MACHINE_OF_ARCH[arch]].sample_mask) == arch


def test_masks_of_perf_record_and_of_unknown_machines() -> None:
    assert arch_of_registers(0xFF0FFF) == "x86_64"  # perf record --call-graph dwarf
    assert arch_of_registers((1 << 33) - 1) == "aarch64"
    assert arch_of_registers(0) == arch_of_registers(1 << 8) == ""
