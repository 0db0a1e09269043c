# SPDX-License-Identifier: Apache-2.0
"""Find deadlocks: threads that wait in a circle, each for a lock that the next one holds.

Only waits count that were not over when the recording ended, or that nothing but the end of the process ended, and only
holders that are believed (`analysis.holders`). A thread waits for one lock, and one thread holds it: so each thread has
at most one successor, and following successors ends at a thread that is not blocked, at an unknown holder, or in a
circle. All waits of a circle must have gone on at one time: else the lock may have changed hands in between. A timeout
ends a circle with a timed wait: that is no deadlock, whether it lasts to the end or a timer ended it before."""

import re

import numpy as np

from perf_offcpu.analysis.causes import causes_of
from perf_offcpu.analysis.classes.classify import Waits
from perf_offcpu.analysis.holders import Holders, spans_of
from perf_offcpu.model.columns import I64, group, max_by
from perf_offcpu.model.profile import Profile, ProfileSamples
from perf_offcpu.model.recording import SUM_FLAGS, SampleFlag
from perf_offcpu.structs import frozen
from perf_offcpu.text import printable, thread_label

_MOST_TIMED_OUT = 32  # waits at whose ends circles are looked for


@frozen
class DeadThread:
    """Thread in a circle: it waits for a lock that the next thread holds; after the last thread comes the first."""

    comm: str
    pid: int
    tid: int
    lock: str  # name of the lock that it waits for
    function: str  # in which it waits; "" not known
    weight: int  # ns that it has waited, inside the recording
    began_before: bool  # the wait began before the recording
    asked_ns: int  # timeout of the wait, ns; -1 for none
    is_over: bool = False  # the circle has ended, by a timeout


def deadlocks_of(profile: Profile, waits: Waits, holders: Holders) -> list[list[DeadThread]]:
    """Return the circles of a profile, each a list of threads: deadlocks, and circles with timed waits (`ends_after`),
    of which the ones that a timeout ended come last. `waits`: `classify(profile)`. `holders`: `holders_of(profile)`."""
    samples = profile.samples
    blocked = samples.has(SampleFlag.STILL_BLOCKED) | holders.cut_off
    begin, end = spans_of(samples)
    last = dict(zip(samples.tid[blocked].tolist(), np.flatnonzero(blocked).tolist(), strict=True))
    row_of = {tid: row for tid, row in last.items() if holders.held[row] >= 0}
    holder_of = {tid: int(holders.held[row]) for tid, row in row_of.items()}
    circles = [[row_of[tid] for tid in circle] for circle in circles_of(holder_of)]
    circles = [circle for circle in circles if max(begin[circle]) < min(end[circle])]
    by_timer = samples.has(SampleFlag.WAKER_INTERRUPT)
    ended = _ended_circles(samples, holders, begin, end)
    functions = causes_of(profile, waits) if circles or ended else None
    before, strings = samples.has(SampleFlag.BEGAN_BEFORE), profile.strings
    names = np.append(profile.objects.name, 0)

    def thread(row: int, *, is_over: bool) -> DeadThread:
        name, rule = strings[int(names[samples.object[row]])], int(waits.rule[row])
        if rule >= 0 and name.startswith("condition "):  # of a runtime, which makes locks of conditions
            name = re.split(r"[:(]", waits.rules[rule].meaning)[0].strip()
        comm, pid, tid = thread_label(strings[int(samples.comm[row])]), int(samples.pid[row]), int(samples.tid[row])
        function, weight = functions.names[functions.function[row]] if functions else "", int(samples.period[row])
        asked_ns = int(end[row] - begin[row] if is_over and by_timer[row] else samples.asked_ns[row])
        lock, began_before = printable(name) or "a lock", bool(before[row])
        return DeadThread(comm, pid, tid, lock, function, weight, began_before, asked_ns, is_over)

    both = ((circles, False), (ended, True))
    return [[thread(row, is_over=is_over) for row in circle] for group, is_over in both for circle in group]


def _ended_circles(samples: ProfileSamples, holders: Holders, begin: I64, end: I64) -> list[list[int]]:
    """Return circles of waits for locks that a timeout broke, as rows of samples; one for each set of threads. `begin`,
    `end`: of each wait, by `spans_of`."""
    has_holder = (holders.held >= 0) & ~samples.has(SampleFlag.STILL_BLOCKED | SUM_FLAGS)
    timed_out = has_holder & samples.has(SampleFlag.WAKER_INTERRUPT)
    circles: dict[frozenset[int], list[int]] = {}
    for row in sorted(np.flatnonzero(timed_out).tolist(), key=lambda row: begin[row] - end[row])[:_MOST_TIMED_OUT]:
        live = np.flatnonzero(has_holder & (begin < end[row]) & (end >= end[row]))
        row_of = dict(zip(samples.tid[live].tolist(), live.tolist(), strict=True))
        for circle in circles_of({tid: int(holders.held[row]) for tid, row in row_of.items()}):
            if samples.tid[row] in circle:  # another circle is a deadlock that goes on, or ended otherwise
                circles.setdefault(frozenset(circle), [row_of[tid] for tid in circle])
    return list(circles.values())


def circles_of(successor: dict[int, int]) -> list[list[int]]:
    """Return the circles of a graph in which each node has at most one successor. A circle begins with its smallest
    node and follows successors; the longest circles come first, equal ones by first node."""
    circles, done = list[list[int]](), set[int]()
    for start in sorted(successor):
        path: dict[int, int] = {}
        node = start
        while node in successor and node not in done and node not in path:
            path[node] = len(path)
            node = successor[node]
        if node in path:
            circle = list(path)[path[node] :]
            first = circle.index(min(circle))
            circles.append(circle[first:] + circle[:first])
        done |= path.keys()
    return sorted(circles, key=lambda circle: (-len(circle), circle[0]))


def ends_after(deadlock: list[DeadThread]) -> int:
    """Return the shortest timeout of a circle's waits, in ns from the begin of its wait; -1 without one: a deadlock."""
    return min((thread.asked_ns for thread in deadlock if thread.asked_ns >= 0), default=-1)


def sentence_of(deadlock: list[DeadThread]) -> str:
    """Return a sentence about a deadlock: each thread, its lock, the lock's holder."""
    timeout, number = ends_after(deadlock), len(deadlock)
    lead = f"Deadlock of {number} threads" if number > 1 else "Deadlock"
    if timeout >= 0:
        ends = "ended" if deadlock[0].is_over else "ends"
        lead = f"A circle of timed waits, which {ends} after {timeout / 1e9:.1f} s and is no deadlock"
    if number == 1:
        return f"{lead}: {_waiting(deadlock[0])}, which it holds itself."
    pairs = zip(deadlock, [*deadlock[1:], deadlock[0]], strict=True)
    parts = [f"{_waiting(thread)}, held by {holder.comm} {holder.tid}" for thread, holder in pairs]
    return f"{lead}: {'; '.join(parts)}."


def _waiting(dead_thread: DeadThread) -> str:
    where = f" in {dead_thread.function}" if dead_thread.function else ""
    return f"{dead_thread.comm} {dead_thread.tid} waits{where} for {dead_thread.lock}"


def longest_queues(samples: ProfileSamples, group_of: I64, groups: int) -> I64:
    """Return int64[groups]: the largest number of waits of each group at one moment; sums are not counted. A wait that
    begins when another one ends does not overlap it. `group_of`: int64[samples], -1 for none."""
    begin, _ = spans_of(samples)
    rows = np.flatnonzero((group_of >= 0) & (samples.time_ns >= 0) & ~samples.has(SUM_FLAGS))
    owner = np.concatenate([group_of[rows], group_of[rows]])
    times = np.concatenate([begin[rows], samples.time_ns[rows]])
    change = np.repeat(np.array([1, -1]), len(rows))
    order = np.lexsort((change, times, owner))
    # The changes of each group add up to 0, so one running sum serves all.
    return np.maximum(max_by(owner[order], np.cumsum(change[order]), groups), 0)


def waiters(samples: ProfileSamples, group_of: I64, groups: int) -> I64:
    """Return int64[groups]: the number of threads with samples in each group. `group_of`: int64[samples], -1 none."""
    rows = np.flatnonzero(group_of >= 0)
    first, _ = group(group_of[rows], samples.pid[rows], samples.tid[rows])
    return np.bincount(group_of[rows][first], minlength=groups).astype(np.int64)
