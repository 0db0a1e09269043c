# SPDX-License-Identifier: Apache-2.0
"""Minutes of an agent beyond its budget: none without a record, and all time that is not recorded has its cause."""

from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from perf_offcpu.agent import keeper
from perf_offcpu.agent.budget import HOUR_S, LEAST_S, MINUTE_S, CpuBudget
from perf_offcpu.agent.config import AgentConfig
from perf_offcpu.agent.keeper import BudgetKeeper
from perf_offcpu.agent.ledger import LOOK_NS, ON, Ledger
from perf_offcpu.agent.metrics import Metrics
from perf_offcpu.agent.recorder import PAUSE, RESUME
from perf_offcpu.agent.spool import Spool

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
    again = Ledger(ledger._spool, "boot")
    assert again.metrics.value("gap_seconds_total") == 0, "nothing was saved"


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
