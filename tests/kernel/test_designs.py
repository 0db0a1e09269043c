# SPDX-License-Identifier: Apache-2.0
"""Programs whose waits have a known cause (workload/designs.c): path, bottleneck and times are as designed. Parameters
vary by seed; PERF_OFFCPU_TEST_SEEDS=10 tests ten seeds. Figures are held against the programs' own logs, within 2 %:
what a busy machine adds to a run is in both. A CPU that the host takes away is time running to the scheduler's events
and none on the CPU clock of a log: /proc/stat tells how much of that there was."""

import json
import os
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from builders.compiled import build
from builders.program import run as perf_offcpu

from perf_offcpu.analysis.classes.wait_classes import WaitClass
from perf_offcpu.analysis.selection.select import Selection, selected_rows
from perf_offcpu.analysis.times.timeline import Timeline, timeline_of
from perf_offcpu.causality.cascade import Held, cascade_of
from perf_offcpu.causality.critical_path import CriticalPath, Doing, choose_thread, critical_path
from perf_offcpu.causality.path_rows import rivals
from perf_offcpu.model.profile import Profile
from perf_offcpu.report.bottlenecks import Bottlenecks, bottlenecks_of
from perf_offcpu.symbolize.load import load_profile
from perf_offcpu.symbolize.options import SymbolizeOptions

PER_CALL_NS = 250_000  # time of system calls, clock reads and first steps after a wake-up, for each round


@dataclass
class Log:
    """What a thread measured of itself, ns."""

    comm: str
    tid: int
    begin: int
    end: int
    cpu: int
    waited: int
    slept: int


@dataclass
class Run:
    """A recording of a design, with the logs of its threads."""

    logs: list[Log]
    profile: Profile
    timeline: Timeline
    stolen_ns: int  # of all CPUs, by the host

    def log(self, comm: str) -> Log:
        return next(log for log in self.logs if log.comm == comm)

    def path(self, comm: str) -> CriticalPath:
        log = self.log(comm)
        thread = choose_thread(self.timeline, Selection(tids=(log.tid,)))
        found = critical_path(self.profile, self.timeline, thread, log.begin, log.end)
        assert int(found.length_ns.sum()) == log.end - log.begin
        return found

    def bottlenecks(self, selection: Selection) -> Bottlenecks:
        found = cascade_of(self.profile, self.timeline, selected_rows(self.profile, selection))
        found.check()
        return bottlenecks_of(self.profile, self.timeline, found)

    def off_cpu_ns(self, selection: Selection) -> int:
        return int(self.profile.samples.period[self._waits(selection)].sum())

    def queued_ns(self, selection: Selection) -> int:
        return int(np.maximum(self.profile.samples.runq_ns[self._waits(selection)], 0).sum())

    def _waits(self, selection: Selection) -> np.ndarray:
        return selected_rows(self.profile, selection) & self.profile.is_offcpu()


Record = Callable[..., Run]


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    flags = "-O2 -g -fno-omit-frame-pointer -fno-optimize-sibling-calls -Wl,-z,now".split()
    return build("designs.c", tmp_path_factory.mktemp("designs") / "designs", *flags)


@pytest.fixture(params=range(1, 1 + int(os.environ.get("PERF_OFFCPU_TEST_SEEDS", "1"))))
def chance(request: pytest.FixtureRequest) -> random.Random:
    return random.Random(request.param)


@pytest.fixture
def record(program: Path, tmp_path: Path) -> Record:
    def recorded(*parameters: str | int) -> Run:
        options = ["-q", "--off-cpu-thresh", "0", "--switch-states", "S,D,I,Q,R", "-F", "199"]
        stolen = stolen_ns()
        done = perf_offcpu("record", *options, "--", program, *map(str, parameters), cwd=tmp_path)
        logs = [Log(**json.loads(line)) for line in done.stdout.splitlines() if line.startswith("{")]
        profile = load_profile([str(tmp_path / "perf.data")], SymbolizeOptions())
        return Run(logs, profile, timeline_of(profile), stolen_ns() - stolen)

    return recorded


def stolen_ns() -> int:
    return int(Path("/proc/stat").read_text().split()[8]) * 10**9 // os.sysconf("SC_CLK_TCK")


def spent(path: CriticalPath) -> Counter[tuple[str, str]]:
    """(comm, doing) → ns."""
    found: Counter[tuple[str, str]] = Counter()
    for track, doing, ns in zip(path.track.tolist(), path.doing.tolist(), path.length_ns.tolist(), strict=True):
        found[path.tracks[track].comm, Doing(doing).name] += ns
    return found


def assert_near(found: int, logged: int, calls: int, more: int = 0, less: int = 0) -> None:
    """Assert that a figure is that of a log: 2 %, the time of calls, and `more` above it or `less` below."""
    slack = 0.02 * logged + calls * PER_CALL_NS
    assert logged - slack - less <= found <= logged + slack + more, (found, logged, calls, more, less)


def test_a_request_through_four_processes(record: Record, chance: random.Random) -> None:
    rounds, sleep = chance.randint(20, 30), chance.randint(1_000, 3_000)
    work = [chance.randint(500, 1_500), *(chance.randint(1_000, 3_000) for _ in range(4))]
    slow = chance.choice(["[timer]", "server-a", "server-b", "server-c", "server-d"])
    if slow == "[timer]":
        sleep += 15_000
    else:
        work[ord(slow[-1]) - ord("a") + 1] += 15_000
    run = record("request", rounds, sleep, *work)
    path = run.path("client")
    spent_ns = spent(path)
    # A server works out of sight as long as the one that asked it is preempted and does not wait yet.
    hidden = sum(ns for (_, doing), ns in spent_ns.items() if doing == "RUNNABLE")
    for comm in ("client", "server-a", "server-b", "server-c", "server-d"):
        assert_near(spent_ns[comm, "RUNNING"], run.log(comm).cpu, rounds, run.stolen_ns, hidden)
    asleep = spent_ns["server-d", "WAITING"]
    assert 0.98 * rounds * sleep * 1000 - rounds * PER_CALL_NS - hidden <= asleep
    assert asleep <= run.log("server-d").slept
    explained = sum(ns for (_, doing), ns in spent_ns.items() if doing in {"RUNNING", "RUNNABLE"})
    assert explained + spent_ns["server-d", "WAITING"] >= 0.98 * path.length_ns.sum()
    # Each request passes through all four.
    deep = Counter[int]()
    depth = [0] * len(path.hops.parent)
    for hop, above in enumerate(path.hops.parent.tolist()):
        depth[hop] = depth[above] + 1 if above >= 0 else 1
        deep[depth[hop]] += 1
    assert deep[4] >= 0.9 * rounds
    shown = run.bottlenecks(Selection(comms=("client",))).shown  # waiting for a CPU is this machine's load
    assert slow in max(shown, key=lambda bottleneck: bottleneck.held_ns - bottleneck.held[Held.RUNNABLE]).members


def test_a_pipeline_is_as_fast_as_its_third_stage(record: Record, chance: random.Random) -> None:
    items, third = chance.randint(60, 90), chance.randint(6_000, 9_000)
    naps = [chance.randint(500, 1_500) for _ in range(3)]
    run = record("pipeline", items, naps[0], naps[1], third, naps[2])
    others = Selection(comms=("stage-1", "stage-2", "stage-4"), classes=(WaitClass.PIPE,))
    logged = sum(log.waited for log in run.logs if log.comm in others.comms)
    assert_near(run.off_cpu_ns(others), logged, 3 * items)
    found = run.bottlenecks(others)
    first = found.shown[0]
    assert first.members == ("stage-3",)
    assert "third_stage" in {name.label for name in first.stacks[0].frames}
    # While the second stage sleeps, the first one waits for a timer and not for the third stage; and where a
    # stage was woken and had no CPU, the wait ends there.
    elsewhere = sum(one.held_ns for one in found.shown[1:])
    others_runnable = sum(one.held[Held.RUNNABLE] for one in found.shown[1:])
    assert elsewhere - others_runnable <= 1.02 * items * naps[1] * 1000 + 3 * items * PER_CALL_NS
    assert first.held[Held.RUNNING] + first.held[Held.RUNNABLE] >= 0.98 * first.held_ns
    path = spent(run.path("stage-4"))
    at_third = path["stage-3", "RUNNING"] + path["stage-3", "RUNNABLE"]
    blocked = run.log("stage-4").waited - run.queued_ns(Selection(comms=("stage-4",), classes=(WaitClass.PIPE,)))
    # On a busy machine the third stage has to wait for the others now and then.
    elsewhere = sum(ns for (comm, _), ns in path.items() if comm in {"stage-1", "stage-2"})
    elsewhere += path["stage-3", "WAITING"]
    assert_near(at_third, blocked, items, less=elsewhere)
    assert elsewhere <= 0.2 * blocked


def test_a_lock_convoy(record: Record, chance: random.Random) -> None:
    rounds, threads, hold = chance.randint(20, 30), chance.randint(3, 6), chance.randint(3_000, 6_000)
    run = record("convoy", rounds, threads, hold)
    locks = Selection(comms=("worker",), classes=(WaitClass.LOCK,))
    preempted = run.off_cpu_ns(Selection(comms=("worker",), classes=(WaitClass.RUNQUEUE,)))  # perhaps in the call
    assert_near(run.off_cpu_ns(locks), sum(log.waited for log in run.logs), rounds * threads, less=preempted)
    found = run.bottlenecks(locks)
    first = found.shown[0]
    assert first.members == ("worker",) and first.is_knot
    assert "critical_section" in {name.label for name in first.stacks[0].frames}
    assert first.held[Held.RUNNING] + first.held[Held.RUNNABLE] >= 0.98 * found.total_ns
    # One of them holds the lock at any time, and the path of each is always at the holder.
    path = run.path("worker")
    at_holder, woken = (spent(path)["worker", doing] for doing in ("RUNNING", "RUNNABLE"))
    inside = [log for log in run.logs if log.tid != run.log("worker").tid]
    assert at_holder <= sum(log.cpu for log in run.logs) * 1.02 + run.stolen_ns + rounds * threads * PER_CALL_NS
    # A thread that was woken is on the path until it has a CPU, also if another one has taken the lock meanwhile.
    assert at_holder + woken >= 0.96 * sum(log.cpu for log in inside)
    assert len({path.tracks[track].tid for track in path.track.tolist()} & {log.tid for log in run.logs}) == threads


def test_a_thread_that_hogs_starve(record: Record, chance: random.Random) -> None:
    rounds, sleep, work = chance.randint(30, 40), chance.randint(4_000, 8_000), chance.randint(2_000, 4_000)
    run = record("hog", rounds, sleep, work, chance.randint(1, 3))
    path = run.path("victim")
    found, log = spent(path), run.log("victim")
    assert_near(found["victim", "RUNNING"], log.cpu, rounds, run.stolen_ns)
    assert rounds * sleep * 1000 <= found["victim", "WAITING"] <= log.slept + rounds * PER_CALL_NS
    runnable = log.end - log.begin - log.cpu - found["victim", "WAITING"]
    assert_near(found["victim", "RUNNABLE"], runnable, rounds, 0)
    assert max(rivals(run.profile, run.timeline, path).items(), key=lambda one: one[1])[0] == "hog"


def test_a_barrier_with_one_late_worker(record: Record, chance: random.Random) -> None:
    rounds, threads = chance.randint(25, 40), chance.randint(3, 6)
    punctual, late = chance.randint(500, 1_500), chance.randint(6_000, 10_000)
    run = record("barrier", rounds, threads, punctual, late)
    waits = Selection(comms=("punctual",), classes=(WaitClass.LOCK,))
    logged = sum(log.waited for log in run.logs if log.comm == "punctual")
    assert_near(run.off_cpu_ns(waits), logged, rounds * (threads - 1))
    bottlenecks = run.bottlenecks(waits)
    first = bottlenecks.shown[0]
    runnable = sum(one.held[Held.RUNNABLE] for one in bottlenecks.shown[1:])
    assert first.members == ("late",) and first.held_ns + runnable >= 0.95 * bottlenecks.total_ns
    assert "late_work" in {name.label for name in first.stacks[0].frames}
    log = run.log("punctual")
    path = run.path("punctual")
    found = spent(path)
    # On a busy machine another one may come last: then the path leads there.
    others = [row for row, track in enumerate(path.tracks) if track.comm == "punctual" and row != path.root]
    elsewhere = int(path.length_ns[np.isin(path.track, others)].sum())
    blocked = log.waited - run.queued_ns(Selection(tids=(log.tid,), classes=(WaitClass.LOCK,)))
    assert_near(found["late", "RUNNING"] + found["late", "RUNNABLE"], blocked, rounds, less=elsewhere)
    assert elsewhere <= 0.2 * blocked
