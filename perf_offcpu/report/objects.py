# SPDX-License-Identifier: Apache-2.0
"""Sum the waits for each object: weight, number of threads, and the threads that held or released it. Objects of one
name are one row. The weight of a holder is the time of waits while it held the lock (`analysis.holders`). If the
recorder did not read words of locks (`--lock-owners`), the threads that ended waits are shown, with these whole
waits."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from perf_offcpu.abi.wait_objects import LOCKS, ObjectKind
from perf_offcpu.analysis.causes import causes_of, program_functions
from perf_offcpu.analysis.classes.classify import Waits
from perf_offcpu.analysis.classes.network import LABELS, network_of
from perf_offcpu.analysis.classes.wait_classes import WaitClass
from perf_offcpu.analysis.holders import Holders, held_time
from perf_offcpu.analysis.times.wakeups import INTERRUPT
from perf_offcpu.callpaths.options import Name, PathOptions
from perf_offcpu.callpaths.tree import name_frames
from perf_offcpu.causality.locks import longest_queues, waiters
from perf_offcpu.model.callchains import frames_of
from perf_offcpu.model.columns import I32, I64, Bool, group, sum_by
from perf_offcpu.model.lookup import rows_at
from perf_offcpu.model.profile import Profile
from perf_offcpu.model.recording import SampleFlag
from perf_offcpu.report.totals import Total, places_of, sums_by_label, totals_of
from perf_offcpu.structs import frozen, mutable
from perf_offcpu.text import printable, thread_label

HELD, RELEASED, ENDED = "held", "released", "ended"
"""Relation of a row's threads to the object; ENDED: they ended waits for an object without a holder."""
_RELEASED = (ObjectKind.FUTEX, ObjectKind.KERNEL_LOCK)
_INTERRUPT = -2


@frozen
class ObjectRow:
    """Waits for one object in sum, and the comms of the threads that held it or ended the waits."""

    name: str
    kind: str  # of `ObjectKind`, in lower case
    wait_class: str  # label of the class with most of the weight
    total: Total
    threads: int  # number of threads that waited for it
    role: str  # HELD, RELEASED or ENDED
    by: dict[str, int]  # comm → weight of the waits, the largest first
    network: dict[str, int]  # of a connection: cause (`analysis.classes.network`) → weight, the largest first


@frozen
class ObjectTable:
    """Waits by object, heaviest first; objects of waits for the next piece of work come last."""

    rows: list[ObjectRow]
    more: tuple[int, int]  # (rows, weight) over the limit
    without: int  # weight of waits without an object


@frozen
class Hand:
    """Thread that held a lock, or released it, while other threads waited."""

    comm: str
    pid: int
    tid: int
    weight: int  # of a holder, time of waits while it held the lock; else of the whole waits that it ended
    times: int  # how often it got the lock while others waited; else how often it released the lock
    function: str  # of the program, in which it released the lock, for most of the waits' weight; "" not known
    frames: tuple[Name, ...]  # stack in which it released the lock, that with most weight of waits; root first


@frozen
class LockRow:
    """Waits for one lock in sum: the object's row, its queue, its holders or releasers."""

    row: ObjectRow
    queue: int  # most threads that waited at one time
    hand_overs: int  # waits that another thread ended by releasing it
    changed: int | None  # waits in which it was released by another thread than held it at the begin; None unknown
    waiting_in: dict[str, int]  # function of the program → weight, the largest first
    hands: list[Hand]  # holders, or releasers, by weight of the waits
    more_hands: tuple[int, int]  # (threads, weight) over the limit
    weight_known: int  # weight of all hands
    weight_unknown: int  # weight of waits while the holder was not known; the rest of the weight followed wake-ups


@frozen
class LockTable:
    """Locks for which threads waited longest in sum, heaviest first, up to a limit."""

    rows: list[LockRow]
    more: tuple[int, int]  # (locks, weight) over the limit
    refused: int  # waits whose recorded holder is not used


@mutable
class _Hands:
    """Times for which threads held objects, as columns: a row for each (object, tid); `is_held`: one per object."""

    is_held: Bool  # bool[objects], True if any wait for the object has a known holder
    rank: I64  # of the object in `_Objects`
    tid: I64  # -1: not known
    weight: I64
    times: I64
    time_ns: I64


class _Objects:
    """Samples grouped by the name of their object, heaviest first."""

    def __init__(
        self, profile: Profile, waits: Waits, holders: Holders, limit: int | None, rows: I64, idle: Bool
    ) -> None:
        """Group the samples `rows`; keep the `limit` groups with most weight that is not `idle` (bool[samples])."""
        self.profile, self.samples, self.waits, self.holders = profile, profile.samples, waits, holders
        names = profile.objects.name[self.samples.object[rows]]
        first, group_of = group(names)
        period = self.samples.period[rows]
        weight = sum_by(group_of, period, len(first))
        busy = sum_by(np.where(idle[rows], -1, group_of), period, len(first))
        kept = np.lexsort((-weight, -busy))[:limit]
        self.more = len(first) - len(kept), int(weight.sum()) - int(weight[kept].sum())
        self.rank = np.full(len(self.samples), -1, np.int64)
        self.rank[rows] = places_of(kept, len(first))[group_of]
        self.first = rows[first[kept]]
        self.number = len(kept)
        self.network = network_of(profile, waits).cause
        self.held = self._held(places_of(names[first[kept]].astype(np.int64), len(profile.strings)))

    def rows(self) -> list[ObjectRow]:
        """Return the row of each object that is kept."""
        objects, strings, samples, number = self.profile.objects, self.profile.strings, self.samples, self.number
        thing, class_of, cause_of = samples.object[self.first], self.waits.wait_class, self.network
        kinds = objects.kind[thing].tolist()
        classes = sums_by_label(self.rank, class_of, lambda code: WaitClass(code).label, samples.period, number)
        networks = sums_by_label(self.rank, cause_of, LABELS.__getitem__, samples.period, number)
        held = zip(kinds, self.held.is_held.tolist(), strict=True)
        columns: tuple[Sequence[Any], ...] = (
            [printable(strings[name]) for name in objects.name[thing].tolist()],
            [ObjectKind(kind).name.lower() if kind in set(ObjectKind) else "unknown" for kind in kinds],
            [next(iter(weight_of_class)) for weight_of_class in classes],
            totals_of(samples, self.rank, number),
            waiters(samples, self.rank, number).tolist(),
            [HELD if is_held else RELEASED if kind in _RELEASED else ENDED for kind, is_held in held],
            self._by(),
            [{label: ns for label, ns in network.items() if label} for network in networks],
        )
        return [ObjectRow(*row) for row in zip(*columns, strict=True)]

    def _held(self, rank_of_name: I64) -> _Hands:
        """Return the times for which threads held kept objects. `rank_of_name`: int64[strings], the kept object with
        this name, by weight from 0; -1 none."""
        with_holder = self.rank[(self.holders.held >= 0) & (self.rank >= 0)]
        is_held = np.bincount(with_holder, minlength=self.number) > 0
        time = held_time(self.profile, self.holders, np.append(is_held, False)[self.rank])
        object_of = rank_of_name[self.profile.objects.name[time.object]]
        first, hand_of = group(object_of, time.tid)
        weight, times = (sum_by(hand_of, column, len(first)) for column in (time.weight, time.times))
        return _Hands(is_held, object_of[first], time.tid[first], weight, times, time.time_ns[first])

    def _by(self) -> list[dict[str, int]]:
        samples = self.samples
        is_released = np.isin(np.append(self.profile.objects.kind, 0)[samples.object], _RELEASED)
        waker = np.where(samples.waker_tid > 0, samples.waker_tid, -1)
        tid = np.where(is_released, self.holders.released, waker)
        comm = _comms(self.profile, tid, samples.time_ns)
        comm[samples.has(SampleFlag.WAKER_INTERRUPT)] = _INTERRUPT
        strings, held = self.profile.strings, self.held

        def label(comm: int) -> str:
            return "" if comm == -1 else INTERRUPT if comm == _INTERRUPT else thread_label(strings[comm])

        not_held = np.where(np.append(held.is_held, False)[self.rank], -1, self.rank)
        ended = sums_by_label(not_held, comm, label, samples.period, self.number)
        comm = _comms(self.profile, held.tid, held.time_ns)
        hands = sums_by_label(held.rank, comm, label, held.weight, self.number)
        return [{name: ns for name, ns in (ended[row] | hands[row]).items() if name} for row in range(self.number)]


def _comms(profile: Profile, tid: I64 | I32, time_ns: I64) -> I64:
    """Return int64[n]: row in strings of the comm that each tid had at `time_ns`; -1 for tid -1."""
    return np.where(tid < 0, -1, profile.comms_at(tid.astype(np.int32), time_ns))


def object_table(profile: Profile, waits: Waits, holders: Holders, limit: int | None = None) -> ObjectTable:
    """Return the objects that samples of a profile waited for; objects with only waits for work come last."""
    samples = profile.samples
    has_object = samples.object >= 0
    objects = _Objects(profile, waits, holders, limit, np.flatnonzero(has_object), waits.for_work)
    return ObjectTable(objects.rows(), objects.more, int(samples.period[~has_object].sum()))


def lock_table(
    profile: Profile, waits: Waits, holders: Holders, limit: int | None, hand_limit: int | None, idle: Bool
) -> LockTable:
    """Return the locks that the samples of a profile waited for, each with at most `hand_limit` holders. `idle`:
    bool[samples], waits of idle threads: locks for which only idle threads wait come last."""
    samples = profile.samples
    kind = np.append(profile.objects.kind, np.uint16(0))[samples.object]
    is_lock = np.isin(kind, LOCKS)
    is_lock |= (waits.wait_class == WaitClass.LOCK) & (samples.object >= 0)
    is_lock &= waits.wait_class != WaitClass.CHILD  # the end of a thread is no lock
    objects = _Objects(profile, waits, holders, limit, np.flatnonzero(is_lock), idle)
    object_of, number, held = objects.rank, objects.number, objects.held

    def count(chosen: Bool) -> list[int]:
        counts: list[int] = np.bincount(object_of[chosen & (object_of >= 0)], minlength=number).tolist()
        return counts

    both = (holders.held >= 0) & (holders.released >= 0)
    causes = causes_of(profile, waits)
    functions = sums_by_label(object_of, causes.function, lambda row: causes.names[row], samples.period, number)
    columns = (
        objects.rows(),
        longest_queues(samples, object_of, number).tolist(),
        count((holders.released >= 0) & (holders.released != samples.tid)),
        count(both & (holders.held != holders.released)),
        count(both),
        functions,
        _hands(profile, holders, objects),
        sum_by(np.where(held.tid < 0, held.rank, -1), held.weight, number).tolist(),
    )
    rows = []
    for row, queue, hand_overs, changed, compared, weight_of, hands, unknown in zip(*columns, strict=True):
        waiting_in = {name: ns for name, ns in weight_of.items() if name}
        shown, by_known = hands[:hand_limit], sum(hand.weight for hand in hands)
        more = len(hands) - len(shown), by_known - sum(hand.weight for hand in shown)
        counts = queue, hand_overs, changed if compared else None
        rows.append(LockRow(row, *counts, waiting_in, shown, more, by_known, unknown))
    return LockTable(rows, objects.more, holders.refused)


def _hands(profile: Profile, holders: Holders, objects: _Objects) -> list[list[Hand]]:
    """Return, for each object, its holders, heaviest first; if none is known, the threads that released it."""
    samples, strings, held, object_of = profile.samples, profile.strings, objects.held, objects.rank
    hands: list[list[Hand]] = [[] for _ in range(objects.number)]
    released = np.flatnonzero((object_of >= 0) & (holders.released >= 0))
    is_hand, counts = held.tid >= 0, ~np.append(held.is_held, False)[object_of[released]]
    object_of_hand = np.append(held.rank[is_hand], object_of[released])
    tid = np.concatenate([held.tid[is_hand], holders.released[released]])
    if not len(object_of_hand):
        return hands
    first, pair = group(object_of_hand, tid)
    period = samples.period[released]
    weight = sum_by(pair, np.append(held.weight[is_hand], np.where(counts, period, 0)), len(first))
    times = sum_by(pair, np.append(held.times[is_hand], counts), len(first))
    time_ns = np.append(held.time_ns[is_hand], samples.time_ns[released]).astype(np.int64)
    of_release = pair[int(is_hand.sum()) :]
    stack = _heaviest_stack(of_release, samples.waker_stack[released].astype(np.int64), period, len(first))
    names, function = program_functions(profile, stack)
    comm = _comms(profile, tid[first], time_ns[first])
    row = rows_at(profile.comms.tid, profile.comms.begin_ns, tid[first].astype(np.int32), time_ns[first])
    pid = np.append(profile.comms.pid, -1)[row]
    for index in np.argsort(-weight, kind="stable").tolist():
        if weight[index] > 0:
            ids = thread_label(strings[int(comm[index])]), int(pid[index]), int(tid[first[index]])
            where = names[function[index]], _frames(profile, int(stack[index]))
            hands[int(object_of_hand[first[index]])].append(Hand(*ids, int(weight[index]), int(times[index]), *where))
    return hands


def _heaviest_stack(group_of: I64, stack: I64, weight: I64, groups: int) -> I64:
    """Return int64[groups]: the stack with most weight of each group; -1 for none. `stack`: int64[n], row, -1 none."""
    result = np.full(groups, -1, np.int64)
    rows = np.flatnonzero(stack >= 0)
    first, pair = group(group_of[rows], stack[rows])
    heaviest_last = rows[first[np.argsort(sum_by(pair, weight[rows], len(first)), kind="stable")]]
    result[group_of[heaviest_last]] = stack[heaviest_last]  # the last assignment stays
    return result


def _frames(profile: Profile, stack: int) -> tuple[Name, ...]:
    frames = np.array(frames_of(profile.stacks.parent, profile.stacks.frame, stack), np.int64)
    names, name_of = name_frames(profile, frames, PathOptions()) if len(frames) else ([], frames)
    return tuple(names[row] for row in name_of.tolist())
