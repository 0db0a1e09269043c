# SPDX-License-Identifier: Apache-2.0
"""Who woke whom, when, and how long the woken then waited for a CPU: what timelines draw as arrows.

An arrow begins at a mark on the waker's track, a slice of a microsecond or less: it must end before anything
else there begins or ends, because slices of a track may only nest. Interrupts are no thread's doing: the task
that they interrupt happens to be there, so such wake-ups have no arrow.
"""

from __future__ import annotations

import numpy as np

from perf_offcpu.analysis.intervals import Timeline, Track, with_wakers
from perf_offcpu.model.columns import I64, Bool
from perf_offcpu.model.profile import Profile
from perf_offcpu.model.recording import SampleFlag
from perf_offcpu.structs import mutable

_MARK_NS = 1_000


@mutable
class Wakeups:
    """What is known of the end of each of the n samples' waits.

    Args:
        tracks: those of the timeline, then those of threads that only woke others.
        waker: int64[n], the track of the waker; -1 unknown.
        interrupt: bool[n], whether it was an interrupt on top of that thread.
        queued_ns: int64[n], ns since the timeline's origin: from then to its end the thread waited for a CPU.
            The end itself where that is unknown or the sample is no wait.
        arrows: int64[k], the samples whose wake-up is drawn.
        mark_ns: int64[k], how long the mark of each is.
    """

    tracks: list[Track]
    waker: I64
    interrupt: Bool
    queued_ns: I64
    arrows: I64
    mark_ns: I64


def wakeups_of(profile: Profile, timeline: Timeline) -> Wakeups:
    """The wake-ups of all samples of a profile."""
    samples = profile.samples
    tracks, waker = with_wakers(profile, timeline)
    interrupt = (samples.flags & np.uint32(SampleFlag.WAKER_INTERRUPT)) != 0
    queued = _queued(profile, timeline)
    woken = timeline.waits & (samples.wakeup_ns >= 0) & (waker >= 0) & ~interrupt
    arrows = np.flatnonzero(woken & (waker != timeline.track))
    marks = _mark_lengths(timeline, queued, waker[arrows], queued[arrows])
    return Wakeups(tracks, waker, interrupt, queued, arrows, marks)


def _queued(profile: Profile, timeline: Timeline) -> I64:
    samples, end = profile.samples, timeline.end_ns
    woken = samples.wakeup_ns - timeline.origin_ns
    queued = np.where(
        samples.runq_ns >= 0, end - samples.runq_ns, np.where(samples.wakeup_ns >= 0, woken, end)
    )
    return np.where(timeline.waits, np.clip(queued, timeline.begin_ns, end), end)


def _mark_lengths(timeline: Timeline, queued_ns: I64, track: I64, at_ns: I64) -> I64:
    """How long marks can be: shorter than the way to the next begin or end of anything on their track."""
    waits = np.flatnonzero(timeline.waits)
    edges = (timeline.begin_ns[waits], queued_ns[waits], timeline.end_ns[waits])
    tracks = np.concatenate([*[timeline.track[waits]] * len(edges), track])
    times = np.concatenate([*edges, at_ns])
    order = _sorted_by(tracks, times)
    room = np.full(len(order), _MARK_NS)
    same = tracks[order[1:]] == tracks[order[:-1]]
    room[order[:-1]] = np.where(same, times[order[1:]] - times[order[:-1]] - 1, _MARK_NS)
    marks: I64 = np.clip(room[len(order) - len(track) :], 0, _MARK_NS)
    return marks


def _sorted_by(tracks: I64, times: I64) -> I64:
    """The order by (track, time); as one key where both fit into 63 bits, which is twice as fast."""
    span = int(times.max(initial=0)) + 1
    if span * (int(tracks.max(initial=0)) + 1) < 2**62:
        return np.argsort(tracks * span + times)
    return np.lexsort((times, tracks))
