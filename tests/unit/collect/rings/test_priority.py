# SPDX-License-Identifier: Apache-2.0
"""When the thread that empties the rings is a real-time one."""

import os

import pytest

from perf_offcpu.collect.rings.pressure import DrainPriority


class Machine:
    """Clocks, and a kernel that sets policies or refuses them."""

    def __init__(self) -> None:
        self.wall_s = self.cpu_s = 0.0
        self.policies: list[int] = []
        self.refuses = False
        self.priority = DrainPriority(True, lambda: self.wall_s, lambda: self.cpu_s, self.set_policy)

    def set_policy(self, pid: int, policy: int, parameter: os.sched_param) -> None:
        assert pid == 0 and policy & os.SCHED_RESET_ON_FORK
        self.policies.append(policy & ~os.SCHED_RESET_ON_FORK)
        assert parameter.sched_priority == (1 if self.policies[-1] == os.SCHED_FIFO else 0)
        if self.refuses:
            raise PermissionError

    def run(self, wall_s: float, cpu_s: float) -> None:
        self.wall_s += wall_s
        self.cpu_s += cpu_s
        self.priority.adapt()


@pytest.mark.parametrize("share", [0.0, 0.2, 0.4, 1.0])
def test_a_thread_that_uses_much_time_is_an_ordinary_one_for_a_while(share: float) -> None:
    machine = Machine()
    with machine.priority.raised():
        assert machine.policies == [os.SCHED_FIFO]
        for _ in range(8):
            machine.run(0.125, 0.125 * share)
        assert machine.policies[1:] == ([os.SCHED_OTHER] if share > 0.3 else [])
        machine.run(0.6, 0.0)
        assert machine.policies[-1] == os.SCHED_FIFO
    assert machine.policies[-1] == os.SCHED_OTHER


def test_a_refusal_is_final_and_no_error() -> None:
    machine = Machine()
    machine.refuses = True
    with machine.priority.raised():
        machine.run(5.0, 5.0)
        machine.run(5.0, 0.0)
    assert machine.policies == [os.SCHED_FIFO]


def test_a_priority_that_is_not_wanted_is_left_alone() -> None:
    before = os.sched_getscheduler(0)
    priority = DrainPriority(False, wall=iter(range(100)).__next__)
    with priority.raised():
        priority.adapt()
        assert os.sched_getscheduler(0) == before


def test_the_kernel_sets_the_thread_back() -> None:
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO | os.SCHED_RESET_ON_FORK, os.sched_param(1))
    except PermissionError:  # no privilege, or a control group without real-time budget
        expected = os.SCHED_OTHER
    else:
        expected = os.SCHED_FIFO
        os.sched_setscheduler(0, os.SCHED_OTHER | os.SCHED_RESET_ON_FORK, os.sched_param(0))
    with DrainPriority().raised():
        now = os.sched_getscheduler(0)
    assert now & ~os.SCHED_RESET_ON_FORK == expected
    assert os.sched_getscheduler(0) & ~os.SCHED_RESET_ON_FORK == os.SCHED_OTHER
