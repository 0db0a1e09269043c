# SPDX-License-Identifier: Apache-2.0
"""Table of the waits of all threads by thread and time, with the thread that ended each of them."""

import numpy as np

from perf_offcpu.analysis.times.timeline import Timeline, Track
from perf_offcpu.analysis.times.wakeups import queued_ns, with_wakers
from perf_offcpu.model.columns import I64
from perf_offcpu.model.join import is_idle_task
from perf_offcpu.model.profile import Profile
from perf_offcpu.model.recording import SampleFlag

_EXPLAINS_ITSELF = SampleFlag.PREEMPTED | SampleFlag.STILL_BLOCKED | SampleFlag.WAKER_INTERRUPT


class WaitTable:
    """w waits, sorted by (track, end); waits of one thread do not overlap. Times are ns since the origin.

    Attributes:
        tracks: the recorded threads, and threads that only woke others.
        row: int64[w], rows in samples.
        track: int64[w], rows in `tracks`.
        begin, end: int64[w], ns since the origin.
        queued: int64[w], time from which on the thread waited for a CPU; the end if unknown.
        waker: int64[w], the track of the thread that ended the wait; -1 if unknown, for an interrupt, and for
            the idle task, in which only interrupts wake threads.
        known: bool[tracks], the threads that have samples.
        born: int64[tracks], the birth of each thread; 0 or less if it is before the recording or unknown.
    """

    def __init__(self, profile: Profile, timeline: Timeline) -> None:
        samples = profile.samples
        self.tracks, waker = with_wakers(profile, timeline)
        rows = np.flatnonzero(timeline.waits)
        rows = rows[np.argsort(timeline.end_ns[rows], kind="stable")]
        rows = rows[np.argsort(timeline.track[rows], kind="stable")]
        self.row, self.track, self.end = rows, timeline.track[rows], timeline.end_ns[rows]
        begin = timeline.begin_ns[rows]
        before = np.append(np.int64(0), self.end[:-1])
        same = np.append(False, self.track[1:] == self.track[:-1]) if len(rows) else np.zeros(0, np.bool_)
        self.begin = np.where(same, np.maximum(begin, before[: len(rows)]), begin)
        preempted = samples.has(SampleFlag.PREEMPTED)[rows]
        queued = np.where(preempted, self.begin, queued_ns(samples, timeline)[rows])
        self.queued = np.clip(queued, self.begin, self.end)
        waker = waker[rows]
        followed = (waker >= 0) & (waker != self.track) & ~is_idle_task(samples.waker_tid[rows])
        followed &= ~samples.has(_EXPLAINS_ITSELF)[rows]
        self.waker = np.where(followed, waker, -1)
        self.born = _births(profile, self.tracks) - timeline.origin_ns
        self.known = np.zeros(len(self.tracks), np.bool_)
        self.known[timeline.track] = True
        # Places of times among all ends and begins, so that (track, place) is one number.
        self._ends, ends = np.unique(self.end, return_inverse=True)
        self._begins, begins = np.unique(self.begin, return_inverse=True)
        self._size = len(rows) + 1
        self._by_end = self.track * self._size + ends
        self._by_begin = self.track * self._size + begins

    def overlapping(self, track: I64, begin: I64, end: I64) -> tuple[I64, I64]:
        """Return (span_of, wait), int64[k] each: pairs of a span and a wait of its thread that overlap, by span, then
        time. Span i is the time from begin[i] to end[i] of thread track[i]."""
        place = np.searchsorted(self._ends, begin, "right")
        first = np.searchsorted(self._by_end, track * self._size + place)
        place = np.searchsorted(self._begins, end, "left")
        last = np.searchsorted(self._by_begin, track * self._size + place)
        return ranges(first, np.maximum(first, last))

    def last_before(self, track: I64, moment: I64) -> I64:
        """Return int64[n]: row in this table of the last wait of track[i] that ended by moment[i]; -1 none."""
        key = track * self._size + np.searchsorted(self._ends, moment, "right")
        wait = np.searchsorted(self._by_end, key) - 1
        same = wait >= 0
        same[same] = self.track[wait[same]] == track[same]
        return np.where(same, wait, -1)


def ranges(first: I64, last: I64) -> tuple[I64, I64]:
    """Return (range_of, number), int64[k] each: (i, number) for each number from first[i] to last[i] - 1."""
    count = last - first
    range_of = np.repeat(np.arange(len(first)), count)
    return range_of, np.arange(len(range_of)) - np.repeat(np.cumsum(count) - count, count) + first[range_of]


def pauses_of(profile: Profile, timeline: Timeline, hosts: list[int]) -> I64:
    """Return int64[k, 2]: begin and end, ns since the origin, of each time in which none of `hosts` was recorded."""
    return np.array(profile.meta.pauses_of(hosts), np.int64).reshape(-1, 2) - timeline.origin_ns


def _births(profile: Profile, tracks: list[Track]) -> I64:
    """Return int64[tracks]: the birth of each thread, ns of the recording's clock; 0: before it, or unknown."""
    tasks = profile.tasks
    first = dict(zip(tasks.tid[::-1].tolist(), tasks.begin_ns[::-1].tolist(), strict=True))
    return np.array([first.get(track.tid, 0) for track in tracks], np.int64)
