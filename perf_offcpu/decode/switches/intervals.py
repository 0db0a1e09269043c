# SPDX-License-Identifier: Apache-2.0
"""Find waits between context switches: interval arithmetic, for recordings without an off-cpu event.

The events of each thread are put in order, and a switch-out pairs with the switch-in that is the very next
event of its thread. Time runs to the right; out, in, woken, exit:

    sleeper   in───out······woken···in───out···········in──out·····    two waits, the first with run-queue
                                                                       delay; a third lasts at the end
    starter   ·····in──out····in──exit─out                             began before; a wait; no wait
    lossy     in──out    out····in    in──out                          one wait: the second out's

Nothing is invented. An out whose in was lost is no wait, nor is an in without an out, and a wait during which
the kernel lost records may be several: it is left out. All of these are counted, by cause.

A switch may be recorded twice: by the tracepoint sched_switch and, right after it, by a SWITCH record. The
tracepoint counts. The functions here take and return arrays; `switches.events` reads them from files."""

from __future__ import annotations

import enum
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from perf_offcpu import losses
from perf_offcpu.decode.switches.events import Switches, SwitchKind
from perf_offcpu.losses import Losses
from perf_offcpu.model.columns import I32, I64, Bool, Table, column
from perf_offcpu.model.lookup import rows_at
from perf_offcpu.model.recording import Tasks
from perf_offcpu.structs import mutable

I8 = NDArray[np.int8]


class EventKind(enum.IntEnum):
    """Numbers the kinds of events of a thread, in the order that a History gives them at equal times."""

    BORN = 0
    STACK = 1
    OUT = 2
    OUT_RECORD = 3
    WAKEUP = 4
    IN = 5
    IN_RECORD = 6
    EXIT = 7


NONE = -1  # no kind: before a thread's first edge, and after its last
IS_OUT = np.array([kind in (EventKind.OUT, EventKind.OUT_RECORD) for kind in [*EventKind, NONE]])
IS_IN = np.array([kind in (EventKind.IN, EventKind.IN_RECORD) for kind in [*EventKind, NONE]])
DEAD_STATES = 0x10 | 0x20 | 0x80  # EXIT_DEAD, EXIT_ZOMBIE, TASK_DEAD: states of a thread's last switch-out


class Waits(Table):
    """Holds waits, sorted by (tid, time). All columns but `end_ns` are rows of Switches, -1 none."""

    out: I64 = column("i8", doc="the SWITCH or OUT that begins it")
    end: I64 = column("i8", sentinel=-1, doc="the SWITCH or IN that ends it; -1 if it lasts")
    stack: I64 = column("i8", sentinel=-1, doc="where its stack is")
    wakeup: I64 = column("i8", sentinel=-1, doc="the WAKING or WAKEUP after which it only waits for a CPU")
    end_ns: I64 = column("i8", unit="ns", doc="end of the wait, or of the recording")


def find_waits(switches: Switches, tasks: Tasks, last_ns: int, counters: Losses) -> Waits:
    """Pair switch-outs with switch-ins; return the waits of all threads but the idle ones. Births and exits in `tasks`
    separate the threads of a tid that is used again. A wait that nothing ended lasts to the end of the recording,
    `last_ns`. Switches that are no wait are counted."""
    if not len(switches):
        return Waits()
    history = History.of(switches, tasks)
    edges = edges_of(history)
    outcomes = _outcomes(history, edges, switches)
    for outcome, cause in _CAUSE_OF_OUTCOME.items():
        counters.add(cause, int((outcomes == outcome).sum()))
    counters.add(losses.BROKEN_SWITCHES, 0 if _has_records(switches) else _count_breaks(switches))
    waits = _waits(history, edges, outcomes, last_ns)
    sound = ~_in_gaps(switches, switches.time_ns[waits.out], waits.end_ns)
    counters.add(losses.IN_GAP, int((~sound).sum()))
    return waits.take(sound)


class _Outcome(enum.IntEnum):
    """Classifies a switch-out or switch-in: it begins a wait, or the reason why it does not."""

    NOTHING = 0  # it begins no wait, or it ends a wait, which the edge at the wait's begin stands for
    WAIT = 1  # an out; the next edge ends the wait
    LASTS = 2  # an out; the wait goes on at the end of the recording
    NO_END = 3  # an out whose in was lost
    NO_BEGIN = 4  # an in whose out was lost
    BEGAN_BEFORE = 5  # an in, the first edge of its thread: the out was before the recording


_CAUSE_OF_OUTCOME = {
    _Outcome.NO_END: losses.END_NOT_RECORDED,
    _Outcome.NO_BEGIN: losses.BEGIN_NOT_RECORDED,
    _Outcome.BEGAN_BEFORE: losses.BEGIN_UNKNOWN,
}


def _outcomes(history: History, edges: Edges, switches: Switches) -> I8:
    """Return int8[m]: the _Outcome of each edge."""
    is_out, is_in, is_last = IS_OUT[edges.kind], IS_IN[edges.kind], edges.after == NONE
    state = switches.state[history.row[edges.place]]
    # The thread's EXIT came before, and no new life of its tid since.
    exit_place = history.last(EventKind.EXIT)
    has_exited = (exit_place > history.last(EventKind.BORN)) & (history.tid[exit_place] == history.tid)
    cases = (
        (is_out & (state > 0) & (state & DEAD_STATES != 0), _Outcome.NOTHING),
        (is_out & IS_IN[edges.after], _Outcome.WAIT),
        (is_out & has_exited[edges.place], _Outcome.NOTHING),
        (is_out & is_last & _sees_all_ends(switches), _Outcome.LASTS),
        (is_out, _Outcome.NO_END),
        (~_of_threads_with(is_out, edges), _Outcome.NOTHING),
        (is_in & (edges.before == NONE), _Outcome.BEGAN_BEFORE),
        (is_in & (IS_IN[edges.before] | (edges.before == EventKind.EXIT)), _Outcome.NO_BEGIN),
    )
    conditions, values = zip(*((case, np.int8(outcome)) for case, outcome in cases), strict=True)
    outcomes: I8 = np.select(conditions, values, np.int8(0))
    return outcomes


def _of_threads_with(is_out: Bool, edges: Edges) -> Bool:
    """Return bool[m]: True if `is_out` (bool[m]) is True for any edge of the same thread, as for recorded threads."""
    if not len(edges.place):
        return is_out
    first = np.flatnonzero(edges.before == NONE)
    return np.repeat(np.logical_or.reduceat(is_out, first), np.diff(np.append(first, len(is_out))))


def _sees_all_ends(switches: Switches) -> bool:
    """Return True if all switch-ins are recorded, whatever thread ran before. SWITCH records come in pairs. The
    tracepoint alone sees them if it is recorded of the whole machine, idle threads included; `perf record -e
    sched:sched_switch COMMAND` has only the switch-outs of the command's threads."""
    from_idle = (switches.kind == SwitchKind.SWITCH) & (switches.tid == 0)
    return bool(from_idle.any()) or _has_records(switches)


def _has_records(switches: Switches) -> bool:
    return bool(np.isin(switches.kind, (SwitchKind.OUT, SwitchKind.IN)).any())


def _waits(history: History, edges: Edges, outcomes: I8, last_ns: int) -> Waits:
    begins = np.flatnonzero((outcomes == _Outcome.WAIT) | (outcomes == _Outcome.LASTS))
    ended, place = outcomes[begins] == _Outcome.WAIT, edges.place[begins]
    end_place = edges.place[np.where(ended, begins + 1, begins)]
    return Waits.filled(
        len(begins),
        out=history.row[place],
        end=np.where(ended, history.row[end_place], -1),
        stack=_stacks(history, edges, begins),
        wakeup=_wakeups(history, place, np.where(ended, end_place, len(history.tid))),
        end_ns=np.where(ended, history.time_ns[end_place], last_ns),
    )


def _stacks(history: History, edges: Edges, begins: I64) -> I64:
    """Return int64[k]: the Switches row with the stack of each wait; -1 none. `begins`: int64[k], edge at its begin. A
    sched_switch has its own. A SWITCH record has that of the context-switches sample of the same switch, which comes
    after the previous edge of the thread. A sample from any earlier moment is no stack of this wait."""
    place = edges.place[begins]
    sample = history.last(EventKind.STACK)[place]
    since = np.where(edges.before[begins] == NONE, -1, edges.place[begins - 1])
    has_sample = (sample > since) & (history.tid[sample] == history.tid[place])
    of_record = np.where(has_sample, history.row[sample], -1)
    return np.where(history.kind[place] == EventKind.OUT, history.row[place], of_record)


def _wakeups(history: History, begin: I64, end: I64) -> I64:
    """Return int64[k]: the Switches row of the first wake-up of each wait, from history row `begin` to `end`; or -1."""
    place = history.next(EventKind.WAKEUP)[begin]
    inside = np.minimum(place, len(history.tid) - 1)
    is_woken = (place < end) & (history.tid[inside] == history.tid[begin])
    return np.where(is_woken, history.row[inside], -1)


def _count_breaks(switches: Switches) -> int:
    """Count how often the thread that a CPU switched to is not the one that it switches from next."""
    rows = np.flatnonzero((switches.kind == SwitchKind.SWITCH) & (switches.cpu >= 0))
    rows = rows[np.lexsort((switches.time_ns[rows], switches.cpu[rows]))]
    same_cpu = switches.cpu[rows[1:]] == switches.cpu[rows[:-1]]
    return int((same_cpu & (switches.tid[rows[1:]] != switches.next_tid[rows[:-1]])).sum())


def _in_gaps(switches: Switches, begin: I64, end: I64) -> Bool:
    """Return bool[k]: True if records may have been lost within [begin, end]. A LOST record reports losses since the
    record before it in its CPU's ring: of the records with earlier times the last but one, because the last can be the
    sample after LOST in the ring, whose time was taken before its stack was walked. Without CPU numbers the loss can be
    at any earlier time. (A ring that stays full to the end leaves no LOST record.)"""
    is_lost = switches.kind == SwitchKind.LOST
    lost, others = np.flatnonzero(is_lost), np.flatnonzero(~is_lost)
    if not len(lost) or not len(begin):
        return np.zeros(len(begin), np.bool_)
    until = np.sort(switches.time_ns[lost])
    others = others[np.lexsort((switches.time_ns[others], switches.cpu[others]))]
    cpu, time_ns = switches.cpu[others], switches.time_ns[others]
    before = rows_at(cpu, time_ns, switches.cpu[lost], switches.time_ns[lost]) - 1
    is_neighbour = (before >= 0) & (switches.cpu[lost] >= 0)
    before = np.maximum(before, 0)
    is_neighbour &= cpu[before] == switches.cpu[lost]
    since = np.sort(np.where(is_neighbour, time_ns[before], -1))
    # The gaps that begin before the wait ends, less the gaps that end before it begins, overlap it.
    is_within: Bool = np.searchsorted(since, end) > np.searchsorted(until, begin)
    return is_within


@mutable
class History:
    """Holds n events of threads, sorted by (tid, time, kind). `row` is the row in Switches; -1 for births and exits."""

    tid: I32
    time_ns: I64
    kind: I8
    row: I64

    @classmethod
    def of(cls, switches: Switches, tasks: Tasks) -> History:
        """Return the history of switches, births and exits, without the idle threads."""
        kinds, *columns = zip(*_events_by_kind(switches, tasks), strict=True)
        row, tid, time_ns = map(np.concatenate, columns)
        kind = np.repeat(np.array(kinds, np.int8), list(map(len, columns[0])))
        order = _by_thread(np.flatnonzero(tid > 0), tid, time_ns)  # 0 is idle, -1 a thread that has exited
        return cls(tid[order], time_ns[order], kind[order], row[order])

    def last(self, kind: EventKind) -> I64:
        """Return int64[n]: for each row the last row of this kind up to it, of any thread; -1 without one."""
        return np.maximum.accumulate(np.where(self.kind == kind, np.arange(len(self.kind)), -1))

    def next(self, kind: EventKind) -> I64:
        """Return int64[n]: for each row the first row of this kind from it on, of any thread; n without one."""
        places = np.where(self.kind == kind, np.arange(len(self.kind)), len(self.kind))
        return np.minimum.accumulate(places[::-1])[::-1]


def _events_by_kind(switches: Switches, tasks: Tasks) -> Iterator[tuple[EventKind, I64, I32, I64]]:
    """Yield (kind, rows of Switches or -1, tids, times in ns) of the events of each kind, in the order of EventKind."""
    rows = {kind: np.flatnonzero(switches.kind == kind) for kind in SwitchKind}
    # sched_wakeup may come late, from the CPU that takes the thread over: only if there is no better.
    wakeups = rows[SwitchKind.WAKING if len(rows[SwitchKind.WAKING]) else SwitchKind.WAKEUP]
    born, gone = np.flatnonzero(tasks.begin_ns > 0), np.flatnonzero(tasks.end_ns > 0)
    yield EventKind.BORN, np.full(len(born), -1), tasks.tid[born], tasks.begin_ns[born]
    for kind, rows_of_kind in (
        (EventKind.BORN, rows[SwitchKind.NEW]),
        (EventKind.STACK, rows[SwitchKind.STACK]),
        (EventKind.OUT, rows[SwitchKind.SWITCH]),
        (EventKind.OUT_RECORD, rows[SwitchKind.OUT]),
        (EventKind.WAKEUP, wakeups),
        (EventKind.IN, rows[SwitchKind.SWITCH]),
        (EventKind.IN_RECORD, rows[SwitchKind.IN]),
    ):
        tids = switches.next_tid if kind == EventKind.IN else switches.tid
        yield kind, rows_of_kind, tids[rows_of_kind], switches.time_ns[rows_of_kind]
    yield EventKind.EXIT, np.full(len(gone), -1), tasks.tid[gone], tasks.end_ns[gone]


def _by_thread(rows: I64, tid: I32, time_ns: I64) -> I64:
    """Return `rows` sorted by (tid, time), equal ones in their order; no tid is negative. This is np.lexsort in a third
    of the time: a history is nearly sorted by time, which a merge sort exploits; numpy sorts 16 bits in linear time."""
    rows = rows[np.argsort(time_ns[rows], kind="stable")]
    for half in (tid & 0xFFFF, tid >> 16):
        if half.any():
            rows = rows[np.argsort(half[rows].astype(np.uint16), kind="stable")]
    return rows


@mutable
class Edges:
    """Holds the m events of a history where a thread begins or ceases to run (births, outs, ins, exits), each once."""

    place: I64  # int64[m], rows of the history
    kind: I8  # int8[m], EventKind
    # before, after: int8[m], EventKind of the neighbouring edges of the same thread; -1 none
    before: I8
    after: I8


def edges_of(history: History) -> Edges:
    """Return the edges of a history; of a switch that was recorded twice, only that of the tracepoint."""
    place = np.flatnonzero((history.kind != EventKind.STACK) & (history.kind != EventKind.WAKEUP))
    kind, before, _ = _neighbours(history, place)
    again = (kind == EventKind.OUT_RECORD) & (before == EventKind.OUT)
    again |= (kind == EventKind.IN_RECORD) & (before == EventKind.IN)
    return Edges(place[~again], *_neighbours(history, place[~again]))


def _neighbours(history: History, place: I64) -> tuple[I8, I8, I8]:
    """Return int8[m] each: EventKind of the events in rows `place`, of the one of these before each in its thread, and
    of the one after; NONE without one."""
    kind, tid = history.kind[place], history.tid[place]
    before, after = np.full((2, len(place)), NONE, np.int8)
    same = tid[1:] == tid[:-1]
    before[1:][same] = kind[:-1][same]
    after[:-1][same] = kind[1:][same]
    return kind, before, after
