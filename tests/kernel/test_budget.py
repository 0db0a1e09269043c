# SPDX-License-Identifier: Apache-2.0
"""Budgets of threads: their time adds up, and agrees with perf, the kernel's own figures and the program."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from builders.compiled import build
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
    command, where its budget begins, it had waited for its start."""

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


ALL = "--switch 1 --mutex 1 --sem 1 --fork 1 --cpu 1"
PARTS = ("--switch 2", "--mutex 2 --mutex-procs 3", "--sem 2 --sem-procs 3", "--fork 2", "--cpu 3")


class Figures(NamedTuple):
    ran: int
    queued: int


def figures(tid: int) -> Figures | None:
    try:
        ran, queued, _ = Path(f"/proc/{tid}/schedstat").read_text().split()
    except OSError:
        return None
    return Figures(int(ran), int(queued))


def session(leader: int) -> list[tuple[int, int, str]]:
    """Return thread ids, process groups and states of the processes of a session. Some of stress-ng's workers leave its
    process group, and change their names to what is no text."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/task/[0-9]*/stat"):
        try:
            state, _, group, of_session, *_ = stat.read_text(errors="replace").rpartition(")")[2].split()
        except OSError:
            continue
        if int(of_session) == leader:
            found.append((int(stat.parent.name), int(group), state))
    return found


def signal_all(leader: int, number: int) -> None:
    for group in {group for _, group, _ in session(leader)}:
        with suppress(ProcessLookupError):
            os.killpg(group, number)


def stop(leader: int) -> dict[int, Figures]:
    """Stop the processes of a session; return the figures of its threads, which are exact as none runs."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        signal_all(leader, signal.SIGSTOP)
        time.sleep(0.05)
        if all(state in "TZX" for _, _, state in session(leader)):
            break
    return {tid: found for tid, _, _ in session(leader) if (found := figures(tid))}


@pytest.fixture(params=[ALL, *(pytest.param(part, marks=pytest.mark.long) for part in PARTS)])
def mix(request: pytest.FixtureRequest) -> Iterator[int]:
    command = ["stress-ng", "--quiet", "--timeout", "60", *request.param.split()]
    leader = subprocess.Popen(command, start_new_session=True, stdout=subprocess.DEVNULL)
    time.sleep(0.5)
    yield leader.pid
    for number in (signal.SIGCONT, signal.SIGKILL):
        signal_all(leader.pid, number)
    leader.wait()


def agree(budget: Budget, row: int, kernel: Figures) -> list[str]:
    """Return the figures of a budget that are not within 1 % or 1 ms of the kernel's."""
    ours = {"ran": int(budget.running_ns[row]), "queued": int(budget.runnable_ns[row] + budget.preempted_ns[row])}
    return [
        f"{name} {value} ours {ours[name]} of {int(budget.end_ns[row] - budget.begin_ns[row])}, "
        f"{int(budget.switches[row])} switches"
        for name, value in kernel._asdict().items()
        if abs(ours[name] - value) > max(MS, value // 100)
    ]


@pytest.mark.long
def test_budgets_agree_with_schedstat_of_living_threads(mix: int, tmp_path: Path) -> None:
    stop(mix)
    with recorder("-q", "-a", "-e", "none", "-m", "8M", cwd=tmp_path) as recording:
        time.sleep(0.3)
        before = stop(mix)
        signal_all(mix, signal.SIGCONT)
        time.sleep(0.5)
        after = stop(mix)
        recording.terminate()
        assert recording.wait(60) == 128 + signal.SIGTERM
    budget = load_recording(tmp_path / "perf.data").budget
    compared, wrong = 0, []
    for tid, begin in before.items():
        rows = [row for row, known in enumerate(budget.tid.tolist()) if known == tid]
        if tid not in after or len(rows) != 1:
            continue
        kernel = Figures(*(b - a for a, b in zip(begin, after[tid], strict=True)))
        compared += kernel.ran > MS
        wrong += agree(budget, rows[0], kernel)
    assert compared >= 1
    assert wrong == []


def test_budgets_agree_with_schedstat_of_ended_threads(tmp_path: Path) -> None:
    program = build("programs/ending.c", tmp_path / "ending", "-O1")
    done = run("-e", "none", "-m", "8M", "--", program, cwd=tmp_path)
    budget = done.recording.budget
    lines = [[int(number) for number in line.split()] for line in done.stdout.splitlines()]
    assert len(lines) == 5
    rows = {tid: row for row, tid in enumerate(budget.tid.tolist())}
    assert [agree(budget, rows[tid], Figures(*two)) for tid, *two, _ in lines] == [[]] * 5


@pytest.mark.long
def test_a_thread_that_was_woken_before_it_blocked_does_not_wait_for_a_cpu(tmp_path: Path) -> None:
    blocking = build("programs/blocking.c", tmp_path / "blocking", "-O1")
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([blocking], **pipes) as program:  # type: ignore[call-overload]
        try:
            with recorder("-p", str(program.pid), "-e", "none", cwd=tmp_path) as recording:
                program.stdin.write(b"x")
                program.stdin.flush()
                assert program.stdout.readline() == b"blocked\n"
                time.sleep(0.1)
                recording.send_signal(signal.SIGINT)
                assert recording.wait(20) == 128 + signal.SIGINT
            kernel = {int(task.name): figures(int(task.name)) for task in tasks_of(program.pid)}
        finally:
            program.kill()
    budget = load_recording(tmp_path / "perf.data").budget
    rows = {tid: row for row, tid in enumerate(budget.tid.tolist())}
    wrong = [found for tid, one in kernel.items() if one and (found := agree(budget, rows[tid], one))]
    assert kernel
    assert wrong == []


def tasks_of(pid: int) -> list[Path]:
    """Return the directories in /proc of the threads that a process has started."""
    return [task for task in Path(f"/proc/{pid}/task").iterdir() if int(task.name) != pid]


@pytest.mark.long
def test_a_blocked_thread_that_is_moved_does_not_wait_for_a_cpu(tmp_path: Path) -> None:
    """Since Linux 6.12 the kernel counts its sleep as run-queue delay, if it is still in the queue when it is moved."""
    program = build("programs/moved.c", tmp_path / "moved", "-O1")
    for _ in range(3):
        done = run("-e", "none", "--", program, cwd=tmp_path)
        tid, slept_ms, delayed_ns = (int(number) for number in done.stdout.split())
        budget = done.recording.budget
        (row,) = np.flatnonzero(budget.tid == tid)
        assert 0 <= int(budget.interruptible_ns[row]) - slept_ms * MS < 0.2 * slept_ms * MS  # timers may be late
        if delayed_ns > 50 * MS:
            break
