# SPDX-License-Identifier: Apache-2.0
"""Divide time outside of recorded waits into running and waiting for a CPU, by the threads' budgets. Unless preemption
is recorded as waits (`record --switch-states` with R), only a thread's budget knows how long it was preempted, not
when. So time that seems to be running is divided as the thread's whole life is: into running and preempted."""

from collections.abc import Sequence

import numpy as np

from perf_offcpu.analysis.times.timeline import Track
from perf_offcpu.model.columns import I32, I64
from perf_offcpu.model.profile import Profile
from perf_offcpu.model.recording import SUM_FLAGS, SampleFlag

_SCALE = 1 << 20


class CpuWaits:
    """Share of preemption in the time in which threads (`tracks`) seem to run. `queued`: int64[tracks], ns of
    preemption that were not recorded as waits. `running`: int64[tracks], ns on a CPU, by the budgets. `share`:
    int64[tracks], `queued` as a part of the time outside of single waits, in units of 2^-20."""

    def __init__(self, profile: Profile, tracks: Sequence[Track]) -> None:
        budget, samples = profile.budget, profile.samples
        row_of = {(track.pid, track.tid): row for row, track in enumerate(tracks)}

        def sums(pid: I32, tid: I32, values: I64) -> I64:
            pairs = zip(pid.tolist(), tid.tolist(), strict=True)
            rows = np.array([row_of.get(pair, len(tracks)) for pair in pairs], np.int64)
            total = np.zeros(len(tracks) + 1, np.int64)
            np.add.at(total, rows, values)
            return total[:-1]

        recorded = np.flatnonzero(samples.has(SampleFlag.PREEMPTED) & profile.is_offcpu())
        summed = np.flatnonzero(samples.has(SUM_FLAGS) & profile.is_offcpu())
        preempted, self.running = (
            sums(budget.pid, budget.tid, column) for column in (budget.preempted_ns, budget.running_ns)
        )
        placed, unplaced = (
            sums(samples.pid[rows], samples.tid[rows], samples.period[rows]) for rows in (recorded, summed)
        )
        self.queued = np.maximum(preempted - placed, 0)
        wall = np.maximum(self.running + self.queued + unplaced, 1)
        self.share: I64 = (self.queued.astype(np.float64) / wall * _SCALE).astype(np.int64)

    def of(self, track: I64, ns: I64) -> I64:
        """Return int64[n]: estimated ns of preemption in ns[i], a time of thread track[i] outside of waits."""
        high, low = np.divmod(ns, _SCALE)
        share = self.share[track]
        queued: I64 = high * share + low * share // _SCALE
        return queued
