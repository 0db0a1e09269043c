# SPDX-License-Identifier: Apache-2.0
"""Pauses: the recorder follows processes, unless that costs more than a file for each part of a minute."""

from __future__ import annotations

from perf_offcpu.agent.budget.duty import COSTLY_S, Pauses

MINUTE = 60.0


def followed(minutes: int, cost_s: float, is_short: bool = True) -> int:
    """Pause in each of some minutes; return in how many of them the recorder followed."""
    pauses, cpu_s, found = Pauses(), 0.0, 0
    for minute in range(minutes):
        pauses.begin(minute * MINUTE + 10, cpu_s, is_short)
        found += pauses.following
        cpu_s += cost_s if pauses.following else 10 * cost_s
        pauses.look((minute + 1) * MINUTE, cpu_s)
    return found


def test_recorder_follows_where_it_is_cheap() -> None:
    assert followed(30, 0.9 * COSTLY_S) == 30


def test_recorder_that_follows_at_high_cost_tries_it_again_seldom() -> None:
    assert 3 <= followed(60, 5.0) <= 6


def test_recorder_follows_nothing_through_whole_minutes() -> None:
    assert followed(10, 0.1, is_short=False) == 0
