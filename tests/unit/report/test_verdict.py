# SPDX-License-Identifier: Apache-2.0
"""The sentences on top of the report say what its numbers mean."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from builders.profile import Code, ProfileBuilder, kernel

from perf_offcpu import losses
from perf_offcpu.analysis.select import Selection, select_samples
from perf_offcpu.model.profile import Profile
from perf_offcpu.model.recording import Budget, Comms, SampleFlag
from perf_offcpu.report.document import document
from perf_offcpu.report.style import Style
from perf_offcpu.report.summary import summarize
from perf_offcpu.report.terminal import render
from perf_offcpu.report.verdict.causes import Verdict
from perf_offcpu.report.verdict.text import sentences_of, time_text, wrapped
from perf_offcpu.symbolize.load import load_profile
from perf_offcpu.symbolize.options import SymbolizeOptions

DEMO = Path(__file__).resolve().parents[2] / "data" / "demo.data"
MS = 10**6
EPOLL = [kernel("do_syscall_64"), kernel("ep_poll")]
FUTEX = [kernel("do_syscall_64"), kernel("futex_wait")]
ROW_LOCK = [
    "PostgresMain",
    "heap_update",
    "XactLockTableWait",
    "LockAcquire",
    "ProcSleep",
    "WaitLatch",
    *EPOLL,
]
WAL = ["PostgresMain", "XLogFlush", "issue_xlog_fsync", kernel("ext4_sync_file")]
COMMAND = ["PostgresMain", "ReadCommand", "secure_read", *EPOLL]


def verdict_of(profile: Profile, **options: Any) -> Verdict:
    verdict = summarize(profile, **options).verdict
    assert verdict is not None
    return verdict


def sentences(builder: ProfileBuilder, **options: Any) -> list[str]:
    return sentences_of(verdict_of(builder.build(), **options))


def postgres() -> ProfileBuilder:
    builder = ProfileBuilder()
    for tid in range(8):
        builder.sample("postgres", ROW_LOCK, 110 * MS, tid=tid, pid=tid, state=1, runq_ns=27 * MS)
    builder.sample("postgres", WAL, 90 * MS, tid=3, pid=3, state=2, runq_ns=5 * MS)
    builder.sample("walwriter", ["main", "delay", kernel("hrtimer_nanosleep")], 30 * MS, tid=50, state=1)
    for tid in range(100, 106):
        builder.sample("postgres", COMMAND, 1000 * MS, tid=tid, pid=tid, state=1)
    return builder


def test_a_row_lock_of_postgres() -> None:
    assert sentences(postgres()) == [
        "1.000 s off the CPU in 9 threads: 88 % waits for a heavyweight lock (postgres) in XactLockTableWait "
        "(postgres, 8 threads); 9 % disk waits in issue_xlog_fsync (postgres, 1 thread); 3 % others.",
        "22 % of this time was waiting for a CPU (run queue).",
        "6 threads merely waited for work (6.000 s, not counted above).",
        "Nothing was lost.",
        "Next: perf-offcpu report --class lock --comm postgres",
    ]


def test_the_weights_of_a_verdict_add_up() -> None:
    profile = postgres().build()
    verdict = verdict_of(profile)
    assert sum(cause.weight for cause in verdict.causes) + verdict.others == verdict.weight == 1000 * MS
    assert verdict.weight + verdict.idle == int(profile.samples.period.sum())
    hidden = select_samples(profile, Selection(idle="hide"))
    assert (verdict_of(hidden).weight, verdict_of(hidden).idle) == (verdict.weight, verdict.idle)
    assert verdict_of(hidden).idle_threads == verdict.idle_threads == 6


def test_only_idle_threads() -> None:
    builder = ProfileBuilder().sample("postgres", COMMAND, 3 * MS, state=1)
    assert sentences(builder) == [
        "1 thread merely waited for work (3.000 ms).",
        "Nothing was lost.",
        "Next: perf-offcpu report --sort comm,class",
    ]


def test_a_selection_of_waits_judges_no_thread_idle() -> None:
    builder = ProfileBuilder().sample("postgres", COMMAND, 3 * MS, state=1)
    assert sentences(builder, whole_lives=False)[0].startswith(
        "3.000 ms off the CPU in 1 thread: 100 % waits"
    )


def test_two_functions_of_one_cause() -> None:
    builder = ProfileBuilder()
    for function, weight in (("first", 50), ("second", 30), ("third", 15), ("fourth", 5)):
        builder.sample("abba", ["main", function, *FUTEX], weight * MS, tid=weight, state=1)
    assert sentences(builder)[0] == (
        "100.000 ms off the CPU in 4 threads: 100 % lock waits, among them 50 % in first (abba, 1 thread) "
        "and 30 % in second (abba, 1 thread)."
    )


def test_many_functions_of_many_names() -> None:
    builder = ProfileBuilder()
    for at in range(10):
        builder.sample(f"t{at}", ["main", f"f{at}", *FUTEX], 10 * MS - at, tid=at, state=1)
    assert "100 % lock waits in 10 functions (t0, t1 and 8 other names, 10 threads)." in sentences(builder)[0]


def test_preempted_threads_wait_for_a_cpu() -> None:
    builder = ProfileBuilder()
    for at, function in enumerate(("f", "g", "h")):
        builder.sample("burner", ["main", function], 10 * MS, tid=at, state=0, flags=SampleFlag.PREEMPTED)
    assert sentences(builder)[:2] == [
        "30.000 ms off the CPU in 3 threads: 100 % waits for a CPU (burner, 3 threads).",
        "100 % of this time was waiting for a CPU (run queue).",
    ]


def hogs(builder: ProfileBuilder) -> Profile:
    """Three threads that run on two CPUs, and one that waits."""
    profile = builder.sample("hog", ["main"], 5 * MS, event="cpu-clock").build()
    profile.budget = Budget.filled(
        4,
        tid=[1, 2, 3, 4],
        pid=[1, 1, 1, 1],
        begin_ns=[0] * 4,
        end_ns=[100 * MS] * 4,
        running_ns=[50 * MS, 50 * MS, 40 * MS, 0],
        preempted_ns=[50 * MS, 50 * MS, 60 * MS, 1],
        interruptible_ns=[0, 0, 0, 100 * MS],
    )
    comms = zip((1, 2, 3, 4), ("hog", "hog", "other", "none"), strict=True)
    profile.comms = Comms.from_rows([(tid, 1, 0, profile.strings.intern(comm)) for tid, comm in comms])
    return profile


def test_many_threads_that_are_preempted_a_little_each() -> None:
    profile = hogs(ProfileBuilder())
    waited = {"preempted_ns": [2 * MS] + [MS] * 199, "running_ns": [MS] * 200, "end_ns": [100 * MS] * 200}
    profile.budget = Budget.filled(200, tid=range(200), pid=[1] * 200, begin_ns=[0] * 200, **waited)
    assert sentences_of(verdict_of(profile))[0] == (  # the threads that have 95 % of this time
        "Preempted threads waited 201.000 ms for a CPU and ran 190.000 ms ([unknown], hog and 2 other names, "
        "190 threads)."
    )


def test_preempted_threads_without_any_wait() -> None:
    assert sentences_of(verdict_of(hogs(ProfileBuilder()))) == [
        "Preempted threads waited 160.000 ms for a CPU and ran 140.000 ms (hog and other, 3 threads).",
        "Nothing was lost.",
        "Next: perf-offcpu report --budget-by comm",
    ]


def test_preempted_threads_are_counted_once_however_many_pauses_there_are() -> None:
    profile = hogs(ProfileBuilder())
    whole, budget = sentences_of(verdict_of(profile)), profile.budget
    halves = {name: getattr(budget, name) // 2 for name in ("running_ns", "preempted_ns")}
    late = budget.with_columns(begin_ns=budget.end_ns * 2, end_ns=budget.end_ns * 3, **halves)
    profile.budget = Budget.concat([budget.with_columns(**halves), late])
    assert sentences_of(verdict_of(profile)) == whole


def test_preempted_threads_next_to_waits() -> None:
    builder = ProfileBuilder()
    builder.sample("a", ["main", *FUTEX], 500 * MS, tid=4, pid=1, state=1, runq_ns=5 * MS)
    profile = hogs(builder)
    assert sentences_of(verdict_of(profile))[1] == (
        "1 % of this time was waiting for a CPU (run queue); apart from it, preempted threads waited "
        "160.000 ms for a CPU and ran 140.000 ms (hog and other, 3 threads)."
    )
    for tid in range(10, 40):
        builder.sample("idle", ["main", *EPOLL], 500 * MS, tid=tid, pid=tid, state=1)
    crowd = sentences_of(verdict_of(hogs(builder)))
    assert crowd[1] == sentences_of(verdict_of(profile))[1], "idle threads make it no smaller"
    few = profile.budget.preempted_ns // 10
    profile.budget = profile.budget.with_columns(preempted_ns=few)
    assert verdict_of(profile).preempted is None, "3 % of the time"


def test_waits_that_end_elsewhere_come_last() -> None:
    builder = ProfileBuilder()
    builder.sample("prog", ["runtime.mcall", "runtime.findRunnable", *EPOLL], 60 * MS, tid=1, state=1)
    builder.sample("prog", ["main", "__pthread_clockjoin_ex", *FUTEX], 20 * MS, tid=2, state=1)
    builder.sample("prog", ["main.store", kernel("ext4_sync_file")], 20 * MS, tid=1, state=2)
    assert sentences(builder) == [
        "100.000 ms off the CPU in 2 threads: 20 % disk waits in main.store (prog, 1 thread); 20 % waits "
        "for a thread to end (glibc) in main (prog, 1 thread); 60 % waits for a goroutine to run (Go) in "
        "runtime.findRunnable (prog, 1 thread).",
        "Goroutines that wait are no threads: Go's own profiles (block, mutex) show their waits.",
        "Nothing was lost.",
        "Next: perf-offcpu report --class disk --comm prog",
    ]


def test_waits_for_events_come_after_waits_for_answers() -> None:
    builder = ProfileBuilder()
    builder.sample("loop", ["main", "serve", *EPOLL], 80 * MS, tid=1, state=1)
    builder.sample("loop", ["main", "serve", kernel("tcp_recvmsg")], 20 * MS, tid=1, state=1)
    said = sentences(builder)
    assert said[0] == (
        "100.000 ms off the CPU in 1 thread: 20 % network waits in serve (loop, 1 thread); "
        "80 % poll waits in serve (loop, 1 thread)."
    )
    assert said[-1] == "Next: perf-offcpu report --class network --comm loop"


def test_still_blocked() -> None:
    builder = ProfileBuilder()
    still = SampleFlag.STILL_BLOCKED
    for tid, flags in ((1, still | SampleFlag.BEGAN_BEFORE), (2, still), (3, still)):
        builder.sample("abba", ["main", "take", *FUTEX], (9 - tid) * MS, tid=tid, state=1, flags=flags)
    assert sentences(builder)[1] == (
        "Still blocked at the end: abba 1 in take (lock) for 8.000 ms or longer, abba 2 in take (lock) for "
        "7.000 ms and 1 more thread."
    )


def test_a_thread_that_waits_for_blocked_ones_is_named_after_them() -> None:
    builder, still = ProfileBuilder(), SampleFlag.STILL_BLOCKED
    builder.sample("abba", ["main", "pthread_join", *FUTEX], 9 * MS, tid=1, state=1, flags=still)
    for tid in (2, 3):
        builder.sample("abba", ["main", "take", *FUTEX], (9 - tid) * MS, tid=tid, state=1, flags=still)
    assert sentences(builder)[1] == (
        "Still blocked at the end: abba 2 in take (lock) for 7.000 ms, abba 3 in take (lock) for 6.000 ms "
        "and 1 more thread."
    )


@pytest.mark.parametrize(
    ("counts", "sentence"),
    [
        ({}, "Nothing was lost."),
        ({losses.WAITS_LOST: 1}, "Lost: 1 waits neither sampled nor summed (50 % of the waits)."),
        (
            {losses.WAITS_LOST: 1, losses.NO_SYMBOL: 1000},
            "Lost: 1 waits neither sampled nor summed (50 % of the waits); 1 more cause below.",
        ),
        (
            {losses.BAD_RECORD: 7, losses.NO_SYMBOL: 1000},
            "Lost: 7 records whose content does not fit their type; 1 more cause below.",
        ),
        ({losses.SAMPLES: 7}, "Nothing was lost."),
    ],
)
def test_the_largest_loss(counts: dict[losses.LossCause, int], sentence: str) -> None:
    builder = ProfileBuilder(losses=counts).sample("a", ["main", *FUTEX], MS, state=1)
    assert sentence in sentences(builder)


@pytest.mark.parametrize(
    ("waits", "samples", "count", "share"),
    [(0, 2, 2, "50 % of the cpu-clock samples"), (1, 2, 1, "33 % of the waits"), (0, 0, 5, "")],
)
def test_stacks_that_were_cut_are_compared_with_their_kind(
    waits: int, samples: int, count: int, share: str
) -> None:
    builder, cut = ProfileBuilder(losses={losses.NO_CFI: 5}), SampleFlag.NO_CFI
    for number in range(4):
        builder.sample("a", ["f"], MS, event="cpu-clock", flags=cut if number < samples else None)
    for number in range(3):
        builder.sample("a", ["main", *FUTEX], MS, state=1, flags=cut if number < waits else None)
    text = f"Lost: {count} {losses.NO_CFI}{share and f' ({share})'}."
    assert text in sentences(builder)


@pytest.mark.parametrize(
    ("comm", "options", "command"),
    [
        ("a", [], "convert --flamegraph --class lock --comm a"),
        ("a b", [], "convert --flamegraph --class lock"),
        ("a,b", [], "convert --flamegraph --class lock"),
        (
            "a",
            [("-i", "my file"), ("--comm", "x"), ("--class", "lock")],
            "convert --flamegraph -i 'my file' --class lock --comm a",
        ),
        ("a b", [("--comm", "a b")], "convert --flamegraph --comm 'a b' --class lock"),
    ],
)
def test_the_command(comm: str, options: list[tuple[str, str]], command: str) -> None:
    builder = ProfileBuilder().sample(comm, ["main", *FUTEX], MS, state=1)
    assert sentences(builder, options=options)[-1] == f"Next: perf-offcpu {command}"


def test_weights_near_the_limit() -> None:
    builder = ProfileBuilder().sample("a", ["main", *FUTEX], 2**60, state=1)
    builder.sample("b", ["main", kernel("ext4_sync_file")], 2**60, state=2)
    assert "50 % lock waits in main (a, 1 thread); 50 % disk waits in main" in sentences(builder)[0]


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
    assert summary.verdict is not None
    words = sentences_of(summary.verdict)
    lines = [f"# {line}" for line in wrapped(words)]
    assert max(map(len, lines)) <= 110 and len(lines) > len(words)
    assert not any(line.startswith("#   %") for line in lines)
    text = list(render(summary, Style()))
    at = text.index(lines[0])
    assert text[at : at + len(lines)] == lines
    assert document(summary)["verdict"]["sentences"] == words


def test_the_document_of_a_verdict() -> None:
    made = document(summarize(postgres().build()))["verdict"]
    assert (made["weight"], made["threads"], made["idle_threads"], made["runq"]) == (
        1000 * MS,
        9,
        6,
        221 * MS,
    )
    assert made["causes"][0] == {
        "wait_class": "lock",
        "program": "postgres",
        "meaning": "a heavyweight lock: a row, a table, a transaction, a buffer pin",
        "weight": 880 * MS,
        "for_work": False,
        "functions": 1,
        "threads": 8,
        "comms": ["postgres"],
        "places": [
            {
                "function": "XactLockTableWait",
                "weight": 880 * MS,
                "object": "",
                "mostly": "",
                "threads": 8,
                "comms": ["postgres"],
            }
        ],
    }


def test_the_demo() -> None:
    profile = load_profile([str(DEMO)], SymbolizeOptions(symfs=str(DEMO.with_suffix(".symfs"))))
    found = sentences_of(verdict_of(profile))
    assert found[0] == (
        "2.010 s off the CPU in 14 threads: 40 % lock waits, among them 14 % in run_worker (locker-a, "
        "locker-b and 11 other names, 13 threads) and 12 % in run_workers (waiter, 1 thread); 35 % sleep "
        "waits, among them 12 % in work_on_ledger (locker-a and locker-b, 2 threads); 20 % other waits, "
        "among them 12 % in wait_for_answer (stuck-reader, 1 thread); 5 % others."
    )
    assert found[-1] == "Next: perf-offcpu report --class lock"


@pytest.mark.parametrize(
    ("ns", "text"), [(999, "0.999 us"), (10**6, "1.000 ms"), (10**9 - 1, "1000.000 ms"), (10**9, "1.000 s")]
)
def test_times(ns: int, text: str) -> None:
    assert time_text(ns) == text
