# SPDX-License-Identifier: Apache-2.0
"""Budgets of threads agree with the kernel's own figures: time on CPUs and run-queue delay of schedstat."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import pytest
from conftest import Command
from kernel.napping import MS
from kernel.recorder import recorder

from perf_offcpu.decode.load import load_recording
from perf_offcpu.model.recording import Budget

PROGRAM = Path(sys.executable).with_name("perf-offcpu")
ALL = "--switch 1 --mutex 1 --sem 1 --fork 1 --cpu 1"
PARTS = ("--switch 2", "--mutex 2 --mutex-procs 3", "--sem 2 --sem-procs 3", "--fork 2", "--cpu 3")


class Figures(NamedTuple):
    """The kernel's figures of a thread, ns."""

    ran: int
    queued: int


def figures(tid: int) -> Figures | None:
    try:
        ran, queued, _ = Path(f"/proc/{tid}/schedstat").read_text().split()
    except OSError:
        return None
    return Figures(int(ran), int(queued))


def session(leader: int) -> list[tuple[int, int, str]]:
    """Return thread ids, process groups and states of the processes of a session.

    Some of stress-ng's workers leave its process group, and change their names to what is no text.
    """
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
    """A session of stress-ng at work."""
    command = ["stress-ng", "--quiet", "--timeout", "60", *request.param.split()]
    leader = subprocess.Popen(command, start_new_session=True, stdout=subprocess.DEVNULL)
    time.sleep(0.5)
    yield leader.pid
    for number in (signal.SIGCONT, signal.SIGKILL):
        signal_all(leader.pid, number)
    leader.wait()


def agree(budget: Budget, row: int, kernel: Figures) -> list[str]:
    """Return the figures of a budget that are not within 1 % or 1 ms of the kernel's."""
    ours = {
        "ran": int(budget.running_ns[row]),
        "queued": int(budget.runnable_ns[row] + budget.preempted_ns[row]),
    }
    return [
        f"{name} {value} ours {ours[name]} of {int(budget.end_ns[row] - budget.begin_ns[row])}, "
        f"{int(budget.switches[row])} switches"
        for name, value in kernel._asdict().items()
        if abs(ours[name] - value) > max(MS, value // 100)
    ]


def test_budgets_agree_with_schedstat_of_living_threads(mix: int, tmp_path: Path) -> None:
    stop(mix)
    recorder = subprocess.Popen(
        [PROGRAM, "record", "-q", "-a", "-e", "none", "-m", "8M", "--", "cat"],
        cwd=tmp_path,
        stdin=subprocess.PIPE,
    )
    while not (tmp_path / "perf.data").exists():
        assert recorder.poll() is None
    time.sleep(0.3)
    before = stop(mix)
    signal_all(mix, signal.SIGCONT)
    time.sleep(1)
    after = stop(mix)
    recorder.communicate(timeout=60)
    assert recorder.returncode == 0
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


ENDING = """
#include <pthread.h>
#include <stdio.h>
#include <unistd.h>
#include <fcntl.h>
#include <time.h>
#include <sys/syscall.h>

static int pipes[2][2];
static pthread_barrier_t done;
static pthread_mutex_t turn = PTHREAD_MUTEX_INITIALIZER;

/*
 * Switch before reading: the time on the CPU is brought up to date then. Go before all others, so that
 * the thread does not wait for a CPU between this and its end.
 */
static void show(void)
{
	struct sched_param first = {.sched_priority = 1};
	struct timespec nap = {0, 1000};
	char text[100] = "", path[100];
	int fd;

	pthread_mutex_lock(&turn);
	sched_setscheduler(0, SCHED_FIFO, &first);
	nanosleep(&nap, 0);
	fd = open("/proc/thread-self/schedstat", O_RDONLY);
	if (read(fd, text, sizeof(text) - 1) > 0)
		dprintf(1, "%ld %s", syscall(SYS_gettid), text);
	close(fd);
	pthread_mutex_unlock(&turn);
}

static void *play(void *side)
{
	long me = (long)side;
	char ball = 0;

	for (int i = 0; i < 30000; i++) {
		if (me && read(pipes[0][0], &ball, 1) != 1)
			break;
		if (write(pipes[me][1], &ball, 1) != 1)
			break;
		if (!me && read(pipes[1][0], &ball, 1) != 1)
			break;
	}
	pthread_barrier_wait(&done);
	show();
	return 0;
}

static void *burn(void *none)
{
	for (volatile long i = 0; i < 300000000; i++)
		;
	pthread_barrier_wait(&done);
	show();
	return none;
}

int main(void)
{
	pthread_t threads[5];

	pthread_barrier_init(&done, 0, 5);
	if (pipe(pipes[0]) || pipe(pipes[1]))
		return 1;
	for (long i = 0; i < 5; i++)
		pthread_create(&threads[i], 0, i < 2 ? play : burn, (void *)i);
	for (int i = 0; i < 5; i++)
		pthread_join(threads[i], 0);
	return 0;
}
"""
"""Two threads pass a byte to and fro, three others want the CPU; each prints its schedstat as it ends."""


def test_budgets_agree_with_schedstat_of_ended_threads(perf_offcpu: Command, tmp_path: Path) -> None:
    (tmp_path / "ending.c").write_text(ENDING)
    subprocess.run(["gcc", "-O1", "-pthread", "-o", "ending", "ending.c"], cwd=tmp_path, check=True)
    done = perf_offcpu("record", "-e", "none", "-m", "8M", "--", "./ending", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    budget = load_recording(tmp_path / "perf.data").budget
    lines = [[int(number) for number in line.split()] for line in done.stdout.splitlines()]
    assert len(lines) == 5
    rows = {tid: row for row, tid in enumerate(budget.tid.tolist())}
    assert [agree(budget, rows[tid], Figures(*two)) for tid, *two, _ in lines] == [[]] * 5


BLOCKING = """
#define _GNU_SOURCE
#include <linux/futex.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static _Atomic int word, blocked, done;

static void *wake(void *unused)
{
	while (!done)
		syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, 1, 0, 0, 0);
	return unused;
}

static long switches(void)
{
	struct rusage usage;

	getrusage(RUSAGE_THREAD, &usage);
	return usage.ru_nvcsw;
}

/* Wait until woken on the way to sleep, without having slept; then block for good. */
static void *play(void *unused)
{
	long before;

	do {
		before = switches();
	} while (syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, 0, 0, 0, 0) || switches() != before);
	blocked++;
	syscall(SYS_futex, &blocked, FUTEX_WAKE_PRIVATE, 1, 0, 0, 0);
	pause();
	return unused;
}

int main(void)
{
	time_t end;
	pthread_t waker, thread;
	char go;

	if (read(0, &go, 1) != 1)
		return 1;
	end = time(0) + 5;
	pthread_create(&waker, 0, wake, 0);
	for (int i = 0; i < 150 && time(0) < end; i++) {
		pthread_create(&thread, 0, play, 0);
		while (blocked == i)
			syscall(SYS_futex, &blocked, FUTEX_WAIT_PRIVATE, i, 0, 0, 0);
	}
	done = 1;
	puts("blocked");
	fflush(stdout);
	pause();
	return 0;
}
"""
"""Threads that are woken before they leave the CPU, so that they do not sleep, and block at once."""


def test_a_thread_that_was_woken_before_it_blocked_does_not_wait_for_a_cpu(tmp_path: Path) -> None:
    (tmp_path / "blocking.c").write_text(BLOCKING)
    subprocess.run(["gcc", "-O1", "-pthread", "-o", "blocking", "blocking.c"], cwd=tmp_path, check=True)
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([tmp_path / "blocking"], **pipes) as program:  # type: ignore[call-overload]
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
