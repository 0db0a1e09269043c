# SPDX-License-Identifier: Apache-2.0
"""Who woke whom: threads, and for each pair how often one woke the other, and how long that had waited.

Time from wake-up to running is the scheduler's, not the waker's, and is left out. Interrupts stand for
themselves as one waker, "[interrupt]": the task that one interrupts has nothing to do with it.
"""

from __future__ import annotations

import numpy as np

from perf_offcpu.analysis.group import group, max_by, sum_by
from perf_offcpu.analysis.intervals import timeline_of, with_wakers
from perf_offcpu.model.columns import I64
from perf_offcpu.model.profile import Profile
from perf_offcpu.model.recording import SampleFlag
from perf_offcpu.structs import mutable

INTERRUPT = "[interrupt]"


@mutable
class WakerGraph:
    """Threads and wake-ups between them.

    Args:
        labels: the k threads, the last one INTERRUPT.
        off_cpu_ns: int64[k], all off-cpu time of each.
        waker, sleeper: int64[m], the two threads of each pair.
        count: int64[m], how many waits the one ended for the other.
        blocked_ns: int64[m], how long these lasted, until the wake-up.
        longest_ns: int64[m], the longest of them.
    """

    labels: list[str]
    off_cpu_ns: I64
    waker: I64
    sleeper: I64
    count: I64
    blocked_ns: I64
    longest_ns: I64


def waker_graph_of(profile: Profile) -> WakerGraph:
    """The wake-ups of all off-cpu samples of a profile whose waker is known."""
    samples, timeline = profile.samples, timeline_of(profile)
    tracks, waker = with_wakers(profile, timeline)
    interrupt = (samples.flags & np.uint32(SampleFlag.WAKER_INTERRUPT)) != 0
    waker = np.where(interrupt, len(tracks), waker)
    offcpu = profile.is_offcpu()
    off_cpu = sum_by(timeline.track, np.where(offcpu, samples.period, 0), len(tracks) + 1)
    rows = np.flatnonzero(offcpu & (waker >= 0))
    first, of = group(waker[rows], timeline.track[rows])
    blocked = samples.period[rows] - np.maximum(samples.runq_ns[rows], 0)
    return WakerGraph(
        [*(f"{track.comm}-{track.pid}/{track.tid}" for track in tracks), INTERRUPT],
        off_cpu,
        waker[rows[first]],
        timeline.track[rows[first]],
        sum_by(of, samples.count[rows], len(first)),
        sum_by(of, blocked, len(first)),
        max_by(of, blocked, len(first)),
    )
