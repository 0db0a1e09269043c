# SPDX-License-Identifier: Apache-2.0
"""Tables by keys, functions and lengths: every sample is in one row, rows name what they hold, sums stand apart."""

import json
import re
from collections import Counter

import numpy as np
import pytest
from builders.examples import examples
from builders.large import large_profile
from builders.profile import Code, ProfileBuilder, kernel
from hypothesis import given
from hypothesis import strategies as st

from perf_offcpu.analysis.classes.classify import classify
from perf_offcpu.callpaths.weights import EDGES
from perf_offcpu.commands.report import SORT_KEYS, parse_keys
from perf_offcpu.errors import UsageError
from perf_offcpu.model.profile import Profile
from perf_offcpu.model.recording import SampleFlag
from perf_offcpu.report.breakdowns import Bucket, GroupTable, Histogram, function_table, group_table, histogram
from perf_offcpu.report.document import document
from perf_offcpu.report.style import Style
from perf_offcpu.report.summary import Limits, summarize
from perf_offcpu.report.terminal import render
from perf_offcpu.report.totals import Total


def mixed() -> Profile:
    comms = [(9, 8, 0, "young"), (9, 8, 100, "old")]
    builder = ProfileBuilder(meta={"arch": "x86_64"}, comms=comms, cgroups={5: "/user.slice"})
    lock = ["main", Code("pthread_mutex_lock", "/lib/libc.so.6"), kernel("futex_wait")]
    builder.sample("a", lock, 1, tid=1, cpu=0, state=1, syscall=202, waker_tid=9, waker_pid=8, wakeup_ns=50)
    builder.sample("a", lock, 2, tid=2, cpu=1, state=1, syscall=202, waker_tid=9, waker_pid=8, wakeup_ns=150)
    interrupted = SampleFlag.WAKER_INTERRUPT
    builder.sample("b", ["main", Code("f", "/bin/b")], 4, state=2, syscall=-1, waker_tid=7, flags=interrupted)
    builder.sample("b", [], 8, tid=3, state=1, flags=SampleFlag.PREEMPTED, cgroup=5, runq_ns=8)
    return builder.sample("b", [], 16, tid=3, cgroup=6, runq_ns=3).build()


def of_objects() -> Profile:
    """Two locks, one of them twice under one name; a sum, and a wait without an object."""
    builder = ProfileBuilder()
    lock, same, file = (builder.thing(name) for name in ("m in a", "m in a", "/tmp/\x1b[31m"))
    for weight, (comm, thing) in enumerate((("a", lock), ("b", same), ("b", lock), ("a", file)), 1):
        builder.sample(comm, ["main"], weight, object=thing)
    builder.sample("a", ["main"], 16, flags=SampleFlag.AGGREGATED)
    return builder.sample("a", ["main"], 32).build()


def table(profile: Profile, *keys: str, limit: int | None = None) -> GroupTable:
    return group_table(profile, classify(profile), parse_keys(keys), limit)


def weights(*keys: str) -> dict[str, int]:
    return {" ".join(row.values): row.total.weight for row in table(mixed(), *keys).rows}


def test_objects_are_one_by_name() -> None:
    rows = {row.values: row.total.weight for row in table(of_objects(), "object").rows}
    assert rows == {("[none]",): 32, ("(sum)",): 16, ("m in a",): 6, ("/tmp/\\x1b[31m",): 4}
    by_comm = {row.values: row.total.weight for row in table(of_objects(), "comm,object").rows}
    assert by_comm["b", "m in a"] == 5
    assert sum(by_comm.values()) == 58


@pytest.mark.parametrize(("key", "rows"), examples("unit/examples.txt", "rows of keys"))
def test_each_key(key: str, rows: str) -> None:
    assert weights(key) == json.loads(rows)


def test_several_keys_and_aliases() -> None:
    assert weights("comm,class") == {"a lock": 3, "b fault": 4, "b runqueue": 8, "b other": 16}
    assert parse_keys(["sym, comm", "comm"]) == ("symbol", "comm")
    with pytest.raises(UsageError, match=r"--sort: no key 'x' \(known: comm, pid, "):
        parse_keys(["x"])


def test_run_queue_delay_is_told_where_it_is_known() -> None:
    shown = table(mixed(), "tid")
    assert shown.runq_known
    assert {row.values[0]: row.runq for row in shown.rows} == {"1": 0, "2": 0, "100": 0, "3": 11}
    assert not table(ProfileBuilder().sample("a", [], 1).build(), "tid").runq_known


def test_wakers_of_one_name_are_one() -> None:
    builder = ProfileBuilder(comms=[(7, 7, 0, "worker"), (8, 7, 0, "worker")])
    for waker in (7, 8):
        builder.sample("a", [], waker, waker_tid=waker, waker_pid=7, wakeup_ns=5)
    builder.sample("a", [], 30, flags=SampleFlag.AGGREGATED, count=9)
    builder.sample("a", [], 50, waker_tid=0)
    rows = {row.values: row.total.weight for row in table(builder.build(), "waker").rows}
    assert rows == {("worker",): 15, ("(sum)",): 30, ("[idle task]",): 50}


def test_rows_by_the_time_blocked() -> None:
    builder = ProfileBuilder()
    builder.sample("queued", [], 30, state=1, runq_ns=28).sample("blocked", [], 20, state=1, runq_ns=1)
    builder.sample("preempted", [], 40, state=0, flags=SampleFlag.PREEMPTED)
    profile = builder.build()
    assert [row.values for row in table(profile, "comm").rows] == [("preempted",), ("queued",), ("blocked",)]
    shown = table(profile, "comm,blocked", limit=2)
    rows = [(*row.values, row.total.weight, row.blocked) for row in shown.rows]
    assert rows == [("blocked", 20, 19), ("queued", 30, 2)]
    assert (shown.keys, shown.by_blocked, shown.more) == (("comm",), True, (1, 40))
    assert table(profile, "blocked").keys == ("class",)


def test_limits_say_what_they_cut() -> None:
    shown = table(mixed(), "tid", limit=1)
    assert ([row.values for row in shown.rows], shown.more) == ([("3",)], (3, 7))
    assert table(ProfileBuilder().build(), "comm").rows == []


@pytest.mark.parametrize("key", SORT_KEYS)
def test_rows_are_the_total(key: str) -> None:
    profile = large_profile(20_000, 500)
    shown = table(profile, key)
    assert sum(row.total.weight for row in shown.rows) == int(np.sum(profile.samples.period))
    assert len({row.values for row in shown.rows}) == len(shown.rows)


MS = 1_000_000


def of(*waits: int, sums: tuple[tuple[int, int, int], ...] = ()) -> Histogram:
    builder = ProfileBuilder()
    for weight in waits:
        builder.sample("a", [], weight)
    for weight, count, longest in sums:
        builder.sample("a", [], weight, flags=SampleFlag.AGGREGATED, count=count, longest_ns=longest)
    return histogram(builder.build().samples)


def test_steps_of_lengths() -> None:
    assert of(0, 999).buckets == [Bucket(0, 1000, 2, 999)]
    assert of(2**60).buckets == [Bucket(EDGES[-1], None, 1, 2**60)]
    assert of() == Histogram([], 0, Total(0, 0))
    assert of(MS, 2 * MS - 1, 2 * MS, 10 * MS).buckets == [
        Bucket(MS, 2 * MS, 2, 3 * MS - 1), Bucket(2 * MS, 5 * MS, 1, 2 * MS), Bucket(5 * MS, 10 * MS, 0, 0),
        Bucket(10 * MS, 20 * MS, 1, 10 * MS),
    ]  # fmt: skip


def test_sums_are_not_mixed_in() -> None:
    found = of(MS, sums=((900, 3, 500), (70 * MS, 100, 999_000)))
    assert found.buckets == [Bucket(MS, 2 * MS, 1, MS)]
    assert (found.sums, found.summed) == (2, Total(70 * MS + 900, 103, True, 999_000))


@given(st.lists(st.integers(0, 2**50), max_size=30))
def test_every_wait_is_in_one_step(waits: list[int]) -> None:
    buckets = of(*waits).buckets
    assert sum(bucket.count for bucket in buckets) == len(waits)
    assert sum(bucket.weight for bucket in buckets) == sum(waits)
    for bucket in buckets:
        inside = [wait for wait in waits if bucket.low <= wait and (bucket.high is None or wait < bucket.high)]
        assert (len(inside), sum(inside)) == (bucket.count, bucket.weight)


def recursive() -> Profile:
    builder = ProfileBuilder()
    builder.sample("a", ["main", "f", "g", "f", kernel("wait")], 10)
    builder.sample("b", ["main", "g"], 5)
    builder.sample("b", ["main", Code("g", "/lib/other.so")], 2)
    return builder.sample("b", [], 1).build()


def test_recursion_counts_once_and_objects_stand_apart() -> None:
    rows = [(row.name.label, row.name.dso, row.inclusive, row.own) for row in function_table(recursive()).rows]
    program = rows[0][1]
    assert rows == [
        ("main", program, 17, 0), ("g", program, 15, 5), ("wait", "[kernel.kallsyms]", 10, 10),
        ("f", program, 10, 0), ("g", "other.so", 2, 2), ("[no stack]", "", 1, 1),
    ]  # fmt: skip


def test_as_a_count_over_every_stack() -> None:
    """Counted with sets over the stacks that converters see."""
    profile = large_profile(3000, 300, functions=50, seed=5)
    table = function_table(profile)
    inclusive: Counter[tuple[str, str]] = Counter()
    own: Counter[tuple[str, str]] = Counter()
    for row in summarize(profile).stacks:
        frames = [(name.label, name.dso) for name in row.frames]
        own[frames[-1]] += row.total.weight
        for frame in set(frames):
            inclusive[frame] += row.total.weight
    assert {(row.name.label, row.name.dso): row.inclusive for row in table.rows} == inclusive
    assert {(row.name.label, row.name.dso): row.own for row in table.rows if row.own} == own
    assert sum(row.own for row in table.rows) == int(profile.samples.period.sum())
    assert [row.inclusive for row in table.rows] == sorted(inclusive.values(), reverse=True)


def test_only_when_asked_for_and_cut_as_said() -> None:
    assert summarize(recursive()).functions is None
    assert document(summarize(recursive()))["functions"] is None
    summary = summarize(recursive(), limits=Limits(groups=2), children=True)
    lines = list(render(summary, Style(unit="ns", stacks=False)))
    at = next(at for at, line in enumerate(lines) if "with all that they call" in line)
    assert re.split(r"  +", lines[at + 2])[1:] == [
        "Self", "Children ns", "Self ns", "Shared object", "Symbol",
    ]  # fmt: skip
    assert re.split(r"  +", lines[at + 4].strip())[:4] == ["94.44%", "0.00%", "17", "0"]
    assert lines[at + 6] == "# and 4 more functions"
    rows = json.loads(json.dumps(document(summary)))["functions"]
    assert rows["more"] == 4 and [row["inclusive"] for row in rows["rows"]] == [17, 15]
