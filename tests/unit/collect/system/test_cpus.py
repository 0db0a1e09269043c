# SPDX-License-Identifier: Apache-2.0
"""CPUs that go and come while a recording goes on."""

from __future__ import annotations

from perf_offcpu.collect.system.cpus import CpuNews, CpuWatch, online_cpus, parse_cpu_list, present_cpus


def test_kernel_lists() -> None:
    assert parse_cpu_list("0-3,8,10-11\n") == (0, 1, 2, 3, 8, 10, 11)
    assert parse_cpu_list("\n") == ()
    assert set(online_cpus()) <= set(present_cpus())


def test_each_cpu_that_goes_or_comes_is_told_each_time() -> None:
    now = {0, 1}
    watch = CpuWatch([0, 1], lambda: now)
    assert watch.news() == CpuNews((), ())
    now = {0}
    assert watch.news() == CpuNews((1,), ())
    assert watch.news() == CpuNews((), ())
    now = {0, 1, 3, 2}
    assert watch.news() == CpuNews((), (1, 2, 3))
    watch.forget(1)  # it went and came back between two looks
    watch.forget(-1)
    assert watch.news() == CpuNews((), (1,))
    now = {3}
    assert watch.news() == CpuNews((0, 1, 2), ())
