# SPDX-License-Identifier: Apache-2.0
"""Run time of BPF programs, estimated from windows: on a simulated machine, whose true run time is known."""

import os
import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from perf_offcpu.agent.cost import run_time
from perf_offcpu.agent.cost.run_time import Programs, RunTime

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
