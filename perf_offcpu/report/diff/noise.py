# SPDX-License-Identifier: Apache-2.0
"""Estimate how much sums of waits differ by chance between recordings of the same load.

Waits occur at random, with random lengths: the variance of the sum of n independent waits is the sum of their squares
(a compound Poisson process). The waits in a sum of short waits are taken to be as long as its longest one, which is an
upper bound; if that is unknown, as long as the recorder's threshold. If stacks of such waits were drawn, one for each
period, the time of each drawn stack times the period is added.

Two properties of a steady load change this. A thread that waits nearly all the time cannot wait longer by chance: if it
spends the share p of the time in waits of a row, their variance is (1 - p)^2 times the sum of squares (an alternating
renewal process). One wait does not prove that, so of n waits 1 / (n + 1) of the reduction is doubtful; it counts as far
as the other recording has no such waits. And waits of several threads have causes in common, such as one checkpoint: so
the weights of slices of the recorded time are compared, too, each with the next one, and the larger variance counts.
Phases of a program that runs from start to end are not chance; for whole runs only the squares count."""

import math
from collections.abc import Sequence
from statistics import NormalDist
from typing import Self

import numpy as np
from numpy.typing import NDArray

from perf_offcpu.analysis.selection.time_windows import Window
from perf_offcpu.model.columns import I64, group, sum_by
from perf_offcpu.model.coverage import united
from perf_offcpu.model.profile import ProfileSamples
from perf_offcpu.model.recording import SUM_FLAGS, Meta, SampleFlag
from perf_offcpu.structs import mutable

F64 = NDArray[np.float64]

SLICES = 20
ERRORS = 3.0  # largest change that is noise in a small table, in standard errors
_FALSE_TABLES = 0.05  # share of tables with at least one false row, in comparisons of recordings of the same load


def errors_needed(rows: int, least: float = ERRORS) -> float:
    """Return the smallest significant change in a table of `rows` rows, in standard errors; at least `least`."""
    return max(least, NormalDist().inv_cdf(1 - _FALSE_TABLES / 2 / max(rows, 1)))


@mutable
class RecordedTime:
    """Recorded time: without pauses, gaps between recordings, and times outside of chosen windows."""

    edges: F64  # float64[2k], ns of the recording's clock: begin and end of each span, ascending
    total_ns: float

    @classmethod
    def of(cls, meta: Meta, windows: Sequence[Window] = ()) -> Self:
        """Return the recorded time within the windows; without windows, all of it."""
        spans = united((float(begin), float(end)) for begin, end in meta.recorded)
        if windows:
            chosen = united(window.bounds(meta.first_ns, meta.last_ns) for window in windows)
            both = ((max(a, c), min(b, d)) for a, b in spans for c, d in chosen)
            spans = [(begin, end) for begin, end in both if begin < end]
        edges = np.array([edge for span in spans for edge in span], np.float64)
        return cls(edges, float((edges[1::2] - edges[::2]).sum()))

    def slices(self, times: I64) -> F64:
        """Return float64[n]: place of each time (ns) in the recorded time, from 0 to SLICES; gaps take no room."""
        lengths = np.diff(self.edges, prepend=self.edges[:1])
        lengths[::2] = 0  # gaps
        passed = np.cumsum(lengths)
        place: F64 = np.interp(times.astype(np.float64), self.edges, passed / self.total_ns * SLICES)
        return place


def variance_by_length(
    samples: ProfileSamples,
    group_of: I64,
    groups: int,
    *,
    threshold_ns: int = -1,
    stack_period_ns: int = 0,
    whole_ns: float = math.inf,
) -> tuple[F64, F64]:
    """Return (variance, doubtful), float64[groups], of the weight of each group, by the lengths of its waits.
    `doubtful`: what `variance` may lack: it is reduced for threads that wait nearly all the time, which few waits do
    not prove. Variance of a change: sum of both recordings' variances + |difference of both `doubtful`|.
    `threshold_ns`: upper bound of waits in sums; -1 unknown. `stack_period_ns`: period by which stacks of sums were
    drawn. `whole_ns`: recorded time, the longest that a thread can wait; inf if the load is not steady."""
    first, cell = group(group_of, samples.pid, samples.tid)
    weight, waits = (sum_by(cell, values, len(first)) for values in (samples.period, samples.count))
    squares = np.bincount(cell, _squares(samples, threshold_ns), len(first))
    left = squares * (1 - np.clip(weight / whole_ns, 0, 1)) ** 2
    doubtful = (squares - left) / (waits + 1)
    by_group = [np.zeros(groups) + np.bincount(group_of[first], values, groups) for values in (left, doubtful)]
    drawn = samples.has(SampleFlag.DRAWN)
    by_draw = np.bincount(group_of[drawn], samples.period[drawn].astype(np.float64), groups) * stack_period_ns
    return by_group[0] + by_draw, by_group[1]


def _squares(samples: ProfileSamples, threshold_ns: int) -> F64:
    period = samples.period.astype(np.float64)
    bound = np.where(samples.longest_ns >= 0, samples.longest_ns, threshold_ns)
    shorter = samples.has(SUM_FLAGS) & (bound >= 0)
    return period * np.where(shorter, np.minimum(bound, period), period)


def variance_between_slices(samples: ProfileSamples, group_of: I64, groups: int, recorded: RecordedTime) -> F64:
    """Return float64[groups]: the variance of the weight of each group, by slices of the recorded time. The weight of a
    wait is spread over its time, that of a sum over the time from its first to its last wait. Half the mean square of
    the difference of neighbours is the variance of one slice, whatever the trend. `group_of`: -1 none."""
    rows = np.flatnonzero((group_of >= 0) & (samples.time_ns >= 0))
    samples, group_of = samples.take(rows), group_of[rows]
    is_sum = samples.has(SUM_FLAGS) & (samples.switch_out_ns >= 0)
    begins = np.where(is_sum, samples.switch_out_ns, samples.time_ns - samples.length_ns())
    begins = np.where(samples.has(SampleFlag.OFFCPU), begins, samples.time_ns)
    begin, end = recorded.slices(begins), recorded.slices(samples.time_ns)
    last = np.minimum(end.astype(np.int64), SLICES - 1)
    within = np.minimum(begin.astype(np.int64), SLICES - 1) == last
    weight = samples.period.astype(np.float64)
    sums = np.zeros(groups * SLICES) + np.bincount((group_of * SLICES + last)[within], weight[within], groups * SLICES)
    begin, end, group_of, weight = begin[~within], end[~within], group_of[~within], weight[~within]
    for index in range(SLICES):
        part = np.clip(np.minimum(end, index + 1) - np.maximum(begin, index), 0, None) / (end - begin)
        sums[index::SLICES] += np.bincount(group_of, part * weight, groups)
    fine = sums.reshape(groups, SLICES)
    return np.maximum(_of_neighbours(fine), _of_neighbours(fine[:, ::2] + fine[:, 1::2]))


def _of_neighbours(sums: F64) -> F64:
    """Return float64[groups]: variance of each total, by neighbouring slices. `sums`: [groups, slices], by time."""
    slices = sums.shape[1]
    variance: F64 = (np.diff(sums, axis=1) ** 2).sum(axis=1) * (slices / (2 * (slices - 1)))
    return variance
