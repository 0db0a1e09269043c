# SPDX-License-Identifier: Apache-2.0
"""Find the critical path of a thread: for each moment of a window, the thread and state that it waited for.

The path is a partition of the window. While the thread itself ran, or waited for a CPU, it is on the path. A wait that
another thread ended is explained by the activity of that thread during the wait, and so on: its own waits may have been
ended by a third thread. A wait that an interrupt ended (timer, disk, network), or that has not ended, is not explained
further. Source of the definition: Perfetto, stdlib `sched/thread_executing_span.sql`.

All waits of one depth are followed at once. At each depth the spans to explain do not overlap and end before the wait
that led to them, so the walk ends. Summed short waits have no place in time: they count as running, and `summed_ns` is
their length."""

import enum
import math
from typing import Self

import numpy as np

from perf_offcpu.analysis.selection.select import Selection
from perf_offcpu.analysis.selection.time_windows import Window
from perf_offcpu.analysis.times.cpu_waits import CpuWaits
from perf_offcpu.analysis.times.timeline import Timeline, Track
from perf_offcpu.causality.wait_table import WaitTable, pauses_of
from perf_offcpu.errors import UsageError
from perf_offcpu.model.columns import I64, U8, Table, column, sum_by
from perf_offcpu.model.join import PID_STEP, host_of
from perf_offcpu.model.profile import Profile
from perf_offcpu.model.recording import SUM_FLAGS
from perf_offcpu.structs import mutable

MAX_DEPTH = 1000  # longest chain of wake-ups that is followed; deeper waits explain themselves
_NEVER = np.iinfo(np.int64).max


class Doing(enum.IntEnum):
    """State of the thread of a segment of the path."""

    RUNNING = 0  # on a CPU, or in a wait that was only summed
    RUNNABLE = 1  # waiting for a CPU
    WAITING = 2  # in a wait that no other recorded thread explains
    NOT_RECORDED = 3  # nothing is known of the thread: it was not recorded, not born yet, or in a pause


class Hops(Table):
    """Waits that lead from the root thread to other threads; a hop is a wait that another thread ended."""

    parent: I64 = column("i8", "the hop that led to the waiting thread; -1 for the root's waits")
    wait: I64 = column("i8", "row in samples")
    waker: I64 = column("i8", "row in `tracks` of the thread that ended it")


@mutable
class CriticalPath:
    """Partition of a window into k segments, in the order of time, each of one thread in one state."""

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
    queued_ns: I64  # int64[k], ns of RUNNING segments that were in fact preempted, by the budget of the thread; else 0

    def comms(self) -> tuple[list[str], I64]:
        """Return the distinct comms, printable, and int64[tracks]: the index in them of each track's comm."""
        rows = {comm: row for row, comm in enumerate(dict.fromkeys(track.comm for track in self.tracks))}
        return list(rows), np.array([rows[track.comm] for track in self.tracks], np.int64)

    @property
    def length_ns(self) -> I64:
        """Return int64[k]: the length of each segment in ns."""
        return self.end_ns - self.begin_ns


def critical_path(profile: Profile, timeline: Timeline, root: int, begin_ns: int, end_ns: int) -> CriticalPath:
    """Return the critical path of thread `root`, a row of `timeline.tracks`, from `begin_ns` to `end_ns` of the
    recording's clock. The profile has all samples of all threads."""
    walk, origin, samples = _Walk(profile, timeline), timeline.origin_ns, profile.samples
    level = _Spans.filled(1, track=root, begin=begin_ns - origin, end=end_ns - origin)
    woke, parts, hops, number = np.full(1, _NEVER), list[_Spans](), list[Hops](), 0
    for depth in range(MAX_DEPTH + 1):
        explained, level, woke, to_wakers = walk.explain(level, woke, number, follow=depth < MAX_DEPTH)
        parts.append(explained)
        hops.append(to_wakers)
        number += len(to_wakers)
        if not len(level):
            break
    spans = _Spans.concat(parts)
    spans = spans.take(np.argsort(spans.begin, kind="stable"))
    # Threads of other hosts are not on the path: they wake none here.
    hosts = host_of(np.array([walk.tracks[root].tid]), profile.meta).tolist()
    spans = _without_pauses(spans, pauses_of(profile, timeline, hosts))
    sums = profile.is_offcpu() & samples.has(SUM_FLAGS)
    summed_ns = sum_by(timeline.track[sums], samples.period[sums], len(walk.tracks))
    queued = CpuWaits(profile, walk.tracks).of(spans.track, spans.end - spans.begin)
    queued_ns = np.where(spans.doing == Doing.RUNNING, queued, 0)
    segments = spans.begin + origin, spans.end + origin, spans.track, spans.doing, spans.wait, spans.hop
    return CriticalPath(walk.tracks, root, *segments, Hops.concat(hops), summed_ns, queued_ns)


class _Spans(Table):
    """Spans of time of threads: still to be explained, or explained, which are the segments of the path."""

    track: I64 = column("i8", "row in tracks")
    begin: I64 = column("i8", "begin", unit="ns since the origin")
    end: I64 = column("i8", "end", unit="ns since the origin")
    hop: I64 = column("i8", "row in hops", sentinel=-1)
    doing: U8 = column("u1", "Doing")
    wait: I64 = column("i8", "row in samples", sentinel=-1)

    def doing_all(self, doing: Doing) -> Self:
        """Return the spans, all with the state `doing`."""
        return self.with_columns(doing=np.full(len(self), doing, np.uint8))


class _Walk(WaitTable):
    """Explains what threads did in spans of time, all spans of one depth (hops from the root thread) at once."""

    def explain(self, spans: _Spans, woke: I64, first_hop: int, *, follow: bool) -> tuple[_Spans, _Spans, I64, Hops]:
        """Explain the spans of one depth. Return (segments, spans, woke, hops): explained parts; spans of wakers of the
        other parts, for the next depth, with their `woke`, and the hops to them. `woke`: int64[spans], ns since the
        origin, when the span's thread woke the one that waits for it. `first_hop`: row in `CriticalPath.hops` of the
        first new hop. `follow`: if False, no wait is followed to its waker."""
        unknown, spans, woke = self._not_recorded(spans, woke)
        span_of, wait = self.overlapping(spans.track, spans.begin, spans.end)
        begin = np.maximum(self.begin[wait], spans.begin[span_of])
        end = np.minimum(self.end[wait], spans.end[span_of])
        queued = np.clip(self.queued[wait], begin, end)
        # A thread that woke another one was not asleep then; such a wait is not followed.
        to_waker = (self.waker[wait] >= 0) & (queued > begin) & follow
        to_waker &= self.queued[wait] < woke[span_of]
        own = spans.take(span_of).doing_all(Doing.WAITING)
        own = own.with_columns(begin=begin, end=queued, wait=self.row[wait])
        hop = first_hop + np.arange(int(to_waker.sum()))
        hops = Hops(own.hop[to_waker], own.wait[to_waker], self.waker[wait[to_waker]])
        deeper = own.take(to_waker).with_columns(track=hops.waker, hop=hop)
        runnable = own.with_columns(begin=queued, end=end).doing_all(Doing.RUNNABLE)
        explained = _Spans.concat([unknown, own.take(~to_waker), runnable, _gaps(spans, span_of, begin, end)])
        return explained.take(explained.end > explained.begin), deeper, self.queued[wait[to_waker]], hops

    def _not_recorded(self, spans: _Spans, woke: I64) -> tuple[_Spans, _Spans, I64]:
        """Return (parts of spans before birth of their thread, or if it has no samples; other parts; their `woke`)."""
        begin = np.where(self.known[spans.track], np.maximum(spans.begin, self.born[spans.track]), spans.end)
        begin = np.minimum(begin, spans.end)
        unknown = spans.with_columns(end=begin, wait=np.full(len(spans), -1)).doing_all(Doing.NOT_RECORDED)
        is_recorded = spans.end > begin
        rest = spans.with_columns(begin=begin).take(is_recorded)
        return unknown.take(unknown.end > unknown.begin), rest, woke[is_recorded]


def _without_pauses(path: _Spans, pauses: I64) -> _Spans:
    """Return the path, by time, cut at `pauses` (int64[k, 2]: begin, end), with NOT_RECORDED for RUNNING in them."""
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
    """Return the parts of spans between waits, as RUNNING. Waits: from begin[i] to end[i], in span `span_of[i]`."""
    owner = np.concatenate([span_of, np.arange(len(spans.begin))])
    order = np.argsort(owner, kind="stable")  # the waits of each span, then its end
    owner = owner[order]
    ends = np.concatenate([begin, spans.end])[order]
    begins = np.append(np.int64(0), np.concatenate([end, spans.end])[order][:-1])[: len(owner)]
    is_first = np.append(True, owner[1:] != owner[:-1])[: len(owner)]
    begins = np.where(is_first, spans.begin[owner], begins)
    gaps = spans.take(owner).doing_all(Doing.RUNNING)
    return gaps.with_columns(begin=begins, end=ends, wait=np.full(len(owner), -1))


def is_chosen(track: Track, selection: Selection) -> bool:
    """Return True if a thread's comm, pid and tid match the selection, in which an empty list matches all."""
    ids = ((selection.comms, track.comm), (selection.pids, track.pid), (selection.tids, track.tid))
    return all(not names or name in names for names, name in ids)


def choose_thread(timeline: Timeline, selection: Selection) -> int:
    """Return the row in `timeline.tracks` of the thread that a selection by comm, pid or tid means: of several threads
    the main thread of a process, of several processes the earliest. Raise UsageError if no thread matches."""
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
    """Return (begin, end), ns of the recording's clock: the known life of `thread`, a row of tracks, by birth, exit and
    samples, or its part in the window. Raise UsageError for several windows, or if no part is in it."""
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
