# SPDX-License-Identifier: Apache-2.0
"""Lists of CPUs in the kernel's form, and CPUs that go and come while a recording goes on."""

from perf_offcpu.collect.session import changed_cpus
from perf_offcpu.collect.system.cpus import online_cpus, online_since, parse_cpu_list, present_cpus


def test_kernel_lists() -> None:
    for text, cpus in {"0-3,8,10-11": (0, 1, 2, 3, 8, 10, 11), "0": (0,), "0,2-3,8": (0, 2, 3, 8), "": ()}.items():
        assert parse_cpu_list(f"{text}\n") == cpus
    assert set(online_cpus()) <= set(present_cpus())


def test_each_cpu_that_goes_or_comes_is_reported() -> None:
    """One that went and came back between two looks, by another number, or, where there are none, by its lost ring."""
    two, four = {0: 5, 1: 6}, {0: 5, 1: 6, 2: 7, 3: 8}
    assert changed_cpus(two, two) == ([], []) and changed_cpus(two, {0: 5}) == ([1], [])
    assert changed_cpus({0: 5}, {0: 5, 1: 6, 3: 7, 2: 8}) == ([], [1, 2, 3])
    assert changed_cpus(four, four | {1: 9}) == ([], [1])
    assert changed_cpus(four, four, without_ring=[1, 99]) == ([], [1])
    assert changed_cpus(four, {3: 8}, without_ring=[2]) == ([0, 1], [])
    assert changed_cpus(four, {2: 9, 3: 8}, without_ring=[2]) == ([0, 1], [2])


def test_the_kernel_numbers_all_cpus_and_keeps_the_numbers() -> None:
    assert tuple(online_since()) == online_cpus()
    assert online_since() == online_since() and 0 not in online_since().values()
