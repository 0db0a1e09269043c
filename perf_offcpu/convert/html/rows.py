# SPDX-License-Identifier: Apache-2.0
"""Order the samples of a page and make its columns: waits, then moments, then samples without a place.

Each kind is sorted by thread and begin, so that a page finds the waits of a thread in a span by bisection.
Begins are stored as differences to the end before, which are small. A weight is `hi * 10^9 + lo`, and each
part is summed for itself: JavaScript's numbers are exact up to 2^53, in ns 104 days, and sums over threads
may be longer.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from perf_offcpu.analysis.timeline import Timeline
from perf_offcpu.model.columns import I64
from perf_offcpu.model.profile import Profile
from perf_offcpu.model.recording import SampleFlag

GIGA = 10**9
_UNKNOWN_TIME = -1


class Rows:
    """The order of a profile's samples in a page.

    Attributes:
        order: int64[n], the sample of each row.
        firsts: the first row of each thread: int64[3, tracks + 1], for waits, moments and the others.
    """

    def __init__(self, timeline: Timeline, tracks: int) -> None:
        kind = np.where(timeline.waits, 0, np.where(timeline.moments, 1, 2))
        self.order: I64 = np.lexsort((timeline.end_ns, timeline.begin_ns, timeline.track, kind))
        self._group = (kind * tracks + timeline.track)[self.order]
        edges = np.arange(3)[:, None] * tracks + np.arange(tracks + 1)
        self.firsts: I64 = np.searchsorted(self._group, edges)

    def columns(self, profile: Profile, timeline: Timeline) -> dict[str, NDArray[np.integer]]:
        """Return columns of times, weights and flags by row; lengths where waits stand for others, too."""
        samples = profile.samples.take(self.order)
        begin, end = timeline.begin_ns[self.order], timeline.end_ns[self.order]
        before = np.append(np.int64(0), end[:-1])[: len(end)]
        same = np.append(False, self._group[1:] == self._group[:-1])[: len(end)]
        hi, lo = np.divmod(samples.period, GIGA)
        without_place = self.firsts[2, 0]
        times = samples.time_ns[without_place:]
        columns = {
            "gap": np.where(same, begin - before, begin),
            "hi": hi,
            "lo": lo,
            "count": samples.count,
            "runq": np.clip(samples.runq_ns, 0, np.maximum(samples.period, 0)),
            "cpu": samples.cpu,
            "flags": samples.flags,
            "lasts": np.where(times >= 0, times - timeline.origin_ns, _UNKNOWN_TIME),
            "timed": (times >= 0).astype(np.uint8),
        }
        if samples.has(SampleFlag.SAMPLED).any():  # their weights are not their lengths
            length = samples.length_ns()
            delay = np.clip(samples.delay_ns(), 0, np.maximum(length, 0))
            columns |= {"length": length, "delay": delay}
        return columns

    def take(self, columns: Mapping[str, NDArray[np.integer]]) -> dict[str, NDArray[np.integer]]:
        """Return columns of samples by row."""
        return {name: column[self.order] for name, column in columns.items()}
