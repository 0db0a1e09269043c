# SPDX-License-Identifier: Apache-2.0
"""Samples in time: which can be placed, where each begins and ends, and to which thread's track it belongs.

A wait ends at its sample's time and began `period` ns earlier. Three kinds of samples have a weight and no
place: sums of many waits, samples without a time, and on-CPU samples, which are moments. The time of a format
begins at the first wait's begin (`Timeline.origin_ns`), so that nanoseconds stay exact in doubles.
"""

from __future__ import annotations

import numpy as np

from perf_offcpu.analysis.group import group, stable_order
from perf_offcpu.model.columns import I64, Bool
from perf_offcpu.model.profile import Profile
from perf_offcpu.model.recording import SampleFlag
from perf_offcpu.structs import frozen, mutable
from perf_offcpu.text import UNKNOWN, printable

_NO_PLACE = SampleFlag.AGGREGATED | SampleFlag.UNTIMED
IDLE_COMM = "swapper"
"""The kernel's own name of its idle threads, one a CPU, all of them tid 0."""
_NEVER = np.iinfo(np.int64).max


@frozen
class Track:
    """A thread that has samples.

    Args:
        pid: tgid; -1 unknown.
        tid: thread id; -1 unknown.
        comm: printable; the name at its last sample.
        rows: int64[k], its samples in the order of the profile.
    """

    pid: int
    tid: int
    comm: str
    rows: I64

    @property
    def label(self) -> str:
        """`comm (pid PID, tid TID)`."""
        return f"{self.comm} (pid {_number(self.pid)}, tid {_number(self.tid)})"


@mutable
class Timeline:
    """Where the n samples of a profile lie.

    Args:
        tracks: by (pid, tid).
        track: int64[n], the track of each sample.
        waits: bool[n], off-cpu samples with a place: one wait each.
        moments: bool[n], on-CPU samples with a time.
        begin_ns: int64[n], ns since `origin_ns`: begin of a wait, time of a moment; 0 for the others.
        end_ns: int64[n]; the same as `begin_ns` for what is no wait.
        origin_ns: the begin of the first wait or moment, in the recording's clock.
    """

    tracks: list[Track]
    track: I64
    waits: Bool
    moments: Bool
    begin_ns: I64
    end_ns: I64
    origin_ns: int

    @property
    def placed(self) -> Bool:
        """bool[n]: the samples that have a place."""
        return self.waits | self.moments

    @property
    def duration_ns(self) -> int:
        """From the origin to the last end."""
        return int(self.end_ns.max(initial=0))


def timeline_of(profile: Profile) -> Timeline:
    """The timeline of all samples of a profile."""
    samples = profile.samples
    offcpu = profile.is_offcpu()
    placed = (samples.time_ns >= 0) & ((samples.flags & np.uint32(_NO_PLACE)) == 0)
    waits, moments = placed & offcpu, placed & ~offcpu
    begin = samples.time_ns - np.where(waits, samples.period, 0)
    origin = int(begin.min(where=placed, initial=_NEVER)) if placed.any() else 0
    tracks, track = _tracks(profile)
    return Timeline(
        tracks,
        track,
        waits,
        moments,
        np.where(placed, begin - origin, 0),
        np.where(placed, samples.time_ns - origin, 0),
        origin,
    )


def with_wakers(profile: Profile, timeline: Timeline) -> tuple[list[Track], I64]:
    """The tracks of sleepers and wakers together.

    Returns:
        (tracks, waker): those of the timeline and behind them, without samples, those of threads that only
        woke others; int64[n], the track of who woke each sleeper, -1 if unknown.
    """
    samples = profile.samples
    tracks = list(timeline.tracks)
    of_ids = {(track.pid, track.tid): row for row, track in enumerate(tracks)}
    of_tid = {track.tid: row for row, track in enumerate(tracks)}
    known = np.flatnonzero(samples.waker_tid >= 0)
    first, of = group(samples.waker_pid[known], samples.waker_tid[known])
    found = []
    for pid, tid in zip(
        samples.waker_pid[known[first]].tolist(), samples.waker_tid[known[first]].tolist(), strict=True
    ):
        row = of_ids.get((pid, tid), of_tid.get(tid, len(tracks)) if pid <= 0 < tid else len(tracks))
        if row == len(tracks):
            tracks.append(Track(pid, tid, comm_of(profile, tid), np.empty(0, np.int64)))
        found.append(row)
    waker = np.full(len(samples), -1, np.int64)
    waker[known] = np.array(found, np.int64)[of]
    return tracks, waker


def comm_of(profile: Profile, tid: int) -> str:
    """The last known name of a thread; printable."""
    if tid == 0:
        return IDLE_COMM
    behind = int(np.searchsorted(profile.comms.tid, tid, "right"))
    if not behind or profile.comms.tid[behind - 1] != tid:
        return UNKNOWN
    return printable(profile.strings[int(profile.comms.comm[behind - 1])]) or UNKNOWN


def process_names(profile: Profile, tracks: list[Track]) -> dict[int, str]:
    """pid → name: that of its main thread, else of the first of its threads here."""
    names: dict[int, str] = {}
    for track in tracks:
        if track.tid == track.pid:
            names[track.pid] = track.comm
        elif track.pid not in names:
            main = comm_of(profile, track.pid)
            names[track.pid] = track.comm if main == UNKNOWN else main
    return names


def _tracks(profile: Profile) -> tuple[list[Track], I64]:
    samples = profile.samples
    first, of = group(samples.pid, samples.tid)
    order = stable_order(of)
    rows = np.split(order, np.searchsorted(of[order], np.arange(1, len(first))))
    names = [printable(profile.strings[int(samples.comm[mine[-1]])]) or UNKNOWN for mine in rows if len(mine)]
    ids = zip(samples.pid[first].tolist(), samples.tid[first].tolist(), names, rows, strict=False)
    return [Track(*one) for one in ids], of


def _number(value: int) -> str:
    return "?" if value < 0 else str(value)
