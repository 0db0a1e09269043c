# SPDX-License-Identifier: Apache-2.0
"""Lists of CPUs in the kernel's form, and CPUs that go and come while a recording goes on."""

from perf_offcpu.collect.session import changed_cpus
from perf_offcpu.collect.system.cpus import online_cpus, online_since, parse_cpu_list, present_cpus


def test_kernel_lists() -> None:
    assert parse_cpu_list("0-3,8,10-11\n") == (0, 1, 2, 3, 8, 10, 11)
    assert parse_cpu_list("0\n") == (0,)
    assert parse_cpu_list("0,2-3,8\n") == (0, 2, 3, 8)
    assert parse_cpu_list("\n") == ()
    assert set(online_cpus()) <= set(present_cpus())


TWO = {0: 5, 1: 6}
FOUR = {0: 5, 1: 6, 2: 7, 3: 8}


def test_each_cpu_that_goes_or_comes_is_reported() -> None:
    assert changed_cpus(TWO, TWO) == ([], [])
    assert changed_cpus(TWO, {0: 5}) == ([1], [])
    assert changed_cpus({0: 5}, {0: 5, 1: 6, 3: 7, 2: 8}) == ([], [1, 2, 3])


def test_a_cpu_that_went_and_came_back_between_two_looks_is_known() -> None:
    """By another number than before, or where the kernel gives none, by its lost ring."""
    assert changed_cpus(FOUR, FOUR | {1: 9}) == ([], [1])
    assert changed_cpus(FOUR, FOUR, without_ring=[1, 99]) == ([], [1])
    assert changed_cpus(FOUR, {3: 8}, without_ring=[2]) == ([0, 1], [])
    assert changed_cpus(FOUR, {2: 9, 3: 8}, without_ring=[2]) == ([0, 1], [2])


def test_the_kernel_numbers_all_cpus_and_keeps_the_numbers() -> None:
    assert tuple(online_since()) == online_cpus()
    assert online_since() == online_since() and 0 not in online_since().values()
