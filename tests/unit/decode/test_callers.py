# SPDX-License-Identifier: Apache-2.0
"""Samples take the snapshot of their caller, wherever in the recording it came."""

from __future__ import annotations

import numpy as np

from perf_offcpu import losses
from perf_offcpu.decode.stacks.snapshot_store import CallerRows, with_callers
from perf_offcpu.losses import Losses
from perf_offcpu.model.columns import I32, U64

HIGHEST = 2**64 - 1


def callers(*numbers: int) -> U64:
    return np.array(numbers, np.uint64)


def snapshots(*rows: int) -> I32:
    return np.array(rows, np.int32)


def test_samples_get_the_snapshot_of_their_caller_and_others_stay_as_they_are() -> None:
    found = with_callers(snapshots(7, -1, -1, 3, -1), callers(HIGHEST, HIGHEST, 0, 0, HIGHEST), CallerRows())
    assert found.tolist() == [7, 7, -1, 3, 7]
    assert found.dtype == np.int32


def test_callers_are_known_from_earlier_samples_and_the_first_one_counts() -> None:
    known = CallerRows()
    assert with_callers(snapshots(0, 1, 2), callers(5, 6, 5), known).tolist() == [0, 1, 2]
    assert with_callers(snapshots(-1, 3, -1), callers(5, 6, 6), known).tolist() == [0, 3, 1]


def test_a_copy_may_come_after_the_samples_that_refer_to_it() -> None:
    known, counters = CallerRows(), Losses()
    early = [with_callers(snapshots(-1, -1), callers(5, 6), known) for _ in range(2)]
    late = with_callers(snapshots(0, -1, 1), callers(6, 0, 5), known)
    found = known.settled(np.concatenate([*early, late]), counters)
    assert found.tolist() == [1, 0, 1, 0, 0, -1, 1]
    assert found.dtype == np.int32 and not counters


def test_samples_whose_copy_never_came_are_counted() -> None:
    known, counters = CallerRows(), Losses()
    found = with_callers(snapshots(-1, 1, -1), callers(4, 5, 4), known)
    assert known.settled(found, counters).tolist() == [-1, 1, -1]
    assert dict(counters) == {losses.CALLERS_NOT_COPIED: 2}


def test_no_samples_at_all() -> None:
    assert with_callers(snapshots(), callers(), CallerRows()).tolist() == []
