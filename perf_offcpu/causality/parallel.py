# SPDX-License-Identifier: Apache-2.0
"""Count the threads that run at each moment, and divide the time of each thread by this number: its weight.

    time of a thread × 1 / number of the chosen threads that ran at this time

So a thread that runs alone has its whole time as weight, and two threads that run together have half of it each: code
for which the others wait weighs most. Source: GAPP (2020). The weights of all threads and the time in which none ran
sum to the window without pauses. Begins and ends of all runs are sorted once; everything else follows from cumulative
sums.

A thread runs from its birth to its exit, except during its waits, also for a CPU. Summed waits, and preemptions that
were not recorded, have no place in time: they count as running."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from perf_offcpu.analysis.times.timeline import Timeline
from perf_offcpu.causality.wait_table import WaitTable, pauses_of
from perf_offcpu.model.columns import I64, Bool, distinct, sum_by
from perf_offcpu.model.join import host_of
from perf_offcpu.model.profile import Profile
from perf_offcpu.structs import mutable


@mutable
class Parallelism:
    """Number of running threads as a function of time; times are ns since the timeline's origin."""

    begin: int  # the window
    end: int
    time: I64  # int64[k], where the number changes; the first is `begin`, the last is `end`
    number: I64  # int64[k - 1], threads that run from each time to the next
    length: I64  # int64[k - 1], from each time to the next; 0 in pauses
    alone: I64  # int64[k], ns between `begin` and each time in which exactly one thread ran
    none: I64  # int64[k], ns between `begin` and each time in which no thread ran
    weight: I64  # int64[tracks], ns: see above
    alone_by: I64  # int64[tracks], ns in which no other thread ran

    def numbers_at(self, moment: I64) -> I64:
        """Return int64[n]: number of running threads at each moment, ns since the origin; 0 outside of the window."""
        if not len(self.number):
            return np.zeros(len(moment), np.int64)
        row = np.searchsorted(self.time, moment, "right") - 1
        inside = (row >= 0) & (row < len(self.number))
        return np.where(inside, self.number[np.clip(row, 0, len(self.number) - 1)], 0)

    def levels(self) -> I64:
        """Return int64[most + 1]: ns in which 0, 1, 2, … threads ran; they sum to the window without pauses."""
        most = int(self.number[self.length > 0].max(initial=0))
        return sum_by(np.minimum(self.number, most), self.length, most + 1)

    def sum_until(self, sums: I64, moment: I64) -> I64:
        """Return int64[n]: ns of the window before each moment in which exactly one thread ran (`sums`: the field
        `alone`), or no thread (`sums`: the field `none`)."""
        return _at(self.time, sums, np.clip(moment, self.begin, self.end)).astype(np.int64)


def parallelism_of(
    profile: Profile, timeline: Timeline, waits: WaitTable, chosen: Bool, window: tuple[int, int] | None
) -> Parallelism:
    """Return the parallelism of the `chosen` threads, bool[tracks]. `window`: (begin, end), ns since the origin; None:
    from the first birth to the last exit of these threads."""
    track, begin, end = _lives(profile, timeline, chosen)
    lifetime = (int(begin.min(initial=np.iinfo(np.int64).max)), int(end.max(initial=0)))
    first, last = window or (lifetime if len(track) else (0, 0))
    track, begin, end = _runs(waits, track, np.clip(begin, first, last), np.clip(end, first, last))
    hosts = distinct(_hosts(profile, timeline)[chosen[: len(timeline.tracks)]]).tolist()
    pauses = np.clip(pauses_of(profile, timeline, hosts), first, last)
    edges = np.concatenate([begin, end, pauses.reshape(-1)])
    step = np.repeat([1, -1, 0], [len(begin), len(end), 2 * len(pauses)])
    order = np.argsort(edges, kind="stable")
    time, number = edges[order], np.cumsum(step[order])
    changes = np.append(time[1:] != time[:-1], True)[: len(time)]
    time, number = time[changes], number[changes]
    if not len(time) or time[0] > first:
        time, number = np.append(first, time), np.append(0, number)
    if time[-1] < last:
        time, number = np.append(time, last), np.append(number, 0)
    time, number = time.astype(np.int64), number[: len(time) - 1].astype(np.int64)
    in_pause = np.searchsorted(pauses.reshape(-1), time[:-1], "right") % 2 == 1
    length = np.where(in_pause, 0, np.diff(time))
    alone, none = (np.append(0, np.cumsum(np.where(number == some, length, 0))) for some in (1, 0))
    shares = np.append(0, np.cumsum(length / np.maximum(number, 1).astype(np.longdouble) * (number > 0)))
    tracks = len(waits.tracks)
    alone_by = sum_by(track, (_at(time, alone, end) - _at(time, alone, begin)).astype(np.int64), tracks)
    weight = np.zeros(tracks, np.longdouble)
    np.add.at(weight, track, _at(time, shares, end) - _at(time, shares, begin))
    rounded = _rounded(weight, int(length[number > 0].sum()))
    return Parallelism(first, last, time, number, length, alone, none, rounded, alone_by)


def _lives(profile: Profile, timeline: Timeline, chosen: Bool) -> tuple[I64, I64, I64]:
    """Return (track, begin, end), int64[k], of each life of the chosen threads, ns since the origin: from birth to exit
    by the thread's budget; without one, from its first to its last sample, without pauses of its host."""
    budget, origin = profile.budget, timeline.origin_ns
    row_of = {(track.pid, track.tid): row for row, track in enumerate(timeline.tracks)}
    ids = zip(budget.pid.tolist(), budget.tid.tolist(), strict=True)
    track = np.array([row_of.get(thread, -1) for thread in ids], np.int64)
    is_chosen = (track >= 0) & np.append(chosen, False)[track]
    track, begin, end = track[is_chosen], budget.begin_ns[is_chosen] - origin, budget.end_ns[is_chosen] - origin
    placed = np.flatnonzero(timeline.placed & chosen[timeline.track])
    size = len(timeline.tracks)
    first, last = np.full(size, np.iinfo(np.int64).max), np.full(size, -1, np.int64)
    np.minimum.at(first, timeline.track[placed], timeline.begin_ns[placed])
    np.maximum.at(last, timeline.track[placed], timeline.end_ns[placed])
    others = (last >= 0) & chosen[:size]
    others[track] = False
    lives, hosts = [(track, begin, end)], _hosts(profile, timeline)
    for host in distinct(hosts[others]).tolist():
        unpaused = np.flatnonzero(others & (hosts == host))
        lives.append(_without(unpaused, first[unpaused], last[unpaused], pauses_of(profile, timeline, [host])))
    track, begin, end = (np.concatenate(columns) for columns in zip(*lives, strict=True))
    return track, begin, end


def _hosts(profile: Profile, timeline: Timeline) -> I64:
    return host_of(np.array([track.tid for track in timeline.tracks], np.int64), profile.meta)


def _without(track: I64, begin: I64, end: I64, pauses: I64) -> tuple[I64, I64, I64]:
    """Return (track, begin, end) of parts of lives outside of `pauses`, int64[k, 2]; life i is begin[i] … end[i]."""
    since = np.maximum(begin[:, None], np.append(np.iinfo(np.int64).min, pauses[:, 1]))
    until = np.minimum(end[:, None], np.append(pauses[:, 0], np.iinfo(np.int64).max))
    nonempty = since <= until
    life, _ = np.nonzero(nonempty)
    return track[life], since[nonempty], until[nonempty]


def _runs(waits: WaitTable, track: I64, begin: I64, end: I64) -> tuple[I64, I64, I64]:
    """Return (track, begin, end), int64[k], of the parts of spans between waits, by span and time; span i of thread
    track[i] is begin[i] … end[i]."""
    span_of, wait = waits.overlapping(track, begin, end)
    since = np.append(begin, np.minimum(waits.end[wait], end[span_of]))
    until = np.append(np.maximum(waits.begin[wait], begin[span_of]), end)
    # A run begins with its span or after a wait, and ends with the next wait or the span.
    starts = np.argsort(np.append(np.arange(len(track)), span_of), kind="stable")
    ends = np.argsort(np.append(span_of, np.arange(len(track))), kind="stable")
    since, until, owner = since[starts], until[ends], np.append(np.arange(len(track)), span_of)[starts]
    nonempty = until > since
    return track[owner[nonempty]], since[nonempty], until[nonempty]


def _at(time: I64, sums: NDArray[Any], moment: I64) -> NDArray[Any]:
    """Return cumulative sums (`sums[i]` at `time[i]`, ascending) at each moment, interpolated linearly."""
    row = np.clip(np.searchsorted(time, moment, "right") - 1, 0, max(len(time) - 2, 0))
    if len(time) < 2:
        return np.zeros(len(moment), sums.dtype)
    length, step = time[row + 1] - time[row], sums[row + 1] - sums[row]
    sums_at: NDArray[Any] = sums[row] + np.where(moment == time[row + 1], step, (moment - time[row]) * (step / length))
    return sums_at


def _rounded(weight: NDArray[np.longdouble], total: int) -> I64:
    """Round weights to integers that sum to `total`: all down, then those with the largest fractions up."""
    floor = np.floor(weight).astype(np.int64)
    missing = total - int(floor.sum())
    order = np.argsort(-(weight - floor), kind="stable")
    floor[order[: max(missing, 0)]] += 1
    return floor
