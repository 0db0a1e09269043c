# SPDX-License-Identifier: Apache-2.0
"""Divide the time of waits for locks among the threads that held the lock in that time.

Who holds a lock is seen at moments only: when a wait begins, by the word of the lock (the owner); when a wait
ends, by its waker, which held the lock until then, and by the waiter, which has it next. Between two moments
the lock was held by the thread that both name. If they name different threads, the lock changed hands unseen,
and the holder is not known. A queue lasts as long as some thread waits; if no moment of it names a thread, the
holder is not known, either. A waiter that waits again was overtaken: it did not have the lock. A thread that
takes a lock for which no thread waits is not seen, so nothing is concluded from one queue for the next.
"""

import numpy as np

from perf_offcpu.analysis.group import group, sum_by
from perf_offcpu.analysis.holders import Holders
from perf_offcpu.model.columns import I64, Bool
from perf_offcpu.model.profile import Profile, ProfileSamples
from perf_offcpu.model.recording import SUM_FLAGS, SampleFlag
from perf_offcpu.structs import mutable


@mutable
class HeldTime:
    """Sums of waits by object and holder, as columns; a wait counts until its wake-up."""

    object: I64  # int64[n], row in the profile's objects
    tid: I64  # int64[n], the holder; -1 not known
    weight: I64  # int64[n], ns of waits while the thread held the lock
    times: I64  # int64[n], how often it became the holder, as far as moments show
    time_ns: I64  # int64[n], when it had the lock for the first time


def held_time(profile: Profile, holders: Holders, chosen: Bool) -> HeldTime:
    """Return for how long each thread held the objects of the `chosen` samples (bool[samples]) while other threads
    waited for them. `holders`: `holders_of(profile)`. Samples without an object or a time are left out."""
    samples = profile.samples
    timed = (samples.object >= 0) & (samples.time_ns >= 0) & ~samples.has(SUM_FLAGS)
    moments = _Moments(samples, holders, np.flatnonzero(chosen & timed))
    tid, weight = moments.holder(), moments.weight()
    rows = np.flatnonzero(weight > 0)
    first, group_of = group(moments.object[rows], tid[rows])
    runs = np.stack([moments.object[rows], moments.queue[rows], tid[rows]])
    is_new = np.append(True, (runs[:, 1:] != runs[:, :-1]).any(axis=0))[: len(rows)]
    return HeldTime(
        moments.object[rows][first],
        tid[rows][first],
        sum_by(group_of, weight[rows], len(first)),
        sum_by(group_of, is_new, len(first)),
        moments.time_ns[rows][first],
    )


def spans_of(samples: ProfileSamples) -> tuple[I64, I64]:
    """Return (begin, end) of each wait: int64[n], ns of the recording's clock; a wait ends at its wake-up."""
    begin = np.where(samples.switch_out_ns >= 0, samples.switch_out_ns, samples.time_ns - samples.length_ns())
    woken = (samples.wakeup_ns >= 0) & ~samples.has(SampleFlag.STILL_BLOCKED)
    return begin, np.where(woken, samples.wakeup_ns, samples.time_ns)


class _Moments:
    """Moments: begins and ends of the waits for each object as columns, sorted by object, then time.

    Args:
        rows: int64[n], the samples whose waits make the moments.
    """

    def __init__(self, samples: ProfileSamples, holders: Holders, rows: I64) -> None:
        begin, end = (column[rows] for column in spans_of(samples))
        blocked = samples.has(SampleFlag.STILL_BLOCKED)[rows]
        held, released = (column[rows].astype(np.int64) for column in (holders.held, holders.released))
        tid, none = samples.tid[rows].astype(np.int64), np.full(len(rows), -1, np.int64)
        # The word for which a thread is still blocked was read at the end.
        owner = np.where(blocked, none, held)
        before = np.concatenate([owner, np.where(blocked, held, released)])
        after = np.concatenate([owner, np.where(released >= 0, tid, none)])
        both = np.concatenate([samples.object[rows], samples.object[rows]]).astype(np.int64)
        time, is_end = np.concatenate([begin, end]), np.arange(2 * len(rows)) >= len(rows)
        order = np.lexsort((is_end, time, both))
        self.object, self.time_ns, self._is_end = both[order], time[order], is_end[order]
        self._tid = np.concatenate([tid, tid])[order]
        # The changes of each object add up to 0, so one running sum serves all.
        waiting = np.cumsum(np.where(self._is_end, -1, 1))
        self._before, self._after = before[order], np.where(waiting > 0, after[order], -1)
        self.queue = np.cumsum(np.append(0, waiting[:-1] == 0)[: len(waiting)])
        length, period = end - begin, samples.period[rows]
        is_whole = period == samples.length_ns()[rows]  # of a sampled wait the period is larger or smaller
        density = np.where(is_whole, 1.0, period / np.maximum(length, 1))
        change = np.concatenate([density, -density])[order]
        self._density = np.where(waiting > 0, np.maximum(np.cumsum(change), 0), 0)

    def weight(self) -> I64:
        """Return int64[moments]: ns that all waits together spent from each moment to the next one."""
        length = np.diff(self.time_ns, append=self.time_ns[-1:])
        return np.where(self._density > 0, np.rint(length * self._density), 0).astype(np.int64)

    def holder(self) -> I64:
        """Return int64[moments]: tid of the thread that held the object from this moment to the next; -1 not known."""
        is_seen = (self._before >= 0) | (self._after >= 0)
        number = np.arange(len(is_seen))
        last = np.maximum.accumulate(np.where(is_seen, number, -1))
        following = np.minimum.accumulate(np.where(is_seen, number, len(is_seen))[::-1])[::-1]
        following = np.append(following, len(is_seen))[number + 1]
        got, had = self._named(self._after, last), self._named(self._before, following)
        at_last, at_following = (np.append(self._is_end, False)[index] for index in (last, following))
        waits_again = at_last & ~at_following & (np.append(self._tid, -1)[following] == got)
        return np.where((got == had) | (had < 0), got, np.where((got < 0) | waits_again, had, -1))

    def _named(self, thread: I64, moment: I64) -> I64:
        """Return int64[moments]: `thread[moment]`, a tid; -1 where that moment is in another queue, or out of range.
        `moment`: int64[moments], index of an earlier or later moment for each moment."""
        queue = np.append(self.queue, -1)[moment]
        return np.where(queue == self.queue, np.append(thread, -1)[moment], -1)
