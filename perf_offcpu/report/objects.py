# SPDX-License-Identifier: Apache-2.0
"""Sum the waits for each object: weight, number of threads, and the threads that held or released it.

Objects of one name are one row. A thread that held a lock has the time of the waits in which it held it
(`analysis.held_time`). If the recorder did not read the words of locks (`--lock-owners`), the threads that
ended the waits are shown instead, each with the whole waits.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from perf_offcpu.abi.wait_objects import ObjectKind
from perf_offcpu.analysis.causes import Causes, causes_of, program_functions
from perf_offcpu.analysis.classes.classify import Waits
from perf_offcpu.analysis.classes.wait_classes import WaitClass
from perf_offcpu.analysis.group import group, sum_by
from perf_offcpu.analysis.held_time import held_time
from perf_offcpu.analysis.holders import Holders
from perf_offcpu.analysis.wakeups import INTERRUPT
from perf_offcpu.callpaths.options import Name, PathOptions
from perf_offcpu.callpaths.tree import name_frames
from perf_offcpu.locks import longest_queues, waiters
from perf_offcpu.model.columns import I32, I64, Bool
from perf_offcpu.model.lookup import rows_at
from perf_offcpu.model.profile import Profile
from perf_offcpu.model.recording import SampleFlag
from perf_offcpu.model.stacks import frames_of
from perf_offcpu.report.totals import Total, sums_by_label, totals_of
from perf_offcpu.structs import frozen, mutable
from perf_offcpu.text import printable, thread_label

HELD, RELEASED, ENDED = "held", "released", "ended"
"""Relation of a row's threads to the object; ENDED: they ended waits for an object without a holder."""
_INTERRUPT = -2


@frozen
class ObjectRow:
    """The waits for one object."""

    name: str
    kind: str  # of `ObjectKind`, in lower case
    wait_class: str  # label of the class with most of the weight
    total: Total
    threads: int  # that waited for it
    role: str  # HELD, RELEASED or ENDED
    by: dict[str, int]  # comm → weight of the waits, the largest first


@frozen
class ObjectTable:
    """The objects, heaviest first; objects of waits for the next piece of work come last."""

    rows: list[ObjectRow]
    more: tuple[int, int]  # (rows, weight) over the limit
    without: int  # weight of waits without an object


@frozen
class Hand:
    """A thread that held a lock, or released it, while others waited."""

    comm: str
    pid: int
    tid: int
    weight: int  # of the waits: of a holder, the part of them in which it held the lock
    times: int  # that it got the lock while others waited, or released it
    function: str  # of the program, where it released it in most of them; "" not known
    frames: tuple[Name, ...]  # the stack there, root first


@frozen
class LockRow:
    """The waits for one lock."""

    row: ObjectRow
    queue: int  # most threads that waited at one time
    hand_overs: int  # waits that another thread ended by releasing it
    changed: int | None  # waits in which it was released by another thread than held it at the begin; None unknown
    waiting_in: dict[str, int]  # function of the program → weight, the largest first
    hands: list[Hand]  # holders, or releasers, by weight of the waits
    more_hands: tuple[int, int]  # (threads, weight) over the limit
    weight_known: int  # weight of all hands
    weight_unknown: int  # weight of the waits in which it is not known who held it; the rest followed the wake-up


@frozen
class LockTable:
    """The locks, heaviest first."""

    rows: list[LockRow]
    more: tuple[int, int]
    refused: int  # waits whose recorded holder was not believed


class _Objects:
    """The objects of some samples, by name, heaviest first."""

    def __init__(
        self, profile: Profile, waits: Waits, holders: Holders, limit: int | None, rows: I64, idle: Bool
    ) -> None:
        """Group the samples `rows`, and keep `limit` groups: the largest weights that are not `idle`."""
        self.profile, self.samples, self.waits, self.holders = profile, profile.samples, waits, holders
        names = profile.objects.name[self.samples.object[rows]]
        first, group_of = group(names)
        period = self.samples.period[rows]
        weight = sum_by(group_of, period, len(first))
        busy = sum_by(np.where(idle[rows], -1, group_of), period, len(first))
        kept = np.lexsort((-weight, -busy))[:limit]
        self.more = len(first) - len(kept), int(weight.sum()) - int(weight[kept].sum())
        rank = np.full(len(first) + 1, -1, np.int64)
        rank[kept] = np.arange(len(kept))
        self.of = np.full(len(self.samples), -1, np.int64)
        self.of[rows] = rank[group_of]
        self.first = rows[first[kept]]
        self.number = len(kept)
        rank_of_name = np.full(len(profile.strings), -1, np.int64)
        rank_of_name[names[first[kept]]] = np.arange(len(kept))
        self.held = self._held(rank_of_name)

    def rows(self) -> list[ObjectRow]:
        """Return the row of each object."""
        objects, strings, samples = self.profile.objects, self.profile.strings, self.samples
        thing = samples.object[self.first]
        totals = totals_of(samples, self.of, self.number)
        classes = sums_by_label(
            self.of, self.waits.wait_class, lambda one: WaitClass(one).label, samples.period, self.number
        )
        threads = waiters(samples, self.of, self.number).tolist()
        by = self._by()
        kinds = objects.kind[thing].tolist()
        return [
            ObjectRow(
                printable(strings[name]),
                _kind(kinds[index]),
                next(iter(classes[index])),
                totals[index],
                threads[index],
                HELD if self.held.is_held[index] else RELEASED if kinds[index] == ObjectKind.FUTEX else ENDED,
                by[index],
            )
            for index, name in enumerate(objects.name[thing].tolist())
        ]

    def _held(self, rank_of_name: I64) -> _Hands:
        """Return the threads that held objects, for objects of which any wait has a known holder."""
        with_holder = self.of[(self.holders.held >= 0) & (self.of >= 0)]
        is_held = np.bincount(with_holder, minlength=self.number) > 0
        time = held_time(self.profile, self.holders, np.append(is_held, False)[self.of])
        of = rank_of_name[self.profile.objects.name[time.object]]
        first, hand_of = group(of, time.tid)
        weight, times = (sum_by(hand_of, column, len(first)) for column in (time.weight, time.times))
        return _Hands(is_held, of[first], time.tid[first], weight, times, time.time_ns[first])

    def _by(self) -> list[dict[str, int]]:
        samples = self.samples
        is_futex = np.append(self.profile.objects.kind, 0)[samples.object] == ObjectKind.FUTEX
        waker = np.where(samples.waker_tid > 0, samples.waker_tid, -1)
        tid = np.where(is_futex, self.holders.released, waker)
        comm = _comms(self.profile, tid, samples.time_ns)
        comm[samples.has(SampleFlag.WAKER_INTERRUPT)] = _INTERRUPT
        strings, held = self.profile.strings, self.held

        def label(one: int) -> str:
            return "" if one == -1 else INTERRUPT if one == _INTERRUPT else thread_label(strings[one])

        not_held = np.where(np.append(held.is_held, False)[self.of], -1, self.of)
        ended = sums_by_label(not_held, comm, label, samples.period, self.number)
        comm = _comms(self.profile, held.tid, held.time_ns)
        hands = sums_by_label(held.of, comm, label, held.weight, self.number)
        return [{name: ns for name, ns in (ended[row] | hands[row]).items() if name} for row in range(self.number)]


@mutable
class _Hands:
    """Threads that held, or released, objects; columns but `is_held` are one row each thread and object."""

    is_held: Bool  # bool[objects]
    of: I64  # the object
    tid: I64  # -1: not known
    weight: I64
    times: I64
    time_ns: I64


def _comms(profile: Profile, tid: I64 | I32, time_ns: I64) -> I64:
    """Return int64[n]: strings, the comms of threads at some times; -1 for thread -1."""
    comms = profile.comms
    row = rows_at(comms.tid, comms.begin_ns, tid.astype(np.int32), time_ns)
    return np.where(tid < 0, -1, np.append(comms.comm, 0).astype(np.int64)[row])


def object_table(profile: Profile, waits: Waits, holders: Holders, limit: int | None = None) -> ObjectTable:
    """Return the objects that the samples of a profile waited for, the next piece of work last.

    Args:
        waits: `classify(profile)`.
        holders: `holders_of(profile)`.
        limit: most rows; None for all.
    """
    samples = profile.samples
    has_object = samples.object >= 0
    rows = np.flatnonzero(has_object)
    objects = _Objects(profile, waits, holders, limit, rows, waits.for_work)
    return ObjectTable(objects.rows(), objects.more, int(samples.period[~has_object].sum()))


def lock_table(
    profile: Profile,
    waits: Waits,
    holders: Holders,
    limit: int | None = None,
    hand_limit: int | None = None,
    idle: Bool | None = None,
) -> LockTable:
    """Return the locks that the samples of a profile waited for; arguments as in `object_table`.

    Args:
        hand_limit: most holders of each lock.
        idle: bool[samples], waits of idle threads: objects of such waits alone come last.
    """
    samples = profile.samples
    kind = np.append(profile.objects.kind, np.uint16(0))[samples.object]
    is_lock = np.isin(kind, (ObjectKind.FUTEX, ObjectKind.SEMAPHORES))
    is_lock |= (waits.wait_class == WaitClass.LOCK) & (samples.object >= 0)
    is_lock &= waits.wait_class != WaitClass.CHILD  # the end of a thread is no lock
    idle = np.zeros(len(samples), np.bool_) if idle is None else idle
    objects = _Objects(profile, waits, holders, limit, np.flatnonzero(is_lock), idle)
    object_of, number = objects.of, objects.number
    queues = longest_queues(samples, object_of, number).tolist()
    handed = (holders.released >= 0) & (holders.released != samples.tid)
    hand_overs = _counts(object_of, handed, number)
    both = (holders.held >= 0) & (holders.released >= 0)
    changed = _counts(object_of, both & (holders.held != holders.released), number)
    compared = _counts(object_of, both, number)
    functions = _functions(profile, causes_of(profile, waits), object_of, number)
    hands = _hands(profile, holders, objects)
    held = objects.held
    unknown = sum_by(np.where(held.tid < 0, held.of, -1), held.weight, number).tolist()
    rows = [
        LockRow(
            row,
            queues[index],
            hand_overs[index],
            changed[index] if compared[index] else None,
            functions[index],
            hands[index][:hand_limit],
            _cut(hands[index], hand_limit),
            sum(hand.weight for hand in hands[index]),
            unknown[index],
        )
        for index, row in enumerate(objects.rows())
    ]
    return LockTable(rows, objects.more, holders.refused)


def _cut(hands: Sequence[Hand], limit: int | None) -> tuple[int, int]:
    rest = hands[limit:] if limit is not None else ()
    return len(rest), sum(hand.weight for hand in rest)


def _counts(object_of: I64, chosen: np.ndarray[tuple[int], np.dtype[np.bool_]], groups: int) -> list[int]:
    counts: list[int] = np.bincount(object_of[chosen & (object_of >= 0)], minlength=groups).tolist()
    return counts


def _functions(profile: Profile, causes: Causes, object_of: I64, groups: int) -> list[dict[str, int]]:
    sums = sums_by_label(object_of, causes.function, lambda row: causes.names[row], profile.samples.period, groups)
    return [{name: ns for name, ns in sums_of_thing.items() if name} for sums_of_thing in sums]


def _hands(profile: Profile, holders: Holders, objects: _Objects) -> list[list[Hand]]:
    """Return the threads that held, or else released, each object, by weight."""
    samples, strings, held, object_of = profile.samples, profile.strings, objects.held, objects.of
    hands: list[list[Hand]] = [[] for _ in range(objects.number)]
    released = np.flatnonzero((object_of >= 0) & (holders.released >= 0))
    is_hand, counts = held.tid >= 0, ~np.append(held.is_held, False)[object_of[released]]
    of = np.concatenate([held.of[is_hand], object_of[released]])
    tid = np.concatenate([held.tid[is_hand], holders.released[released]])
    if not len(of):
        return hands
    first, pair = group(of, tid)
    weight, times, time_ns = (
        np.concatenate([column[is_hand], of_release])
        for column, of_release in (
            (held.weight, np.where(counts, samples.period[released], 0)),
            (held.times, counts),
            (held.time_ns, samples.time_ns[released]),
        )
    )
    weight, times = sum_by(pair, weight, len(first)), sum_by(pair, times, len(first))
    of_release = pair[int(is_hand.sum()) :]
    stack = _heaviest_stack(
        of_release, samples.waker_stack[released].astype(np.int64), samples.period[released], len(first)
    )
    names, function = program_functions(profile, stack)
    comm = _comms(profile, tid[first], time_ns[first])
    pid = np.append(profile.comms.pid, -1)[
        rows_at(profile.comms.tid, profile.comms.begin_ns, tid[first].astype(np.int32), time_ns[first])
    ]
    for index in np.argsort(-weight, kind="stable").tolist():
        if weight[index] > 0:
            hands[int(of[first[index]])].append(
                Hand(
                    thread_label(strings[int(comm[index])]),
                    int(pid[index]),
                    int(tid[first[index]]),
                    int(weight[index]),
                    int(times[index]),
                    names[function[index]],
                    _frames(profile, int(stack[index])),
                )
            )
    return hands


def _heaviest_stack(group_of: I64, stack: I64, weight: I64, groups: int) -> I64:
    """Return int64[groups]: the stack with most weight of each group; -1 for none."""
    result = np.full(groups, -1, np.int64)
    rows = np.flatnonzero(stack >= 0)
    first, pair = group(group_of[rows], stack[rows])
    sums = sum_by(pair, weight[rows], len(first))
    for at in np.argsort(sums, kind="stable").tolist():  # the heaviest is written last
        result[group_of[rows[first[at]]]] = stack[rows[first[at]]]
    return result


def _frames(profile: Profile, stack: int) -> tuple[Name, ...]:
    frames = np.array(frames_of(profile.stacks.parent, profile.stacks.frame, stack), np.int64)
    names, name_of = name_frames(profile, frames, PathOptions()) if len(frames) else ([], frames)
    return tuple(names[row] for row in name_of.tolist())


def _kind(number: int) -> str:
    return ObjectKind(number).name.lower() if number in set(ObjectKind) else "unknown"
