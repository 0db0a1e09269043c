# SPDX-License-Identifier: Apache-2.0
"""Budgets: no window sees more than its share, whatever is spent when."""

from __future__ import annotations

import random

from perf_offcpu.agent.budget.cpu import HOUR_S, Bucket, CpuBudget
from perf_offcpu.agent.budget.keeper import LONGEST_SEGMENT_S, MAX_RAISE, Period, SegmentLength


def test_no_hour_sees_more_than_its_share() -> None:
    """Spend as fast as possible, in bursts, whenever the bucket allows it."""
    draw = random.Random(1)
    for _ in range(20):
        bucket, now, spent = Bucket(36.0, HOUR_S, 0.0), 0.0, list[tuple[float, float]]()
        most = draw.choice((0.01, 0.5))
        while now < 4 * HOUR_S:
            now += draw.expovariate(1 / draw.choice((1, 10, 600)))
            amount = draw.uniform(0, most)
            bucket.spend(0, now)
            if bucket.level >= amount:
                bucket.spend(amount, now)
                spent.append((now, amount))
        assert spent
        for begin, _ in spent[:: max(1, len(spent) // 200)]:
            window = sum(amount for at, amount in spent if begin <= at < begin + HOUR_S)
            assert window <= 36.0 + 1e-6


def test_start_is_not_counted() -> None:
    budget = CpuBudget(0.01)
    budget.note(0.0, 0.0)
    budget.note(100.0, 50.0)
    budget.begin(60.0)
    budget.note(100.1, 60.0)
    assert budget.level_s > 0
    assert 0.009 < budget.recent() < 0.011


def test_segments_become_longer_where_each_costs_much_and_shorter_again() -> None:
    budget, length, now, cpu, lengths = CpuBudget(0.01), SegmentLength(60), 0.0, 0.0, list[float]()
    budget.begin(now)
    while now < 4 * HOUR_S:
        each = 0.6 if now < 2 * HOUR_S else 0.05
        now += length.seconds
        cpu += length.seconds * 0.002 + each
        budget.note(cpu, now)
        if length.adapt(budget, now):
            lengths.append(length.seconds)
    assert lengths == [120, 60]
    greedy = SegmentLength(60)
    for _ in range(30):
        now, cpu = now + greedy.seconds, cpu + greedy.seconds
        budget.note(cpu, now)
        greedy.adapt(budget, now)
    assert greedy.is_longest and greedy.seconds == LONGEST_SEGMENT_S
    assert SegmentLength(1800).seconds == 1800 and SegmentLength(1800).is_longest


def test_period_rises_where_samples_cost_and_falls_again() -> None:
    budget, period, now, cpu, changes = CpuBudget(0.01), Period(100), 0.0, 0.0, list[int]()
    budget.begin(now)
    for minute in range(600):
        rate = 300 if minute < 200 else 1
        now += 60
        cpu += 60 * (0.002 + rate / period.factor * 1e-4)
        budget.note(cpu, now)
        if period.adapt(budget, rate / period.factor, now):
            changes.append(period.factor)
    assert max(changes) in (4, 8)
    assert period.ns == 100
    assert all(a in (2 * b, b / 2) for a, b in zip(changes, [1, *changes], strict=False))


def test_period_stays_where_samples_are_not_what_costs() -> None:
    budget, period, now, cpu = CpuBudget(0.01), Period(100), 0.0, 0.0
    budget.begin(now)
    for _ in range(200):
        now, cpu = now + 60, cpu + 1.8
        budget.note(cpu, now)
        assert not period.adapt(budget, 5, now)


def test_period_rises_up_to_a_limit() -> None:
    budget, period, now, cpu = CpuBudget(0.01), Period(100), 0.0, 0.0
    budget.begin(now)
    for _ in range(200):
        now, cpu = now + 60, cpu + 60
        budget.note(cpu, now)
        period.adapt(budget, 10_000, now)
    assert period.ns == 100 * MAX_RAISE
