# SPDX-License-Identifier: Apache-2.0
"""Find the thread that held a lock while another thread waited for it, and the thread that released it.

There are two sources, and views name the source:

    held       the word of the lock, read by the recorder when the wait began (`--lock-owners`), or at the end
               of the recording for an unfinished wait
    released   the waker of a finished wait: it held the lock at the end, or it signalled

The word is a number that the program wrote. It is used only if it is the tid of a thread that lived at that time, of
the sleeper's process unless the lock is in memory that processes share; other numbers, of other runtimes, are no
holders. A lock inside the kernel has the owner that the kernel names, of any process. A wake-up by an interrupt (a
timeout, a signal from outside) releases nothing. Neither does a thread of another process, unless the lock is shared or
in the kernel, nor the end of the process, which wakes all threads.

`held_time` divides the time of waits among the threads that held the lock in that time. Who holds a lock is seen at
moments only: when a wait begins, by the word of the lock (the owner); when a wait ends, by its waker, which held the
lock until then, and by the waiter, which has it next. Between two moments the lock was held by the thread that both
name. If they name different threads, the lock changed hands unseen, and the holder is not known. A queue lasts as long
as some thread waits; if no moment of it names a thread, the holder is not known, either. A waiter that waits again was
overtaken: it did not have the lock. A thread that takes a lock without a queue is not seen, so one queue says nothing
about the next. `longest_holders` names one thread for each wait, because the thread that released the lock last says
little: if a thread holds it for long, each later waiter is woken by the one before it."""

import numpy as np

from perf_offcpu.abi.wait_objects import LOCKS, ObjectKind
from perf_offcpu.model.columns import I32, I64, Bool, group, max_by, sum_by
from perf_offcpu.model.lookup import rows_at
from perf_offcpu.model.profile import ObjectFact, Profile, ProfileSamples
from perf_offcpu.model.recording import SUM_FLAGS, SampleFlag
from perf_offcpu.structs import mutable

_THREAD_EXIT_NS, _PROCESS_EXIT_NS = 1_000_000, 100_000_000
"""A wait that ends at most this long before its thread's exit, and this long before the exit of the first thread of
its process, was ended by the exit of the process: a thread woken by it only exits itself, in some 20 us."""


@mutable
class Holders:
    """Holder and releaser of the lock for which each of n samples waited, as columns."""

    held: I32  # int32[n], thread id of the holder; -1 unknown, or the recorded number is not used
    released: I32  # int32[n], thread id of the releaser; -1 unknown, or none
    cut_off: Bool  # bool[n], True for waits that the end of the process ended
    refused: int  # number of samples whose recorded holder is not used

    def known(self) -> I32:
        """Return int32[n]: tid of the awaited lock's holder; if unknown, of its releaser; -1 if neither is known."""
        return np.where(self.held >= 0, self.held, self.released)


def holders_of(profile: Profile) -> Holders:
    """Return holder and releaser of the lock of each sample of a profile."""
    samples, asked = profile.samples, profile.samples.holder_tid
    if not len(profile.objects) and not (asked >= 0).any():
        unknown = np.broadcast_to(np.int32(-1), len(samples))
        return Holders(unknown, unknown, np.broadcast_to(np.False_, len(samples)), 0)
    blocked = samples.has(SampleFlag.STILL_BLOCKED)
    time_ns = np.where(blocked, samples.time_ns, samples.switch_out_ns)
    shared = is_shared(profile)
    believed = (asked > 0) & (blocked | (asked != samples.tid))
    kind = np.append(profile.objects.kind, np.uint16(ObjectKind.UNKNOWN))[samples.object]
    by_program = believed & (kind != ObjectKind.KERNEL_LOCK)
    believed[by_program] = _lived(profile, np.flatnonzero(by_program), asked, time_ns, shared)
    woken = ~blocked & ~samples.has(SampleFlag.WAKER_INTERRUPT | SUM_FLAGS) & (samples.waker_tid > 0)
    woken &= np.isin(kind, LOCKS) & ((samples.waker_pid == samples.pid) | shared | (kind == ObjectKind.KERNEL_LOCK))
    by_timer = samples.has(SampleFlag.WAKER_INTERRUPT)
    cut_off = _ended_with_process(profile, np.flatnonzero(woken | (believed & ~blocked & ~by_timer)))
    woken &= ~cut_off
    held, released = np.where(believed, asked, -1), np.where(woken, samples.waker_tid, -1)
    refused = int(((asked >= 0) & ~believed).sum())
    return Holders(held.astype(np.int32), released.astype(np.int32), cut_off, refused)


def _ended_with_process(profile: Profile, rows: I64) -> Bool:
    """Return bool[samples]: True for `rows` that are the last wait of a thread which ended with its process."""
    samples, tasks = profile.samples, profile.tasks
    ends = np.append(tasks.end_ns, -1)
    for ids, most_ns in ((samples.tid, _THREAD_EXIT_NS), (samples.pid, _PROCESS_EXIT_NS)):
        end = ends[rows_at(tasks.tid, tasks.begin_ns, ids[rows], samples.time_ns[rows])]
        rows = rows[(end >= 0) & (np.abs(end - samples.time_ns[rows]) <= most_ns)]
    is_ended = np.zeros(len(samples), np.bool_)
    if len(rows):
        waits = np.flatnonzero(np.isin(samples.tid, samples.tid[rows]) & profile.is_offcpu())
        first, group_of = group(samples.tid[waits])
        last = max_by(group_of, samples.time_ns[waits], len(first))
        is_ended[waits] = samples.time_ns[waits] == last[group_of]
        is_ended &= np.isin(np.arange(len(samples)), rows)
    return is_ended


def is_shared(profile: Profile) -> Bool:
    """Return bool[samples]: True if the awaited object is in shared memory, or several processes wait for its name."""
    samples = profile.samples
    name = np.append(profile.objects.name, 0)[samples.object].astype(np.int64)
    first, _ = group(name, samples.pid)
    several = np.bincount(name[first], minlength=len(profile.strings)) > 1
    shared: Bool = several[name] & (samples.object >= 0)
    return shared | (np.append(profile.objects.shared, np.bool_(False))[samples.object])


def _lived(profile: Profile, rows: I64, tid: I32, time_ns: I64, shared: Bool) -> Bool:
    """Return bool[rows]: True if thread `tid` lived at `time_ns` in the sleeper's process; where `shared`, in any."""
    tasks, tid, time_ns = profile.tasks, tid[rows], time_ns[rows]
    row = rows_at(tasks.tid, tasks.begin_ns, tid, time_ns)
    begin, end, pid = (np.append(column, -1)[row] for column in (tasks.begin_ns, tasks.end_ns, tasks.pid))
    lived: Bool = (
        (row >= 0)
        & ((pid == profile.samples.pid[rows]) | shared[rows])
        & (begin <= time_ns)
        & ((end < 0) | (end >= time_ns))
    )
    return lived


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
    held_object, holder, time_ns = (column[rows[first]] for column in (moments.object, tid, moments.time_ns))
    sums, times = (sum_by(group_of, values, len(first)) for values in (weight[rows], is_new))
    return HeldTime(held_object, holder, sums, times, time_ns)


def longest_holders(profile: Profile, holders: Holders) -> I32:
    """Return int32[samples]: the thread that held the awaited mutex longest during the wait; -1 if the object is no
    mutex, or if its holder is unknown for longer. `holders`: `holders_of(profile)`."""
    samples, longest = profile.samples, np.full(len(profile.samples), -1, np.int32)
    is_mutex = np.append(profile.objects.facts & ObjectFact.MUTEX > 0, np.bool_(False))[samples.object]
    rows = np.flatnonzero(is_mutex & (samples.time_ns >= 0) & ~samples.has(SUM_FLAGS))
    if len(rows):
        longest[rows] = _Moments(samples, holders, rows).longest_holder()
    return longest


def spans_of(samples: ProfileSamples) -> tuple[I64, I64]:
    """Return (begin, end) of each wait, int64[n]: ns of the recording's clock; a wait ends at its wake-up."""
    begin = np.where(samples.switch_out_ns >= 0, samples.switch_out_ns, samples.time_ns - samples.length_ns())
    woken = (samples.wakeup_ns >= 0) & ~samples.has(SampleFlag.STILL_BLOCKED)
    return begin, np.where(woken, samples.wakeup_ns, samples.time_ns)


class _Moments:
    """Begins and ends of waits as columns, sorted by object, then time. `rows`: int64[n], samples of the waits.
    `queue`: int64[moments], equal for moments between which, without a break, some thread waits for the same object."""

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
        self._place = np.argsort(order, kind="stable")  # of the begin of each wait, then of its end
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
        """Return int64[moments]: ns that all waits spend, in sum, from each begin or end of a wait to the next one."""
        length = np.diff(self.time_ns, append=self.time_ns[-1:])
        return np.where(self._density > 0, np.rint(length * self._density), 0).astype(np.int64)

    def holder(self) -> I64:
        """Return int64[moments]: the object's holder (tid) from each begin or end of a wait to the next; -1 unknown."""
        is_seen = (self._before >= 0) | (self._after >= 0)
        number = np.arange(len(is_seen))
        last = np.maximum.accumulate(np.where(is_seen, number, -1))
        following = np.minimum.accumulate(np.where(is_seen, number, len(is_seen))[::-1])[::-1]
        following = np.append(following, len(is_seen))[number + 1]
        got, had = self._named(self._after, last), self._named(self._before, following)
        at_last, at_following = (np.append(self._is_end, False)[index] for index in (last, following))
        waits_again = at_last & ~at_following & (np.append(self._tid, -1)[following] == got)
        return np.where((got == had) | (had < 0), got, np.where((got < 0) | waits_again, had, -1))

    def longest_holder(self) -> I64:
        """Return int64[waits]: tid of the thread that held the awaited object longest, without a break, during each
        wait; -1 if the holder was unknown for longer than any thread held it."""
        holder, time = self.holder(), self.time_ns
        begin, end = np.split(self._place, 2)
        is_first = np.append(True, (holder[1:] != holder[:-1]) | (self.object[1:] != self.object[:-1]))
        run, first_of_run = np.cumsum(is_first) - 1, np.flatnonzero(is_first)
        following = np.append(first_of_run[1:], len(time) - 1)
        is_of_object = self.object[following] == self.object[first_of_run]
        run_begin, run_end = time[first_of_run], time[np.where(is_of_object, following, following - 1)]
        first, last = run[begin], run[np.maximum(end - 1, begin)]
        parts = [first, last, _longest_between(run_end - run_begin, first + 1, last - 1)]
        spans = [np.minimum(run_end[part], time[end]) - np.maximum(run_begin[part], time[begin]) for part in parts]
        longest: I64 = np.choose(np.argmax(spans, axis=0), [holder[first_of_run[part]] for part in parts])
        return longest

    def _named(self, thread: I64, moment: I64) -> I64:
        """Return int64[moments]: `thread[moment[i]]`, a tid, for each moment i (begin or end of a wait); -1 if at some
        time between the two moments no thread waited for the object, or if `moment[i]` is out of range. `moment`:
        int64[moments], indices of earlier or later moments."""
        queue = np.append(self.queue, -1)[moment]
        return np.where(queue == self.queue, np.append(thread, -1)[moment], -1)


def _longest_between(length: I64, first: I64, last: I64) -> I64:
    """Return int64[n]: the index of the largest `length` from first[i] to last[i]; first[i] - 1 for an empty range."""
    number, result = last - first + 1, first - 1
    largest, width = np.arange(len(length)), 1  # of `width` lengths from each index on
    while (number >= width).any():
        rows = np.flatnonzero((number >= width) & (number < 2 * width))
        left, right = largest[first[rows]], largest[last[rows] - width + 1]
        result[rows] = np.where(length[left] >= length[right], left, right)
        following = largest[np.minimum(np.arange(len(length)) + width, len(length) - 1)]
        largest = np.where(length[largest] >= length[following], largest, following)
        width *= 2
    return result
