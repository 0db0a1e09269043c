# SPDX-License-Identifier: Apache-2.0
"""Tell which waits count as causes in the verdict. Waits of idle threads do not.

Nor do waits for the next piece of work (also for what had not come when another thread ended the process), for the end
of another recorded thread or process, and for the output of a recorded child: they last as long as the work, thread or
child, whose time counts itself. Nor do naps: sleeps of a thread that does nothing else while other threads work, and
for which other threads hardly wait; but not of a thread that begins and ends in less than half of the recording, since
it may serve a single request. In a recording of the whole machine, threads that hardly did anything but sleep or wait
for data are idle, too."""

import re
from typing import Final

import numpy as np

from perf_offcpu.analysis.classes.classify import UNSIGNALLED, Waits, of_idle_threads
from perf_offcpu.analysis.classes.program_rules import UNENDED
from perf_offcpu.analysis.classes.wait_classes import WaitClass
from perf_offcpu.analysis.selection.select import thread_ids
from perf_offcpu.model.columns import I64, Bool, group, is_one_of, sum_by
from perf_offcpu.model.lookup import rows_at
from perf_offcpu.model.profile import ObjectFact, Profile
from perf_offcpu.model.recording import Meta, SampleFlag
from perf_offcpu.report.verdict.causes import Kind

_PASSIVE: Final = [WaitClass.POLL, WaitClass.SLEEP, WaitClass.PIPE, WaitClass.NETWORK, WaitClass.CHILD, WaitClass.OTHER]
"""Classes of waits that do not show that their thread does anything, in a recording of the whole machine."""
_PASSIVE_PERCENT, _NAPPING_PERCENT = 99, 90
_AWAITED_PART: Final = 10
_TICKS: Final = 4  # least number of sleeps of a thread that ticks
_EXIT_NS: Final = 50 * 10**6  # most time from the wake-up of a thread that exits to the end of its process
_GENERATIONS: Final = 4
"""Most generations from a process that reads a pipe to a descendant that writes into it: `$(a | b)` in a shell."""


def kinds_of(profile: Profile, chosen: Bool, subject: Profile, waits: Waits) -> I64:
    """Return int64[waits]: the Kind of each wait. `profile`: all samples of the threads. `chosen`: bool[samples], the
    waits. `subject`: the profile with these samples. `waits`: `classify(subject)`."""
    samples = subject.samples
    broken_off = _broken_off(subject, waits)
    waits_for_work = waits.for_work & ~_pauses(profile, subject, waits) | broken_off
    for_work = np.zeros(len(chosen), np.bool_)
    for_work[chosen] = waits_for_work
    idle = of_idle_threads(profile, for_work)[chosen] & _of_passive_threads(profile, subject, waits_for_work)
    if is_of_machine(profile.meta):
        through = samples.has(SampleFlag.BEGAN_BEFORE) & samples.has(SampleFlag.STILL_BLOCKED)
        timed_out = (waits.wait_class == WaitClass.LOCK) & samples.has(SampleFlag.WAKER_INTERRUPT)
        passive = waits_for_work | through | timed_out | np.isin(waits.wait_class, _PASSIVE)
        idle |= _of_passive_threads(profile, subject, passive)
    recorded = np.append(samples.tid, profile.budget.tid)
    by_thread = (samples.waker_tid >= 0) & ~samples.has(SampleFlag.WAKER_INTERRUPT)
    by_recorded = by_thread & is_one_of(samples.waker_tid, recorded)
    elsewhere = (waits.wait_class == WaitClass.CHILD) & (by_recorded | ~by_thread)
    for_child = (waits.wait_class == WaitClass.PIPE) & by_recorded & _by_descendants(subject)
    elsewhere |= for_child | waits_for_work
    of_others = for_child | ~(idle | broken_off)
    elsewhere |= ~idle & _naps(profile, subject, waits, idle, elsewhere, of_others, for_child)
    return np.where(idle, Kind.IDLE, np.where(elsewhere, Kind.ELSEWHERE, Kind.COUNTED))


def _pauses(profile: Profile, subject: Profile, waits: Waits) -> Bool:
    """Return bool[waits]: True for waits for something that no thread did before their time was over (`Event.wait(0.5)`
    between two attempts): sleeps of a main thread, or of one that others awaited for half of them (Thread.join), unless
    the thread does nothing else. Timers have threads that nobody awaits."""
    samples, by_rule = subject.samples, np.array([*(rule.condition == UNENDED for rule in waits.rules), False])
    of_one = np.append(subject.objects.facts, np.uint16(0))[samples.object] & ObjectFact.SEVERAL == 0
    unended = by_rule[waits.rule] | np.array([text in UNSIGNALLED for text in waits.purposes])[waits.purpose]
    pauses: Bool = waits.for_work & unended & of_one & ~samples.has(SampleFlag.STILL_BLOCKED)
    if not pauses.any():
        return pauses
    ended = (samples.waker_tid != samples.tid) & ~samples.has(SampleFlag.WAKER_INTERRUPT | SampleFlag.STILL_BLOCKED)
    first, thread_of = group(np.append(samples.tid, np.where(ended, samples.waker_tid, np.int32(-1))))
    paused, awaited = np.split(thread_of, 2)
    paused_ns = sum_by(np.where(pauses, paused, -1), samples.period, len(first))
    awaited_ns = sum_by(np.where(ended, awaited, -1), samples.period, len(first))
    pauses &= (samples.tid == samples.pid) | (2 * awaited_ns >= paused_ns)[paused]
    return pauses & ~_of_passive_threads(profile, subject, waits.for_work)


def _broken_off(subject: Profile, waits: Waits) -> Bool:
    """Return bool[waits]: True for waits that the exit of their process broke off: another thread of it ended the wait,
    thread and process exit within _EXIT_NS, and the thread ends no wait before (pthread_join()). Never so are waits of
    the main thread, such as a deadlock that a watchdog ends, and waits for the end of a thread, which exits, too."""
    samples, tasks = subject.samples, subject.tasks
    end_ns = np.append(tasks.end_ns, np.int64(-1))
    rows_of_exits = (rows_at(tasks.tid, tasks.begin_ns, ids, samples.time_ns) for ids in (samples.tid, samples.pid))
    of_thread, of_process = (end_ns[row] for row in rows_of_exits)
    is_last = (of_thread >= samples.time_ns) & (np.maximum(of_thread, of_process) - samples.time_ns <= _EXIT_NS)
    by_own = (samples.waker_pid == samples.pid) & (samples.waker_tid != samples.tid)
    broken: Bool = is_last & (of_process >= 0) & by_own & (samples.tid != samples.pid)
    broken &= ~samples.has(SampleFlag.WAKER_INTERRUPT) & (waits.wait_class != WaitClass.CHILD)
    rows = np.flatnonzero(broken)
    first, thread_of = group(np.append(samples.tid[rows], samples.waker_tid))
    waiting, waker = thread_of[: len(rows)], thread_of[len(rows) :]
    last_wake = np.zeros(len(first), np.int64)
    np.maximum.at(last_wake, waker, samples.time_ns)
    broken[rows] = last_wake[waiting] < samples.time_ns[rows]
    return broken


def is_of_machine(meta: Meta) -> bool:
    """Return True for a recording of the whole machine, by its command line."""
    words = meta.cmdline[: meta.cmdline.index("--")] if "--" in meta.cmdline else meta.cmdline
    return any(word == "--all-cpus" or re.fullmatch(r"-[a-zA-Z]*a", word) for word in words)


def _by_descendants(subject: Profile) -> Bool:
    """Return bool[waits]: True if a descendant of the waiting process, within _GENERATIONS, ended the wait."""
    samples, tasks = subject.samples, subject.tasks
    parents, pid = np.append(tasks.parent, np.int32(-1)), samples.waker_pid
    below = np.zeros(len(pid), np.bool_)
    for _ in range(_GENERATIONS):
        pid = parents[rows_at(tasks.tid, tasks.begin_ns, pid, samples.time_ns)]
        below |= (pid == samples.pid) & (pid > 0)
    return below


def _naps(
    profile: Profile, subject: Profile, waits: Waits, idle: Bool, elsewhere: Bool, of_others: Bool, for_child: Bool
) -> Bool:
    """Return bool[waits]: True for naps: sleeps of threads that only sleep, while other threads do something. Sleeps
    are no naps if other threads waited for the sleeper for more than a tenth of its sleep, or if it waited for a lock
    or a CPU for a tenth of its time: a lock that it takes for a moment (CPython's) is no reason to count them; nor are
    sleeps of a thread whose life is less than half of the recording. Waits for work that the sleeper brings count if
    every second sleep or more brings some: it is the last one at a barrier, or a producer, and does not look for work
    from time to time. If no other thread does anything, only timers nap, of a server whose main thread is idle: threads
    that sleep again and again, and neither wake other threads nor are woken by them. `idle`, `elsewhere`: bool[waits],
    True for waits that do not count for another reason. `of_others`: True for waits that show that a sleeper was
    awaited. `for_child`: True for waits for the output of a recorded child."""
    samples, budget, left_out = subject.samples, profile.budget, idle | elsewhere
    is_sleep = waits.wait_class == WaitClass.SLEEP
    does_nothing = is_sleep | np.isin(waits.wait_class, (WaitClass.LOCK, WaitClass.RUNQUEUE))
    naps: Bool = _of_passive_threads(profile, subject, does_nothing) | _ticks(subject, is_sleep, does_nothing)
    naps &= is_sleep & _of_passive_threads(profile, subject, is_sleep, _NAPPING_PERCENT)
    naps &= ~_of_brief_threads(subject)
    ended = (samples.waker_tid != samples.tid) & (samples.waker_tid > 0) & ~samples.has(SampleFlag.WAKER_INTERRUPT)
    first, thread_of = group(np.append(samples.tid, np.where(ended & of_others, samples.waker_tid, np.int32(-1))))
    sleeper, ender = np.split(thread_of, 2)
    napper, fed = np.where(naps, sleeper, -1), np.where(waits.for_work, ender, -1)
    sleeps, meals = (sum_by(which, samples.count, len(first)) for which in (napper, fed))
    counts = ~waits.for_work | for_child | (2 * meals >= sleeps)[ender]
    slept, awaited = (sum_by(which, samples.period, len(first)) for which in (napper, np.where(counts, ender, -1)))
    naps &= (awaited <= slept // _AWAITED_PART)[sleeper]
    others = ~is_one_of(budget.tid, samples.tid[naps | left_out])
    active = int(samples.period[~naps & ~left_out].sum()) + int(budget.running_ns[others].sum())
    if active > int(samples.period[naps].sum()) // 100:
        return naps
    by_main = (samples.tid == samples.pid) & np.isin(waits.wait_class, (WaitClass.POLL, WaitClass.NETWORK))
    naps &= is_one_of(samples.pid, samples.pid[idle & by_main])
    naps &= ~is_one_of(samples.tid, np.append(samples.waker_tid[ended], samples.tid[ended]))
    return naps & (np.bincount(sleeper, naps) >= _TICKS)[sleeper]


def _ticks(subject: Profile, is_sleep: Bool, does_nothing: Bool) -> Bool:
    """Return bool[waits]: True if the thread has _TICKS sleeps (`is_sleep`) or more, and `does_nothing` for nearly all
    of the time from the first to the last. It may have started the program before."""
    samples = subject.samples
    first, thread_of = group(samples.tid, samples.pid)
    begin, end = np.full(len(first), np.iinfo(np.int64).max), np.zeros(len(first), np.int64)
    np.minimum.at(begin, thread_of[is_sleep], samples.switch_out_ns[is_sleep])
    np.maximum.at(end, thread_of[is_sleep], samples.time_ns[is_sleep])
    inside = does_nothing & (samples.switch_out_ns >= begin[thread_of]) & (samples.time_ns <= end[thread_of])
    passive = sum_by(np.where(inside, thread_of, -1), samples.period, len(first))
    is_ticking: Bool = passive >= (end - begin) // 100 * _PASSIVE_PERCENT
    return (is_ticking & (np.bincount(thread_of, is_sleep, len(first)) >= _TICKS))[thread_of]


def _of_brief_threads(subject: Profile) -> Bool:
    """Return bool[waits]: True if the thread began and ended in the recording, and lived for less than half of it."""
    samples, tasks = subject.samples, subject.tasks
    life = np.where((tasks.begin_ns > 0) & (tasks.end_ns >= 0), tasks.end_ns - tasks.begin_ns, np.iinfo(np.int64).max)
    row = rows_at(tasks.tid, tasks.begin_ns, samples.tid, samples.time_ns)
    is_brief: Bool = np.append(life <= subject.meta.duration_ns // 2, np.False_)[row]
    return is_brief


def _of_passive_threads(profile: Profile, subject: Profile, passive: Bool, percent: int = _PASSIVE_PERCENT) -> Bool:
    """Return bool[waits]: True if `percent` or more of the thread's time, running included, is in `passive` waits."""
    samples, budget = subject.samples, profile.budget
    ids = np.append(thread_ids(samples.pid, samples.tid), thread_ids(budget.pid, budget.tid))
    first, group_of = group(ids)
    periods = (
        np.append(period, budget.running_ns) for period in (samples.period, np.where(passive, 0, samples.period))
    )
    time, active = (sum_by(group_of, period, len(first)) for period in periods)
    is_passive: Bool = active <= time // 100 * (100 - percent)
    return is_passive[group_of[: len(samples)]]
