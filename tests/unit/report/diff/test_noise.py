# SPDX-License-Identifier: Apache-2.0
"""Noise of sums of waits: simulated loads of known kind, recorded twice, must hardly ever differ by more."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from builders.simulated import LENGTH_NS, bursts, load

from perf_offcpu.analysis.selection.time_windows import parse_windows
from perf_offcpu.model.profile import ProfileSamples
from perf_offcpu.model.recording import Meta, SampleFlag
from perf_offcpu.report.diff.noise import RecordedTime, errors_needed, variance_between_slices, variance_by_length

RECORDED = RecordedTime.of(Meta(begin_ns=1, end_ns=LENGTH_NS + 1))
PAIRS = 150


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
    for _ in range(PAIRS):
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
