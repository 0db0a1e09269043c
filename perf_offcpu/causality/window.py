# SPDX-License-Identifier: Apache-2.0
"""Choose the thread and the time window of a critical path."""

from __future__ import annotations

import math

import numpy as np

from perf_offcpu.analysis.select import Selection
from perf_offcpu.analysis.time_windows import Window
from perf_offcpu.analysis.timeline import Timeline
from perf_offcpu.errors import UsageError
from perf_offcpu.model.columns import I64
from perf_offcpu.model.join import PID_STEP
from perf_offcpu.model.profile import Profile

_NEVER = np.iinfo(np.int64).max


def choose_thread(timeline: Timeline, selection: Selection) -> int:
    """Return the row in `timeline.tracks` of the thread that a selection by comm, pid or tid means.

    If several threads match, it is the main thread of a process; among several main threads the earliest.

    Raises:
        UsageError: the recording has no such thread.
    """
    tracks, first = timeline.tracks, _first_appearance(timeline)
    tracks_found = [
        row
        for row, track in enumerate(tracks)
        if track.tid % PID_STEP > 0
        and track.tid > 0
        and first[row] < _NEVER
        and (not selection.comms or track.comm in selection.comms)
        and (not selection.pids or track.pid in selection.pids)
        and (not selection.tids or track.tid in selection.tids)
    ]
    if not tracks_found:
        raise UsageError("--critical-path: the recording has no such thread with samples that have a time")
    return min(tracks_found, key=lambda row: (tracks[row].tid != tracks[row].pid, int(first[row])))


def window_of(profile: Profile, timeline: Timeline, thread: int, windows: tuple[Window, ...]) -> tuple[int, int]:
    """Return (begin, end) in ns of the recording's clock.

    By default a window reaches from the first to the last appearance of the thread: birth, exit, or a sample.

    Raises:
        UsageError: several windows, or one outside of the thread's life.
    """
    if len(windows) > 1:
        raise UsageError("--critical-path: --time names more than one window")
    track, tasks = timeline.tracks[thread], profile.tasks
    mine = timeline.placed & (timeline.track == thread)
    origin = timeline.origin_ns
    begin = int(timeline.begin_ns[mine].min(initial=_NEVER - origin)) + origin
    end = int(timeline.end_ns[mine].max(initial=0)) + origin
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


def _first_appearance(timeline: Timeline) -> I64:
    """Return int64[tracks]: the begin of each track's first sample, ns since the origin."""
    first = np.full(len(timeline.tracks), _NEVER)
    placed = np.flatnonzero(timeline.placed)
    np.minimum.at(first, timeline.track[placed], timeline.begin_ns[placed])
    return first
