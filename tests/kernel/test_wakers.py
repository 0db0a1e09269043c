# SPDX-License-Identifier: Apache-2.0
"""Wakers: thread, time and stack, for each kind of wait of the workload."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from builders.examples import examples
from builders.profile import functions_of
from builders.program import run as perf_offcpu
from kernel.bpf_output import NO_ID, NOT_KNOWN
from kernel.napping import MS, kernel_name, kernel_symbols, usual, waits_of, watched
from kernel.recorder import run as record
from workload.measured import Thread, parse

from perf_offcpu import losses
from perf_offcpu.model.columns import I64
from perf_offcpu.model.profile import Profile
from perf_offcpu.model.recording import SampleFlag
from perf_offcpu.symbolize.symbolizer import symbolize

UNINTERRUPTIBLE = 2
INTERRUPT = np.uint32(SampleFlag.WAKER_INTERRUPT)


def untold(profile: Profile) -> int:
    """Wake-ups that passed no tracepoint: some kernels have none while certain tasks run."""
    return profile.losses.get(losses.WAKEUPS_MISSED, 0)


class Run:
    """One recording of the workload with `--waker-stacks`."""

    def __init__(self, path: Path, profile: Profile, threads: dict[str, Thread]) -> None:
        self.path, self.profile, self.threads, self.samples = path, profile, threads, profile.samples

    def waits(self, comm: str, function: str) -> I64:
        """Rows of a thread's single waits below a function of the program."""
        rows = np.flatnonzero((self.samples.tid == self.threads[comm].tid) & (self.samples.wakeup_ns >= 0))
        return np.array([row for row in rows.tolist() if function in self.names(self.samples.stack[row])])

    def names(self, stack: int) -> list[str]:
        return functions_of(self.profile, int(stack))

    def wakers(self, rows: I64) -> set[int]:
        return set(self.samples.waker_tid[rows].tolist())


@pytest.fixture(scope="module")
def run(waiter: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("wakers")
    done = record("-e", "none", "--waker-stacks", "--", waiter, cwd=folder)
    profile = symbolize(done.recording)
    profile.check()
    return Run(folder / "perf.data", profile, parse(done.stdout))


def of_pipes(function: str) -> str:
    """The kernel's name for what reads or writes a pipe, which got another name; others as they are."""
    newer = f"anon_{function}"
    return newer if newer in kernel_symbols()[1] else function


@pytest.mark.parametrize(("sleeper", "kernel_function", "waker"), examples("kernel/examples.txt", "wakers"))
def test_a_thread_is_woken_by_the_one_that_lets_it_go(run: Run, sleeper: str, kernel_function: str, waker: str) -> None:
    rows = run.waits(sleeper, of_pipes(kernel_function))
    inside = rows[run.samples.switch_out_ns[rows] > run.threads[sleeper].begin_ns + 25 * MS]
    # On a slow machine the wait for the start, which the main thread ends, may be among them.
    inside = inside[int(run.samples.waker_tid[inside[0]] == run.threads["waiter"].tid) :]
    assert len(inside) >= 5
    assert run.wakers(inside) == {run.threads[waker].tid}
    assert set(run.samples.waker_pid[inside].tolist()) == {run.threads[waker].pid}
    assert not (run.samples.flags[inside] & INTERRUPT).any()


@pytest.mark.parametrize("sleeper", ["sleeper", "poller", "deep-sleeper"])
def test_timers_wake_from_interrupts(run: Run, sleeper: str) -> None:
    rows = np.flatnonzero((run.samples.tid == run.threads[sleeper].tid) & (run.samples.period > 4 * MS))
    rows = rows[run.samples.switch_out_ns[rows] > run.threads[sleeper].begin_ns + 25 * MS]
    woken = rows[run.samples.wakeup_ns[rows] >= 0]
    assert len(woken) >= 5 and len(rows) - len(woken) <= untold(run.profile)
    assert ((run.samples.flags[woken] & INTERRUPT) != 0).all()


def test_wakers_stacks_lead_to_the_call_that_woke(run: Run) -> None:
    places = {"locker-a": "lock_worker_b", "pipe-reader": of_pipes("pipe_write"), "cond-waiter": "futex_wake"}
    for sleeper, function in places.items():
        rows = np.flatnonzero((run.samples.tid == run.threads[sleeper].tid) & (run.samples.waker_stack >= 0))
        stacks = [run.names(run.samples.waker_stack[row]) for row in rows.tolist()]
        assert all(stack[-1] == "try_to_wake_up" for stack in stacks)
        assert sum(function in stack for stack in stacks) >= 5, sleeper
    # Interrupts have no user part: what they hit has nothing to do with the wake-up.
    of_interrupts = (run.samples.flags & INTERRUPT != 0) & (run.samples.waker_stack >= 0)
    timers = np.flatnonzero(of_interrupts & (run.samples.tid == run.threads["deep-sleeper"].tid))
    assert len(timers) >= 15
    assert all("hrtimer_wakeup" in run.names(run.samples.waker_stack[row]) for row in timers.tolist())


def test_folded_stacks_lead_from_the_sleeper_to_the_waker(run: Run) -> None:
    done = perf_offcpu("convert", "--folded", "--waker-stack", "-i", run.path, "-o", "-", cwd=run.path.parent)
    lines = [line.rpartition(" ") for line in done.stdout.splitlines()]
    assert sum(int(weight) for _, _, weight in lines) == run.samples.period[run.profile.is_offcpu()].sum()
    found: dict[tuple[str, str], int] = {}
    for path, _, weight in lines:
        sleeper, delimiter, waker = path.partition(";--;")
        if delimiter and "[interrupt]" not in waker:
            names = waker.split(";")
            key = (sleeper.split(";")[0], names[-1])
            if names[0] == "try_to_wake_up_[w]" and "futex_wait" in sleeper:
                found[key] = found.get(key, 0) + int(weight)
            if key == ("pipe-reader", "pipe-writer_[w]"):
                assert f"{of_pipes('pipe_write')}_[w]" in names and of_pipes("pipe_read") in sleeper
    assert found[("locker-a", "locker-b_[w]")] > 100 * MS
    assert found[("cond-waiter", "cond-signaler_[w]")] > 100 * MS
    timers = [path for path, _, _ in lines if path.startswith("deep-sleeper;") and path.endswith(";[interrupt]")]
    # A wait that was short until its thread had to wait for a CPU has no waker's stack.
    timers = [path for path in timers if not path.endswith(";--;[interrupt]")]
    assert timers and all("hrtimer_wakeup_[w]" in path for path in timers)


def test_blocked_and_runnable_time_make_up_the_wait(run: Run) -> None:
    samples = run.samples
    rows = np.flatnonzero(samples.wakeup_ns >= 0)
    assert len(rows) > 200
    assert (samples.wakeup_ns[rows] >= samples.switch_out_ns[rows]).all()
    blocked = samples.wakeup_ns[rows] - samples.switch_out_ns[rows]
    assert np.array_equal(blocked + samples.runq_ns[rows], samples.period[rows])
    summed = np.flatnonzero(samples.has(SampleFlag.AGGREGATED))
    assert len(summed) and (samples.runq_ns[summed] >= 0).all()
    assert (samples.runq_ns[summed] <= samples.period[summed]).all()


@pytest.fixture
def loop_device(tmp_path: Path) -> Iterator[str]:
    image = tmp_path / "image"
    image.write_bytes(bytes(4 << 20))
    device = subprocess.check_output(["losetup", "-f", "--show", image], text=True).strip()
    yield device
    subprocess.run(["losetup", "-d", device], check=True)


def test_who_waits_for_a_disk_is_woken_by_the_disk(loop_device: str, tmp_path: Path) -> None:
    blocks = 50
    # Real-time: the device's thread, on the reader's CPU, would preempt the reader and have the block ready before the
    # reader sleeps. That is no wait.
    read = ["chrt", "-f", "1", "dd", f"if={loop_device}", "of=/dev/null", "bs=4k", f"count={blocks}", "iflag=direct"]
    options = ["-e", "none", "--waker-stacks", "--off-cpu-thresh", "0", "--call-graph", "fp"]
    profile = symbolize(record(*options, "--", *read, cwd=tmp_path).recording)
    one = Run(tmp_path / "perf.data", profile, {})
    samples = one.samples
    own = (samples.has(SampleFlag.OFFCPU)) & (samples.state == UNINTERRUPTIBLE)
    reads = [row for row in np.flatnonzero(own).tolist() if "vfs_read" in one.names(samples.stack[row])]
    assert len(reads) >= blocks * 0.8  # a block may be there before its reader has gone to sleep
    woken = [row for row in reads if samples.wakeup_ns[row] >= 0]
    assert len(reads) - len(woken) <= untold(profile)
    named = [row for row in woken if one.names(samples.waker_stack[row])]
    assert len(named) >= len(woken) * 0.9  # a stack that is in use beside has no room
    for row in named:
        # From the interrupt or softirq that ends the request, or by the loop device's own kernel thread.
        names = set(one.names(samples.waker_stack[row]))
        assert samples.flags[row] & INTERRUPT or "kthread" in names
        assert {"blk_mq_end_request", "blk_update_request"} & names


PEERS = """
import os, select, socket, time
server = socket.create_server(("127.0.0.1", 0))
child = os.fork()
if child:
    own, _ = server.accept()
else:
    own = socket.create_connection(server.getsockname())
    own.send(b"x")
poll = select.epoll()
poll.register(own, select.EPOLLIN)
for _ in range(30):
    if child:
        poll.poll()  # the peer's message wakes from epoll_wait() here, from recv() in the child
    own.recv(1)
    time.sleep(0.004)  # the peer sleeps by now
    own.send(b"x")
if child:
    own.recv(1)
    print(child, os.getpid())
    os.wait()
"""


@pytest.mark.parametrize("stacks", [True, False], ids=["stacks", "no-stacks"])
def test_who_receives_on_the_loopback_is_woken_by_the_sender(stacks: bool, tmp_path: Path) -> None:
    options = ["-e", "none", *["--waker-stacks"] * stacks, "--off-cpu-thresh", "1"]
    done = record(*options, "--", sys.executable, "-c", PEERS, cwd=tmp_path)
    one = Run(tmp_path / "perf.data", symbolize(done.recording), {})
    samples = one.samples
    tids = [int(word) for word in done.stdout.split()]
    for tid, peer, function in zip(tids, reversed(tids), ("tcp_recvmsg", "epoll_wait"), strict=True):
        woken = samples.has(SampleFlag.OFFCPU) & (samples.tid == tid) & (samples.wakeup_ns >= 0)
        stack_of = {row: one.names(samples.stack[row]) for row in np.flatnonzero(woken).tolist()}
        rows = [row for row, names in stack_of.items() if any(function in name for name in names)]
        own = [row for row in rows if not samples.flags[row] & INTERRUPT]
        assert len(rows) >= 25 and len(own) >= len(rows) - 2  # under load ksoftirqd may serve some
        assert one.wakers(np.array(own)) == {peer}
        naps = [row for row, names in stack_of.items() if any("nanosleep" in name for name in names)]
        assert len(naps) >= 25 and (samples.flags[naps] & INTERRUPT).all()
        senders = [one.names(samples.waker_stack[row]) for row in own if samples.waker_stack[row] >= 0]
        assert all(names.index("tcp_sendmsg") < names.index("process_backlog") for names in senders)
        # With the user part; a short wait that became long on the run queue has no waker's stack.
        called = [names[: names.index("__sys_sendto") - 3] for names in senders]
        assert sum(bool(names) for names in called) >= 20 * stacks, called


@pytest.mark.long
@usual
def test_both_forms_see_the_same_wakers(napper: Path, in_switch: bool) -> None:
    with watched(napper, threshold_ns=MS, in_switch=in_switch, waker_stacks=True) as (one, program, rings):
        tallies = one.go()
        program.disable()
        waits = waits_of(rings)
    leaf = {"nap": {"hrtimer_wakeup"}, "pipe": {"anon_pipe_write", "pipe_write"}, "vfork": {"complete_all"}}
    for tally in tallies:
        own = [w for w in waits if (w.tid, w.syscall) == (tally.tid, tally.syscall)]
        own = [w for w in own if w.wakeup_ns != NOT_KNOWN]
        if tally.kind not in ("nap", "pipe", "vfork"):
            continue
        assert len(own) >= 15
        assert all(w.switch_out_ns <= w.wakeup_ns <= w.switch_out_ns + w.ns for w in own)
        assert all(w.wakeup_ns + w.runq_ns == w.switch_out_ns + w.ns for w in own)
        assert {w.flags for w in own} == ({2} if tally.kind == "nap" else {0})
        if tally.kind == "pipe":
            assert {w.waker[0] for w in own} == {one.pid}
        if tally.kind == "vfork":  # the child, before it exits
            assert all(w.waker[0] not in (0, one.pid) for w in own)
        stacks = [[kernel_name(ip) for ip in w.waker_kernel] for w in own if w.waker_kernel]
        assert len(stacks) >= 15
        assert all(stack[0] == "try_to_wake_up" for stack in stacks)
        assert sum(bool(leaf[tally.kind] & set(stack)) for stack in stacks) >= 15 or tally.kind == "vfork"


@pytest.mark.long
@pytest.mark.beside
def test_wakers_can_be_left_out(napper: Path) -> None:
    with watched(napper, threshold_ns=MS, wakers=False) as (one, program, rings):
        one.go()
        program.disable()
        waits, stats = waits_of(rings), program.run_stats()
    assert "offcpu_waking" not in stats
    told = {(w.wakeup_ns, w.waker, w.runq_ns, w.flags) for w in waits}
    assert told == {(NOT_KNOWN, (NO_ID, NO_ID), NOT_KNOWN, 0)}
