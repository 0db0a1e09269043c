# SPDX-License-Identifier: Apache-2.0
"""Sum the waits for each object: weight, number of threads, and the threads that held or released it.

Objects of one name are one row. Shares of holders refer to waits with a known holder. If the recorder did not
read the words of locks (`--lock-owners`), the threads that ended the waits are shown instead.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from perf_offcpu.abi.wait_objects import ObjectKind
from perf_offcpu.analysis.causes import Causes, causes_of, program_functions
from perf_offcpu.analysis.classes.classify import Waits
from perf_offcpu.analysis.classes.wait_classes import WaitClass
from perf_offcpu.analysis.group import group, sum_by
from perf_offcpu.analysis.holders import Holders
from perf_offcpu.analysis.wakeups import INTERRUPT
from perf_offcpu.callpaths.names import name_frames
from perf_offcpu.callpaths.options import Name, PathOptions
from perf_offcpu.locks import longest_queues, waiters
from perf_offcpu.model.columns import I64, Bool
from perf_offcpu.model.lookup import rows_at
from perf_offcpu.model.profile import Profile
from perf_offcpu.model.recording import SampleFlag
from perf_offcpu.model.stacks import frames_of
from perf_offcpu.report.totals import Total, sums_by_label, totals_of
from perf_offcpu.structs import frozen
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
    weight: int  # of the waits
    waits: int
    function: str  # of the program, where it released it in most of them; "" not known
    frames: tuple[Name, ...]  # the stack there, root first


@frozen
class LockRow:
    """The waits for one lock."""

    row: ObjectRow
    queue: int  # most threads that waited at one time
    hand_overs: int  # waits that another thread ended by releasing it
    changed: (
        int | None
    )  # waits in which it was released by another thread than held it at the begin; None unknown
    waiting_in: dict[str, int]  # function of the program → weight, the largest first
    hands: list[Hand]  # holders, or releasers, by weight of the waits
    more_hands: tuple[int, int]  # (threads, weight) over the limit
    weight_known: int  # weight of the waits whose holder, or releaser, is known


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

    def rows(self) -> list[ObjectRow]:
        """Return the row of each object."""
        objects, strings, samples = self.profile.objects, self.profile.strings, self.samples
        thing = samples.object[self.first]
        totals = totals_of(samples, self.of, self.number)
        classes = sums_by_label(
            self.of, self.waits.wait_class, lambda one: WaitClass(one).label, samples.period, self.number
        )
        threads = waiters(samples, self.of, self.number).tolist()
        held, by = self._by()
        kinds = objects.kind[thing].tolist()
        return [
            ObjectRow(
                printable(strings[name]),
                _kind(kinds[index]),
                next(iter(classes[index])),
                totals[index],
                threads[index],
                HELD if held[index] else RELEASED if kinds[index] == ObjectKind.FUTEX else ENDED,
                by[index],
            )
            for index, name in enumerate(objects.name[thing].tolist())
        ]

    def held(self) -> I64:
        """Return int64[objects]: 1 if the holder is known for any wait."""
        with_holder = self.of[(self.holders.held >= 0) & (self.of >= 0)]
        return np.minimum(np.bincount(with_holder, minlength=self.number), 1)

    def _by(self) -> tuple[list[int], list[dict[str, int]]]:
        samples, comms = self.samples, self.profile.comms
        held = self.held()
        is_held = np.append(held, 0)[self.of] == 1
        waker = np.where(samples.waker_tid > 0, samples.waker_tid, -1)
        is_futex = np.append(self.profile.objects.kind, 0)[samples.object] == ObjectKind.FUTEX
        tid = np.where(is_held, self.holders.held, np.where(is_futex, self.holders.released, waker))
        comm_row = rows_at(comms.tid, comms.begin_ns, tid.astype(np.int32), samples.time_ns)
        comm = np.append(comms.comm, 0).astype(np.int64)[comm_row]
        comm[tid < 0] = -1
        comm[~is_held & samples.has(SampleFlag.WAKER_INTERRUPT)] = _INTERRUPT
        strings = self.profile.strings

        def label(one: int) -> str:
            return "" if one == -1 else INTERRUPT if one == _INTERRUPT else thread_label(strings[one])

        sums = sums_by_label(self.of, comm, label, samples.period, self.number)
        return held.tolist(), [{name: ns for name, ns in one.items() if name} for one in sums]


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
    is_held = objects.held()
    tid = np.where(np.append(is_held, 0)[object_of] == 1, holders.held, holders.released).astype(np.int64)
    hands = _hands(profile, object_of, tid, number)
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
    sums = sums_by_label(
        object_of, causes.function, lambda row: causes.names[row], profile.samples.period, groups
    )
    return [{name: ns for name, ns in sums_of_thing.items() if name} for sums_of_thing in sums]


def _hands(profile: Profile, object_of: I64, tid: I64, groups: int) -> list[list[Hand]]:
    """Return the threads of each group, by the weight of the waits."""
    samples, comms, strings = profile.samples, profile.comms, profile.strings
    rows = np.flatnonzero((object_of >= 0) & (tid >= 0))
    hands: list[list[Hand]] = [[] for _ in range(groups)]
    if not len(rows):
        return hands
    first, pair = group(object_of[rows], tid[rows])
    weight = sum_by(pair, samples.period[rows], len(first))
    waits = np.bincount(pair, minlength=len(first)).tolist()
    stack = _heaviest_stack(
        pair, samples.waker_stack[rows].astype(np.int64), samples.period[rows], len(first)
    )
    names, function = program_functions(profile, stack)
    comm_row = rows_at(
        comms.tid, comms.begin_ns, tid[rows[first]].astype(np.int32), samples.time_ns[rows[first]]
    )
    comm = np.append(comms.comm, 0)[comm_row]
    pid = np.append(comms.pid, -1)[comm_row]
    for one in np.argsort(-weight, kind="stable").tolist():
        row = rows[first[one]]
        hands[int(object_of[row])].append(
            Hand(
                thread_label(strings[int(comm[one])]),
                int(pid[one]),
                int(tid[row]),
                int(weight[one]),
                waits[one],
                names[function[one]],
                _frames(profile, int(stack[one])),
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
