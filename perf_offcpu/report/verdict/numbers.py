# SPDX-License-Identifier: Apache-2.0
"""Compute the verdict on a recording's waits: the numbers of the table on top of a report.

Its total is the time of the threads that are not idle: running, waiting for a CPU, and blocked. Threads' budgets, if
recorded, give all three: running, waiting for a CPU (preempted, and after each wake-up), and blocked. Recordings
without budgets, and selections of waits, know off-cpu time only.

Blocked time is divided by cause; waits that do not count (`kinds`) are listed separately."""

import re
import shlex
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from perf_offcpu import losses
from perf_offcpu.abi.counters import GOROUTINES
from perf_offcpu.analysis.causes import Causes, causes_of, program_functions
from perf_offcpu.analysis.classes.classify import Waits
from perf_offcpu.analysis.classes.network import network_of, texts_of
from perf_offcpu.analysis.classes.wait_classes import WaitClass
from perf_offcpu.analysis.holders import Holders
from perf_offcpu.analysis.selection.select import thread_ids
from perf_offcpu.analysis.stack_walk import innermost_node
from perf_offcpu.callpaths.keys import cgroup_label
from perf_offcpu.losses import Stage
from perf_offcpu.model.columns import I64, Bool, distinct, group, is_one_of, sum_by
from perf_offcpu.model.profile import Profile, ProfileSamples
from perf_offcpu.model.recording import Budget, SampleFlag
from perf_offcpu.report.thread_budgets import BLOCKED, counted_lives
from perf_offcpu.report.verdict.causes import (
    QUOTA_OF,
    Cause,
    Cells,
    Kind,
    Peers,
    Place,
    cells_of,
    largest_causes,
    named_objects,
    threads_of,
)
from perf_offcpu.report.verdict.kinds import kinds_of
from perf_offcpu.structs import frozen
from perf_offcpu.text import basename, printable, thread_label

_SHOWN_BLOCKED = 2
_COMM_LENGTH = 15  # TASK_COMM_LEN without the NUL
_MOST_OF_TIME = 0.95  # the longest waiting threads with this part of the time together are named: many wait a little
_FEW = 10  # samples that may be so by chance
_YIELDS = re.compile(r"_*sched_yield|__(x64|ia32|arm64|riscv|s390x?|se)_(compat_)?sys_sched_yield")
_CAUSE_PERCENT = 1  # smaller causes are "others", but for the first


@frozen
class BlockedThread:
    """Thread whose wait was not over when the recording ended."""

    comm: str
    pid: int
    tid: int
    wait_class: str
    meaning: str  # of the rule; "" for none
    object: str  # name of the object that it waits for; "" if that says no more than the class
    network: str  # why the peer has not answered; "" not known
    function: str
    weight: int
    since: int  # begin of the wait, ns; -1 not known
    began_before: bool  # the wait began before the recording


@frozen
class Loss:
    """Largest loss of a recording, for the verdict."""

    cause: str
    count: int
    percent: float | None  # `count` in percent of the recording's number of `of`; None if `of` is ""
    of: str  # "waits", "addresses" or "samples"; "" for none of these
    causes: int  # number of causes of losses


@frozen
class Verdict:
    """Numbers of the verdict; times in ns: weight = running + causes + others."""

    weight: int  # time of the threads that are not idle; their off-cpu time if `running` is not known
    threads: int
    running: int | None  # None without budgets
    runq: int | None  # waiting for a CPU, a cause as well; None if not recorded
    causes: list[Cause]  # the largest first, until the rest is small
    others: int  # weight of all other causes
    unrecorded: int  # of `others`: blocked, but not recorded as a wait
    elsewhere: list[Cause]  # causes of waits that `kinds` does not count: not in `weight`
    idle_threads: int
    idle: int  # off-cpu time of idle threads
    still_blocked: int  # number of threads
    longest_blocked: list[BlockedThread]  # the longest first, waits for work and for a thread's or child's end last
    processes: str  # the recorded command, if it is found; else the processes: "postgres 5173 and 8 more"
    greenlets: bool  # loops of gevent or trio, whose greenlets and tasks are not read
    virtual_threads: bool  # a JVM has some, and those that are parked are not recorded
    tasks: bool  # tasks of asyncio were read: --by task shows their waits
    goroutines: bool  # Go's scheduler waited, and goroutines, which wait without a thread, were not read
    loss: Loss | None
    command: str  # command line that shows the first cause


def verdict_of(
    profile: Profile,
    chosen: Bool,
    subject: Profile,
    waits: Waits,
    holders: Holders,
    *,
    options: Sequence[tuple[str, str]] = (),
    whole_lives: bool = True,
) -> Verdict | None:
    """Return the verdict on the waits of a profile; None if it has neither waits nor budgets. Arguments up to `waits`:
    as `kinds_of`. `holders`: `holders_of(subject)`. `options`: (option, value) of the command line, kept in `command`.
    `whole_lives`: the profile has all samples of each thread; if not, all waits count, and budgets are not used."""
    budget = profile.budget if whole_lives else Budget()
    if not len(subject.samples) and not len(budget):
        return None
    kind = kinds_of(profile, chosen, subject, waits) if whole_lives else np.zeros(len(subject.samples), np.int64)
    causes = causes_of(subject, waits)
    programs = {waits.rules[row].program for row in distinct(waits.rule).tolist() if row >= 0}
    cells = cells_of(subject, waits, causes, holders, kind)
    idle, busy = cells.take(cells.kind == Kind.IDLE), cells.take(cells.kind != Kind.IDLE)
    budget = budget.take(~is_one_of(thread_ids(budget.pid, budget.tid), thread_ids(idle.pid, idle.tid)))
    parts = (busy.take(busy.kind == which) for which in (Kind.COUNTED, Kind.ELSEWHERE))
    largest = (largest_causes(subject, waits, causes, part) for part in parts)
    counted, elsewhere = ([_with_command(cause, options) for cause in listed] for listed in largest)
    counted = [_with_cgroups(cause, subject, waits) for cause in counted]
    for_cpu = _waits_for_cpu(profile, budget, busy, options)
    blocked, runq = int(busy.weight[busy.kind == Kind.COUNTED].sum()), sum(cause.weight for cause in for_cpu)
    off_cpu = sum(int(getattr(budget, name).sum()) for name in BLOCKED.values())
    unrecorded = max(off_cpu - int(busy.weight.sum()), 0)
    running = int(budget.running_ns.sum()) if len(budget) else None
    weight = blocked + unrecorded + runq + (running or 0)
    listed = sorted(counted + for_cpu, key=lambda cause: -cause.weight)
    listed = [cause for cause in listed if cause is listed[0] or 100 * cause.weight >= _CAUSE_PERCENT * weight]
    still_blocked, longest = _still_blocked(subject, waits, causes, kind)
    named = [(loop, {task.name for task in loop.tasks}) for loop in profile.loops]
    hidden, hidden_ms = (profile.losses.get(loss, 0) for loss in (losses.IDLE_THREADS, losses.IDLE_MS))
    queued = len(budget) or (subject.samples.runq_ns >= 0).any() or runq
    view = ["--budget-by", "comm"] if len(budget) else ["--sort", "comm,class"]
    return Verdict(
        weight=weight,
        threads=len(group(*(np.append(*ids) for ids in ((busy.pid, budget.pid), (busy.tid, budget.tid))))[0]),
        running=running,
        runq=runq if queued else None,
        causes=listed,
        others=weight - (running or 0) - sum(cause.weight for cause in listed),
        unrecorded=unrecorded,
        elsewhere=elsewhere,
        idle_threads=idle.threads(profile).number + hidden,
        idle=int((idle.weight + idle.runq).sum()) + hidden_ms * 10**6,
        still_blocked=still_blocked,
        longest_blocked=longest,
        processes=_processes(profile, budget),
        greenlets="gevent, trio" in programs,
        virtual_threads="virtual threads of the JVM" in programs,
        tasks=any(loop.weight_ns and not names <= {GOROUTINES} for loop, names in named),
        goroutines="Go" in programs and not any(GOROUTINES in names for _, names in named),
        loss=_loss(profile, subject.samples),
        command=listed[0].command if listed else _command(options, view),
    )


def _processes(profile: Profile, budget: Budget) -> str:
    """Return the recorded command; if the perf command line has none, `COMM PID and N more`: the first process of -p,
    else the process with most threads, and the number of other processes."""
    samples, comms, words = profile.samples, profile.comms, profile.meta.cmdline
    strings = {profile.strings[row] for row in distinct(comms.comm).tolist()}
    for index, word in enumerate(words[2:], 2):  # perf needs no "--" before a command
        if basename(word)[:_COMM_LENGTH] in strings:
            return printable(shlex.join(words[index:]))
    first, _ = group(np.append(samples.pid, budget.pid), np.append(samples.tid, budget.tid))
    pids, threads = np.unique(np.append(samples.pid, budget.pid)[first], return_counts=True)
    if not len(pids):
        return ""
    asked = [int(number) for word in words for number in re.findall(r"^(?:-p|--pid=)?(\d+)\b", word)]
    pid = next((task for task in asked if task in comms.tid or task in pids), int(pids[threads.argmax()]))
    names = [*samples.comm[samples.pid == pid].tolist()[:1], *comms.comm[comms.tid == pid].tolist()]
    comm = thread_label(profile.strings[names[-1]]) if names else "process"
    more = int((pids != pid).sum())
    return f"{comm} {pid}{f' and {more} more' if more else ''}"


def _waits_for_cpu(profile: Profile, budget: Budget, busy: Cells, options: Sequence[tuple[str, str]]) -> list[Cause]:
    """Return [the cause `waiting for a CPU`], by budgets, else by recorded waits (`busy`, those of threads that are not
    idle); [] if no thread waited for a CPU. `options`: of the command line, kept in `Cause.command`."""
    lives = counted_lives(replace(profile, budget=budget)) if len(budget) else None
    pid, tid, comm, weight = (
        (lives.pid.astype(np.int64), lives.tid.astype(np.int64), lives.comm, lives.runnable)
        if lives
        else (busy.pid, busy.tid, busy.comm, busy.runq)
    )
    total, descending = int(weight.sum()), np.argsort(-weight, kind="stable")
    if not total:
        return []
    before = np.cumsum(weight[descending]) - weight[descending]
    rows = descending[before < _MOST_OF_TIME * total]
    label, cpus = WaitClass.RUNQUEUE.label, dict[str, float]()
    view = ["--class", label]
    if lives and lives.running is not None:
        view, span = ["--budget-by", "comm"], max(sum(end - begin for begin, end in profile.meta.recorded), 1)
        ran, waited = int(lives.running[rows].sum()), int(weight[rows].sum())
        cpus = {"wanted": (ran + waited) / span, "got": ran / span, "all": profile.meta.nr_cpus}
    threads, none = threads_of(profile, pid[rows], tid[rows], comm[rows], weight[rows]), Peers("", {})
    if not (functions := _that_yield(profile, tid[rows])):
        return [Cause(label, "", "", total, threads, 1, [], none, {}, cpus, _command(options, view))]
    places = [Place(name, total, threads, "", "", none, {}) for name in functions if len(functions) == 1]
    words = "Linux", "its turn after sched_yield()"
    return [Cause(label, *words, total, threads, len(functions), places, none, {}, {}, _command(options, view))]


def _that_yield(profile: Profile, tids: I64) -> set[str]:
    """Return the functions in which threads call sched_yield(), if they run there for half of their time or more, by
    samples on CPUs: as in a loop that waits for other threads, and leaves them the CPU; else nothing."""
    samples, strings = profile.samples, profile.strings
    rows = np.flatnonzero(~profile.is_offcpu() & is_one_of(samples.tid, tids) & (samples.stack >= 0))
    is_call = np.array([bool(_YIELDS.fullmatch(strings[row])) for row in profile.frames.symbol.tolist()], np.bool_)
    leaf = samples.stack[rows].astype(np.int64)
    yields = innermost_node(profile, leaf, is_call) >= 0
    if np.count_nonzero(yields) < max(len(rows) / 2, _FEW):
        return set()
    names, function = program_functions(profile, leaf[yields])
    return {names[row] for row in distinct(function).tolist()}


def _still_blocked(profile: Profile, waits: Waits, causes: Causes, kind: I64) -> tuple[int, list[BlockedThread]]:
    samples = profile.samples
    rows = np.flatnonzero((kind != Kind.IDLE) & profile.is_still_blocked())
    elsewhere = waits.for_work[rows] | (waits.wait_class[rows] == WaitClass.CHILD)
    order = rows[np.lexsort((-samples.period[rows], elsewhere))]
    before, names = samples.has(SampleFlag.BEGAN_BEFORE), named_objects(profile)
    network, text_of = texts_of(network_of(profile, waits))
    longest = [
        BlockedThread(
            comm=thread_label(profile.strings[samples.comm[row]]),
            pid=int(samples.pid[row]),
            tid=int(samples.tid[row]),
            wait_class=WaitClass(waits.wait_class[row]).label,
            meaning=waits.rules[waits.rule[row]].meaning if waits.rule[row] >= 0 else "",
            object=printable(profile.strings[int(names[row])]),
            network=network[text_of[row]],
            function=causes.names[causes.function[row]],
            weight=int(samples.period[row]),
            since=int(samples.switch_out_ns[row]),
            began_before=bool(before[row]),
        )
        for row in order[:_SHOWN_BLOCKED].tolist()
    ]
    return len(group(samples.pid[rows], samples.tid[rows])[0]), longest


def _loss(profile: Profile, waits: ProfileSamples) -> Loss | None:
    """Return the largest loss; None without one. Causes `in_last_line` go first, losses of names and lines last."""
    counts = losses.without_notes(profile.losses)
    if not counts:
        return None
    names = (Stage.NAMES, Stage.LINES)
    cause = max(counts, key=lambda cause: (cause.in_last_line, cause.stage not in names, counts[cause]))
    possible, unit, count = 0, "", counts[cause]
    if cause.stage in names:
        possible, unit = max(len(profile.frames), count), "addresses"
    elif cause.stage is Stage.BPF:
        possible, unit = int(waits.count.sum()) + count, "waits"
    elif cause.stage is Stage.UNWIND:
        possible, unit = len(profile.samples), "samples"
    percent = round(min(100 * count / possible, 100.0), 2) if possible else None
    return Loss(str(cause), count, percent, unit, len(counts))


def _with_cgroups(cause: Cause, subject: Profile, waits: Waits) -> Cause:
    """Return the cause; if it is a quota of CPU time, with the control groups that have it as peers."""
    if cause.wait_class != WaitClass.THROTTLED.label:
        return cause
    samples = subject.samples.take(np.flatnonzero(waits.wait_class == WaitClass.THROTTLED))
    first, group_of = group(samples.cgroup)
    sums = sum_by(group_of, samples.period, len(first)).tolist()
    labels = [cgroup_label(subject, cgroup) for cgroup in samples.cgroup[first].tolist()]
    heaviest = sorted(zip(labels, sums, strict=True), key=lambda item: -item[1])
    named = {label: ns for label, ns in heaviest if label != "/"}  # of version 1, which is not recorded
    return replace(cause, peers=Peers(QUOTA_OF, named))


def _with_command(cause: Cause, options: Sequence[tuple[str, str]]) -> Cause:
    """Return the cause with the command line that shows it. `options`: (option, value) of the present one, kept."""
    comms = list(cause.threads.comms)
    named = len(comms) == 1 and re.fullmatch(r"[\w.:+][\w.:+-]*", comms[0])
    view = ["--class", cause.wait_class, *(["--comm", comms[0]] if named else [])]
    return replace(cause, command=_command(options, view))


def _command(options: Sequence[tuple[str, str]], view: Sequence[str]) -> str:
    kept = [word for pair in options if pair[0] not in view for word in pair]
    return shlex.join(["perf-offcpu", "report", *kept, *view])
