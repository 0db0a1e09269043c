# SPDX-License-Identifier: Apache-2.0
"""Sum the shortest waits of a profile, so that outputs with a time axis become smaller.

A sum has one thread under one name, one stack, state, system call, object and control group. So tables by any
of these do not change. The times of the waits, their wakers and their holders are lost.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from perf_offcpu.analysis.group import group, max_by, sum_by
from perf_offcpu.model.columns import I64, Bool
from perf_offcpu.model.profile import Profile, ProfileSamples
from perf_offcpu.model.recording import SUM_FLAGS, SampleFlag

_SINGLE = SUM_FLAGS | SampleFlag.STILL_BLOCKED | SampleFlag.BEGAN_BEFORE
"""Flags of samples that are never summed."""
_UNKNOWN = ("wakeup_ns", "waker_pid", "waker_tid", "waker_stack", "cpu", "asked_ns", "holder_tid")


class ShortWaits:
    """The waits of a profile that can be summed, shortest first."""

    def __init__(self, profile: Profile) -> None:
        samples = profile.samples
        waits = profile.is_offcpu() & ~samples.has(_SINGLE) & (samples.time_ns >= 0)
        rows = np.flatnonzero(waits)
        self.profile = profile
        self._length = samples.length_ns()
        self.rows: I64 = rows[np.argsort(self._length[rows], kind="stable")]
        flags = samples.flags & ~np.uint32(SampleFlag.WAKER_INTERRUPT)
        thread = (samples.evsel, samples.pid, samples.tid, samples.comm)
        wait = (samples.stack, samples.state, samples.syscall, samples.object, samples.cgroup.view(np.int64))
        self._group = group(*thread, *wait, flags)[1] if len(samples) else np.empty(0, np.int64)

    def longest_ns(self, number: int) -> int:
        """Return the length of the longest of the `number` shortest waits."""
        return int(self._length[self.rows[:number]].max(initial=0))

    def samples_left(self, number: int) -> int:
        """Return the number of samples after the `number` shortest waits are summed."""
        used = np.zeros(int(self._group.max(initial=-1)) + 1, np.bool_)
        used[self._group[self.rows[:number]]] = True
        return len(self.profile.samples) - number + int(used.sum())

    def number_for(self, most: int) -> int:
        """Return the least number of waits to sum, so that at most `most` samples are left; else all."""
        low, high = 0, len(self.rows)
        while low < high:
            middle = (low + high) // 2
            if self.samples_left(middle) <= most:
                high = middle
            else:
                low = middle + 1
        return low

    def summed(self, number: int) -> Profile:
        """Return the profile with the `number` shortest waits summed."""
        samples, chosen = self.profile.samples, self.rows[:number]
        if not number:
            return self.profile
        first, of = group(self._group[chosen])
        alone: Bool = np.bincount(of, minlength=len(first)) == 1
        rest = np.ones(len(samples), np.bool_)
        rest[chosen[~alone[of]]] = False  # a sum of one wait would save nothing
        chosen, of = chosen[~alone[of]], (np.cumsum(~alone) - 1)[of[~alone[of]]]
        sums = _sums(samples.take(chosen), of)
        both = ProfileSamples.concat([samples.take(rest), sums])
        return replace(self.profile, samples=both.take(np.argsort(both.time_ns, kind="stable")))


def _sums(samples: ProfileSamples, of: I64) -> ProfileSamples:
    """Return a sample for each group of waits."""
    groups = int(of.max(initial=-1)) + 1
    first = np.empty(groups, np.int64)
    first[of[::-1]] = np.arange(len(of) - 1, -1, -1)
    unknown = ProfileSamples.filled(groups)
    runq = sum_by(of, np.maximum(samples.runq_ns, 0), groups)
    runq_known = max_by(of, samples.runq_ns, groups) >= 0
    begin = np.full(groups, np.iinfo(np.int64).max)
    np.minimum.at(begin, of, samples.switch_out_ns)
    flags = samples.flags[first] & ~np.uint32(SampleFlag.WAKER_INTERRUPT | SampleFlag.SAMPLED)
    return samples.take(first).with_columns(
        period=sum_by(of, samples.period, groups),
        count=sum_by(of, samples.count, groups),
        longest_ns=max_by(of, samples.length_ns(), groups),
        time_ns=max_by(of, samples.time_ns, groups),
        switch_out_ns=begin,
        runq_ns=np.where(runq_known, runq, -1),
        flags=flags | np.uint32(SampleFlag.AGGREGATED),
        **{name: getattr(unknown, name) for name in _UNKNOWN},
    )
