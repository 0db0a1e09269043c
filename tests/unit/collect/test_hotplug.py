# SPDX-License-Identifier: Apache-2.0
"""CPUs that go and come while a recording goes on."""

from __future__ import annotations

from perf_offcpu.collect.hotplug import CpuWatch


def test_each_cpu_that_goes_or_comes_is_reported_each_time() -> None:
    now = {0, 1}
    watch = CpuWatch([0, 1], lambda: now)
    assert watch.changes() == ([], [])
    now = {0}
    assert watch.changes() == ([1], [])
    assert watch.changes() == ([], [])
    now = {0, 1, 3, 2}
    assert watch.changes() == ([], [1, 2, 3])
    assert watch.changes(without_ring=[1, 99]) == ([], [1]), "CPU 1 went and came back between two looks"
    now = {3}
    assert watch.changes(without_ring=[2]) == ([0, 1], [])
