# SPDX-License-Identifier: Apache-2.0
"""Find the waker of each sleeper, the arrows that timelines draw, and the graph of all pairs of threads. An arrow
begins at a mark on the waker's track, a slice of a microsecond or less. A mark must end before the next slice begins or
ends on its track, because slices of a track may only nest. Interrupts are not the work of the interrupted task: their
wake-ups have no arrow, and in the graph all interrupts are one waker, "[interrupt]"."""

import numpy as np

from perf_offcpu.analysis.times.timeline import Timeline, Track, comm_of, timeline_of
from perf_offcpu.model.columns import I64, Bool, distinct, group, max_by, stable_order, sum_by
from perf_offcpu.model.profile import Profile, ProfileSamples
from perf_offcpu.model.recording import SampleFlag
from perf_offcpu.structs import mutable

INTERRUPT = "[interrupt]"
_MARK_NS = 1_000


def with_wakers(profile: Profile, timeline: Timeline) -> tuple[list[Track], I64]:
    """Return (tracks, waker): the tracks of the timeline, then new ones for threads that have no samples but woke
    others; int64[samples], the track of the thread that woke each sleeper, -1 if unknown."""
    samples = profile.samples
    tracks = list(timeline.tracks)
    of_ids = {(track.pid, track.tid): row for row, track in enumerate(tracks)}
    of_tid = {track.tid: row for row, track in enumerate(tracks)}
    rows = np.flatnonzero(samples.waker_tid >= 0)
    pids, tids = samples.waker_pid[rows], samples.waker_tid[rows]
    first, group_of = group(pids, tids)
    columns_found = []
    for pid, tid in zip(pids[first].tolist(), tids[first].tolist(), strict=True):
        row = of_ids.get((pid, tid), of_tid.get(tid, len(tracks)) if pid <= 0 < tid else len(tracks))
        if row == len(tracks):
            tracks.append(Track(pid, tid, comm_of(profile, tid), np.empty(0, np.int64)))
        columns_found.append(row)
    waker = np.full(len(samples), -1, np.int64)
    waker[rows] = np.array(columns_found, np.int64)[group_of]
    return tracks, waker


@mutable
class Wakeups:
    """Wake-ups that ended the waits of n samples, as columns, and k arrows to draw."""

    tracks: list[Track]  # the tracks of the timeline, then those of threads that only woke others
    waker: I64  # int64[n], the track of the waker; -1 unknown
    interrupt: Bool  # bool[n], True if an interrupt that ran on top of the waker ended the wait
    queued_ns: I64  # int64[n], when the sleeper was woken, ns since the origin; if unknown, the end of the wait
    arrows: I64  # int64[k], the samples whose wake-up is drawn
    mark_ns: I64  # int64[k], the length of each arrow's mark, ns


def wakeups_of(profile: Profile, timeline: Timeline) -> Wakeups:
    """Return the wake-ups of all samples of a profile."""
    samples = profile.samples
    tracks, waker = with_wakers(profile, timeline)
    interrupt = samples.has(SampleFlag.WAKER_INTERRUPT)
    queued = queued_ns(samples, timeline)
    woken = timeline.waits & (samples.wakeup_ns >= 0) & (waker >= 0) & ~interrupt
    arrows = np.flatnonzero(woken & (waker != timeline.track))
    marks = mark_lengths(timeline, queued, waker[arrows], queued[arrows])
    return Wakeups(tracks, waker, interrupt, queued, arrows, marks)


def queued_ns(samples: ProfileSamples, timeline: Timeline) -> I64:
    """Return int64[n]: when each sleeper was woken, ns since the origin; if unknown, the end of its wait."""
    end = timeline.end_ns
    woken = np.where(samples.wakeup_ns >= 0, samples.wakeup_ns - timeline.origin_ns, end)
    delay = samples.delay_ns()
    queued = np.where(delay >= 0, end - delay, woken)
    return np.where(timeline.waits, np.clip(queued, timeline.begin_ns, end), end)


def mark_lengths(timeline: Timeline, queued_ns: I64, track: I64, at_ns: I64) -> I64:
    """Return int64[k], ns: how long the mark of each wake-up is drawn on the waker's track, `track[i]`. It begins at
    at_ns[i] and ends before the next mark, or begin, wake-up or end of a wait there; at most _MARK_NS. `queued_ns`:
    int64[samples], by the function `queued_ns`."""
    rows = np.flatnonzero(timeline.waits)
    rows = rows[stable_order(timeline.track[rows])]
    edges = np.empty(3 * len(rows), np.int64)
    for edge, times in enumerate((timeline.begin_ns, queued_ns, timeline.end_ns)):
        edges[edge::3] = times[rows]
    span = int(max(edges.max(initial=0), at_ns.max(initial=0))) + _MARK_NS + 2
    if span * (max(int(timeline.track.max(initial=0)), int(track.max(initial=0))) + 1) >= 2**62:
        edges, at_ns = np.split(_with_short_gaps(np.append(edges, at_ns)), [len(edges)])
        span = int(max(edges.max(initial=0), at_ns.max(initial=0))) + _MARK_NS + 2
    # A key orders by track and time. The edges of a track, wait by wait, are in order already if nothing is damaged.
    edges += np.repeat(timeline.track[rows] * span, 3)
    if (edges[1:] < edges[:-1]).any():
        edges.sort(kind="stable")  # nearly in order
    begin = track * span + at_ns
    order = np.argsort(begin, kind="stable")
    begin = begin[order]
    after = np.append(edges, np.iinfo(np.int64).max)[np.searchsorted(edges, begin)]
    after[:-1] = np.minimum(after[:-1], begin[1:])
    marks = np.empty(len(track), np.int64)
    marks[order] = np.clip(after - begin - 1, 0, _MARK_NS)
    return marks


def _with_short_gaps(times: I64) -> I64:
    """Return `times`, shifted to begin at 0, with gaps between neighbours cut to at most _MARK_NS + 1 ns."""
    ascending = distinct(times)
    gaps = np.minimum(np.diff(ascending), _MARK_NS + 1)
    return np.append(0, np.cumsum(gaps))[np.searchsorted(ascending, times)]


@mutable
class WakerGraph:
    """Graph of k nodes (threads or comms) and m edges from waker to sleeper; edges leave out run-queue delays."""

    labels: list[str]  # of the k nodes, the last one INTERRUPT
    off_cpu_ns: I64  # int64[k], all off-cpu time of each node
    waker: I64  # int64[m], the node that woke the sleeper
    sleeper: I64  # int64[m], the node that was woken
    count: I64  # int64[m], number of waits of the sleeper that the waker ended
    blocked_ns: I64  # int64[m], sum of these waits, each until its wake-up
    longest_ns: I64  # int64[m], the longest of these waits, until its wake-up


def waker_graph_of(profile: Profile, per_thread: bool) -> WakerGraph:
    """Return the graph of off-cpu samples with known wakers. A node is a thread (`per_thread`), or all of a comm."""
    samples, timeline = profile.samples, timeline_of(profile)
    tracks, waker = with_wakers(profile, timeline)
    names = [f"{track.comm}-{track.pid}/{track.tid}" if per_thread else track.comm for track in tracks]
    rows_of = {name: row for row, name in enumerate(dict.fromkeys(names))}
    of_track = np.array([*(rows_of[name] for name in names), len(rows_of), -1], np.int64)
    waker = of_track[np.where(samples.has(SampleFlag.WAKER_INTERRUPT), len(tracks), waker)]
    sleeper, offcpu = of_track[timeline.track], profile.is_offcpu()
    off_cpu = sum_by(sleeper, np.where(offcpu, samples.period, 0), len(rows_of) + 1)
    rows = np.flatnonzero(offcpu & (waker >= 0))
    first, group_of = group(waker[rows], sleeper[rows])
    blocked = samples.period[rows] - np.maximum(samples.runq_ns[rows], 0)
    length = (samples.length_ns() - np.maximum(samples.delay_ns(), 0))[rows]
    count, blocked_ns = (sum_by(group_of, values, len(first)) for values in (samples.count[rows], blocked))
    longest_ns, edges = max_by(group_of, length, len(first)), rows[first]
    return WakerGraph([*rows_of, INTERRUPT], off_cpu, waker[edges], sleeper[edges], count, blocked_ns, longest_ns)
