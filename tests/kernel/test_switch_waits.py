# SPDX-License-Identifier: Apache-2.0
"""Waits from context switches that stock perf recorded, compared with what the program measured. `nvcsw` and `nivcsw`
are the kernel's own counts of a thread's switches, while it could not and while it could have gone on. (Not every
kernel of a cloud lets tracepoints see the idle thread, so where counts must be exact the recordings hold SWITCH
records, too.)"""

import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from builders.profile import functions_of
from builders.program import run as perf_offcpu
from builders.stock_perf import perf, version
from workload.measured import Thread, parse

from perf_offcpu import losses
from perf_offcpu.decode.load import load_recording
from perf_offcpu.model.profile import Profile
from perf_offcpu.model.recording import Recording, SampleFlag, Samples
from perf_offcpu.symbolize.symbolizer import symbolize

RECORDS = ("--switch-events", "-e", "context-switches", "-c", "1", "-g")
TRACEPOINTS = ("-e", "sched:sched_switch", "-e", "sched:sched_waking", "-g")
ROUNDS = ("--rounds", "10")
LONG = pytest.mark.long

PREEMPTED, LASTS = np.uint32(SampleFlag.PREEMPTED), np.uint32(SampleFlag.STILL_BLOCKED)


@dataclass
class Run:
    recording: Recording
    profile: Profile
    threads: dict[str, Thread]

    @property
    def finished(self) -> list[Thread]:
        return [thread for thread in self.threads.values() if not thread.blocked_since_ns]

    def samples(self, thread: Thread) -> Samples:
        samples = self.recording.samples
        mine = (samples.flags & np.uint32(SampleFlag.OFFCPU) != 0) & (samples.tid == thread.tid)
        within = (thread.begin_ns <= samples.switch_out_ns) & (samples.switch_out_ns < thread.end_ns)
        return samples.take(mine & within)

    def switches_of(self, thread: Thread) -> np.ndarray:
        """Return the times at which the thread was switched out, by the samples of sched_switch."""
        names = [evsel.name for evsel in self.recording.evsels]
        samples = self.recording.samples
        mine = (samples.evsel == names.index("sched:sched_switch")) & (samples.tid == thread.tid)
        return samples.time_ns[mine]

    def stacks(self, thread: Thread) -> list[list[str]]:
        """Function names, root first, of the thread's voluntary waits."""
        profile, samples = self.profile, self.profile.samples
        rows = profile.is_offcpu() & (samples.tid == thread.tid) & (samples.flags & PREEMPTED == 0)
        return [names for stack in samples.stack[rows].tolist() if (names := functions_of(profile, stack))]


def record(path: Path, waiter: Path, *options: str) -> dict[str, Thread]:
    # Large rings: the last records that a CPU loses are in no record of perf 6.1.
    command = ["perf", "record", "-q", "-B", "-m", "16M", "-k", "CLOCK_MONOTONIC", *options]
    if "-" in options:
        with path.open("wb") as out:
            output = path.with_suffix(".json")
            inner = f"exec '{waiter}' {' '.join(ROUNDS)} > '{output}'"
            subprocess.run([*command, "sh", "-c", inner], stdout=out, cwd=path.parent, check=True, timeout=60)
        return parse(output.read_text())
    command += ["-o", str(path), "--", str(waiter), *ROUNDS]
    done = subprocess.run(command, cwd=path.parent, check=True, timeout=60, capture_output=True, text=True)
    return parse(done.stdout)


@pytest.fixture(scope="module", params=[
    pytest.param(RECORDS, id="records"),
    pytest.param((*RECORDS, "-a"), id="records of all CPUs", marks=LONG),
    pytest.param((*RECORDS, "-a", "-z"), id="compressed", marks=LONG),
    pytest.param(("--switch-events", *TRACEPOINTS, "-a"), id="tracepoints of all CPUs", marks=LONG),
    pytest.param(("--switch-events", *TRACEPOINTS), id="tracepoints of the command"),
    pytest.param(("--switch-events", *TRACEPOINTS, "-a", "-o", "-"), id="pipe"),
])  # fmt: skip
def run(request: pytest.FixtureRequest, waiter: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    path = tmp_path_factory.mktemp("switches") / "perf.data"
    threads = record(path, waiter, *request.param)
    recording = load_recording(path)
    recording.check()
    assert losses.IN_GAP not in recording.losses, "the machine is too busy: records were lost"
    return Run(recording, symbolize(recording), threads)


def test_every_voluntary_switch_is_a_wait(run: Run) -> None:
    assert len(run.finished) >= 12
    found = {thread.comm: int((run.samples(thread).flags & PREEMPTED == 0).sum()) for thread in run.finished}
    assert found == {thread.comm: thread.nvcsw for thread in run.finished}


def test_every_other_switch_is_flagged(run: Run) -> None:
    """One more may fall between the last look at the clock and that at the counters, or the other way."""
    for thread in run.finished:
        preempted = int((run.samples(thread).flags & PREEMPTED != 0).sum())
        assert abs(preempted - thread.nivcsw) <= 1, thread.comm


def test_times_agree_with_the_clock_around_each_wait(run: Run) -> None:
    """Within 2 % or 300 us a wait, for perf walks stacks within; being preempted beside a wait is no wait."""
    for thread in run.finished:
        samples = run.samples(thread)
        total = int(samples.period[samples.flags & PREEMPTED == 0].sum())
        preempted = int(samples.period[samples.flags & PREEMPTED != 0].sum())
        allowed = max(thread.total_ns * 2 // 100, 300_000 * thread.nvcsw)
        assert -allowed <= thread.total_ns - total <= allowed + preempted, thread.comm


def test_waits_of_a_thread_do_not_overlap(run: Run) -> None:
    for thread in run.threads.values():
        samples = run.samples(thread)
        assert (samples.time_ns[:-1] <= samples.switch_out_ns[1:]).all()
        assert (samples.period == samples.time_ns - samples.switch_out_ns).all()


def test_ids_and_names(run: Run) -> None:
    strings = run.recording.strings
    for thread in run.threads.values():
        samples = run.samples(thread)
        assert set(samples.pid.tolist()) == {thread.pid}
        assert {strings[row] for row in samples.comm.tolist()} <= {thread.comm, "waiter"}


def test_stacks_are_those_of_the_waits(run: Run) -> None:
    for comm in ("sleeper", "deep-sleeper", "locker-a", "pipe-reader"):
        thread = run.threads[comm]
        found = run.stacks(thread)
        assert len(found) >= thread.nvcsw
        for site in thread.sites:
            # The libc of most distributions is built without frame pointers, and what it calls is lost.
            inner = [frame for frame in site.stack if frame in {"run_worker", "deep_worker", "descend"}]
            assert len([stack for stack in found if _contains(stack, inner)]) >= site.switches, (comm, site.kind)


def _contains(stack: list[str], frames: list[str]) -> bool:
    """Return whether the stack has all these frames in this order."""
    rest = iter(stack)
    return all(frame in rest for frame in frames)


def test_the_stuck_thread_waits_until_it_is_killed(run: Run) -> None:
    stuck = run.threads["stuck-reader"]
    samples = run.recording.samples
    waits = samples.take((samples.tid == stuck.tid) & (samples.switch_out_ns > 0))
    last = waits.take(np.array([int(waits.period.argmax())]))
    assert last.period[0] > 50_000_000
    assert abs(int(last.switch_out_ns[0]) - stuck.blocked_since_ns) < 2_000_000


def test_states_and_wake_ups_come_with_the_tracepoints(run: Run) -> None:
    traced = any(evsel.name == "sched:sched_switch" for evsel in run.recording.evsels)
    sleeper = run.samples(run.threads["sleeper"])
    sleeps = sleeper.take(sleeper.flags & PREEMPTED == 0)
    assert set(sleeps.state.tolist()) == ({1} if traced else {-1})
    assert bool((sleeps.wakeup_ns > 0).any()) == traced
    if traced:
        # A timer ends the naps, whomever it interrupts; the main thread ends the one wait for the start.
        woken = sleeps.take(sleeps.wakeup_ns > 0)
        wakers = set(woken.waker_tid.tolist())
        assert run.threads["waiter"].tid in wakers <= {0, run.threads["waiter"].tid}
        assert (woken.runq_ns == woken.time_ns - woken.wakeup_ns).all()
        assert run.threads["pipe-writer"].tid in set(run.samples(run.threads["pipe-reader"]).waker_tid.tolist())


def test_nothing_of_the_command_is_left_out(run: Run) -> None:
    """A recording of the command alone has it from its beginning, unless perf has lost records."""
    if len(set(run.recording.samples.pid.tolist())) == 1 and losses.LOST_RECORDS not in run.recording.losses:
        unknown = {losses.END_NOT_RECORDED, losses.BEGIN_NOT_RECORDED, losses.BEGIN_UNKNOWN}
        assert not unknown & run.recording.losses.keys()


@pytest.mark.beside
def test_inject_says_where_there_is_no_room(waiter: Path, tmp_path: Path) -> None:
    """One event whose samples carry no id."""
    recorded, out = tmp_path / "perf.data", tmp_path / "out.data"
    record(recorded, waiter, *RECORDS)
    done = perf_offcpu("inject", "-f", "--switches", "-i", recorded, "-o", out)
    assert str(losses.NO_ID_IN_SAMPLES) in done.stderr
    assert len(load_recording(out).samples) == len(load_recording(recorded).samples)


TIMEHIST = re.compile(
    # 7034.919498 [0000]  locker-a[29810/29807]          1.042      0.078      0.682
    r"^ *(?P<time>\d+\.\d{6}) \[\d+\]  .*\[(?P<tid>\d+)(?:/\d+)?\] "
    r"+(?P<wait>\d+\.\d{3}) +(?P<delay>\d+\.\d{3}) "
)


def test_perf_sched_timehist_says_the_same(waiter: Path, tmp_path: Path) -> None:
    """At each switch-out of a thread it prints how long its wait before had lasted, cut to microseconds."""
    path = tmp_path / "perf.data"
    threads = record(path, waiter, *TRACEPOINTS, "-a")
    matches = filter(None, map(TIMEHIST.match, perf("sched", "timehist", "-i", path).splitlines()))
    told = {(int(match["tid"]), match["time"]): (match["wait"], match["delay"]) for match in matches}
    run = Run(load_recording(path), Profile(), threads)
    compared = delays = untold = 0
    for thread in run.finished:
        samples, outs = run.samples(thread), run.switches_of(thread)
        for row, next_out in enumerate(np.searchsorted(outs, samples.time_ns, side="right").tolist()):
            if next_out == len(outs):
                break
            wait, delay = told[thread.tid, _cut(int(outs[next_out]), 10**9, 1000, 6)]
            if wait == "0.000" and version() >= (6, 2):
                untold += 1  # perf 6.12 has no time for the main thread's wait for the others
                continue
            assert wait == _cut(int(samples.period[row]), 10**6, 1000, 3), (thread.comm, row)
            compared += 1
            if samples.wakeup_ns[row] > 0:
                assert delay == _cut(int(samples.runq_ns[row]), 10**6, 1000, 3)
                delays += 1
    assert compared >= 30 and delays >= 20 and untold <= 3


def _cut(ns: int, unit: int, smallest: int, digits: int) -> str:
    """ns as perf prints them, in a unit, without rounding."""
    return f"{ns // unit}.{ns % unit // smallest:0{digits}d}"
