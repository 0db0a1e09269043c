# SPDX-License-Identifier: Apache-2.0
"""Measure how many threads waited for one thing at the same time."""

from __future__ import annotations

import numpy as np

from perf_offcpu.analysis.group import group, max_by
from perf_offcpu.model.columns import I64
from perf_offcpu.model.profile import ProfileSamples
from perf_offcpu.model.recording import SUM_FLAGS


def longest_queues(samples: ProfileSamples, of: I64, groups: int) -> I64:
    """Return int64[groups]: the most waits of each group that went on at one time; 0 without timed waits.

    A wait that begins when another one ends does not meet it. Sums have no time and are left out.

    Args:
        of: int64[n], the group of each sample; -1 for none.
    """
    begin = np.where(samples.switch_out_ns >= 0, samples.switch_out_ns, samples.time_ns - samples.length_ns())
    rows = np.flatnonzero((of >= 0) & (samples.time_ns >= 0) & ~samples.has(SUM_FLAGS))
    owner = np.concatenate([of[rows], of[rows]])
    times = np.concatenate([begin[rows], samples.time_ns[rows]])
    change = np.repeat(np.array([1, -1]), len(rows))
    order = np.lexsort((change, times, owner))
    # The changes of each group add up to 0, so one running sum serves all.
    return np.maximum(max_by(owner[order], np.cumsum(change[order]), groups), 0)


def waiters(samples: ProfileSamples, of: I64, groups: int) -> I64:
    """Return int64[groups]: the number of threads with samples in each group."""
    rows = np.flatnonzero(of >= 0)
    first, _ = group(of[rows], samples.pid[rows], samples.tid[rows])
    return np.bincount(of[rows][first], minlength=groups).astype(np.int64)
