# SPDX-License-Identifier: Apache-2.0
"""Lengths of queues, against counting at each moment."""

from __future__ import annotations

import numpy as np
from builders.profile import ProfileBuilder
from hypothesis import given
from hypothesis import strategies as st

from perf_offcpu.locks import longest_queues, waiters
from perf_offcpu.model.recording import SampleFlag

WAITS = st.lists(st.tuples(st.integers(-1, 2), st.integers(0, 20), st.integers(1, 9), st.integers(1, 4)))


@given(WAITS)
def test_queues_and_waiters(waits: list[tuple[int, int, int, int]]) -> None:
    builder = ProfileBuilder()
    for _, begin, length, tid in waits:
        builder.sample("a", [], length, tid=tid, time_ns=begin + length, switch_out_ns=begin)
    samples = builder.build().samples
    of = np.array([group for group, *_ in waits], np.int64)
    expected = [
        max(
            (
                sum(g == group and begin <= at < begin + length for g, begin, length, _ in waits)
                for at in range(30)
            ),
            default=0,
        )
        for group in range(3)
    ]
    assert longest_queues(samples, of, 3).tolist() == expected
    threads = [len({tid for g, _, _, tid in waits if g == group}) for group in range(3)]
    assert waiters(samples, of, 3).tolist() == threads


def test_sums_and_waits_without_a_time_queue_nowhere() -> None:
    builder = ProfileBuilder()
    builder.sample("a", [], 50, time_ns=100, flags=SampleFlag.AGGREGATED)
    builder.sample("a", [], 50, time_ns=-1)
    builder.sample("a", [], 50, time_ns=100)  # its begin follows from its length
    assert longest_queues(builder.build().samples, np.zeros(3, np.int64), 1).tolist() == [1]
