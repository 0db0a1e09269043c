# SPDX-License-Identifier: Apache-2.0
"""CPUs that go and come while a recording goes on."""

from __future__ import annotations

from perf_offcpu.collect.cpus import CpuWatch, online_cpus, parse_cpu_list, present_cpus


def test_kernel_lists() -> None:
    assert parse_cpu_list("0-3,8,10-11\n") == (0, 1, 2, 3, 8, 10, 11)
    assert parse_cpu_list("\n") == ()
    assert set(online_cpus()) <= set(present_cpus())


def test_each_cpu_that_goes_or_comes_is_told_once() -> None:
    now = {0, 1}
    watch = CpuWatch([0, 1], lambda: now)

    def told() -> list[str]:
        return [sentence.partition(":")[0] for sentence in watch.news()]

    assert told() == []
    now = {0}
    assert told() == ["CPU 1 went offline"]
    now = {0, 1}  # its events are gone for good
    assert told() == []
    now = {0, 1, 2, 3}
    assert told() == [f"CPU {cpu} came online after the recording began" for cpu in (2, 3)]
    now = {0}
    assert told() == []
