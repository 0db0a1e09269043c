# SPDX-License-Identifier: Apache-2.0
"""Causes of full rings."""

from __future__ import annotations

import pytest

from perf_offcpu.collect.rings.pressure import Pressure, TimeSpent, remedy


class Clock:
    """Shows what it is set to."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_the_time_before_a_full_ring_is_counted_with_the_writes_in_it() -> None:
    wall, cpu = Clock(), Clock()
    pressure = Pressure(wall, cpu)
    wall.now = cpu.now = 50.0
    pressure.begin()
    fills = [0.2, 1.0, 0.95, 0.1]
    for number, fill in enumerate(fills):
        wall.now += 1.0
        cpu.now += 0.125
        with pressure.draining(lambda fill=fill: fill), pressure.writing():  # type: ignore[misc]
            wall.now += 10.0 * number
            cpu.now += number
    # Ring 1 filled while 0 was written and a second of waiting, ring 2 while 1 was.
    assert pressure.full == TimeSpent(elapsed_s=1 + 11, write_s=10, write_cpu_s=1, cpu_s=0.125 + 1.125)


def test_a_failed_write_counts_too() -> None:
    wall = Clock()
    pressure = Pressure(wall, Clock())
    with pytest.raises(OSError), pressure.draining(lambda: 0.0), pressure.writing():
        wall.now += 3.0
        raise OSError
    with pressure.draining(lambda: 1.0):
        pass
    assert pressure.full.write_s == 3.0


@pytest.mark.parametrize(
    ("full", "begin"),
    [
        (TimeSpent(1.2, 0.95, 0.05, 0.1), "the file took no bytes for 0.90 of the 1.20 s"),
        (TimeSpent(1.2, 0.9, 0.85, 1.1), "the recorder was busy for 1.10 of the 1.20 s"),
        (TimeSpent(2.0, 0.1, 0.05, 0.1), "rings filled before the recorder came to a CPU or looked: "),
        (TimeSpent(), "rings filled before the recorder came to a CPU or looked: "),
    ],
)
def test_a_disk_a_cpu_and_neither_are_told_apart(full: TimeSpent, begin: str) -> None:
    assert remedy(full, copies=False, compressed=False).startswith(begin)


def test_only_what_can_be_changed_is_proposed() -> None:
    disk, busy = TimeSpent(1.0, 1.0, 0.0, 0.0), TimeSpent(1.0, 0.5, 0.5, 1.0)
    assert "(-z)" in remedy(disk, copies=False, compressed=False)
    assert "(-z)" not in remedy(disk, copies=False, compressed=True)
    assert "no -z" in remedy(busy, copies=False, compressed=True)
    assert "copies" in remedy(busy, copies=True, compressed=False)
    assert "copies" not in remedy(busy, copies=False, compressed=False)
