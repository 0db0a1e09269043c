# SPDX-License-Identifier: Apache-2.0
"""Budgets and parts of minutes: no window sees more than its share, and all is recorded where possible."""

import random
from collections.abc import Callable, Iterator

import pytest

from perf_offcpu.agent.budget import COSTLY_S, HOUR_S, LEAST_S, MINUTE_S, Bucket, CpuBudget, Duty, Pauses
from perf_offcpu.agent.keeper import LONGEST_SEGMENT_S, MAX_RAISE, Period, SegmentLength

HOUR = 60
LOOK_S = 10.0
"""Time between two looks at the cost."""


def minutes(cost: Callable[[int], float], once: float = 0.2, bpf: float = 0.5) -> Iterator[tuple[float, float]]:
    """Simulate four hours of an agent; yield seconds recorded and CPU time of each minute.

    Recording takes `cost(minute)` of a CPU, `bpf` of it in BPF programs; a piece takes `once` seconds
    more, a minute later, when it is delivered. Without pauses, pieces are four minutes long.
    """
    budget, duty, cpu, delivery = CpuBudget(0.01), Duty(), 0.0, 0.0
    budget.note(cpu, 0.0)
    budget.begin(0.0)
    for minute in range(4 * HOUR):
        before, recorded, is_over = cpu, 0.0, False
        cpu += delivery
        for tenth in range(6):
            length = 0.0 if is_over else min(LOOK_S, max(0.0, duty.recorded_s - tenth * LOOK_S))
            recorded += length
            cpu += length * cost(minute)
            budget.note(cpu, minute * MINUTE_S + (tenth + 1) * LOOK_S)
            is_over = is_over or duty.ends_early(budget)
        pieces = 0.25 if duty.is_whole else 1.0 if recorded else 0.0
        delivery, spent = pieces * once, cpu - before
        duty.adapt(budget, recorded, bpf * cost(minute), 4 * MINUTE_S)
        yield recorded, spent


@pytest.mark.parametrize("load", [0.012, 0.03, 0.08, 0.2])
def test_busy_machine_is_recorded_in_parts_of_minutes_and_the_budget_is_kept(load: float) -> None:
    done = list(minutes(lambda _: load))
    assert all(seconds >= LEAST_S for seconds, _ in done)
    burst, least = 0.01 * 3600 / 12, HOUR * (load * LEAST_S + 0.2)  # least: what LEAST_S of each minute costs
    hour = max(36.0, least)
    for begin in range(0, len(done) - HOUR, 7):
        assert sum(cpu for _, cpu in done[begin : begin + HOUR]) <= hour + 2 * burst + load * MINUTE_S + 0.2
    assert sum(cpu for _, cpu in done[HOUR:]) <= 3 * hour + burst


def test_quiet_machine_is_recorded_wholly() -> None:
    assert all(seconds == MINUTE_S for seconds, _ in minutes(lambda _: 0.004))


@pytest.mark.parametrize(("quiet", "once", "hours"), [(0.004, 0.2, 2), (0.005, 0.55, 3)])
def test_after_a_busy_hour_all_is_recorded_again(quiet: float, once: float, hours: int) -> None:
    """Also where a piece alone takes the budget of a minute; without pauses there are few."""
    done = list(minutes(lambda minute: 0.05 if minute < HOUR else quiet, once=once))
    assert all(seconds < MINUTE_S for seconds, _ in done[10:HOUR])
    assert all(seconds == MINUTE_S for seconds, _ in done[hours * HOUR :])


def test_all_is_tried_seldom_where_the_rest_costs_more_than_the_bpf_programs() -> None:
    """Programs that start all the time cost the agent much, and the BPF programs little."""
    done = list(minutes(lambda _: 0.05, once=0.3, bpf=0.03))
    whole = [seconds == MINUTE_S for seconds, _ in done[HOUR:]]
    assert sum(whole) < 0.1 * len(whole) and sum(cpu for _, cpu in done[HOUR:]) <= 3 * 36 + 3
    assert sum(seconds > 0 for seconds, _ in done) > 0.9 * len(done)


def test_sudden_load_overdraws_the_budget_by_less_than_a_burst() -> None:
    """A third of a CPU: a whole minute of it would cost what may be spent in half an hour."""
    done = list(minutes(lambda minute: 0.3 if minute in (70, 71, 150) else 0.004))
    burst = 0.01 * 3600 / 12
    assert all(seconds == MINUTE_S for seconds, _ in done[:70])
    assert 0 < done[70][0] < MINUTE_S and done[70][1] < 2 * burst + 0.3 * LOOK_S
    assert all(seconds == MINUTE_S for seconds, _ in [*done[100:150], *done[180:]])


def test_nothing_is_left_out_before_the_start_is_over() -> None:
    budget, duty = CpuBudget(0.01), Duty()
    budget.note(50.0, 60.0)
    assert not duty.adapt(budget, MINUTE_S, 0.5, MINUTE_S) and duty.is_whole
    budget = CpuBudget(0.01)
    budget.note(0.0, 0.0)
    budget.note(100.0, 50.0)
    budget.begin(60.0)
    budget.note(100.1, 60.0)
    assert budget.bucket.level > 0
    assert 0.009 < budget.recent() < 0.011, "the start is not counted"


def followed(minutes: int, cost_s: float) -> int:
    """Pause in each of some minutes; return in how many of them the recorder followed."""
    pauses, cpu_s, found = Pauses(), 0.0, 0
    for minute in range(minutes):
        pauses.begin(minute * MINUTE_S + 10, cpu_s)
        found += pauses.following
        cpu_s += cost_s if pauses.following else 10 * cost_s
        pauses.end((minute + 1) * MINUTE_S, cpu_s)
    return found


def test_recorder_follows_where_it_is_cheap_and_tries_it_again_seldom_where_not() -> None:
    assert followed(30, 0.9 * COSTLY_S) == 30 and 3 <= followed(60, 5.0) <= 6


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
            assert sum(amount for at, amount in spent if begin <= at < begin + HOUR_S) <= 36.0 + 1e-6


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
    assert max(changes) in (4, 8) and period.ns == 100
    assert all(a in (2 * b, b / 2) for a, b in zip(changes, [1, *changes], strict=False))


@pytest.mark.parametrize(("cost", "samples_per_s", "factor"), [(1.8, 5, 1), (60, 10_000, MAX_RAISE)])
def test_period_stays_where_samples_are_cheap_and_has_a_limit(cost: float, samples_per_s: float, factor: int) -> None:
    budget, period = CpuBudget(0.01), Period(100)
    budget.begin(0.0)
    for minute in range(1, 201):
        budget.note(minute * cost, minute * 60.0)
        assert period.adapt(budget, samples_per_s, minute * 60.0) <= (factor > 1)
    assert period.ns == 100 * factor
