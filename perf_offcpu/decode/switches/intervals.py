# SPDX-License-Identifier: Apache-2.0
"""Waits out of context switches: interval arithmetic, for recordings without an off-cpu event.

The events of each thread are put in order, and a switch-out pairs with the switch-in that is the very next
thing that happened to its thread. Time runs to the right; out, in, woken, exit:

    sleeper   in───out······woken···in───out···········in──out·····    two waits, the first with run-queue
                                                                       delay; a third lasts at the end
    starter   ·····in──out····in──exit─out                             began before; a wait; no wait
    lossy     in──out    out····in    in──out                          one wait: the second out's

Nothing is invented. An out whose in was lost gives no wait, nor does an in without an out, and a wait during
which the kernel lost records may be several: it is left out. All that is counted, by cause.

A switch may be seen twice: by the tracepoint sched_switch and, right behind it, by a SWITCH record. The
tracepoint counts. Everything here is arrays in, arrays out; `switch_events` reads them from files.
"""

from __future__ import annotations

import enum

import numpy as np
from numpy.typing import NDArray

from perf_offcpu import losses
from perf_offcpu.decode.switches.history import IS_IN, IS_OUT, NONE, Edges, History, Kind, edges_of
from perf_offcpu.decode.switches.table import Switches, What
from perf_offcpu.decode.tasks.lookup import rows_at
from perf_offcpu.losses import Losses
from perf_offcpu.model.columns import I64, Bool, Table, column
from perf_offcpu.model.recording import Tasks

I8 = NDArray[np.int8]

DEAD_STATES = 0x10 | 0x20 | 0x80
"""EXIT_DEAD, EXIT_ZOMBIE, TASK_DEAD (include/linux/sched.h): who goes out like this never comes back."""


class Waits(Table):
    """Waits, sorted by (thread, time). All but the time are rows of Switches, -1 none."""

    out: I64 = column("i8", doc="the SWITCH or OUT that begins it")
    end: I64 = column("i8", sentinel=-1, doc="the SWITCH or IN that ends it; -1 if it lasts")
    stack: I64 = column("i8", sentinel=-1, doc="where its stack is")
    wakeup: I64 = column("i8", sentinel=-1, doc="the WAKING or WAKEUP behind which it only waits for a CPU")
    end_ns: I64 = column("i8", unit="ns", doc="when it ended, or the recording")


def find_waits(switches: Switches, tasks: Tasks, last_ns: int, counters: Losses) -> Waits:
    """All waits. Those of a thread do not overlap; the idle threads have none.

    Args:
        tasks: lives of threads; births and exits keep apart what a tid that is used again would join.
        last_ns: the last moment of the recording: the end of waits that last.
        counters: where it is counted what did not become a wait.
    """
    if not len(switches):
        return Waits()
    history = History.of(switches, tasks)
    edges = edges_of(history)
    fates = _fates(history, edges, switches)
    for fate, cause in _CAUSE_OF_FATE.items():
        counters.add(cause, int((fates == fate).sum()))
    counters.add(losses.BROKEN_SWITCHES, 0 if _has_records(switches) else _count_breaks(switches))
    waits = _waits(history, edges, fates, last_ns)
    sound = ~_in_gaps(switches, switches.time_ns[waits.out], waits.end_ns)
    counters.add(losses.IN_GAP, int((~sound).sum()))
    return waits.take(sound)


class _Fate(enum.IntEnum):
    """What becomes of an edge."""

    NOTHING = 0  # it begins no wait, or ends one that is told of at its begin
    WAIT = 1
    LASTS = 2
    NO_END = 3
    NO_BEGIN = 4
    BEGAN_BEFORE = 5


_CAUSE_OF_FATE = {
    _Fate.NO_END: losses.END_NOT_RECORDED,
    _Fate.NO_BEGIN: losses.BEGIN_NOT_RECORDED,
    _Fate.BEGAN_BEFORE: losses.BEGIN_UNKNOWN,
}


def _fates(history: History, edges: Edges, switches: Switches) -> I8:
    """int8[m]: the _Fate of each edge."""
    is_out, is_in, is_last = IS_OUT[edges.kind], IS_IN[edges.kind], edges.after == NONE
    state = switches.state[history.row[edges.place]]
    cases = (
        (is_out & (state > 0) & (state & DEAD_STATES != 0), _Fate.NOTHING),
        (is_out & IS_IN[edges.after], _Fate.WAIT),
        (is_out & _has_exited(history)[edges.place], _Fate.NOTHING),
        (is_out & is_last & _sees_all_ends(switches), _Fate.LASTS),
        (is_out, _Fate.NO_END),
        (~_of_threads_with(is_out, edges), _Fate.NOTHING),
        (is_in & (edges.before == NONE), _Fate.BEGAN_BEFORE),
        (is_in & (IS_IN[edges.before] | (edges.before == Kind.EXIT)), _Fate.NO_BEGIN),
    )
    fates: I8 = np.select([case for case, _ in cases], [np.int8(fate) for _, fate in cases], np.int8(0))
    return fates


def _of_threads_with(is_out: Bool, edges: Edges) -> Bool:
    """bool[m]: whether the edge's thread is ever seen to go out.

    If it is not, it is no thread of the recording but one that the CPU was given to (of another command).
    """
    if not len(edges.place):
        return is_out
    first = np.flatnonzero(edges.before == NONE)
    return np.repeat(np.logical_or.reduceat(is_out, first), np.diff(np.append(first, len(is_out))))


def _has_exited(history: History) -> Bool:
    """bool[n]: whether the thread's EXIT came before, and no new life of its tid since."""
    exit_place = history.last(Kind.EXIT)
    exited: Bool = (exit_place > history.last(Kind.BORN)) & (history.tid[exit_place] == history.tid)
    return exited


def _sees_all_ends(switches: Switches) -> bool:
    """Whether switch-ins are recorded, whoever ran before.

    SWITCH records come in pairs. The tracepoint alone sees them if it is recorded of the whole machine, idle
    threads included; `perf record -e sched:sched_switch COMMAND` has only what leaves the command's threads.
    """
    from_idle = (switches.what == What.SWITCH) & (switches.tid == 0)
    return bool(from_idle.any()) or _has_records(switches)


def _has_records(switches: Switches) -> bool:
    return bool(((switches.what == What.OUT) | (switches.what == What.IN)).any())


def _waits(history: History, edges: Edges, fates: I8, last_ns: int) -> Waits:
    ended = fates == _Fate.WAIT
    begins = np.flatnonzero(ended | (fates == _Fate.LASTS))
    ended = ended[begins]
    place = edges.place[begins]
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
    """int64[k]: rows with the stacks of the waits that begin at some edges.

    sched_switch has its own. In front of a SWITCH record, and behind whatever its thread did before, stands
    the sample that the event context-switches took of the same switch. A sample from any earlier moment is
    no stack of this wait.
    """
    place = edges.place[begins]
    taken = history.last(Kind.STACK)[place]
    since = np.where(edges.before[begins] == NONE, -1, edges.place[begins - 1])
    has = (taken > since) & (history.tid[taken] == history.tid[place])
    from_record = np.where(has, history.row[taken], -1)
    return np.where(history.kind[place] == Kind.OUT, history.row[place], from_record)


def _wakeups(history: History, begin: I64, end: I64) -> I64:
    """int64[k]: rows of the first wake-up of the same thread between two places each; -1 none."""
    places = history.next(Kind.WAKEUP)[begin]
    inside = np.minimum(places, len(history.tid) - 1)
    found = (places < end) & (history.tid[inside] == history.tid[begin])
    return np.where(found, history.row[inside], -1)


def _count_breaks(switches: Switches) -> int:
    """How often the thread that a CPU switched to is not the one that it switches from next."""
    rows = np.flatnonzero((switches.what == What.SWITCH) & (switches.cpu >= 0))
    rows = rows[np.lexsort((switches.time_ns[rows], switches.cpu[rows]))]
    same_cpu = switches.cpu[rows[1:]] == switches.cpu[rows[:-1]]
    return int((same_cpu & (switches.tid[rows[1:]] != switches.next_tid[rows[:-1]])).sum())


def _in_gaps(switches: Switches, begin: I64, end: I64) -> Bool:
    """bool[k]: whether records may have been lost within [begin, end].

    What a LOST record tells of was lost behind the record before it in the same ring, which is that of a CPU.
    By its time that is the last but one: the sample behind LOST was begun earlier, before its stack was
    walked. Where records do not say their CPU, the loss was some time before. (A ring that stays full to the
    end of the recording leaves no LOST record.)
    """
    lost = np.flatnonzero(switches.what == What.LOST)
    if not len(lost) or not len(begin):
        return np.zeros(len(begin), np.bool_)
    until = np.sort(switches.time_ns[lost])
    others = np.flatnonzero(switches.what != What.LOST)
    others = others[np.lexsort((switches.time_ns[others], switches.cpu[others]))]
    cpu, time_ns = switches.cpu[others], switches.time_ns[others]
    before = rows_at(cpu, time_ns, switches.cpu[lost], switches.time_ns[lost]) - 1
    known = (before >= 0) & (switches.cpu[lost] >= 0)
    before = np.maximum(before, 0)
    known &= cpu[before] == switches.cpu[lost]
    since = np.sort(np.where(known, time_ns[before], -1))
    # Gaps that begin before the wait ends, less those that end before it begins, are those within it.
    within: Bool = np.searchsorted(since, end) > np.searchsorted(until, begin)
    return within
