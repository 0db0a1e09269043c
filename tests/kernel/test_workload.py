# SPDX-License-Identifier: Apache-2.0
"""A program that knows its own waits, under the recorder: counts equal, times agree, threads are right."""

import tempfile
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from builders.profile import functions_of
from builders.program import PATIENCE
from builders.program import run as perf_offcpu
from workload.measured import Thread, parse

from perf_offcpu.analysis.classes.classify import classify
from perf_offcpu.analysis.classes.wait_classes import WaitClass
from perf_offcpu.decode.load import load_recording
from perf_offcpu.model.profile import Profile
from perf_offcpu.model.recording import SampleFlag
from perf_offcpu.report.summary import summarize
from perf_offcpu.report.thread_budgets import budget_table
from perf_offcpu.report.verdict.text import lines_of
from perf_offcpu.symbolize.symbolizer import symbolize

ROUNDS = ("--rounds", "12")


class Run:
    """One recording and what the program said of itself."""

    def __init__(self, profile: Profile, threads: dict[str, Thread]) -> None:
        self.profile = profile.select(profile.is_offcpu())
        self.threads = threads
        self._classes = classify(self.profile).wait_class

    def rows(self, thread: Thread) -> np.ndarray:
        return np.flatnonzero(self.profile.samples.tid == thread.tid)

    def waits(self, thread: Thread) -> tuple[int, int]:
        """(number of waits, total ns) of a thread while it measured itself. Before that, the process may wait for pages
        of its program; its last thread also frees what the process held, and may wait for the disk."""
        samples, rows = self.profile.samples, self.rows(thread)
        out_ns = samples.switch_out_ns[rows]
        rows = rows[(out_ns >= thread.begin_ns) & (out_ns < thread.end_ns)]
        return int(samples.count[rows].sum()), int(samples.period[rows].sum())

    def summed(self, thread: Thread) -> int:
        samples, rows = self.profile.samples, self.rows(thread)
        in_sums = (samples.flags[rows] & np.uint32(SampleFlag.AGGREGATED)) != 0
        return int(samples.count[rows[in_sums]].sum())

    def classes(self, thread: Thread) -> Counter[str]:
        """Number of waits by class, while the thread measured itself; waits for a CPU are no waits."""
        samples, rows = self.profile.samples, self.rows(thread)
        found: Counter[str] = Counter()
        for row in rows[samples.switch_out_ns[rows] < thread.end_ns].tolist():
            found[WaitClass(self._classes[row]).label] += int(samples.count[row])
        del found["runqueue"]
        return found

    def stacks(self, thread: Thread) -> list[list[str]]:
        profile = self.profile
        stacks = profile.samples.stack[self.rows(thread)].tolist()
        return [names for stack in stacks if (names := functions_of(profile, stack))]


@pytest.fixture(scope="module", params=["1", "0"], ids=["default threshold", "every wait"])
def run(request: pytest.FixtureRequest, waiter: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    path = tmp_path_factory.mktemp("workload") / "perf.data"
    with tempfile.TemporaryDirectory(dir="/var/tmp", prefix="workload.") as disk:  # /tmp may be memory
        done = perf_offcpu(
            "record", "-o", path, "--off-cpu-thresh", request.param, "--", waiter, *ROUNDS, cwd=Path(disk)
        )
    recording = load_recording(path)
    recording.check()
    profile = symbolize(recording)
    profile.check()
    assert not [cause for cause in recording.losses if "lost" in cause.text or "LOST" in cause.text]
    return Run(profile, parse(done.stdout))


def finished(run: Run) -> list[Thread]:
    return [thread for thread in run.threads.values() if not thread.blocked_since_ns]


def measured(run: Run) -> list[Thread]:
    """Return the threads that finished and waited in their sites only. On a slow machine a thread may find a lock taken
    that it usually finds free."""
    threads = [one for one in finished(run) if one.nvcsw == sum(site.switches for site in one.sites)]
    assert len(threads) >= len(finished(run)) - 2
    return threads


def test_each_thread_has_all_its_waits(run: Run) -> None:
    """`nvcsw` is the kernel's own count of the thread's voluntary switches between begin and end."""
    assert len(finished(run)) >= 12
    found = {thread.comm: run.waits(thread)[0] for thread in finished(run)}
    assert {comm: found[comm] - run.threads[comm].nvcsw for comm in found} == dict.fromkeys(found, 0)


def test_times_agree_with_the_clock_around_each_wait(run: Run) -> None:
    """Within 2 % or 200 us a wait. Being preempted beside a wait is no wait, but the program's clock runs; as
    much longer as the machine is slower."""
    for thread in measured(run):
        _, total = run.waits(thread)
        allowed = max(thread.total_ns * 2 // 100, 200_000 * thread.nvcsw)
        preempted = 10_000_000 * thread.nivcsw
        assert -allowed <= thread.total_ns - total <= (allowed + preempted) * PATIENCE, thread.comm


def test_ids_and_names(run: Run) -> None:
    samples, strings = run.profile.samples, run.profile.strings
    for thread in run.threads.values():
        rows = run.rows(thread)
        assert set(samples.pid[rows].tolist()) == {thread.pid}
        # A thread is named before it is released; its first wait may end under the old name.
        assert {strings[row] for row in samples.comm[rows].tolist()} <= {thread.comm, "waiter"}
        assert strings[int(samples.comm[rows[-1]])] == thread.comm


def test_short_waits_are_sums_or_samples(run: Run) -> None:
    thread = run.threads["short-sleeper"]
    samples, rows = run.profile.samples, run.rows(thread)
    summed = rows[(samples.flags[rows] & np.uint32(SampleFlag.AGGREGATED)) != 0]
    all_summed = samples.flags & np.uint32(SampleFlag.AGGREGATED) != 0
    if threshold_ns := run.profile.meta.threshold_ns:
        # As many as were short by the program's own clock, which runs a little longer than the wait. On a
        # slow machine that may be few of the naps of 0.2 ms.
        certain = sum(site.short_switches for site in thread.sites)
        assert samples.count[summed].sum() >= certain
        assert (samples.period[~all_summed] >= threshold_ns).all()
        assert not all_summed[run.rows(run.threads["sleeper"])].any()
        # A real time: that of the last wait in the sum, within the thread's life.
        assert (samples.time_ns[summed] <= thread.end_ns + 1_000_000).all()
        assert (samples.longest_ns[summed] < threshold_ns).all()
    else:
        assert not all_summed.any()
        assert len(rows) == thread.nvcsw


def test_the_recursion_is_whole(run: Run) -> None:
    thread = run.threads["deep-sleeper"]
    deep = [stack for stack in run.stacks(thread) if stack.count("descend") > 0]
    assert len(deep) >= thread.site("deep").waits > 0
    assert {stack.count("descend") for stack in deep} == {100}


def test_stacks_name_the_place_of_the_wait(run: Run) -> None:
    for thread in finished(run):
        found = run.stacks(thread)
        for site in thread.sites:
            if site.kind in ("start", "condvar"):  # glibc uses the frame pointer for something else there
                continue
            # libc has no frame pointers: its caller is missing from each stack, the rest is there.
            callers = list(site.stack[:-1])
            assert any(_contains(stack, callers) for stack in found), (thread.comm, site.kind, callers)


def _contains(stack: list[str], part: list[str]) -> bool:
    return any(stack[at : at + len(part)] == part for at in range(len(stack) - len(part) + 1))


def test_kernel_frames_say_what_was_waited_for(run: Run) -> None:
    leaves = {
        ("sleeper", "sleep"): {"hrtimer_nanosleep"}, ("poller", "poll"): {"do_sys_poll"},
        ("pipe-reader", "pipe"): {"anon_pipe_read", "pipe_read"},  # the first on newer kernels
    }  # fmt: skip
    for (comm, kind), functions in leaves.items():
        kernel = [stack for stack in run.stacks(run.threads[comm]) if functions & set(stack)]
        site = run.threads[comm].site(kind)
        # Where the program is late, the byte is there before it is asked for, or shortly after: then there is
        # no wait, or a short one, which is in a sum, without the kernel's functions.
        assert len(kernel) + run.summed(run.threads[comm]) >= site.switches, (comm, site)
        assert len(kernel) > 0.5 * site.calls


def test_the_thread_that_never_woke_is_there(run: Run) -> None:
    thread = run.threads["stuck-reader"]
    samples, rows = run.profile.samples, run.rows(thread)
    longest = rows[np.argmax(samples.period[rows])]
    began = int(samples.time_ns[longest] - samples.period[longest])
    assert abs(began - thread.blocked_since_ns) < 5_000_000 * PATIENCE
    assert any("wait_for_answer" in stack for stack in run.stacks(thread))


CLASS_OF_SITE = {
    "start": "lock", "finish": "lock", "lock": "lock", "condvar": "lock", "sleep": "sleep", "short-sleep": "sleep",
    "deep": "sleep", "hold": "sleep", "pipe": "pipe", "poll": "pipe",  # poll() of a single pipe
}  # fmt: skip


def test_waits_are_classed_by_what_they_wait_for(run: Run) -> None:
    """Compare the waits of each class with the switches that the kernel counted in places of that kind. Stacks may lack
    the kernel's functions: short waits are sums. An fsync may wait for several things."""
    for thread in measured(run):
        if thread.comm == "syncer":
            continue
        sites = [(CLASS_OF_SITE[site.kind], site.switches) for site in thread.sites]
        if thread.comm == "waiter":
            sites[0] = ("sleep", sites[0][1])
        expected: Counter[str] = Counter()
        for name, switches in sites:
            expected[name] += switches
        found = run.classes(thread)
        if thread.comm == "waiter":  # also loads the program, and may wait for its pages or its memory's lock
            del found["disk"], found["fault"], found["other"]
        assert found == +expected, thread.comm
    assert run.classes(run.threads["syncer"])["disk"] > 0


def test_the_verdict_names_the_place_of_the_longest_waits(run: Run) -> None:
    table = budget_table(run.profile)
    assert table is not None
    budgets = {row.tid: row for row in table.rows}
    for thread in finished(run):
        budget = budgets[thread.tid]
        if thread.comm in ("syncer", "waiter", "cond-waiter"):
            continue  # the first two wait for the disk, at many places; no frame pointers in the third's libc
        verdict = summarize(run.profile.select(run.rows(thread)), whole_lives=False).verdict
        assert verdict is not None
        times: Counter[str] = Counter()
        for site in thread.sites:
            times[CLASS_OF_SITE[site.kind]] += site.total_ns
        cause = next(cause for cause in verdict.causes if cause.wait_class != "runqueue")
        # Their clock goes on while the thread waits for a CPU, or is slow to read the clock.
        of_cpu = (budget.running or 0) + budget.runnable
        assert times[cause.wait_class] >= max(times.values()) - of_cpu, (thread.comm, cause.wait_class, times, of_cpu)
        of_class = [site for site in thread.sites if CLASS_OF_SITE[site.kind] == cause.wait_class]
        assert cause.places[0].function in {name for site in of_class for name in site.stack}, thread.comm
        assert cause.threads.comms == {thread.comm: 1}


def test_the_verdict_is_about_all_time(run: Run) -> None:
    verdict = summarize(run.profile).verdict
    assert verdict is not None and verdict.runq is not None
    listed, running = sum(cause.weight for cause in verdict.causes), verdict.running or 0
    assert listed + verdict.others + running == verdict.weight
    elsewhere = sum(cause.weight for cause in verdict.elsewhere) + verdict.idle
    wall = int((run.profile.budget.end_ns - run.profile.budget.begin_ns).sum())
    assert abs(verdict.weight + elsewhere - wall) < 0.01 * wall
    assert len(lines_of(verdict, run.profile.meta)) <= 24


def test_the_report_accounts_for_each_threads_life(run: Run) -> None:
    table = budget_table(run.profile)
    assert table is not None and not table.derived and table.more == 0
    rows = {row.tid: row for row in table.rows}
    for thread in finished(run):
        row = rows[thread.tid]
        assert row.running is not None
        assert row.running + row.runnable + sum(row.blocked.values()) + row.unknown == row.wall, row
        # Neither running nor waiting to the kernel: taken by the host, or before the thread was queued first.
        # A host that is busy takes some ms; what is not accounted for at all would be far more.
        assert abs(row.unknown) <= row.wall // 20 + 5_000_000 * min(PATIENCE, 10), row
        # The recorder sees the thread's life from clone to exit, the thread itself a part of it.
        assert row.wall >= thread.end_ns - thread.begin_ns
