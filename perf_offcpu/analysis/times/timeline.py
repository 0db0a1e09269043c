# SPDX-License-Identifier: Apache-2.0
"""Place samples in time: begin and end of each, and the track of its thread. A wait ends at its sample's time and began
`period` ns earlier. Sums of waits and samples without a time have a weight but no place; on-CPU samples are moments.
Times that converters write count from the first begin of a wait or moment (`Timeline.origin_ns`), so that nanoseconds
stay exact in doubles."""

from dataclasses import replace

import numpy as np

from perf_offcpu.model.columns import I64, Bool, group, stable_order
from perf_offcpu.model.profile import Profile
from perf_offcpu.model.recording import SUM_FLAGS
from perf_offcpu.structs import frozen, mutable
from perf_offcpu.text import UNKNOWN, printable

_IDLE_COMM = "swapper"  # the kernel's name of its idle threads, one per CPU, all of them with tid 0
_NEVER = np.iinfo(np.int64).max


@frozen
class Track:
    """Thread that has samples, or that has none but woke another thread."""

    pid: int  # tgid; -1 unknown
    tid: int  # thread id; -1 unknown
    comm: str  # printable; the name at its last sample
    rows: I64  # int64[k], its samples in the order of the profile

    @property
    def label(self) -> str:
        """Return `comm (pid PID, tid TID)`."""
        pid, tid = ("?" if number < 0 else number for number in (self.pid, self.tid))
        return f"{self.comm} (pid {pid}, tid {tid})"


@mutable
class Timeline:
    """Thread, begin and end of each of n samples, as columns."""

    tracks: list[Track]  # by (pid, tid)
    track: I64  # int64[n], the track of each sample
    waits: Bool  # bool[n], off-cpu samples with a place: one wait each
    moments: Bool  # bool[n], on-CPU samples with a time
    begin_ns: I64  # int64[n], ns since `origin_ns`: begin of a wait, time of a moment; 0 for the others
    end_ns: I64  # int64[n]; equal to `begin_ns` for samples that are no waits
    origin_ns: int  # the begin of the first wait or moment, in the recording's clock

    @property
    def placed(self) -> Bool:
        """Return bool[n]: True for samples that are on the timeline, as a wait or a moment."""
        return self.waits | self.moments

    @property
    def duration_ns(self) -> int:
        """Return the ns from the origin to the last end; 0 without placed samples."""
        return int(self.end_ns.max(initial=0))


def timeline_of(profile: Profile) -> Timeline:
    """Return the timeline of all samples of a profile."""
    samples = profile.samples
    offcpu = profile.is_offcpu()
    placed = (samples.time_ns >= 0) & ~samples.has(SUM_FLAGS)
    waits, moments = placed & offcpu, placed & ~offcpu
    begin = np.maximum(samples.time_ns - np.where(waits, samples.length_ns(), 0), 0)  # longer: damaged
    origin = int(begin.min(where=placed, initial=_NEVER)) if placed.any() else 0
    begin_ns, end_ns = (np.where(placed, times - origin, 0) for times in (begin, samples.time_ns))
    return Timeline(*_tracks(profile), waits, moments, begin_ns, end_ns, origin)


def with_origin(timeline: Timeline, origin_ns: int) -> Timeline:
    """Return the timeline with times since `origin_ns`, recording's clock, which is not after its present origin."""
    later = np.where(timeline.placed, timeline.origin_ns - origin_ns, 0)
    begin_ns, end_ns = timeline.begin_ns + later, timeline.end_ns + later
    return replace(timeline, begin_ns=begin_ns, end_ns=end_ns, origin_ns=origin_ns)


def comm_of(profile: Profile, tid: int) -> str:
    """Return the last known comm of a tid, printable; UNKNOWN if there is none."""
    if tid == 0:
        return _IDLE_COMM
    after = int(np.searchsorted(profile.comms.tid, tid, "right"))
    if not after or profile.comms.tid[after - 1] != tid:
        return UNKNOWN
    return printable(profile.strings[int(profile.comms.comm[after - 1])]) or UNKNOWN


def process_names(profile: Profile, tracks: list[Track]) -> dict[int, str]:
    """Return pid → name: the comm of the process's main thread, else of its first thread in `tracks`."""
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
    first, group_of = group(samples.pid, samples.tid)
    order = stable_order(group_of)
    rows = np.split(order, np.searchsorted(group_of[order], np.arange(1, len(first))))
    names = [printable(profile.strings[int(samples.comm[own[-1]])]) or UNKNOWN for own in rows if len(own)]
    ids = zip(samples.pid[first].tolist(), samples.tid[first].tolist(), names, rows, strict=False)
    return [Track(*track_id) for track_id in ids], group_of
