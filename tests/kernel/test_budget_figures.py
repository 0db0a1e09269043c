# SPDX-License-Identifier: Apache-2.0
"""Budgets of threads agree with the kernel's own figures: time on CPUs and run-queue delay of schedstat."""

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import pytest
from builders.compiled import build
from kernel.napping import MS
from kernel.recorder import recorder, run

from perf_offcpu.decode.load import load_recording
from perf_offcpu.model.recording import Budget

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
    assert len(kernel) > 2
    assert wrong == []


def tasks_of(pid: int) -> list[Path]:
    """Return the directories in /proc of the threads that a process has started."""
    return [task for task in Path(f"/proc/{pid}/task").iterdir() if int(task.name) != pid]
