# SPDX-License-Identifier: Apache-2.0
"""The report's numbers: exact, and honest about what sums do not tell."""

from typing import Any

import pytest
from builders.large import large_profile
from builders.profile import Code, ProfileBuilder, kernel
from hypothesis import given
from hypothesis import strategies as st

from perf_offcpu import losses
from perf_offcpu.errors import UsageError
from perf_offcpu.model.recording import SampleFlag
from perf_offcpu.report.summary import Limits, Summary, summarize
from perf_offcpu.report.totals import Total

SUM, UNTIMED = SampleFlag.AGGREGATED, SampleFlag.UNTIMED


@pytest.mark.parametrize(("samples", "total"), [
    ([], Total(0, 0)),
    ([(7, SampleFlag(0), 1, -1), (4, SampleFlag(0), 1, 4)], Total(11, 2, True, 7)),
    # a sum knows its longest wait; one with a longer total may still hide no longer one
    ([(7, SampleFlag(0), 1, -1), (40, SUM, 10, 9)], Total(47, 11, True, 9)),
    # upstream's sums do not say how many waits they hold, nor how long the longest was …
    ([(7, SampleFlag(0), 1, -1), (40, SUM | UNTIMED, 1, -1)], Total(47, 2, False, None)),
    # … but it cannot have been longer than the sum
    ([(50, SampleFlag(0), 1, -1), (40, SUM | UNTIMED, 1, -1)], Total(90, 2, False, 50)),
])  # fmt: skip
def test_totals(samples: list[tuple[int, SampleFlag, int, int]], total: Total) -> None:
    """Samples are (weight, flags, count, longest)."""
    builder = ProfileBuilder()
    for weight, flags, count, longest in samples:
        builder.sample("a", ["f"], weight, flags=flags, count=count, longest_ns=longest)
    assert summarize(builder.build()).total == total


def test_average_is_rounded_and_only_given_if_known() -> None:
    assert Total(11, 2).average == 6
    assert Total(10, 4).average == 3
    assert Total(0, 0).average is None
    assert Total(10, 4, count_is_exact=False).average is None


def mixed() -> ProfileBuilder:
    builder = ProfileBuilder(losses={"b lost": 2, "a lost": 1})
    builder.sample("sleeper", ["main", kernel("schedule")], 30, tid=1, state=1)
    builder.sample("sleeper", ["main", kernel("schedule")], 10, tid=1, state=2)
    builder.sample("renamed", ["main"], 5, tid=1)
    builder.sample("other", [], 40, tid=2, pid=7, flags=SampleFlag.NO_USER_STACK | SampleFlag.STILL_BLOCKED)
    builder.sample("sleeper", ["main"], 3, tid=1, event="cpu-clock")
    builder.sample("burner", ["main"], 9, tid=3, event="cpu-clock")
    return builder


def test_threads() -> None:
    summary = summarize(mixed().build())
    assert [
        (r.comm, r.pid, r.tid, r.total.weight, r.total.count, r.beside.weight, r.beside.count) for r in summary.threads
    ] == [
        ("sleeper", 100, 1, 40, 2, 3, 1), ("other", 7, 2, 40, 1, 0, 0), ("renamed", 100, 1, 5, 1, 0, 0),
        ("burner", 100, 3, 0, 0, 9, 1),
    ]  # fmt: skip
    assert summary.subject == ("offcpu-time",) and summary.is_offcpu and summary.unit == "ns"
    assert summary.total == Total(85, 4, True, 40)
    events = [(row.name, row.samples, row.total.weight) for row in summary.events]
    assert events == [("offcpu-time", 4, 85), ("cpu-clock", 2, 12)]
    assert summary.beside is not None and summary.beside.name == "cpu-clock"


def test_stacks() -> None:
    other, sleeper, renamed = sorted(summarize(mixed().build()).stacks, key=lambda row: (-row.total.weight, row.comm))
    assert [frame.label for frame in sleeper.frames] == ["main", "schedule"]
    assert (sleeper.total, sleeper.states) == (Total(40, 2, True, 30), {"S": 30, "D": 10})
    assert [frame.label for frame in other.frames] == ["[missed stack]"] and other.states == {}
    assert (renamed.comm, renamed.total.weight) == ("renamed", 5)


def test_losses_and_notes() -> None:
    summary = summarize(mixed().sample("swapped", ["main"], 5, flags=SampleFlag.REPAIRED_IDS).build())
    assert [(str(cause), count) for cause, count in summary.losses.items()] == [("a lost", 1), ("b lost", 2)]
    assert summary.notes == {
        losses.NO_STACK: 1, losses.NO_USER_STACK: 1, losses.REPAIRED_IDS: 1, losses.STILL_BLOCKED: 1,
    }  # fmt: skip


def test_limits_cut_lists_and_say_what_they_cut() -> None:
    profile = mixed().build()
    summary = summarize(profile, limits=Limits(threads=1, stacks=2))
    assert (len(summary.threads), summary.more_threads) == (1, (3, 45))
    assert (len(summary.stacks), summary.more_stacks) == (2, (1, 5))
    assert summary.total == summarize(profile).total


def test_call_sites_share_a_stack() -> None:
    builder = ProfileBuilder().sample("a", [Code("main", "x", 1)], 3).sample("a", [Code("main", "x", 2)], 4)
    assert [(row.total.weight, row.total.count) for row in summarize(builder.build()).stacks] == [(7, 2)]


def test_another_subject() -> None:
    summary = summarize(mixed().build(), ["cpu-clock"])
    assert (summary.subject, summary.is_offcpu, summary.total.weight) == (("cpu-clock",), False, 12)
    assert summary.beside is not None and summary.beside.name == "offcpu-time"
    assert summary.threads[0].comm == "burner" and summary.threads[1].beside.weight == 40
    with pytest.raises(UsageError, match="no event 'x'"):
        summarize(mixed().build(), ["x"])


def test_recordings_without_what_was_asked_for() -> None:
    only_cpu = summarize(ProfileBuilder().sample("a", ["f"], 3, event="cpu-clock").build())
    assert (only_cpu.total, only_cpu.is_offcpu, only_cpu.unit, only_cpu.stacks) == (
        Total(0, 0), True, "ns", [],
    )  # fmt: skip
    assert [row.beside.weight for row in only_cpu.threads] == [3]
    nothing = summarize(ProfileBuilder(events={}).build())
    assert (nothing.subject, nothing.unit, nothing.threads, nothing.events) == ((), "", [], [])


def weights(summary: Summary) -> tuple[int, int]:
    return sum(row.total.weight for row in summary.threads), sum(row.total.weight for row in summary.stacks)


THREADS_AND_PATHS = st.tuples(st.sampled_from("ab"), st.integers(1, 3), st.lists(st.sampled_from("fg"), max_size=3))


@given(st.lists(st.tuples(THREADS_AND_PATHS, st.integers(0, 2**45)), max_size=20), st.integers(0, 4))
def test_rows_and_what_was_cut_are_the_total(samples: list[Any], limit: int) -> None:
    builder = ProfileBuilder()
    for (comm, tid, path), weight in samples:
        builder.sample(comm, [*path], weight, tid=tid)
    summary = summarize(builder.build(), limits=Limits(limit, limit))
    threads, stacks = weights(summary)
    assert summary.total.weight == sum(sample[-1] for sample in samples)
    assert threads + summary.more_threads[1] == stacks + summary.more_stacks[1] == summary.total.weight


def test_large() -> None:
    profile = large_profile(100_000, 3_000)
    summary, exact = summarize(profile), sum(profile.samples.period.tolist())
    assert weights(summary) == (exact, exact)
    assert sum(row.total.count for row in summary.stacks) == 100_000
    assert summary.stacks == sorted(summary.stacks, key=lambda row: row.total.weight, reverse=True)
