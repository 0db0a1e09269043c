# SPDX-License-Identifier: Apache-2.0
"""Lists of CPUs in the kernel's form."""

from __future__ import annotations

from perf_offcpu.collect.system.cpus import online_cpus, parse_cpu_list, present_cpus


def test_kernel_lists() -> None:
    assert parse_cpu_list("0-3,8,10-11\n") == (0, 1, 2, 3, 8, 10, 11)
    assert parse_cpu_list("0\n") == (0,)
    assert parse_cpu_list("0,2-3,8\n") == (0, 2, 3, 8)
    assert parse_cpu_list("\n") == ()
    assert set(online_cpus()) <= set(present_cpus())
