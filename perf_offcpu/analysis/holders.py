# SPDX-License-Identifier: Apache-2.0
"""Find the thread that held a lock while another thread waited for it, and the thread that released it.

There are two sources, and views name the source:

    held       the word of the lock, read by the recorder when the wait began (`--lock-owners`), or at the end
               of the recording for an unfinished wait
    released   the waker of a finished wait: it held the lock at the end, or it signalled

The word is a number that the program wrote. It is used only if it is the tid of a thread that lived at that
time, of the sleeper's process unless the lock is in memory that processes share; other numbers, of other
runtimes, are no holders. A lock inside the kernel has the owner that the kernel names, of any process. A wake-up by
an interrupt (a timeout, a signal from outside) releases nothing. Neither does a thread of another process, unless the
lock is shared or in the kernel, nor the end of the process, which wakes all threads.
"""

import numpy as np

from perf_offcpu.abi.wait_objects import LOCKS, ObjectKind
from perf_offcpu.analysis.group import group, max_by
from perf_offcpu.model.columns import I32, I64, Bool
from perf_offcpu.model.lookup import rows_at
from perf_offcpu.model.profile import Profile
from perf_offcpu.model.recording import SUM_FLAGS, SampleFlag
from perf_offcpu.structs import mutable

_THREAD_EXIT_NS, _PROCESS_EXIT_NS = 1_000_000, 100_000_000
"""A wait that ends at most this long before its thread's exit, and this long before the exit of the first thread of
its process, was ended by the exit of the process: a thread woken by it only exits itself, in some 20 us."""


@mutable
class Holders:
    """Holder and releaser of the lock for which each of n samples waited."""

    held: I32  # int32[n], thread id of the holder; -1 unknown, or the recorded number is not used
    released: I32  # int32[n], thread id of the releaser; -1 unknown, or none
    cut_off: Bool  # bool[n], True for waits that the end of the process ended
    refused: int  # number of samples whose recorded holder is not used

    def known(self) -> I32:
        """Return int32[n]: the holder; if unknown, the releaser; -1 if both are unknown."""
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
    return Holders(
        np.where(believed, asked, -1).astype(np.int32),
        np.where(woken, samples.waker_tid, -1).astype(np.int32),
        cut_off,
        int(((asked >= 0) & ~believed).sum()),
    )


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
    """Return bool[samples]: True if the object's memory is shared, or several processes wait for its name."""
    samples = profile.samples
    name = np.append(profile.objects.name, 0)[samples.object].astype(np.int64)
    first, _ = group(name, samples.pid)
    several = np.bincount(name[first], minlength=len(profile.strings)) > 1
    shared: Bool = several[name] & (samples.object >= 0)
    return shared | (np.append(profile.objects.shared, np.bool_(False))[samples.object])


def _lived(profile: Profile, rows: I64, tid: I32, time_ns: I64, shared: Bool) -> Bool:
    """Return bool[rows]: True if thread `tid` lived at `time_ns` (both by sample), in the sleeper's process or, where
    `shared`, in any process."""
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
