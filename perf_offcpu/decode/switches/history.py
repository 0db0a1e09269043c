# SPDX-License-Identifier: Apache-2.0
"""Put the events of each thread in order, so that `switches.intervals` can pair outs with ins.

Events of all kinds form one sequence, thread after thread, so that "the next" and "the one before" are
neighbours in an array.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from perf_offcpu.decode.switches.table import Switches, SwitchKind
from perf_offcpu.model.columns import I32, I64
from perf_offcpu.model.recording import Tasks
from perf_offcpu.structs import mutable

I8 = NDArray[np.int8]


class EventKind(enum.IntEnum):
    """Kinds of events of one thread; at equal times, they are in this order."""

    BORN = 0
    STACK = 1
    OUT = 2
    OUT_RECORD = 3
    WAKEUP = 4
    IN = 5
    IN_RECORD = 6
    EXIT = 7


NONE = -1
"""No kind: before a thread's first edge, and after its last."""
IS_OUT = np.array([kind in (EventKind.OUT, EventKind.OUT_RECORD) for kind in [*EventKind, NONE]])
IS_IN = np.array([kind in (EventKind.IN, EventKind.IN_RECORD) for kind in [*EventKind, NONE]])


@mutable
class History:
    """n events of threads, sorted by (tid, time, kind); `row` is that of Switches, -1 of BORN and EXIT."""

    tid: I32
    time_ns: I64
    kind: I8
    row: I64

    @classmethod
    def of(cls, switches: Switches, tasks: Tasks) -> History:
        """Return the history of switches, births and exits, without the idle threads."""
        parts = list(_parts(switches, tasks))
        kind = np.repeat(np.array([part[0] for part in parts], np.int8), [len(part[1]) for part in parts])
        row, tid, time_ns = (np.concatenate([part[place] for part in parts]) for place in (1, 2, 3))
        order = _by_thread(np.flatnonzero(tid > 0), tid, time_ns)  # 0 is idle, -1 a thread that has exited
        return cls(tid[order], time_ns[order], kind[order], row[order])

    def last(self, kind: EventKind) -> I64:
        """Return int64[n]: the last place of a kind up to each place, of any thread; -1 none."""
        return np.maximum.accumulate(np.where(self.kind == kind, np.arange(len(self.kind)), -1))

    def next(self, kind: EventKind) -> I64:
        """Return int64[n]: the first place of a kind from each place on, of any thread; n none."""
        places = np.where(self.kind == kind, np.arange(len(self.kind)), len(self.kind))
        return np.minimum.accumulate(places[::-1])[::-1]


def _parts(switches: Switches, tasks: Tasks) -> Iterator[tuple[EventKind, I64, I32, I64]]:
    """Yield (kind, rows, tids, times), in the order of kinds."""
    rows = {kind: np.flatnonzero(switches.kind == kind) for kind in SwitchKind}
    # sched_wakeup may come late, from the CPU that takes the thread over: only if there is no better.
    wakeups = rows[SwitchKind.WAKING if len(rows[SwitchKind.WAKING]) else SwitchKind.WAKEUP]
    born, gone = tasks.begin_ns > 0, tasks.end_ns > 0
    yield EventKind.BORN, np.full(int(born.sum()), -1), tasks.tid[born], tasks.begin_ns[born]
    for kind, which, tids in (
        (EventKind.BORN, rows[SwitchKind.NEW], switches.tid),
        (EventKind.STACK, rows[SwitchKind.STACK], switches.tid),
        (EventKind.OUT, rows[SwitchKind.SWITCH], switches.tid),
        (EventKind.OUT_RECORD, rows[SwitchKind.OUT], switches.tid),
        (EventKind.WAKEUP, wakeups, switches.tid),
        (EventKind.IN, rows[SwitchKind.SWITCH], switches.next_tid),
        (EventKind.IN_RECORD, rows[SwitchKind.IN], switches.tid),
    ):
        yield kind, which, tids[which], switches.time_ns[which]
    yield EventKind.EXIT, np.full(int(gone.sum()), -1), tasks.tid[gone], tasks.end_ns[gone]


def _by_thread(rows: I64, tid: I32, time_ns: I64) -> I64:
    """Return the rows sorted by (tid, time), equal ones in their order; no tid is negative.

    This is np.lexsort in a third of the time: the parts of a history are nearly sorted by time, which a merge
    sort exploits, and numpy sorts 16-bit numbers in linear time.
    """
    rows = rows[np.argsort(time_ns[rows], kind="stable")]
    for half in (tid & 0xFFFF, tid >> 16):
        if half.any():
            rows = rows[np.argsort(half[rows].astype(np.uint16), kind="stable")]
    return rows


@mutable
class Edges:
    """The events of a history where threads begin or cease to run, each switch once.

    Args:
        place: int64[m], in the history.
        kind: int8[m], EventKind.
        before, after: int8[m], EventKind of the neighbouring edges of the same thread; -1 none.
    """

    place: I64
    kind: I8
    before: I8
    after: I8


def edges_of(history: History) -> Edges:
    """Return the edges of a history; of a switch that was recorded twice, the tracepoint's."""
    place = np.flatnonzero((history.kind != EventKind.STACK) & (history.kind != EventKind.WAKEUP))
    kind, before, _ = _neighbours(history, place)
    again = (kind == EventKind.OUT_RECORD) & (before == EventKind.OUT)
    again |= (kind == EventKind.IN_RECORD) & (before == EventKind.IN)
    place = place[~again]
    return Edges(place, *_neighbours(history, place))


def _neighbours(history: History, place: I64) -> tuple[I8, I8, I8]:
    """Return (kind, before, after) of the events at some places."""
    kind, tid = history.kind[place], history.tid[place]
    before, after = np.full((2, len(place)), NONE, np.int8)
    same = tid[1:] == tid[:-1]
    before[1:][same] = kind[:-1][same]
    after[:-1][same] = kind[1:][same]
    return kind, before, after
