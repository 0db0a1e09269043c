# SPDX-License-Identifier: Apache-2.0
"""Pass the weight of waits on, from thread to thread, to the threads at the end of chains of waits.

If A waits for B, and B waits for C at the same time, the time counts for A → B and, while B waits too, once more for B
→ C: a short wait that delays forty threads weighs as much as forty waits. Source: wPerf (OSDI 2018), cascaded
redistribution. wPerf walks from each wait through all waits after it. Here each step computes the number of waits that
a thread delays as a function of time and follows all of them at once, so that a thousand threads that wait for one
thread are one step, not a thousand.

Weight is conserved: at each moment a thread that waits for another one passes on its own wait and the waits that it
delays, and all other threads hold the weight of the waits that they delay. So for each thread

    own waits + weight of edges to it = weight of edges from it + weight that it holds,

and the own waits of all threads sum exactly to the weight that all threads and devices hold (`Cascade.check`).

Interrupts wake on behalf of devices, which are nodes by kind: an edge to [disk] is a wait for the disk. Summed short
waits have no place in time and are left out. If the waker itself slept before the wake-up, it passes on nothing from
that time on. So each further wait of a chain ends earlier, and the steps end. In chains longer than MAX_DEPTH, or with
more than MAX_PARTS parts, the remaining weight is held where it is, as CUT."""

import enum

import numpy as np

from perf_offcpu.analysis.classes.classify import classify
from perf_offcpu.analysis.classes.wait_classes import WaitClass
from perf_offcpu.analysis.times.cpu_waits import CpuWaits
from perf_offcpu.analysis.times.timeline import Timeline, Track
from perf_offcpu.causality.wait_table import WaitTable, ranges
from perf_offcpu.errors import PerfOffcpuError
from perf_offcpu.model.columns import I64, Bool, group, sum_by
from perf_offcpu.model.profile import Profile
from perf_offcpu.model.recording import SampleFlag
from perf_offcpu.structs import mutable

MAX_DEPTH = 1000  # longest chain of threads that wait for each other at one moment
MAX_PARTS = 100_000_000
"""Most parts of waits in all steps together: limits time and memory if all waits of a recording overlap."""

_WEIGHT_LIMIT = 2.0**62

DEVICES = ("[disk]", "[network]", "[timer]", "[interrupt]")
"""Names of the nodes that stand for interrupts; the last one is for an unknown device."""
# A wait for a lock that an interrupt ended has timed out: no interrupt lets a lock go.
_DEVICE_OF = {WaitClass.DISK: 0, WaitClass.FAULT: 0, WaitClass.NETWORK: 1, WaitClass.SLEEP: 2, WaitClass.LOCK: 2}


class Held(enum.IntEnum):
    """State of a thread or device while it is charged with the time of waits that it delays: columns of `held_ns`."""

    RUNNING = 0  # on a CPU, or in a wait that was only summed
    RUNNABLE = 1  # waiting for a CPU, or preempted by its budget
    WAITING = 2  # in a wait that no known thread ended; of a device: waited for
    NOT_RECORDED = 3  # nothing is known of the thread: it was not recorded, or not born yet
    CUT = 4  # waiting for another thread, deeper than is followed


@mutable
class Cascade:
    """w waits as columns, with the weight (ns, times the waits delayed then) that each passes on to the thread or
    device that ended it. Nodes: the t tracks (threads), after them the DEVICES."""

    tracks: list[Track]  # the recorded threads, and threads that only woke others
    waiter: I64  # int64[w], the track of each wait
    target: I64  # int64[w], the node to which the wait passes weight on; -1 none: the waiter itself holds it
    row: I64  # int64[w], row in samples
    own_ns: I64  # int64[w], ns of the wait until the wake-up; 0 if it is not chosen
    carried_ns: I64  # int64[w], weight passed on: each ns times the chosen waits that it delays then, itself included
    kept_ns: I64  # int64[w], weight, counted as `carried_ns` is, that the waiter itself holds as WAITING
    held_ns: I64  # int64[nodes, Held], weight that each node holds, by its state
    held_up: I64  # int64[samples], number of waits that the thread of a CPU sample held up at that moment
    depth: int  # number of steps
    unplaced_ns: int  # length of chosen waits that were only summed, which are no rows here

    @property
    def total_ns(self) -> int:
        """Return the time of all chosen waits until their wake-ups, ns: the weight that all nodes hold together."""
        return int(self.own_ns.sum())

    def check(self) -> None:
        """Raise AssertionError unless each node holds or passes on all weight that it has or gets, and all is held."""
        nodes = len(self.held_ns)
        own, away = (sum_by(self.waiter, column, nodes) for column in (self.own_ns, self.carried_ns))
        carried = sum_by(self.target, self.carried_ns, nodes)
        assert np.array_equal(own + carried, away + self.held_ns.sum(axis=1)), "a node loses weight"
        assert int(self.held_ns.sum()) == self.total_ns, "weight is lost"


def cascade_of(profile: Profile, timeline: Timeline, chosen: Bool | None = None) -> Cascade:
    """Follow the waits of a profile from waker to waker, and return where their time ends. The profile has all samples
    of all threads. `chosen`: bool[samples], the waits whose time (weight) is passed on; default: all. Raise
    PerfOffcpuError if a weight exceeds 62 bits: damaged times."""
    waits = _Steps(profile, timeline)
    everyone = np.ones(len(profile.samples), np.bool_) if chosen is None else chosen
    own = np.where(everyone[waits.row], waits.queued - waits.begin, 0)
    own_rows = np.flatnonzero(own)
    parts = _Parts(own_rows, waits.first[own_rows], waits.until[own_rows], np.ones(len(own_rows), np.int64))
    depth, number = 0, 0
    while len(parts.owner):
        number += len(parts.owner)
        deeper = depth < MAX_DEPTH and number <= MAX_PARTS
        parts = waits.step(parts, follow=deeper)
        depth += deeper
    unplaced = everyone & profile.is_offcpu() & ~timeline.waits
    threads = np.arange(len(waits.tracks))
    queued = CpuWaits(profile, waits.tracks).of(threads, waits.held[threads, Held.RUNNING])
    waits.held[threads, Held.RUNNING] -= queued
    waits.held[threads, Held.RUNNABLE] += queued
    rows = np.flatnonzero(waits.carried + waits.kept + own)
    track, target, row = waits.track[rows], waits.target[rows], waits.row[rows]
    weights = own[rows], waits.carried[rows], waits.kept[rows]
    unplaced_ns = int(profile.samples.period[unplaced].sum())
    return Cascade(waits.tracks, track, target, row, *weights, waits.held, waits.held_up, depth, unplaced_ns)


@mutable
class _Parts:
    """Spans of time of waits, or of threads (tracks), as columns, each with the number of waits that it delays."""

    owner: I64  # row in the waits; or a track
    begin: I64  # index into `_Steps.times`
    end: I64
    number: I64


class _Steps(WaitTable):
    """Passes the weight of waits on to their wakers, one hop a step, and sums up who holds it. Times are indices into
    `times`, all begins, wake-ups and ends of waits, and births of threads."""

    def __init__(self, profile: Profile, timeline: Timeline) -> None:
        super().__init__(profile, timeline)
        awake = self._awake_until()
        self.born = np.where(self.known, self.born, np.iinfo(np.int64).max)
        marks = (self.begin, awake, self.queued, self.end, self.born)
        # Sorting all at once is many times faster than looking each of them up.
        self.times, places = np.unique(np.concatenate(marks), return_inverse=True)
        self.size = len(self.times) + 1
        bounds = np.cumsum([len(mark) for mark in marks])[:-1]
        self.first, self.awake, self.until, self.last, self.birth = np.split(places, bounds)
        self.by_end = self.track * self.size + self.last
        self.by_begin = self.track * self.size + self.first
        self.target = self._targets(profile)
        self.carried, self.kept = np.zeros((2, len(self.row)), np.int64)
        self.held = np.zeros((len(self.tracks) + len(DEVICES), len(Held)), np.int64)
        self.held_up = np.zeros(len(profile.samples), np.int64)
        self._add_moments(timeline)

    def _awake_until(self) -> I64:
        """Return int64[w], ns since the origin: until when each wait's waker was awake: the wake-up; or, if the waker
        itself waited at that moment (the wake-up reached another CPU late), the begin of the waker's wait."""
        until = self.queued.copy()
        woken = np.flatnonzero(self.waker >= 0)
        span_of, wait = self.overlapping(self.waker[woken], self.queued[woken] - 1, self.queued[woken])
        asleep = (self.begin[wait] < self.queued[woken[span_of]]) & (self.queued[wait] >= self.queued[woken[span_of]])
        rows = woken[span_of[asleep]]
        until[rows] = np.maximum(self.begin[wait[asleep]], self.begin[rows])
        return until

    def _targets(self, profile: Profile) -> I64:
        samples = profile.samples
        by_interrupt = samples.has(SampleFlag.WAKER_INTERRUPT)[self.row] | (samples.waker_tid[self.row] == 0)
        ended = ~samples.has(SampleFlag.STILL_BLOCKED | SampleFlag.PREEMPTED)[self.row]
        rows = np.flatnonzero(by_interrupt & ended & (self.waker < 0))
        device_of = np.full(len(WaitClass), len(DEVICES) - 1)
        device_of[list(_DEVICE_OF)] = list(_DEVICE_OF.values())
        target = self.waker.copy()
        target[rows] = len(self.tracks) + device_of[classify(profile.select(self.row[rows])).wait_class]
        return target

    def _add_moments(self, timeline: Timeline) -> None:
        """Set `moment`, rows of the CPU samples of running threads, and `moment_key`, which orders them: by track, then
        index in `times` of the last time at or before the sample."""
        rows = np.flatnonzero(timeline.moments)
        track, moment = timeline.track[rows], timeline.begin_ns[rows]
        key = track * self.size + np.searchsorted(self.times, moment, "right") - 1
        before = np.searchsorted(self.by_begin, key, "right") - 1
        running = np.ones(len(rows), np.bool_)
        if len(self.row):
            running = (before < 0) | (self.track[before] != track) | (self.end[before] <= moment)
        rows, key = rows[running & (moment >= self.born[track])], key[running & (moment >= self.born[track])]
        order = np.argsort(key, kind="stable")
        self.moment, self.moment_key = rows[order], key[order]

    def step(self, parts: _Parts, *, follow: bool) -> _Parts:
        """Charge spans of waits to the threads or devices that ended them: add to `carried`, `kept` and `held`. Return
        the spans of these threads' own waits in that time, for the next step. `follow`: False for the last step, in
        which the weight of waits that a thread ended stays with the waiter, as CUT."""
        passed = self._awake(parts)
        target, weight = self.target[passed.owner], self._weight(passed)
        devices = target >= len(self.tracks)
        self._hold(target[devices], Held.WAITING, weight[devices])
        followed = (target >= 0) & ~devices
        if not follow:
            self._hold(self.track[passed.owner[followed]], Held.CUT, weight[followed])
        followed &= follow
        _add(self.carried, passed.owner[followed | devices], weight[followed | devices])
        self._keep(passed.owner[target < 0], weight[target < 0])
        parts = _Parts(target[followed], *(column[followed] for column in (passed.begin, passed.end, passed.number)))
        return self._explained(self._merged(parts))

    def _awake(self, parts: _Parts) -> _Parts:
        """Return the spans of waits, cut where the waker fell asleep; charge the waiter with the weight after that."""
        end = np.clip(self.awake[parts.owner], parts.begin, parts.end)
        self._keep(parts.owner, self._weight(_Parts(parts.owner, end, parts.end, parts.number)))
        return _Parts(parts.owner, parts.begin, end, parts.number)

    def _weight(self, parts: _Parts) -> I64:
        length = self.times[parts.end] - self.times[parts.begin]
        if float(length.max(initial=0)) * float(parts.number.max(initial=0)) >= _WEIGHT_LIMIT:
            raise PerfOffcpuError("the waits weigh more than 2^62 ns: some times of the recording are damaged")
        weight: I64 = length * parts.number
        return weight

    def _keep(self, wait: I64, weight: I64) -> None:
        self._hold(self.track[wait], Held.WAITING, weight)
        _add(self.kept, wait, weight)

    def _hold(self, node: I64, how: Held, weight: I64) -> None:
        self.held[:, how] += sum_by(node, weight, len(self.held))

    def _merged(self, parts: _Parts) -> _Parts:
        """Merge spans of tracks to disjoint ones, by (track, begin), with the sum of `number` where they overlap."""
        key = np.concatenate([parts.owner * self.size + parts.begin, parts.owner * self.size + parts.end])
        order = np.argsort(key, kind="stable")
        key, change = key[order], np.concatenate([parts.number, -parts.number])[order]
        last = np.append(key[1:] != key[:-1], True)[: len(key)]
        number, key = np.cumsum(change)[last], key[last]
        changes = np.append(True, number[1:] != number[:-1])[: len(key)]
        number, key = number[changes], key[changes]
        filled = np.flatnonzero(number)
        track, begin = np.divmod(key[filled], self.size)
        return _Parts(track, begin, key[filled + 1] - track * self.size, number[filled])

    def _explained(self, parts: _Parts) -> _Parts:
        """Add weight of tracks' spans to `held` where the thread is not asleep; return the parts in which it is."""
        born = np.clip(self.birth[parts.owner], parts.begin, parts.end)
        self._hold(parts.owner, Held.NOT_RECORDED, self._weight(_Parts(parts.owner, parts.begin, born, parts.number)))
        parts = _Parts(parts.owner, born, parts.end, parts.number)
        key = parts.owner * self.size
        first = np.searchsorted(self.by_end, key + parts.begin, "right")
        last = np.searchsorted(self.by_begin, key + parts.end, "left")
        span_of, wait = ranges(first, np.maximum(first, last))
        begin = np.maximum(self.first[wait], parts.begin[span_of])
        end = np.minimum(self.last[wait], parts.end[span_of])
        until, number = np.clip(self.until[wait], begin, end), parts.number[span_of]
        asleep, queued = _Parts(wait, begin, until, number), _Parts(wait, until, end, number)
        weight, runnable = self._weight(parts), self._weight(queued)
        running = weight - sum_by(span_of, runnable + self._weight(asleep), len(weight))
        self._hold(parts.owner, Held.RUNNING, running)
        self._hold(parts.owner[span_of], Held.RUNNABLE, runnable)
        self._sample(parts)
        nonempty = until > begin
        return _Parts(wait[nonempty], begin[nonempty], until[nonempty], number[nonempty])

    def _sample(self, parts: _Parts) -> None:
        """Add to `held_up` of each CPU sample how many waits its part delays. `parts`: of tracks, without overlap."""
        key = parts.owner * self.size
        if not len(key):
            return
        part = np.searchsorted(key + parts.begin, self.moment_key, "right") - 1
        hit = (part >= 0) & (self.moment_key < (key + parts.end)[part])
        self.held_up[self.moment[hit]] += parts.number[part[hit]]


def _add(sums: I64, rows: I64, values: I64) -> None:
    """Add `values` to `sums[rows]` in place, also where a row repeats."""
    first, group_of = group(rows)
    sums[rows[first]] += sum_by(group_of, values, len(first))
