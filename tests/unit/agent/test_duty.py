# SPDX-License-Identifier: Apache-2.0
"""Budgets and parts of minutes: no window sees more than its share, and all time not recorded has its cause. Run time
of BPF programs, estimated from windows: on a simulated machine, whose true run time is known."""

import os
import random
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from perf_offcpu.agent.config import AgentConfig
from perf_offcpu.agent.cost import keeper, run_time
from perf_offcpu.agent.cost.budget import COSTLY_S, HOUR_S, LEAST_S, MINUTE_S, Bucket, CpuBudget, Duty, Pauses
from perf_offcpu.agent.cost.keeper import LONGEST_SEGMENT_S, MAX_RAISE, BudgetKeeper, Period, SegmentLength
from perf_offcpu.agent.cost.run_time import Programs, RunTime
from perf_offcpu.agent.ledger import LOOK_NS, ON, Ledger
from perf_offcpu.agent.metrics import Metrics
from perf_offcpu.agent.recorder import PAUSE, RESUME
from perf_offcpu.agent.spool import Spool

HOUR = 60
LOOK_S = 10.0
"""Time between two looks at the cost."""


def minutes(cost: Callable[[int], float], once: float = 0.2, bpf: float = 0.5) -> Iterator[tuple[float, float]]:
    """Simulate four hours of an agent; yield seconds recorded and CPU time of each minute. Recording takes
    `cost(minute)` of a CPU, `bpf` of it in BPF programs; a piece takes `once` seconds more, a minute later, when it is
    delivered. Without pauses, pieces are four minutes long."""
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


SECOND = 10**9
FIRST, SECOND_NAME = "00000001.data.2026112214000000", "00000001.data.2026112214010000"


class World:
    """A keeper, and a recorder that takes `load` of a CPU while it records. `spans`: recorded times."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, load: float, start_s: float = 0.0) -> None:
        self.now, self.cpu_s, self.load = 1000.0, start_s, load
        self.recorder: Any = SimpleNamespace(is_recording=True, cpu_s=lambda: 0.0, command=self._command)
        self.spans: list[list[float]] = [[self.now, self.now]]
        self.said: list[str] = []
        bpf = SimpleNamespace(share=lambda: self.load / 2)
        cost: Any = SimpleNamespace(
            bpf=bpf, measure=lambda _: None, memory=lambda _: {}, parts=lambda: {"agent": self.cpu_s}
        )
        monkeypatch.setattr(keeper, "Cost", lambda: cost)
        monkeypatch.setattr(keeper, "time", SimpleNamespace(monotonic=lambda: self.now))
        self.keeper = BudgetKeeper(AgentConfig(), Metrics(), self.said.append)

    def _command(self, text: str) -> None:
        if text in (PAUSE, RESUME):
            self.recorder.is_recording = text == RESUME
        if text == RESUME:
            self.spans.append([self.now, self.now])

    def run(self, seconds: float) -> None:
        end, look = self.now + seconds, self.now
        while self.now < end:
            if self.now >= look:
                look = self.now + 10
                self.keeper.measure(self.recorder)
            due = min(self.keeper.keep_duty(self.now, self.recorder), self.now + 1, end)
            step, self.now = max(due - self.now, 1e-3), max(due, self.now + 1e-3)
            if self.recorder.is_recording:
                self.cpu_s += step * self.load
                self.spans[-1][1] = self.now

    def recorded_s(self, begin: float, end: float) -> float:
        return sum(max(0.0, min(end, last) - max(begin, first)) for first, last in self.spans)


def test_no_minute_without_a_record_at_ten_times_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, load=0.1)
    world.run(5)
    world.keeper.after_segment(10, 5, world.recorder)
    begin = world.keeper._minute_s
    world.run(2 * HOUR_S)
    minutes = [world.recorded_s(begin + n * MINUTE_S, begin + (n + 1) * MINUTE_S) for n in range(118)]
    assert min(minutes) >= LEAST_S - 0.1, minutes
    assert world.cpu_s <= 3 * 36
    offsets = [(first - begin) % MINUTE_S for first, _ in world.spans[60:]]
    assert min(offsets) < 10 and max(offsets) > 40, "spread over the minute"
    assert max(after[0] - before[1] for before, after in pairwise(world.spans)) < 2 * MINUTE_S
    world.load = 0.001
    world.run(HOUR_S)
    assert world.recorded_s(world.now - 600, world.now) == pytest.approx(600, abs=1)
    assert [("a part of each minute" in text, "again" in text) for text in world.said] == [(True, False), (False, True)]


def test_start_is_repaid_over_the_hour_and_blinds_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, load=0.002, start_s=15.0)
    world.keeper.measure(world.recorder)
    world.keeper.after_segment(10, 5, world.recorder)
    world.run(HOUR_S)
    assert world.recorded_s(0, world.now) == pytest.approx(HOUR_S, abs=1)
    budget = CpuBudget(0.01)
    budget.note(15.0, 0.0)
    budget.begin(0.0)
    assert budget.free_part == pytest.approx(0.01 - 15 / HOUR_S)
    for second in range(3600):
        budget.note(15.0 + second * 0.005, second)
    assert sum([15.0, 3600 * 0.005]) < 36 and 0 < budget.bucket.level < budget.bucket.limit


@pytest.fixture
def ledger(tmp_path: Path) -> Any:
    spool = Spool(str(tmp_path / "spool"), patience_s=0)
    yield Ledger(spool, "boot")
    spool.close()


def marked(ledger: Ledger, *marks: tuple[float, str]) -> None:
    ledger._marks.clear()
    for seconds, cause in marks:
        ledger.mark(cause, int(seconds * SECOND))


def test_a_gap_has_each_cause_for_its_own_time(ledger: Ledger) -> None:
    """A pause in which the configuration is read again, and then the agent is restarted."""
    ledger.begin_run("stopped")
    marked(ledger, (10, ON), (40, "budget"), (700, "reload"), (702, "stopped"), (710, ON))
    ledger.deliver(FIRST, ((10 * SECOND, 40 * SECOND - 5),), 0)
    gaps = ledger.missing(SECOND_NAME, 709 * SECOND, 0)
    assert [(gap.cause, round(gap.ns / SECOND)) for gap in gaps] == [("budget", 660), ("reload", 2), ("stopped", 7)]
    ledger.deliver(SECOND_NAME, ((709 * SECOND, 720 * SECOND),), 0)
    total = ledger.metrics.value("gap_seconds_total") + ledger.metrics.value("recorded_seconds_total")
    assert total == pytest.approx(710)


def test_a_segment_that_is_lost_in_a_gap_is_one_of_its_causes(ledger: Ledger) -> None:
    ledger.begin_run("stopped")
    marked(ledger, (10, ON), (30, "budget"), (50, ON))
    ledger.deliver(FIRST, ((10 * SECOND, 20 * SECOND),), 0)
    ledger.drop(SECOND_NAME, "damaged")
    gaps = ledger.missing("00000001.data.2026112214020000", 60 * SECOND, 0)
    assert gaps == [(10 * SECOND, "damaged"), (20 * SECOND, "budget"), (10 * SECOND, "damaged")]


def test_gaps_grow_while_they_last_and_never_fall(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [50 * SECOND]
    monkeypatch.setattr("perf_offcpu.agent.ledger.time", SimpleNamespace(monotonic_ns=lambda: now[0]))
    marked(ledger, (10, ON), (40, "budget"))
    ledger.deliver(FIRST, ((10 * SECOND, 40 * SECOND),), 0)
    shown = []
    for now[0] in (50 * SECOND, 80 * SECOND):
        shown.append(gaps_of(ledger))
    assert shown == [10, 40] and ledger.metrics.value("gap_seconds_total") == 0
    assert ledger.off(80 * SECOND - LOOK_NS, 80 * SECOND) == {"budget": 40 * SECOND}
    marked(ledger, (10, ON), (40, "budget"), (80, ON))
    ledger.deliver(SECOND_NAME, ((79 * SECOND, 90 * SECOND),), 0)
    assert ledger.metrics.value("gap_seconds_total") == 39 and gaps_of(ledger) == 40
    assert Ledger(ledger._spool, "boot").metrics.value("gap_seconds_total") == 0, "nothing was saved"


def gaps_of(ledger: Ledger) -> float:
    lines = [line for line in ledger.text().splitlines() if 'gap_seconds_total{cause="budget"}' in line]
    return float(lines[0].split()[-1])


def test_an_agent_that_was_killed_in_a_pause_has_both_causes(tmp_path: Path) -> None:
    spool = Spool(str(tmp_path / "spool"), patience_s=0)
    before = Ledger(spool, "boot")
    before.begin_run("stopped")
    before.deliver(FIRST, ((1, 2),), 0)
    before._marks = []
    before.mark("budget", 2)
    before.save()
    after = Ledger(spool, "boot")
    after.begin_run("stopped")
    (first, second) = after.missing("00000002.data.2026112214010000", 10**15, 0)
    assert (first.cause, second.cause) == ("budget", "stopped") and first.ns + second.ns == 10**15 - 2
    spool.close()


Activity = Callable[[float], tuple[float, float]]
"""Time, s → switches a second, and run time of each, s."""


class Machine:
    """A machine and a recorder, whose programs run at each switch. `measured_s`: time of all windows."""

    def __init__(self, activity: Activity, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.switches, self.run_s, self.measured_s, self._activity = 0.0, 0.0, 0.0, 0.0, activity
        self.recorder: Any = SimpleNamespace(pid=1, is_recording=True)
        self.fds: list[int] = []
        monkeypatch.setattr(run_time, "context_switches", lambda: int(self.switches))
        monkeypatch.setattr(Programs, "find", lambda *_: None)
        monkeypatch.setattr(Programs, "run_ns", lambda *_: int(self.run_s * 1e9))
        monkeypatch.setattr("perf_offcpu.collect.bpf.syscall.enable_stats", self._enable)
        random.seed(7)
        self.cost = RunTime(lambda: self.now)

    def _enable(self) -> int:
        self.fds.append(os.open("/dev/null", os.O_RDONLY))
        return self.fds[-1]

    def run(self, seconds: float) -> None:
        end = self.now + seconds
        while self.now < end:
            due_s = self.cost.step(self.recorder)
            assert due_s > self.now - 1e-6
            for _ in range(max(1, round((min(due_s, end) - self.now) / 0.01))):
                self._pass(0.01)

    def _pass(self, seconds: float) -> None:
        rate, each_s = self._activity(self.now)
        self.now += seconds
        self.switches += rate * seconds
        self.run_s += rate * seconds * each_s if self.recorder.is_recording else 0
        self.measured_s += seconds if self.cost._window else 0


def test_each_second_is_booked_by_the_rate_of_its_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    """Quiet seconds, in which a switch takes ten times as long, and loads that begin and end."""

    def activity(now: float) -> tuple[float, float]:
        return (60_000, 0.4e-6) if now % 40 > 25 else (300, 4e-6)

    machine = Machine(activity, monkeypatch)
    for _ in range(20):
        machine.run(30)
        assert abs(machine.cost.booked_s - machine.run_s) <= 0.05 * machine.run_s + 3 * 0.024
    assert machine.measured_s < 0.04 * machine.now, "the kernel measures in a small part of the time"
    machine.cost.turn(None)
    assert not any(os.path.exists(f"/proc/self/fd/{fd}") for fd in {*machine.fds})


def test_a_load_is_not_booked_by_the_rate_of_a_quiet_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(lambda now: (100_000, 0.4e-6) if now > 20 else (20, 4000e-6), monkeypatch)
    booked = []
    for _ in range(40):
        machine.run(1)
        booked.append(machine.cost.booked_s)
        assert machine.cost.booked_s <= 1.1 * machine.run_s + 0.3
    assert booked[24] > booked[18] + 0.1, "at most some seconds later"


def test_pauses_cost_nothing_and_the_share_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(lambda now: (10_000, 1e-6), monkeypatch)
    machine.run(30)
    assert machine.cost.share() == pytest.approx(0.01, rel=0.2)
    machine.recorder.is_recording = False
    machine.cost.turn(machine.recorder)
    before = machine.cost.booked_s
    machine.run(30)
    assert machine.cost.booked_s - before <= 0.02
    assert machine.cost.share() == pytest.approx(0.01, rel=0.1)


def test_without_the_right_to_measure_nothing_is_booked(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused() -> int:
        raise PermissionError

    machine = Machine(lambda now: (10_000, 1e-6), monkeypatch)
    monkeypatch.setattr("perf_offcpu.collect.bpf.syscall.enable_stats", refused)
    machine.run(30)
    assert machine.cost.booked_s == 0


def test_descriptors_of_programs(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other descriptors have no run time; one program may have several."""
    texts = {"3": "pos:\t0\n", "4": program(7, 100), "5": program(7, 100), "6": "prog_id:\t9\n", "8": program(8, 11)}
    monkeypatch.setattr(os, "listdir", lambda _: list(texts))
    monkeypatch.setattr(run_time, "read_kernel", lambda path: texts[path.rpartition("/")[2]].encode())
    programs = Programs()
    assert programs.run_ns(1) == 111
    texts["8"] = "pos:\t0\n"
    with pytest.raises(OSError):
        programs.run_ns(1)
    assert programs.run_ns(1) == 100


def program(number: int, run_ns: int) -> str:
    return f"pos:\t0\nprog_type:\t26\nprog_id:\t{number}\nrun_time_ns:\t{run_ns}\nrun_cnt:\t5\n"
