# SPDX-License-Identifier: Apache-2.0
"""Comparison of a simulated service with itself, and with one whose lock is held twice as long; noise of sums of waits:
simulated loads of known kind, recorded twice, must hardly ever differ by more."""

import json
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from builders.profile import Code, ProfileBuilder, kernel
from numpy.typing import NDArray

from perf_offcpu.analysis.selection.time_windows import parse_windows
from perf_offcpu.errors import UsageError
from perf_offcpu.losses import LossCause, Stage
from perf_offcpu.model.profile import Profile, ProfileSamples
from perf_offcpu.model.recording import Meta, SampleFlag
from perf_offcpu.report.diff.compare import Comparison, compare
from perf_offcpu.report.diff.noise import RecordedTime, errors_needed, variance_between_slices, variance_by_length
from perf_offcpu.report.diff.output import document, render
from perf_offcpu.report.diff.sides import Per, side_of
from perf_offcpu.report.diff.verdict import Verdict, sentences_of, verdict_of
from perf_offcpu.report.style import Style

LENGTH_NS = 10**10


def waits(tid: NDArray[np.int64], begin: NDArray[np.float64], end: NDArray[np.float64]) -> ProfileSamples:
    """Return the waits as far as they lie in the recording, which begins at 1 and lasts LENGTH_NS."""
    begin, end = np.clip(begin, 0, LENGTH_NS).astype(np.int64), np.clip(end, 0, LENGTH_NS).astype(np.int64)
    rows = np.flatnonzero(end > begin)
    rows = rows[np.argsort(end[rows], kind="stable")]
    return ProfileSamples.filled(
        len(rows), time_ns=end[rows] + 1, period=(end - begin)[rows], pid=np.full(len(rows), 100),
        tid=tid[rows], flags=np.full(len(rows), int(SampleFlag.OFFCPU)),
    )  # fmt: skip


def load(
    rng: np.random.Generator, *, threads: int, wait_ns: float, pause_ns: float, spread: float = 0.0
) -> ProfileSamples:
    """Return waits of threads that wait and pause by turns. `wait_ns` and `pause_ns` are means of exponential lengths;
    with `spread`, waits are lognormal with this sigma, `wait_ns` their median."""
    number = int(3 * LENGTH_NS / (wait_ns + pause_ns)) + 20
    shape = (threads, number)
    wait = rng.lognormal(np.log(wait_ns), spread, shape) if spread else rng.exponential(wait_ns, shape)
    pause = rng.exponential(pause_ns, shape)
    edges = np.cumsum(np.stack([pause, wait], axis=2).reshape(threads, -1), axis=1) - LENGTH_NS / 2
    return waits(np.repeat(np.arange(1, threads + 1), number), edges[:, ::2].ravel(), edges[:, 1::2].ravel())


def bursts(rng: np.random.Generator, *, threads: int, number: int, wait_ns: float) -> ProfileSamples:
    """Return waits that all threads begin and end together, about so many in the recording."""
    count = rng.poisson(2 * number)
    begin, length = rng.uniform(-0.5 * LENGTH_NS, 1.5 * LENGTH_NS, count), rng.exponential(wait_ns, count)
    tid = np.tile(np.arange(1, threads + 1), count)
    return waits(tid, np.repeat(begin, threads), np.repeat(begin + length, threads))


RECORDED = RecordedTime.of(Meta(begin_ns=1, end_ns=LENGTH_NS + 1))


def by_length(samples: ProfileSamples, **options: Any) -> tuple[float, float]:
    known, doubtful = variance_by_length(samples, np.zeros(len(samples), np.int64), 1, **options)
    return float(known[0]), float(doubtful[0])


def by_slices(samples: ProfileSamples) -> float:
    return float(variance_between_slices(samples, np.zeros(len(samples), np.int64), 1, RECORDED)[0])


def error(one: ProfileSamples, other: ProfileSamples) -> float:
    """Return the standard error of the difference of their weights."""
    lengths = [by_length(samples, whole_ns=RECORDED.total_ns) for samples in (one, other)]
    known = sum(known for known, _ in lengths) + abs(lengths[0][1] - lengths[1][1])
    return math.sqrt(max(known, by_slices(one) + by_slices(other)))


LOADS: dict[str, Callable[[np.random.Generator], ProfileSamples]] = {
    "short waits, long pauses": lambda rng: load(rng, threads=4, wait_ns=1e6, pause_ns=2e7),
    "saturated threads": lambda rng: load(rng, threads=4, wait_ns=2e7, pause_ns=2e5),
    "half of the time": lambda rng: load(rng, threads=4, wait_ns=2e7, pause_ns=2e7),
    "lengths of many sizes": lambda rng: load(rng, threads=4, wait_ns=1e6, pause_ns=1e8, spread=2.0),
    "few waits": lambda rng: load(rng, threads=2, wait_ns=3e8, pause_ns=2e9),
    "idle threads": lambda rng: load(rng, threads=4, wait_ns=1e9, pause_ns=1e4),
    "one cause for eight threads": lambda rng: bursts(rng, threads=8, number=20, wait_ns=2e8),
}


@pytest.mark.long
@pytest.mark.parametrize("kind", LOADS)
def test_equal_loads_hardly_ever_differ(kind: str) -> None:
    rng = np.random.default_rng(16)
    far = []
    for _ in range(150):
        one, other = (LOADS[kind](rng) for _ in range(2))
        far.append(abs(float(one.period.sum() - other.period.sum())) / error(one, other))
    # 3 standard errors: 0.3 % of normal variables; one pair in 50 is the most for few waits and bursts.
    assert np.mean(np.array(far) > 3) <= 0.02
    # Of normal variables 0.8: the estimate is not far too large either.
    assert 0.3 < np.mean(far) < 1.0 or kind == "idle threads"


def test_threads_with_a_common_cause_need_slices() -> None:
    rng = np.random.default_rng(16)
    found = [LOADS["one cause for eight threads"](rng) for _ in range(50)]
    slices = np.mean([by_slices(samples) for samples in found])
    assert slices > 3 * np.mean([sum(by_length(samples, whole_ns=RECORDED.total_ns)) for samples in found])


def one_thread(*waits: tuple[int, int], **columns: list[int]) -> ProfileSamples:
    """Return waits (end, length) of one thread."""
    times, periods = zip(*waits, strict=True)
    flags = columns.pop("flags", [int(SampleFlag.OFFCPU)] * len(waits))
    return ProfileSamples.filled(len(waits), time_ns=times, period=periods, flags=flags, tid=[7] * len(waits))


def test_the_variance_of_independent_waits_is_the_sum_of_their_squares() -> None:
    samples = one_thread((100, 3), (200, 4))
    assert variance_by_length(samples, np.array([0, 0]), 2)[0].tolist() == [25, 0]
    assert variance_by_length(samples, np.array([0, 1]), 2)[0].tolist() == [9, 16]
    # 7 of 14 ns: a quarter of 25 is left, and a third of the rest is doubtful.
    assert by_length(samples, whole_ns=14) == (6.25, 6.25)
    assert by_length(samples, whole_ns=7) == pytest.approx((0, 25 / 3))


def test_a_sum_is_of_waits_as_long_as_its_longest() -> None:
    is_sum = int(SampleFlag.OFFCPU | SampleFlag.AGGREGATED)
    samples = ProfileSamples.filled(
        1, time_ns=[100], period=[1000], flags=[is_sum], longest_ns=[30], count=[50], tid=[7]
    )
    assert by_length(samples) == (30_000, 0)
    unknown = samples.with_columns(longest_ns=np.array([-1], np.int64))
    assert by_length(unknown, threshold_ns=400) == (400_000, 0)
    assert by_length(unknown) == (1_000_000, 0)
    drawn = samples.with_columns(flags=samples.flags | np.uint32(SampleFlag.DRAWN))
    assert by_length(drawn, stack_period_ns=500) == (30_000 + 500_000, 0)
    assert by_length(samples, stack_period_ns=500) == (30_000, 0)


def test_more_rows_need_a_larger_change() -> None:
    assert errors_needed(0) == errors_needed(1) == errors_needed(18) == 3
    assert 3.4 < errors_needed(100) < 3.6 < errors_needed(1000) < 4.1


def test_recorded_time_has_no_gaps() -> None:
    joined = RecordedTime.of(Meta(parts=((100, 200), (150, 250), (1000, 1050))))
    assert joined.total_ns == 200
    assert joined.slices(np.array([100, 250, 700, 1000, 1025, 5000], np.int64)).tolist() == [0, 15, 15, 15, 17.5, 20]
    assert RecordedTime.of(Meta(first_ns=0, last_ns=1000), parse_windows("10%-20%,50%-80%")).total_ns == 400
    assert RecordedTime.of(Meta()).total_ns == 0


LOCK: list[str | Code] = ["main", "serve", "book", "pthread_mutex_lock", kernel("futex_wait")]
DISK: list[str | Code] = ["main", "serve", "save", "fdatasync", kernel("io_schedule")]
POLL: list[str | Code] = ["main", "loop", "epoll_wait", kernel("ep_poll")]


def service(rng: np.random.Generator, lock_ns: float = 4e6, idle: int = 3, **losses: int) -> Profile:
    """Return 10 s of four workers that wait for a lock and for a disk, and of idle threads."""
    counts = {LossCause(Stage.FILE, name, name): count for name, count in losses.items()}
    meta = {"begin_ns": 1, "end_ns": LENGTH_NS + 1, "first_ns": 1, "last_ns": LENGTH_NS, "source": "x.data"}
    builder = ProfileBuilder(meta=meta, losses=counts)
    kinds = [
        ("worker", LOCK, load(rng, threads=4, wait_ns=lock_ns, pause_ns=4e7)),
        ("worker", DISK, load(rng, threads=4, wait_ns=1e6, pause_ns=4e7)),
    ]
    if idle:
        sleepers = load(rng, threads=idle, wait_ns=5e8, pause_ns=1e5)
        sleepers.tid[:] += 100
        kinds.append(("idler", POLL, sleepers))
    for comm, path, samples in kinds:
        rows = (samples.period.tolist(), samples.tid.tolist(), samples.time_ns.tolist())
        for weight, tid, time_ns in zip(*rows, strict=True):
            builder.sample(comm, path, weight, tid=tid, time_ns=time_ns)
    return builder.build()


def compared(
    old: Profile, new: Profile, per: Per | None = None, limit: int | None = 10, keys: tuple[str, ...] = ("class",)
) -> Comparison:
    per = per or Per("second")
    sides = [
        side_of(profile, (), per, units, (), whole=True) for profile, units in zip((old, new), per.units, strict=True)
    ]
    return compare(sides[0], sides[1], per, keys=keys, limits=(limit, limit))


def judged(comparison: Comparison) -> Verdict:
    assert (verdict := verdict_of(comparison, [("-i", "new.data")], "old.data"))
    return verdict


def shown(comparison: Comparison, **style: Any) -> str:
    return "\n".join(render(comparison, judged(comparison), Style(**style)))


def test_the_same_load_has_not_changed() -> None:
    rng = np.random.default_rng(9)
    for _ in range(5):
        comparison = compared(service(rng), service(rng))
        tables = comparison.groups, comparison.threads, comparison.stacks
        assert [len(table.rows) for table in tables] == [0, 0, 0]
        assert [table.noise.rows for table in tables] == [3, 2, 3]
        assert comparison.total.is_noise
        words = sentences_of(comparison, judged(comparison))
        assert "No change is more than noise." in words
        assert any(one.startswith("Noise: 3 of 3 causes: ") for one in words)


def test_a_lock_held_twice_as_long_comes_first() -> None:
    rng = np.random.default_rng(9)
    old, new = service(rng, lock_ns=4e6), service(rng, lock_ns=8e6, lost=3)
    comparison = compared(old, new)
    row, *others = comparison.groups.rows
    assert (row.values, others) == (("lock",), [])
    weights = []
    for profile in (old, new):
        leaf = profile.frames.symbol[profile.stacks.frame[profile.samples.stack]]
        names = [profile.strings[name] for name in leaf.tolist()]
        weights.append(int(profile.samples.period[np.array(names) == "futex_wait"].sum()))
    assert [row.old.weight, row.new.weight] == weights
    assert row.before == pytest.approx(weights[0] / 10) and row.after == pytest.approx(weights[1] / 10)
    # 4 threads: 4 / 44 of 10 s, then 8 / 48
    assert row.before == pytest.approx(4e9 * 4 / 44, rel=0.1)
    assert row.after == pytest.approx(4e9 * 8 / 48, rel=0.1)
    assert row.old.average == pytest.approx(4e6, rel=0.1) and row.new.average == pytest.approx(8e6, rel=0.1)
    assert row.threads == (4, 4)
    assert [stack.frames[-1].label for stack in comparison.stacks.rows] == ["futex_wait"]
    verdict = judged(comparison)
    assert [cause.values for cause in verdict.worse] == [("lock", "", "", "book")]
    assert (verdict.better, verdict.lost) == ([], (0, 1))
    assert verdict.command == ("perf-offcpu convert --flamegraph --diff old.data -i new.data --class lock")
    words = sentences_of(comparison, verdict)
    assert words[1].startswith("Worse: lock waits in book (worker) +3") and " ms per second, " in words[1]
    assert "Lost: in the new recording, see the end." in words
    text = shown(comparison)
    assert text.index("Worse: ") < text.index("by what was waited for") < text.index("futex_wait [k]")
    assert f"{row.change / 1e6:+.3f}" in text
    assert "# Noise, left out: 2 rows: " in text
    assert "         0          3  lost" in text
    assert judged(compared(new, old)).better[0].values == ("lock", "", "", "book")


def test_more_idle_threads_are_not_worse() -> None:
    rng = np.random.default_rng(9)
    comparison = compared(service(rng, idle=3), service(rng, idle=30))
    assert comparison.groups.rows[0].values == ("poll",) and comparison.groups.rows[0].threads == (3, 30)
    verdict = judged(comparison)
    assert (verdict.worse, verdict.better) == ([], [])
    assert [one.threads for one in verdict.idle] == [3, 30]
    words = sentences_of(comparison, verdict)
    assert "Only threads that merely wait for work changed." in words
    assert any(one.startswith("Merely waited for work, not judged: 3 threads before (2.9") for one in words)


def test_without_a_limit_noise_is_shown_and_marked() -> None:
    rng = np.random.default_rng(9)
    old, new = service(rng), service(rng, lock_ns=8e6)
    everything, cut = compared(old, new, limit=None), compared(old, new, limit=1)
    assert [row.is_noise for row in everything.stacks.rows] == [False, True, True]
    assert cut.stacks.rows[0].values == everything.stacks.rows[0].values
    noise, rows = everything.stacks.noise, everything.stacks.rows[1:]
    assert noise.rows == 2 and noise.grown + noise.shrunk == pytest.approx(sum(row.change for row in rows))
    assert noise.before == pytest.approx(sum(row.before for row in rows))
    text = shown(everything)
    assert "Noise, marked ~: 2 rows: " in text and "  ~" in text
    assert "---" not in shown(everything, stacks=False)


def test_weights_per_run_and_per_unit_of_work() -> None:
    rng = np.random.default_rng(9)
    old, new = service(rng, idle=0), service(rng, idle=0)
    whole = compared(old, new, Per("run")).total
    assert (whole.before, whole.after) == (whole.old.weight, whole.new.weight)
    # The same waiting time for a quarter of the work: four times as much for each unit.
    comparison = compared(old, new, Per("unit", units=(1000, 250)))
    assert [row.values for row in judged(comparison).worse] == [("lock", "", "", "book"), ("disk", "", "", "save")]
    assert comparison.total.after == pytest.approx(comparison.total.before * 4, rel=0.1)
    assert "1000 before, 250 now" in shown(comparison) and "Change ms/unit" in shown(comparison)


def test_one_long_wait_proves_nothing() -> None:
    def hung(*weights: int) -> Profile:
        meta = {"begin_ns": 1, "end_ns": LENGTH_NS, "source": "x"}
        builder = ProfileBuilder(meta=meta).sample("a", DISK, 1000, tid=1, time_ns=5000)
        for tid, weight in enumerate(weights):
            builder.sample("a", LOCK, weight, tid=10 + tid, time_ns=weight)
        return builder.build()

    assert judged(compared(hung(), hung(8 * 10**9))).worse == []
    assert len(judged(compared(hung(), hung(*[8 * 10**9] * 12))).worse) == 1


def test_the_document_is_json_and_has_every_row() -> None:
    rng = np.random.default_rng(9)
    comparison = compared(service(rng), service(rng, lock_ns=8e6), limit=None, keys=("comm", "class"))
    made = json.loads(json.dumps(document(comparison, judged(comparison))))
    assert made["groups"]["keys"] == ["comm", "class"] and len(made["groups"]["rows"]) == 3
    row = made["groups"]["rows"][0]
    assert row["values"] == ["worker", "lock"] and not row["is_noise"] and row["change"] > row["noise"]
    assert row["old"]["weight"] == round(row["before"] * 10) and row["old"]["threads"] == 4
    assert made["verdict"]["worse"][0]["comms"] == ["worker"]
    assert made["stacks"]["rows"][0]["frames"][-1] == {
        "name": "futex_wait", "dso": "[kernel.kallsyms]", "kind": "kernel",
    }  # fmt: skip
    assert document(comparison, None)["verdict"] is None


def test_recordings_that_cannot_be_compared() -> None:
    rng = np.random.default_rng(9)
    cpu = ProfileBuilder(events={"cpu-clock": "ns"}, meta={"source": "cpu.data", "end_ns": 10})
    cpu_only = cpu.sample("a", ["f"], 3, event="cpu-clock").build()
    for pair in ((cpu_only, service(rng)), (service(rng), cpu_only)):
        with pytest.raises(UsageError, match=r"cpu.data has no off-cpu samples to compare .its events: cpu-clock."):
            compared(*pair)
    empty = ProfileBuilder(meta={"source": "none.data", "end_ns": 10}).build()
    with pytest.raises(UsageError, match=r"none.data and none.data have no samples to compare"):
        compared(empty, empty)
    timeless = ProfileBuilder(meta={"source": "sums.data"}).sample("a", ["f"], 3).build()
    with pytest.raises(UsageError, match=r"sums.data: its duration is not known: compare with --per run"):
        compared(timeless, service(rng))
    assert compared(timeless, service(rng), Per("run")).total.before == 3
    assert compared(empty, service(rng)).total.before == 0
    assert compared(cpu_only, cpu_only).functions is None


STABLE = "lock heap (via transfer)"


def run_with_lock(address: int, waits: int, *, objects: bool = True) -> Profile:
    builder = ProfileBuilder(meta={"begin_ns": 1, "end_ns": 10**10, "first_ns": 1, "last_ns": 10**10})
    lock = builder.thing(f"lock heap {address:#x} (via transfer)", stable=STABLE) if objects else -1
    for at in range(waits):
        builder.sample("bank", ["main"], 10**6, object=lock, time_ns=10**7 * (at + 1))
    return builder.sample("bank", ["main"], 5 * 10**6).build()


def test_one_lock_of_two_runs_is_one_row() -> None:
    comparison = compared(run_with_lock(0x55D0, 100), run_with_lock(0x7F12, 400), limit=None)
    assert comparison.objects
    rows = {row.values[0]: (row.old.weight, row.new.weight) for row in comparison.objects.rows}
    assert rows == {STABLE: (100 * 10**6, 400 * 10**6), "[none]": (5 * 10**6, 5 * 10**6)}
    text = "\n".join(render(comparison, None, Style()))
    assert "# Off-cpu time by object, largest change first" in text
    assert "0x55d0" not in text
    assert document(comparison, None)["objects"]["rows"][0]["values"] == [STABLE]


def test_objects_are_a_table_unless_there_are_none_or_the_groups_have_them() -> None:
    comparison = compared(run_with_lock(0x55D0, 100), run_with_lock(0x7F12, 400), limit=None, keys=("comm", "object"))
    assert comparison.objects is None, "the first table has them"
    assert ("bank", STABLE) in {row.values for row in comparison.groups.rows}
    none = run_with_lock(0, 9, objects=False)
    comparison = compared(none, none)
    assert comparison.objects is None
    assert document(comparison, None)["objects"] is None
    assert compared(none, run_with_lock(1, 9)).objects is not None
