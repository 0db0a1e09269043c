# SPDX-License-Identifier: Apache-2.0
"""CPUs that go and come while a recording goes on."""

from __future__ import annotations

from perf_offcpu.collect.hotplug import changed_cpus


def test_each_cpu_that_goes_or_comes_is_reported() -> None:
    assert changed_cpus([0, 1], [0, 1]) == ([], [])
    assert changed_cpus([0, 1], [0]) == ([1], [])
    assert changed_cpus([0], [0, 1, 3, 2]) == ([], [1, 2, 3])


def test_a_cpu_that_went_and_came_back_between_two_looks_is_known_by_its_lost_ring() -> None:
    assert changed_cpus([0, 1, 2, 3], [0, 1, 2, 3], without_ring=[1, 99]) == ([], [1])
    assert changed_cpus([0, 1, 2, 3], [3], without_ring=[2]) == ([0, 1], [])
