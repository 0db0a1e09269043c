# SPDX-License-Identifier: Apache-2.0
"""The table on top of the report ranks the causes, and its numbers add up."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders.examples import examples
from builders.profile import Code, ProfileBuilder, kernel

from perf_offcpu import losses
from perf_offcpu.abi.wait_objects import ObjectKind
from perf_offcpu.analysis.classes.wait_classes import WaitClass
from perf_offcpu.analysis.selection.select import Selection, select_samples
from perf_offcpu.model.profile import ObjectFact, Profile
from perf_offcpu.model.recording import Budget, EventLoop, LoopTask, SampleFlag
from perf_offcpu.report.document import document
from perf_offcpu.report.style import Style
from perf_offcpu.report.summary import summarize
from perf_offcpu.report.terminal import first_screen, render
from perf_offcpu.report.verdict.numbers import Verdict
from perf_offcpu.report.verdict.text import lines_of, time_text
from perf_offcpu.symbolize.load import load_profile
from perf_offcpu.symbolize.options import SymbolizeOptions

DATA = Path(__file__).resolve().parents[2] / "data"
DEMO = DATA / "demo.data"
MS = 10**6
EPOLL = [kernel("do_syscall_64"), kernel("ep_poll")]
FUTEX = [kernel("do_syscall_64"), kernel("futex_wait")]
ROW_LOCK = ["PostgresMain", "heap_update", "XactLockTableWait", "LockAcquire", "ProcSleep", "WaitLatch", *EPOLL]
WAL = ["PostgresMain", "XLogFlush", "issue_xlog_fsync", kernel("ext4_sync_file")]
COMMAND = ["PostgresMain", "ReadCommand", "secure_read", *EPOLL]


def verdict_of(profile: Profile | ProfileBuilder, **options: Any) -> Verdict:
    built = profile.build() if isinstance(profile, ProfileBuilder) else profile
    assert (verdict := summarize(built, **options).verdict)
    return verdict


def shown(profile: Profile | ProfileBuilder, **options: Any) -> list[str]:
    built = profile.build() if isinstance(profile, ProfileBuilder) else profile
    return [" ".join(line.split()) for line in lines_of(verdict_of(built, **options), built.meta)[1:]]


def postgres() -> ProfileBuilder:
    builder = ProfileBuilder()
    for tid in range(8):
        builder.sample("postgres", ROW_LOCK, 110 * MS, tid=tid, pid=tid, state=1, runq_ns=27 * MS)
    builder.sample("postgres", WAL, 90 * MS, tid=3, pid=3, state=2, runq_ns=5 * MS)
    builder.sample("walwriter", ["main", "delay", kernel("hrtimer_nanosleep")], 30 * MS, tid=50, pid=50, state=1)
    for tid in range(100, 106):
        builder.sample("postgres", COMMAND, 1000 * MS, tid=tid, pid=tid, state=1)
    return builder


def test_a_row_lock_of_postgres() -> None:
    profile = postgres().build()
    hidden = select_samples(profile, Selection(idle="hide"))
    assert verdict_of(hidden).idle_threads == verdict_of(profile).idle_threads == 6
    assert shown(hidden) == shown(profile)
    assert shown(profile) == [
        "Of 970.000 ms of off-CPU time: 23 % waiting for a CPU · 77 % blocked",
        "Idle besides: 6 threads that only waited for work, 6.000 s",
        "",
        "Share Time Waits for In Threads Because of",
        "68 % 664.000 ms a heavyweight lock XactLockTableWait postgres (8)",
        "23 % 221.000 ms a CPU postgres (8)",
        "9 % 85.000 ms disk issue_xlog_fsync postgres",
        "Not counted: waits for the next piece of work or for recorded threads and processes, and naps",
        "30.000 ms sleep in delay: walwriter",
        *("", "Still blocked at the end: none.", "Lost: nothing."),
        "Next: perf-offcpu report --class lock --comm postgres",
    ]


@pytest.mark.parametrize(("parents", "first"), [
    ((1, -1), "disk"), ((3, 1), "disk"), ((3, -1), "pipe"), ((-1, -1), "pipe"),
])  # fmt: skip
def test_a_pipe_from_a_recorded_child_does_not_count(parents: tuple[int, int], first: str) -> None:
    builder = ProfileBuilder(tasks=[(2, 2, 0, -1, parents[0]), (3, 3, 0, -1, parents[1])])
    builder.sample("sh", ["main", kernel("pipe_read")], 100 * MS, tid=1, pid=1, state=1, waker_tid=2, waker_pid=2)
    builder.sample("tool", ["main", kernel("ext4_sync_file")], 90 * MS, tid=2, pid=2, state=2)
    verdict = verdict_of(builder)
    assert verdict.causes[0].wait_class == first
    assert [cause.wait_class for cause in verdict.elsewhere] == (["pipe"] if first == "disk" else [])


@pytest.mark.parametrize(("worker", "waker", "first"), [
    (90, -1, "disk"), (0, -1, "sleep"), (90, 1, "sleep"), (20, 1, "disk"),
], ids=["while others work", "alone", "awaited", "awaited a little"])  # fmt: skip
def test_naps_do_not_count_while_others_work(worker: int, waker: int, first: str) -> None:
    builder, write = ProfileBuilder(), ["main", kernel("ext4_sync_file")]
    for _ in range(3):
        builder.sample("napper", ["main", kernel("hrtimer_nanosleep")], 100 * MS, tid=1, pid=1, state=1)
    if worker:
        builder.sample("worker", write, worker * MS, tid=2, pid=1, state=2, waker_tid=waker)
    verdict = verdict_of(builder)
    assert verdict.causes[0].wait_class == first
    assert bool(verdict.elsewhere) == (first == "disk")


@pytest.mark.parametrize(("sleeps", "first"), [(3, "sleep"), (9, "disk")], ids=["a producer", "it looks for work"])
def test_a_sleeper_that_brings_work_each_time_does_not_nap(sleeps: int, first: str) -> None:
    builder = ProfileBuilder(meta={"arch": "x86_64"})
    wait, write = ["main", "pthread_cond_wait", *FUTEX], ["main", kernel("ext4_sync_file")]
    queue = builder.thing("q in app", facts=ObjectFact.BY_OTHERS | ObjectFact.SEVERAL)
    for _ in range(sleeps):
        builder.sample("producer", ["main", kernel("hrtimer_nanosleep")], 100 * MS, tid=1, pid=1, state=1)
    for tid in (2, 3):
        builder.sample("fast", wait, 290 * MS, tid=tid, pid=1, state=1, waker_tid=1, waker_pid=1, object=queue)
        builder.sample("fast", write, 30 * MS, tid=tid, pid=1, state=2)
    assert verdict_of(builder).causes[0].wait_class == first


@pytest.mark.parametrize(("gap", "first"), [(0, "worker"), (9, "main")], ids=["it ticks", "it does something"])
def test_a_main_thread_that_only_started_the_program_before_it_sleeps_naps(gap: int, first: str) -> None:
    builder, sleep = ProfileBuilder(), kernel("hrtimer_nanosleep")
    builder.sample("main", ["main", kernel("ext4_file_read")], 4 * MS, tid=1, pid=1, state=2, time_ns=10 * MS)
    for begin in range(20, 220, 20):
        of_main: dict[str, Any] = {"switch_out_ns": begin * MS, "time_ns": (begin + 20 - gap) * MS}
        builder.sample("main", ["main", sleep], (20 - gap) * MS, tid=1, pid=1, state=1, **of_main)
        for tid in (2, 3):
            builder.sample("worker", ["job", sleep], 20 * MS, tid=tid, pid=1, state=1, time_ns=(begin + 20) * MS)
    if gap:
        builder.sample("main", ["main"], 90 * MS, tid=1, pid=1, event="cpu-clock")
    assert next(iter(verdict_of(builder).causes[0].threads.comms)) == first


IDLE = ["main", "VMThread::wait_for_operation", "Monitor::wait", "pthread_cond_wait", *FUTEX]


@pytest.mark.parametrize(("waker", "tid", "ticks", "main", "naps"), [
    (-1, 2, 4, EPOLL, True), (1, 2, 4, EPOLL, False), (-1, 1, 4, EPOLL, False), (-1, 2, 1, EPOLL, False),
    (-1, 2, 4, IDLE, False),
], ids=["timer", "woken by the main thread", "main thread", "hangs", "no server"])  # fmt: skip
def test_a_server_that_has_nothing_to_do_may_have_timers(
    waker: int, tid: int, ticks: int, main: list[str], naps: bool
) -> None:
    builder, sleep = ProfileBuilder(meta={"arch": "x86_64"}), ["tick", kernel("hrtimer_nanosleep")]
    for _ in range(ticks):
        builder.sample("timer", sleep, 900 * MS // ticks, tid=tid, pid=1, state=1, waker_tid=waker)
    builder.sample("server", ["main", *main], 900 * MS, tid=3 - tid, pid=1, state=1)
    assert bool(verdict_of(builder).causes) != naps


@pytest.mark.parametrize(("begin", "end", "first"), [
    (100, 200, "sleep"), (100, 1000, "disk"), (0, 200, "disk"), (100, -1, "disk"),
], ids=["brief", "long", "was there", "stays"])  # fmt: skip
def test_sleeps_of_a_brief_thread_are_no_naps(begin: int, end: int, first: str) -> None:
    builder = ProfileBuilder(tasks=[(2, 1, begin * MS, end * MS if end > 0 else -1)], meta={"last_ns": 1000 * MS})
    builder.meta["first_ns"] = 0
    builder.sample("request", ["serve", kernel("hrtimer_nanosleep")], 99 * MS, tid=2, pid=1, state=1, time_ns=150 * MS)
    builder.sample("worker", ["main", kernel("ext4_sync_file")], 90 * MS, tid=3, pid=1, state=2)
    assert verdict_of(builder).causes[0].wait_class == first


@pytest.mark.parametrize(("waker", "end", "first"), [(1, 210, "network"), (1, 900, "lock"), (9, 210, "lock")])
def test_waits_that_the_exit_of_the_process_broke_off_do_not_count(waker: int, end: int, first: str) -> None:
    builder = ProfileBuilder(tasks=[(1, 1, 0, end * MS), (2, 1, 0, 200 * MS)])
    builder.sample("main", ["main", kernel("tcp_recvmsg")], 90 * MS, tid=1, pid=1, state=1)
    columns: dict[str, Any] = {"time_ns": 199 * MS, "waker_tid": waker, "waker_pid": waker}
    builder.sample("daemon", ["main", "pthread_mutex_lock", *FUTEX], 180 * MS, tid=2, pid=1, state=1, **columns)
    assert verdict_of(builder).causes[0].wait_class == first


@pytest.mark.parametrize(("tid", "works", "awaited", "first"), [
    (1, True, 0, "lock"), (1, False, 0, "disk"), (2, True, 0, "disk"), (2, True, 900, "lock"), (2, True, 600, "disk"),
    (2, False, 900, "disk"),
])  # fmt: skip
def test_a_main_or_awaited_thread_that_waits_for_its_own_event_pauses(
    tid: int, works: bool, awaited: int, first: str
) -> None:
    builder, event = ProfileBuilder(meta={"arch": "x86_64"}), ["Event.wait (threading.py)", "sem_clockwait", *FUTEX]
    own = builder.thing("semaphore")
    for _ in range(3):
        builder.sample("app", event, 500 * MS, tid=tid, pid=1, state=1, object=own)
    builder.sample("app", ["main", kernel("ext4_sync_file")], 40 * MS, tid=tid if works else 3, pid=1, state=2)
    if awaited:
        join = ["Thread.join (threading.py)", "sem_wait", *FUTEX]
        builder.sample("app", join, awaited * MS, tid=1, pid=1, state=1, waker_tid=tid, waker_pid=1)
    assert verdict_of(builder).causes[0].wait_class == first


@pytest.mark.parametrize("function", ["pthread_cond_wait", "pthread_mutex_lock"])
def test_a_thread_that_ends_the_process_was_not_awaited(function: str) -> None:
    builder = ProfileBuilder(tasks=[(tid, 1, 0, 990 * MS) for tid in range(1, 13)], meta={"arch": "x86_64"})
    queue = builder.thing("q in app", facts=ObjectFact.BY_OTHERS | ObjectFact.SEVERAL)
    for _ in range(9):
        builder.sample("main", ["main", kernel("hrtimer_nanosleep")], 100 * MS, tid=1, pid=1, state=1)
    columns: dict[str, Any] = {"time_ns": 989 * MS, "waker_tid": 1, "waker_pid": 1, "object": queue}
    for tid in range(2, 13):
        builder.sample("worker", ["main", function, *FUTEX], 800 * MS, tid=tid, pid=1, state=1, **columns)
        builder.sample("worker", ["main", kernel("ext4_sync_file")], 20 * MS, tid=tid, pid=1, state=2)
    assert [cause.wait_class for cause in verdict_of(builder).causes] == ["disk"]


def test_sleeps_of_a_child_whose_output_is_awaited_are_no_naps() -> None:
    builder = ProfileBuilder(tasks=[(2, 2, 0, -1, 1)])
    pipe = builder.thing("unix socket", ObjectKind.SOCKET, protocol="unix", connected=True, inward=True)
    builder.sample("sleep", ["main", kernel("hrtimer_nanosleep")], 100 * MS, tid=2, pid=2, state=1)
    builder.sample("node", ["loop", *EPOLL], 100 * MS, tid=1, pid=1, state=1, object=pipe, waker_tid=2, waker_pid=2)
    builder.sample("node", ["main", kernel("ext4_sync_file")], 90 * MS, tid=1, pid=1, state=2)
    verdict = verdict_of(builder)
    assert [cause.wait_class for cause in verdict.causes] == ["sleep", "disk"]
    assert [cause.wait_class for cause in verdict.elsewhere] == ["pipe"]


@pytest.mark.parametrize("path", sorted(DATA.rglob("*.data")), ids=lambda path: path.name)
def test_the_numbers_add_up(path: Path) -> None:
    loaded = load_profile([str(path)], SymbolizeOptions())
    for selection in (Selection(), Selection(idle="hide"), Selection(classes=(WaitClass.LOCK,))):
        profile, whole_lives = select_samples(loaded, selection), not selection.classes
        verdict = summarize(profile, whole_lives=whole_lives).verdict
        waits = profile.samples.take(np.flatnonzero(profile.is_offcpu()))
        if verdict is None:
            assert not len(waits)
            continue
        running = verdict.running or 0
        assert verdict.weight == sum(cause.weight for cause in verdict.causes) + verdict.others + running
        assert sorted(verdict.causes, key=lambda cause: -cause.weight) == verdict.causes
        if not (whole_lives and len(profile.budget)):
            hidden = profile.losses.get(losses.IDLE_MS, 0) * MS
            besides = sum(cause.weight for cause in verdict.elsewhere) + verdict.idle - hidden
            assert verdict.weight + besides == int(waits.period.sum())
        lines = lines_of(verdict, profile.meta)
        assert len(lines) <= 24 and max(map(len, lines[:-1])) <= 98
        shares = [int(line.split(" %")[0]) for line in lines if re.match(r" *\d+ % ", line)]
        assert not verdict.weight or abs(100 - sum(shares) - 100 * running / verdict.weight) < 5


def test_only_idle_threads() -> None:
    builder = ProfileBuilder().sample("postgres", COMMAND, 3 * MS, state=1)
    assert shown(builder) == [
        "Idle besides: 1 thread that only waited for work, 3.000 ms",
        *("", "Still blocked at the end: none.", "Lost: nothing."),
        "Next: perf-offcpu report --sort comm,class",
    ]
    selected = "100 % 3.000 ms the next command of a client ReadCommand postgres"
    assert selected in shown(builder, whole_lives=False), "a selection of waits judges no thread idle"


def test_several_functions_of_one_cause() -> None:
    builder, many = ProfileBuilder(), ProfileBuilder()
    for function, weight in (("first", 50), ("second", 30), ("third", 15), ("fourth", 5)):
        builder.sample("abba", ["main", function, *FUTEX], weight * MS, tid=weight, state=1)
    first = ["100 % 100.000 ms lock 4 functions abba (4)", "50.000 ms first abba", "30.000 ms second abba"]
    assert shown(builder)[3:6] == first
    for at in range(10):
        many.sample(f"t{at}", ["main", f"f{at}", *FUTEX], 10 * MS - at, tid=at, state=1)
    assert "100 % 100.000 ms lock 10 functions t0, t1, +8" in shown(many)


def test_functions_of_java_are_shown_without_packages() -> None:
    for name, text in (("com.acme.shop.Till.pay", "Till.pay"), ("main.Serve", "main.Serve"), ("a.b.c", "a.b.c")):
        builder = ProfileBuilder().sample("w", [name, *FUTEX], 50 * MS, state=1)
        assert shown(builder)[3] == f"100 % 50.000 ms lock {text} w"


def test_preempted_threads_wait_for_a_cpu() -> None:
    builder = ProfileBuilder()
    for at, function in enumerate(("f", "g", "h")):
        builder.sample("burner", ["main", function], 10 * MS, tid=at, state=0, flags=SampleFlag.PREEMPTED)
    assert "100 % 30.000 ms a CPU burner (3)" in shown(builder)
    assert shown(builder)[-1] == "Next: perf-offcpu report --class runqueue"


def hogs(builder: ProfileBuilder) -> Profile:
    builder.meta = {"nr_cpus": 2, "begin_ns": 1, "end_ns": 100 * MS + 1}
    builder.comms = [(1, 1, 0, "hog"), (2, 1, 0, "hog"), (3, 1, 0, "other"), (4, 1, 0, "none")]
    profile = builder.sample("hog", ["main"], 5 * MS, event="cpu-clock").build()
    profile.budget = Budget.filled(
        4, tid=[1, 2, 3, 4], pid=[1, 1, 1, 1], begin_ns=[0] * 4, end_ns=[100 * MS] * 4,
        running_ns=[50 * MS, 50 * MS, 40 * MS, 0], preempted_ns=[50 * MS, 50 * MS, 60 * MS, 1],
        interruptible_ns=[0, 0, 0, 100 * MS],
    )  # fmt: skip
    return profile


def test_budgets_know_how_long_threads_ran_and_waited_for_a_cpu() -> None:
    profile = hogs(ProfileBuilder().sample("none", ["main", *FUTEX], 80 * MS, tid=4, pid=1, state=1))
    whole = shown(profile)
    assert whole[:6] == [
        "Of 400.000 ms of threads' time: 35 % running · 40 % waiting for a CPU · 25 % blocked",
        "",
        "Share Time Waits for In Threads Because of",
        "40 % 160.000 ms a CPU hog (2), other got 1.4 of 2, wanted 3.0",
        "20 % 80.000 ms lock main none",
        "5 % 20.000 ms waits not recorded",
    ]
    assert whole[-1] == "Next: perf-offcpu report --budget-by comm"
    budget = profile.budget  # counted once, however many pauses there are
    halves = {name: getattr(budget, name) // 2 for name in ("running_ns", "preempted_ns", "interruptible_ns")}
    rest = {name: getattr(budget, name) - half for name, half in halves.items()}
    late = budget.with_columns(begin_ns=budget.end_ns * 2, end_ns=budget.end_ns * 3, **rest)
    profile.budget = Budget.concat([budget.with_columns(**halves), late])
    assert shown(profile) == whole


@pytest.mark.parametrize(("yields", "others", "row"), [
    (12, 10, "40 % 160.000 ms its turn after sched_yield spin hog (2), other"),
    (12, 20, "40 % 160.000 ms a CPU hog (2), other got 1.4 of 2, wanted 3.0"),
    (5, 0, "40 % 160.000 ms a CPU hog (2), other got 1.4 of 2, wanted 3.0"),
])  # fmt: skip
def test_threads_that_yield_in_a_loop_do_not_need_a_cpu(yields: int, others: int, row: str) -> None:
    builder = ProfileBuilder()
    for path, number in ((["main", "spin", "__sched_yield"], yields), (["main", "count"], others)):
        for _ in range(number):
            builder.sample("hog", path, 5 * MS, tid=2, pid=1, event="cpu-clock")
    assert shown(hogs(builder))[3] == row


def test_many_threads_that_are_preempted_a_little_each() -> None:
    profile = hogs(ProfileBuilder())
    waited = {"preempted_ns": [2 * MS] + [MS] * 199, "running_ns": [MS] * 200, "end_ns": [100 * MS] * 200}
    profile.budget = Budget.filled(200, tid=range(200), pid=[1] * 200, begin_ns=[0] * 200, **waited)
    (cause,) = verdict_of(profile).causes
    assert cause.threads.number == 190, "the threads that have 95 % of this time"


def test_waits_that_end_elsewhere_do_not_count() -> None:
    builder = ProfileBuilder()
    builder.sample("prog", ["runtime.mcall", "runtime.findRunnable", *EPOLL], 60 * MS, tid=1, state=1)
    builder.sample("prog", ["main", "__pthread_clockjoin_ex", *FUTEX], 20 * MS, tid=2, state=1)
    builder.sample("prog", ["main.store", kernel("ext4_sync_file")], 20 * MS, tid=1, state=2)
    assert shown(builder)[2:] == [
        "Share Time Waits for In Threads Because of",
        "100 % 20.000 ms disk main.store prog",
        "Not counted: waits for the next piece of work or for recorded threads and processes, and naps",
        "60.000 ms a goroutine to run in runtime.findRunnable: prog",
        "20.000 ms a thread to end in main: prog",
        *("", "Goroutines that wait are no threads: --by task shows their waits (record --goroutines)."),
        *("Still blocked at the end: none.", "Lost: nothing."),
        "Next: perf-offcpu report --class disk --comm prog",
    ]


def test_what_waits_without_a_thread_is_said_to_be_missing() -> None:
    builder, park = ProfileBuilder(), "void jdk.internal.misc.Unsafe.park(boolean, long)"
    builder.sample("VirtualThread-u", ["Interpreter", park, "Unsafe_Park", *FUTEX], 60 * MS, tid=1, state=1)
    loop = ["run (_run.py)", "EpollIOManager.get_events (_io_epoll.py)", kernel("ep_poll")]
    builder.sample("trio", loop, 60 * MS, tid=3, state=1)
    builder.sample("prog", ["main.store", kernel("ext4_sync_file")], 20 * MS, tid=2, state=2)
    task = LoopTask(1, "Task-1", "", 0, frozenset(), frozenset(), ())
    words = shown(replace(builder.build(), loops=(EventLoop(100, 3, 0, 0, 5, (task,)),)))
    assert "Tasks of asyncio that wait are no threads: --by task shows their waits." in words
    assert "100 % 20.000 ms disk main.store prog" in words and "Idle besides: 2 threads" in words[1]
    assert "Greenlets of gevent and tasks of trio that wait are no threads, and are not read." in words
    assert "Java's virtual threads that wait are no threads: jcmd PID Thread.dump_to_file FILE shows them." in words


def test_a_process_that_is_not_recorded_is_waited_for() -> None:
    builder = ProfileBuilder()
    for tid, waker in ((1, 9), (2, 1)):
        builder.sample("sh", ["main", kernel("do_wait")], 10 * MS * tid, tid=tid, pid=tid, state=1, waker_tid=waker)
    verdict = verdict_of(builder.build())
    assert [cause.weight for cause in (*verdict.causes, *verdict.elsewhere)] == [10 * MS, 20 * MS]


def test_threads_of_a_machine_that_hardly_do_anything() -> None:
    builder = ProfileBuilder(meta={"cmdline": ("perf-offcpu", "record", "-qa", "--", "sleep", "3")})
    builder.sample("sh", ["main", kernel("pipe_read")], 500 * MS, tid=1, state=1)
    still = SampleFlag.STILL_BLOCKED | SampleFlag.BEGAN_BEFORE
    builder.sample("old", ["main", *FUTEX], 500 * MS, tid=2, state=1, flags=still)
    builder.sample("writer", ["main", kernel("ext4_sync_file")], 20 * MS, tid=3, state=2)
    builder.sample("writer", ["main", kernel("pipe_read")], 20 * MS, tid=3, state=1)
    verdict = verdict_of(builder.build())
    assert [cause.wait_class for cause in verdict.causes] == ["disk", "pipe"]
    assert (verdict.weight, verdict.idle_threads, verdict.still_blocked) == (40 * MS, 2, 0)
    builder.meta = {"cmdline": ("perf-offcpu", "record", "--", "sh", "-a")}
    assert verdict_of(builder.build()).weight == 1040 * MS


def test_the_recorded_processes_are_named() -> None:
    texts = {
        ("-p", "7+"): "server 7 and 1 more",
        ("-p", "9"): "child 9 and 2 more",  # nothing of it is selected
        ("-t", "5"): "child 8 and 1 more",
        ("-e", "cpu-clock", "/usr/bin/child", "a b"): "/usr/bin/child 'a b'",
    }
    for words, expected in texts.items():
        builder = ProfileBuilder(meta={"cmdline": ("perf", "record", *words)}, comms=[(9, 9, 0, "child")])
        for comm, pid, tid in (("server", 7, 7), ("child", 8, 8), ("child", 8, 9)):
            builder.sample(comm, ["main", *FUTEX], MS, pid=pid, tid=tid, state=1)
        verdict = verdict_of(builder.build())
        assert verdict.processes == expected
        assert lines_of(verdict, builder.build().meta)[0].startswith(f"{expected} · ")


def test_holders_and_wakers_are_named() -> None:
    builder = ProfileBuilder(meta={"arch": "x86_64"}, comms=[(1, 1, 0, "a"), (2, 1, 0, "b"), (3, 1, 0, "c")])
    lock = builder.thing("m in bank")
    for tid, waker in ((1, 2), (2, 1), (1, 3)):
        builder.sample(
            "bank", ["main", *FUTEX], 10 * MS, pid=1, tid=tid, waker_tid=waker, waker_pid=1, object=lock, state=1
        )
    (cause,) = verdict_of(builder).causes
    assert (cause.peers.role, cause.peers.comms) == ("released by", {"a": 10 * MS, "b": 10 * MS, "c": 10 * MS})
    assert "100 % 30.000 ms lock: m in bank main bank (2) released by a 33 %, b 33 %, +1" in shown(builder)


@pytest.mark.parametrize(("others", "text"), [(0, "ended by b"), (1, "ended by b 50 %"), (30, "")])
def test_waits_that_nobody_is_known_to_have_ended_count_for_nobody(others: int, text: str) -> None:
    builder = ProfileBuilder(meta={"arch": "x86_64"}, comms=[(2, 1, 0, "b")])
    for number in range(others + 1):
        flags = SampleFlag.WAKER_INTERRUPT if number else SampleFlag(0)
        builder.sample("a", ["main", "take", *FUTEX], 10 * MS, pid=1, tid=1, waker_tid=2, waker_pid=1, flags=flags)
    row = shown(builder)[3]
    assert row.partition(" take a")[2].strip() == text, row


@pytest.mark.parametrize(("first", "flags", "sentence"), [
    ("take", SampleFlag.BEGAN_BEFORE, "abba 1 in take (lock) for 8.000 ms or longer, abba 2 in take (lock) for 7.000"),
    # A thread that waits for blocked ones is named after them.
    ("pthread_join", SampleFlag(0), "abba 2 in take (lock) for 7.000 ms, abba 3 in take (lock) for 6.000"),
])  # fmt: skip
def test_still_blocked(first: str, flags: SampleFlag, sentence: str) -> None:
    builder, still = ProfileBuilder(), SampleFlag.STILL_BLOCKED
    for tid, function, more in ((1, first, flags), (2, "take", SampleFlag(0)), (3, "take", SampleFlag(0))):
        builder.sample("abba", ["main", function, *FUTEX], (9 - tid) * MS, tid=tid, state=1, flags=still | more)
    assert " ".join(shown(builder)[-4:-2]) == f"Still blocked at the end: {sentence} ms and 1 more thread."


@pytest.mark.parametrize(("counts", "sentence"), examples("unit/examples.txt", "largest loss"))
def test_the_largest_loss(counts: str, sentence: str) -> None:
    lost = {getattr(losses, name): int(count) for name, count in (word.split("=") for word in counts.split())}
    sentence = sentence.replace("TEXT", str(losses.NO_CFI))
    assert sentence in " ".join(shown(ProfileBuilder(losses=lost).sample("a", ["main", *FUTEX], MS, state=1)))


@pytest.mark.parametrize(("comm", "options", "command"), [
    ("a", [], "report --class lock --comm a"), ("a b", [], "report --class lock"), ("a,b", [], "report --class lock"),
    ("a", [("-i", "my file"), ("--comm", "x"), ("--class", "lock")], "report -i 'my file' --class lock --comm a"),
    ("a b", [("--comm", "a b")], "report --comm 'a b' --class lock"),
])  # fmt: skip
def test_the_command(comm: str, options: list[tuple[str, str]], command: str) -> None:
    builder = ProfileBuilder().sample(comm, ["main", *FUTEX], MS, state=1)
    assert shown(builder, options=options)[-1] == f"Next: perf-offcpu {command}"


def test_weights_near_the_limit() -> None:
    builder = ProfileBuilder().sample("a", ["main", *FUTEX], 2**60, state=1)
    builder.sample("b", ["main", kernel("ext4_sync_file")], 2**60, state=2)
    assert [line[:4] for line in shown(builder)[3:5]] == ["50 %", "50 %"]


def test_no_verdict() -> None:
    builder = ProfileBuilder().sample("a", ["main"], 5, event="cpu-clock")
    assert summarize(builder.build()).verdict is None
    builder.sample("a", ["main"], 5)
    assert summarize(builder.build(), ["cpu-clock"]).verdict is None
    assert summarize(builder.build(), verdict=False).verdict is None


def test_lines_and_document() -> None:
    long = ["main", "f" * 60, *FUTEX]
    builder = ProfileBuilder()
    for at in range(4):
        builder.sample(f"a-rather-long-{at}", [Code("g" * 50), *long][at % 2 :], 5 * MS, tid=at, state=1)
    summary = summarize(builder.build())
    assert summary.verdict
    lines = lines_of(summary.verdict, summary.meta)
    assert max(map(len, lines)) <= 98
    assert list(render(summary, Style()))[: len(lines)] == [f"# {line}".rstrip() for line in lines]
    assert document(summary)["verdict"]["lines"] == lines == list(first_screen(summary))


def test_the_document_of_a_verdict() -> None:
    made = document(summarize(postgres().build()))["verdict"]
    numbers = (made["weight"], made["threads"], made["idle_threads"], made["runq"], made["running"])
    assert numbers == (970 * MS, 9, 6, 221 * MS, None)
    waiting = {"weight": 664 * MS, "threads": 8, "comms": {"postgres": 8}}
    waiting |= {"peers": {"role": "", "comms": {}}, "network": {}}
    place = {"function": "XactLockTableWait", "object": "", "mostly": ""}
    assert made["causes"][0] == waiting | {
        "wait_class": "lock", "program": "postgres",
        "meaning": "a heavyweight lock: a row, a table, a transaction, a buffer pin", "functions": 1, "cpus": {},
        "command": "perf-offcpu report --class lock --comm postgres", "places": [place | waiting],
    }  # fmt: skip


def test_the_demo() -> None:
    found = shown(load_profile([str(DEMO)], SymbolizeOptions(symfs=str(DEMO.with_suffix(".symfs")))))
    assert found[:4] == [
        "Of 1.919 s of off-CPU time (running and run queue not known)",
        "",
        "Share Time Waits for In Threads Because of",
        "42 % 0.806 s lock 4 functions waiter, cond-waiter, +12",
    ]
    assert found[-1] == "Next: perf-offcpu report --class lock"


@pytest.mark.parametrize(("ns", "text"), [
    (999, "0.999 us"), (10**6, "1.000 ms"), (10**9 - 1, "1000.000 ms"), (10**9, "1.000 s"),
])  # fmt: skip
def test_times(ns: int, text: str) -> None:
    assert time_text(ns) == text
