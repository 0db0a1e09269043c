# SPDX-License-Identifier: Apache-2.0
"""Budgets of threads: their time adds up, and agrees with perf, the kernel and the program."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from kernel.napping import MS, Napper
from kernel.recorder import budget_of, hanging, recorder, report, run
from workload.measured import Thread, parse

from perf_offcpu.decode.load import load_recording
from perf_offcpu.model.recording import Budget, Recording, SampleFlag

STOLEN = 5 * MS  # time, besides 5 %, that a busy host may take: to the kernel it is neither running nor waiting

_BLOCKED = ("interruptible_ns", "uninterruptible_ns", "idle_ns", "stopped_ns", "other_ns")


def row_of(recording: Recording, tid: int) -> Budget:
    found = budget_of(recording, tid)
    assert len(found) == 1
    return found


def known(budget: Budget) -> int:
    columns = ("running_ns", "runnable_ns", "preempted_ns", *_BLOCKED)
    return sum(int(getattr(budget, name).sum()) for name in columns)


def wall(budget: Budget) -> int:
    return int((budget.end_ns - budget.begin_ns).sum())


def blocked(budget: Budget) -> int:
    return sum(int(getattr(budget, name).sum()) for name in _BLOCKED)


class Beside:
    """Waiting time and delay of each thread by perf's sched tracepoints, recorded at the same time.

    perf misses switches at times on idle CPUs, and its `sched timehist` then shows waits that are too short.
    So only threads of which it has every switch are compared: as many waits as budgets have switches but the
    last, which is death, and no less time on the CPU than the thread itself counted. Before the exec of the
    command, where its budget begins, it had waited for its start.
    """

    def __init__(self, path: Path, budget: Budget, threads: dict[str, Thread]) -> None:
        cpu_ns = {thread.tid: thread.cpu_ns for thread in threads.values()}
        recording = load_recording(path)
        samples = recording.samples.take(recording.samples.has(SampleFlag.OFFCPU))
        self.waiting: dict[int, int] = {}
        self.delay: dict[int, int] = {}
        columns = (budget.tid, budget.switches, budget.begin_ns, budget.end_ns)
        for tid, switches, begin, end in zip(*(column.tolist() for column in columns), strict=True):
            of_thread = samples.take((samples.tid == tid) & (samples.time_ns > begin))
            waiting = int(of_thread.period.sum())
            ran = end - begin - waiting
            if int(of_thread.count.sum()) == switches - 1 and ran > 0.95 * cpu_ns.get(tid, 0) - STOLEN:
                self.waiting[tid] = waiting
                self.delay[tid] = int(of_thread.runq_ns[of_thread.runq_ns >= 0].sum())


def record_beside_perf(waiter: Path, folder: Path) -> tuple[Recording, dict[str, Thread], Beside]:
    events = "sched:sched_switch,sched:sched_waking,sched:sched_wakeup_new,sched:sched_process_fork"
    command = [*"perf record -q -a -m 8M -o".split(), str(folder / "sched.data"), "-e", events, "--"]
    command += [str(Path(sys.executable).with_name("perf-offcpu")), "record", "-e", "none", "--", str(waiter)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=90, check=True)
    recording = load_recording(folder / "perf.data")
    recording.check()
    threads = parse(done.stdout)
    return recording, threads, Beside(folder / "sched.data", recording.budget, threads)


@pytest.fixture(scope="module")
def both(waiter: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Recording, dict[str, Thread], Beside]:
    """One run of the workload under perf-offcpu and, beside it, under perf record -e sched:*."""
    for _ in range(10):
        found = record_beside_perf(waiter, tmp_path_factory.mktemp("budget"))
        if len(found[2].waiting) >= 3:
            break
    return found


def test_every_thread_has_a_budget_that_adds_up(both: tuple[Recording, dict[str, Thread], Beside]) -> None:
    recording, threads, _ = both
    for thread in threads.values():
        budget = row_of(recording, thread.tid)
        assert int(budget.pid[0]) == thread.pid
        assert 0.95 * wall(budget) - STOLEN <= known(budget) <= wall(budget), thread.comm
        assert budget.begin_ns[0] <= thread.begin_ns and budget.end_ns[0] >= thread.end_ns


def test_running_time_is_cpu_time(both: tuple[Recording, dict[str, Thread], Beside]) -> None:
    recording, threads, _ = both
    for thread in threads.values():
        running = int(row_of(recording, thread.tid).running_ns[0])
        assert 0.97 * thread.cpu_ns - MS <= running <= 1.05 * thread.cpu_ns + 10 * MS, thread.comm


@pytest.mark.beside
def test_threads_without_any_sample_are_in_the_report(tmp_path: Path) -> None:
    script = "for i in $(seq 60); do awk 'BEGIN { for (i = 0; i < 20000; i++) x += i }'; done"
    budget = run("-e", "none", "--", "sh", "-c", script, cwd=tmp_path).recording.budget
    assert len(budget) >= 61
    for by in ("thread", "comm"):
        table = report("--limit", "5", "--budget-by", by, cwd=tmp_path)["budget"]
        rows, total = [*table["threads"], *table["rest"]], table["total"]
        assert sum(row["threads"] for row in rows) == total["threads"] == len(budget)
        assert sum(row["running"] for row in rows) == total["running"] == int(budget.running_ns.sum())
        assert sum(row["threads"] for row in rows if row["comm"] == "awk") >= 55


def test_it_agrees_with_the_switches_that_perf_records(both: tuple[Recording, dict[str, Thread], Beside]) -> None:
    """Off-CPU time of each thread within 1 %, or 10 us a switch; from its first switch-out on. How long a new thread
    waited for its first CPU only we know; it is no longer than the thread says it took to begin its work."""
    recording, threads, beside = both
    assert len(beside.waiting) >= 3
    births = int(row_of(recording, threads["waiter"].tid).preempted_ns[0])
    first = {thread.tid: thread.begin_ns for thread in threads.values()}
    for tid, waiting in beside.waiting.items():
        budget = row_of(recording, tid)
        began = int(budget.begin_ns[0])
        slack = 10_000 * int(budget.switches[0]) + births + first.get(tid, began) - began
        ours = blocked(budget) + int((budget.runnable_ns + budget.preempted_ns)[0])
        assert abs(ours - waiting) <= 0.05 * waiting + slack + STOLEN
        running = wall(budget) - waiting
        unknown = wall(budget) - known(budget)  # of the CPU that the host took
        assert abs(int(budget.running_ns[0]) + unknown - running) <= 0.05 * running + slack + STOLEN


def test_hogs_wait_for_a_cpu_and_are_not_blocked(napper: Path, tmp_path: Path) -> None:
    """napper's two spinning threads share a CPU for 100 ms."""
    one = Napper(napper, rounds=5)
    with recorder("-q", "-e", "none", "-p", str(one.pid), cwd=tmp_path) as process:
        tallies = one.go()
        one.end()
        process.wait(timeout=20)
    recording = load_recording(tmp_path / "perf.data")
    spinners = [t for t in tallies if t.kind == "spin"]
    assert len(spinners) == 2
    for spinner in spinners:
        budget = row_of(recording, spinner.tid)
        assert int(budget.preempted_ns[0]) > 25 * MS
        assert blocked(budget) < 0.02 * wall(budget) + 5 * MS
        assert known(budget) > 0.95 * wall(budget) - STOLEN


@pytest.mark.beside
def test_threads_that_do_nothing_have_budgets_too(tmp_path: Path) -> None:
    """From the begin of the recording to its end, blocked all the time; births and deaths in between."""
    with hanging("sleep", "10000") as pid:
        recording = run("-a", "-e", "none", "--", "sh", "-c", "sleep 0.2; sleep 0.1", cwd=tmp_path).recording
    budget, mine = recording.budget, row_of(recording, pid)
    assert int(mine.begin_ns[0]) >= recording.meta.begin_ns - MS
    assert int(mine.interruptible_ns[0]) == wall(mine) > 300 * MS
    assert int(mine.switches[0]) == 0
    assert (budget.begin_ns >= recording.meta.begin_ns - MS).all()
    assert (budget.end_ns <= recording.meta.end_ns + MS).all()
    short = budget.take(budget.begin_ns > recording.meta.begin_ns + MS)
    assert len(short) >= 2  # the two sleeps
    total = budget.running_ns + budget.runnable_ns + budget.preempted_ns
    total = total + sum(getattr(budget, name) for name in _BLOCKED)
    assert np.all(total <= budget.end_ns - budget.begin_ns)
