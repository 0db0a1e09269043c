# SPDX-License-Identifier: Apache-2.0
"""Find the critical path of a thread: for each moment of a window, the thread and state that it waited for.

The path is a partition of the window. While the thread itself ran, or waited for a CPU, it is on the path. A
wait that another thread ended is explained by the activity of that thread during the wait, and so on: its own
waits may have been ended by a third thread. A wait that an interrupt ended (timer, disk, network), or that
has not ended, explains itself. Source of the definition: Perfetto, stdlib `sched/thread_executing_span.sql`.

All waits of one depth are followed at once. At each depth the spans to explain do not overlap and end before
the wait that led to them, so the walk ends. Summed short waits have no place in time: they count as running,
and `summed_ns` is their length.
"""

from __future__ import annotations

import enum
import math

import numpy as np

from perf_offcpu.analysis.cpu_waits import CpuWaits
from perf_offcpu.analysis.group import sum_by
from perf_offcpu.analysis.select import Selection
from perf_offcpu.analysis.time_windows import Window
from perf_offcpu.analysis.timeline import Timeline, Track
from perf_offcpu.causality.wait_table import WaitTable
from perf_offcpu.errors import UsageError
from perf_offcpu.model.columns import I64, U8, Bool
from perf_offcpu.model.join import PID_STEP, host_of
from perf_offcpu.model.profile import Profile
from perf_offcpu.model.recording import SUM_FLAGS
from perf_offcpu.structs import mutable

MAX_DEPTH = 1000
"""Longest chain of wake-ups that is followed; deeper waits explain themselves."""


_SPAN_COLUMNS = ("track", "begin", "end", "hop", "doing", "wait")
_NEVER = np.iinfo(np.int64).max


class Doing(enum.IntEnum):
    """State of the thread of a segment."""

    RUNNING = 0  # on a CPU, or in a wait that was only summed
    RUNNABLE = 1  # waiting for a CPU
    WAITING = 2  # in a wait that no other recorded thread explains
    NOT_RECORDED = 3  # nothing is known of the thread: it was not recorded, not born yet, or in a pause


@mutable
class Hops:
    """Waits that lead from the root to other threads; a hop is a wait that another thread ended."""

    parent: I64  # int64[h], the hop that led to the waiting thread; -1 for the root's waits
    wait: I64  # int64[h], row in samples
    waker: I64  # int64[h], row in `tracks` of the thread that ended it


@mutable
class CriticalPath:
    """k segments that cover a window without gap or overlap, in the order of time."""

    tracks: list[Track]  # the recorded threads, and threads that only woke others
    root: int  # row in `tracks`
    begin_ns: I64  # int64[k], ns in the recording's clock
    end_ns: I64  # int64[k]
    track: I64  # int64[k], row in `tracks`
    doing: U8  # uint8[k], Doing
    wait: I64  # int64[k], row in samples of the wait that the segment is part of; -1 for none
    hop: I64  # int64[k], row in `hops` of the wait that led to the thread; -1 for the root itself
    hops: Hops
    summed_ns: I64  # int64[tracks], time of summed waits, ns: may be part of RUNNING
    queued_ns: I64  # int64[k], of RUNNING segments: the part preempted, by the budget of the thread

    def comms(self) -> tuple[list[str], I64]:
        """Return the distinct comms (printable), and int64[tracks]: the index of each track's comm."""
        rows = {comm: row for row, comm in enumerate(dict.fromkeys(track.comm for track in self.tracks))}
        return list(rows), np.array([rows[track.comm] for track in self.tracks], np.int64)

    @property
    def length_ns(self) -> I64:
        """Return int64[k]: the lengths of the segments."""
        return self.end_ns - self.begin_ns


def critical_path(profile: Profile, timeline: Timeline, root: int, begin_ns: int, end_ns: int) -> CriticalPath:
    """Return the critical path of a thread.

    Args:
        profile: all samples of all threads.
        timeline: `timeline_of(profile)`.
        root: row of the thread in `timeline.tracks`.
        begin_ns, end_ns: the window, in the recording's clock.
    """
    waits = _Walk(profile, timeline)
    origin = timeline.origin_ns
    level, woke = _Spans.of_root(root, begin_ns - origin, end_ns - origin), np.full(1, _NEVER)
    parts, hops, number = list[_Spans](), list[Hops](), 0
    for depth in range(MAX_DEPTH + 1):
        found, level, woke, hop = waits.explain(level, woke, number, follow=depth < MAX_DEPTH)
        parts.append(found)
        hops.append(hop)
        number += len(hop.wait)
        if not len(level.begin):
            break
    whole = _Spans.concat(parts)
    whole = whole.take(np.argsort(whole.begin, kind="stable"))
    # Threads of other hosts are not on the path: they wake none here.
    hosts = host_of(np.array([waits.tracks[root].tid]), profile.meta).tolist()
    pauses = profile.meta.pauses_of(hosts)
    whole = _without_pauses(whole, np.array(pauses, np.int64).reshape(-1, 2) - origin)
    samples = profile.samples
    sums = profile.is_offcpu() & samples.has(SUM_FLAGS)
    summed = sum_by(timeline.track[sums], samples.period[sums], len(waits.tracks))
    cpu_waits = CpuWaits(profile, waits.tracks)
    return CriticalPath(
        waits.tracks,
        root,
        whole.begin + origin,
        whole.end + origin,
        whole.track,
        whole.doing,
        whole.wait,
        whole.hop,
        Hops(*(np.concatenate([getattr(one, name) for one in hops]) for name in ("parent", "wait", "waker"))),
        summed,
        np.where(whole.doing == Doing.RUNNING, cpu_waits.of(whole.track, whole.end - whole.begin), 0),
    )


@mutable
class _Spans:
    """Spans of time of threads, to be explained or explained."""

    track: I64
    begin: I64  # ns since the origin
    end: I64
    hop: I64
    doing: U8
    wait: I64

    @classmethod
    def of_root(cls, track: int, begin: int, end: int) -> _Spans:
        span = [np.array([number], np.int64) for number in (track, begin, end, -1)]
        return cls(span[0], span[1], span[2], span[3], np.zeros(1, np.uint8), span[3])

    @classmethod
    def concat(cls, parts: list[_Spans]) -> _Spans:
        return cls(*(np.concatenate([getattr(part, name) for part in parts]) for name in _SPAN_COLUMNS))

    def take(self, rows: Bool | I64) -> _Spans:
        return _Spans(*(getattr(self, name)[rows] for name in _SPAN_COLUMNS))


class _Walk(WaitTable):
    """Explain spans of threads, all spans of one depth at once."""

    def explain(self, spans: _Spans, woke: I64, first_hop: int, *, follow: bool) -> tuple[_Spans, _Spans, I64, Hops]:
        """Return the segments of spans that explain themselves, the spans of wakers, and the hops to them.

        Args:
            woke: int64[spans], time at which the thread of each span woke the thread that waits for it.
            first_hop: the number of the first hop.

        Returns:
            (segments, spans, woke, hops): the latter three for the next depth.
        """
        unknown, spans, woke = self._not_recorded(spans, woke)
        span_of, wait = self.overlapping(spans.track, spans.begin, spans.end)
        begin = np.maximum(self.begin[wait], spans.begin[span_of])
        end = np.minimum(self.end[wait], spans.end[span_of])
        queued = np.clip(self.queued[wait], begin, end)
        # A thread that woke another one was not asleep then; such a wait is not followed.
        to_waker = (self.waker[wait] >= 0) & (queued > begin) & follow
        to_waker &= self.queued[wait] < woke[span_of]
        own = _Spans(
            spans.track[span_of],
            begin,
            queued,
            spans.hop[span_of],
            np.full(len(span_of), Doing.WAITING, np.uint8),
            self.row[wait],
        )
        hop = np.full(len(span_of), -1)
        hop[to_waker] = first_hop + np.arange(int(to_waker.sum()))
        hops = Hops(spans.hop[span_of[to_waker]], self.row[wait[to_waker]], self.waker[wait[to_waker]])
        deeper = own.take(to_waker)
        deeper = _Spans(hops.waker, deeper.begin, deeper.end, hop[to_waker], deeper.doing, deeper.wait)
        runnable = _Spans(
            own.track, queued, end, own.hop, np.full(len(span_of), Doing.RUNNABLE, np.uint8), self.row[wait]
        )
        found = _Spans.concat([unknown, own.take(~to_waker), runnable, _gaps(spans, span_of, begin, end)])
        return found.take(found.end > found.begin), deeper, self.queued[wait[to_waker]], hops

    def _not_recorded(self, spans: _Spans, woke: I64) -> tuple[_Spans, _Spans, I64]:
        """Return the parts of spans without any record, and the other parts with their `woke`."""
        begin = np.where(self.known[spans.track], np.maximum(spans.begin, self.born[spans.track]), spans.end)
        begin = np.minimum(begin, spans.end)
        doing = np.full(len(begin), Doing.NOT_RECORDED, np.uint8)
        unknown = _Spans(spans.track, spans.begin, begin, spans.hop, doing, np.full(len(begin), -1))
        rest = _Spans(spans.track, begin, spans.end, spans.hop, spans.doing, spans.wait)
        is_recorded = rest.end > rest.begin
        return unknown.take(unknown.end > unknown.begin), rest.take(is_recorded), woke[is_recorded]


def _without_pauses(path: _Spans, pauses: I64) -> _Spans:
    """Return the path in order of time; its running parts within pauses become not recorded."""
    edges = pauses.reshape(-1)
    span = np.searchsorted(path.begin, edges, "right") - 1
    cuts = (span >= 0) & (path.begin[span] < edges) & (edges < path.end[span]) & (path.doing[span] == Doing.RUNNING)
    begin, row = np.append(path.begin, edges[cuts]), np.append(np.arange(len(path.begin)), span[cuts])
    order = np.argsort(begin, kind="stable")
    begin, parts = begin[order], path.take(row[order])
    parts.begin, parts.end = begin, np.append(begin[1:], path.end[-1:])
    number = np.searchsorted(edges, begin, "right")  # odd: between a begin and an end
    parts.doing[(number % 2 == 1) & (parts.doing == Doing.RUNNING)] = Doing.NOT_RECORDED
    return parts


def _gaps(spans: _Spans, span_of: I64, begin: I64, end: I64) -> _Spans:
    """Return the parts of spans outside of the waits in them."""
    owner = np.concatenate([span_of, np.arange(len(spans.begin))])
    order = np.argsort(owner, kind="stable")  # the waits of each span, then its end
    owner = owner[order]
    ends = np.concatenate([begin, spans.end])[order]
    begins = np.append(np.int64(0), np.concatenate([end, spans.end])[order][:-1])[: len(owner)]
    is_first = np.append(True, owner[1:] != owner[:-1])[: len(owner)]
    begins = np.where(is_first, spans.begin[owner], begins)
    running = np.full(len(owner), Doing.RUNNING, np.uint8)
    return _Spans(spans.track[owner], begins, ends, spans.hop[owner], running, np.full(len(owner), -1))


def is_chosen(track: Track, selection: Selection) -> bool:
    """Return True if a selection by comm, pid and tid means a thread."""
    ids = ((selection.comms, track.comm), (selection.pids, track.pid), (selection.tids, track.tid))
    return all(not names or name in names for names, name in ids)


def choose_thread(timeline: Timeline, selection: Selection) -> int:
    """Return the row in `timeline.tracks` of the thread that a selection by comm, pid or tid means.

    If several threads match, it is the main thread of a process; among several main threads the earliest.

    Raises:
        UsageError: the recording has no such thread.
    """
    tracks, first = timeline.tracks, np.full(len(timeline.tracks), _NEVER)
    placed = np.flatnonzero(timeline.placed)
    np.minimum.at(first, timeline.track[placed], timeline.begin_ns[placed])
    rows = [
        row
        for row, track in enumerate(tracks)
        if track.tid % PID_STEP > 0 and track.tid > 0 and first[row] < _NEVER and is_chosen(track, selection)
    ]
    if not rows:
        raise UsageError("--critical-path: the recording has no such thread with samples that have a time")
    return min(rows, key=lambda row: (tracks[row].tid != tracks[row].pid, int(first[row])))


def window_of(profile: Profile, timeline: Timeline, thread: int, windows: tuple[Window, ...]) -> tuple[int, int]:
    """Return (begin, end) in ns of the recording's clock.

    By default a window reaches from the first to the last appearance of the thread: birth, exit, or a sample.

    Raises:
        UsageError: several windows, or one outside of the thread's life.
    """
    if len(windows) > 1:
        raise UsageError("--critical-path: --time names more than one window")
    track, tasks = timeline.tracks[thread], profile.tasks
    own = timeline.placed & (timeline.track == thread)
    origin = timeline.origin_ns
    begin = int(timeline.begin_ns[own].min(initial=_NEVER - origin)) + origin
    end = int(timeline.end_ns[own].max(initial=0)) + origin
    lives = np.flatnonzero((tasks.tid == track.tid) & (tasks.pid == track.pid))
    if len(lives) == 1:
        born, exited = int(tasks.begin_ns[lives[0]]), int(tasks.end_ns[lives[0]])
        begin, end = min(begin, born) if born > 0 else begin, max(end, exited)
    if windows:
        first, last = windows[0].bounds(profile.meta.first_ns, profile.meta.last_ns)
        begin, end = math.ceil(max(begin, first)), math.floor(min(end, last))
    if begin >= end:
        raise UsageError(f"--critical-path: {track.label} has no samples in that time")
    return begin, end
