# SPDX-License-Identifier: Apache-2.0
"""Lengths of waits: exact for single ones, sums apart."""

from builders.profile import ProfileBuilder
from hypothesis import given
from hypothesis import strategies as st

from perf_offcpu.callpaths.weights import EDGES
from perf_offcpu.model.recording import SampleFlag
from perf_offcpu.report.breakdowns import Bucket, Histogram, histogram
from perf_offcpu.report.totals import Total

SUM = SampleFlag.AGGREGATED
MS = 1_000_000


def of(*waits: int, sums: tuple[tuple[int, int, int], ...] = ()) -> Histogram:
    builder = ProfileBuilder()
    for weight in waits:
        builder.sample("a", [], weight)
    for weight, count, longest in sums:
        builder.sample("a", [], weight, flags=SUM, count=count, longest_ns=longest)
    return histogram(builder.build().samples)


def test_steps() -> None:
    found = of(MS, 2 * MS - 1, 2 * MS, 10 * MS)
    assert found.buckets == [
        Bucket(MS, 2 * MS, 2, 3 * MS - 1),
        Bucket(2 * MS, 5 * MS, 1, 2 * MS),
        Bucket(5 * MS, 10 * MS, 0, 0),
        Bucket(10 * MS, 20 * MS, 1, 10 * MS),
    ]


def test_ends() -> None:
    assert of(0, 999).buckets == [Bucket(0, 1000, 2, 999)]
    assert of(2**60).buckets == [Bucket(EDGES[-1], None, 1, 2**60)]
    assert of() == Histogram([], 0, Total(0, 0))


def test_sums_are_not_mixed_in() -> None:
    found = of(MS, sums=((900, 3, 500), (70 * MS, 100, 999_000)))
    assert found.buckets == [Bucket(MS, 2 * MS, 1, MS)]
    assert (found.sums, found.summed) == (2, Total(70 * MS + 900, 103, True, 999_000))


@given(st.lists(st.integers(0, 2**50), max_size=30))
def test_every_wait_is_in_one_step(waits: list[int]) -> None:
    found = of(*waits).buckets
    assert sum(one.count for one in found) == len(waits)
    assert sum(one.weight for one in found) == sum(waits)
    for one in found:
        inside = [wait for wait in waits if one.low <= wait and (one.high is None or wait < one.high)]
        assert (len(inside), sum(inside)) == (one.count, one.weight)
