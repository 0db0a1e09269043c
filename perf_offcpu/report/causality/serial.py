# SPDX-License-Identifier: Apache-2.0
"""Find the functions that run while few threads of a program run, and waits that one thread alone ends."""

from __future__ import annotations

from typing import Any

import numpy as np

from perf_offcpu.analysis.causes import causes_of
from perf_offcpu.analysis.classes.classify import classify
from perf_offcpu.analysis.classes.wait_classes import WaitClass
from perf_offcpu.analysis.cpu_waits import CpuWaits
from perf_offcpu.analysis.group import group, sum_by
from perf_offcpu.analysis.timeline import Timeline
from perf_offcpu.callpaths.options import Name
from perf_offcpu.causality.parallel import Parallelism, parallelism_of
from perf_offcpu.causality.path_rows import functions_of
from perf_offcpu.causality.path_stacks import shared_out
from perf_offcpu.causality.wait_table import WaitTable
from perf_offcpu.model.columns import I64, Bool
from perf_offcpu.model.profile import Profile
from perf_offcpu.model.recording import SampleFlag
from perf_offcpu.report.breakdowns import heavy_stacks
from perf_offcpu.structs import frozen
from perf_offcpu.text import printable, thread_label

VERSION = 1
NOT_SAMPLED = ""
FOR_CPU = "[waiting for a CPU]"
_FIXED = 1 << 20


@frozen
class SerialRow:
    """Time that threads of one comm ran in one function; times in ns."""

    comm: str
    function: str  # NOT_SAMPLED for threads without CPU samples, FOR_CPU for the time of preemption
    weight: int  # time divided by the number of threads that ran
    alone: int  # time in which no other thread ran
    samples: int


@frozen
class SerialStack:
    """A stack of CPU samples."""

    comm: str
    frames: tuple[Name, ...]  # root first
    weight: int


@frozen
class LoneWaits:
    """Waits of one kind that ended when one thread ran; times in ns."""

    comm: str
    wait_class: str
    function: str
    waker: str  # comm; "" unknown
    waits: int
    waited: int  # until the wake-up
    one: int  # of that, time in which one thread ran
    none: int  # of that, time in which no thread ran


@frozen
class SerialReport:
    """Hold the serial part of a program's time; times in ns."""

    source: str
    threads: int
    begin_ns: int  # the recording's clock
    end_ns: int
    levels: list[int]  # time in which 0, 1, 2, … threads ran
    rows: list[SerialRow]  # weights sum to the time in which any thread ran
    stacks: list[SerialStack]
    waits: list[LoneWaits]
    summed_ns: int  # waits that were only summed, and count as running
    preempted_ns: int  # preemptions that were not recorded as waits: when, is not known

    @property
    def total_ns(self) -> int:
        """Return the length of the window without pauses."""
        return sum(self.levels)

    @property
    def paused_ns(self) -> int:
        """Return the time of pauses in the window."""
        return self.end_ns - self.begin_ns - self.total_ns


def serial_of(
    profile: Profile, timeline: Timeline, chosen: Bool, window: tuple[int, int] | None, stacks: int
) -> SerialReport:
    """Return the report on when few threads of a program ran, and which waits one thread ends.

    Args:
        chosen: bool[tracks of the timeline], the program's threads.
        window: (begin, end) in the recording's clock; default: the life of the program.
        stacks: the number of stacks wanted.
    """
    origin = timeline.origin_ns
    table = WaitTable(profile, timeline)
    since_origin = None if window is None else (window[0] - origin, window[1] - origin)
    parallelism = parallelism_of(profile, timeline, table, chosen, since_origin)
    rows, track, weight, alone = _sampled(profile, timeline, table, parallelism, chosen)
    ids = {(track.pid, track.tid) for track, one in zip(timeline.tracks, chosen.tolist(), strict=True) if one}
    return SerialReport(
        profile.meta.source,
        int(chosen.sum()),
        parallelism.begin + origin,
        parallelism.end + origin,
        parallelism.levels().tolist(),
        _rows(profile, table, parallelism, rows, track, weight, alone),
        _stacks(profile, rows, weight, stacks),
        _lone_waits(profile, table, parallelism, chosen),
        int(profile.samples.period[_sums(profile, timeline, chosen)].sum()),
        _preempted(profile, timeline, ids, chosen),
    )


def _sums(profile: Profile, timeline: Timeline, chosen: Bool) -> Bool:
    sums: Bool = profile.is_offcpu() & ~timeline.waits & chosen[timeline.track]
    return sums


def _preempted(profile: Profile, timeline: Timeline, ids: set[tuple[int, int]], chosen: Bool) -> int:
    """Return the time of the budget in which the threads were preempted, less that of recorded waits."""
    budget, samples = profile.budget, profile.samples
    pairs = zip(budget.pid.tolist(), budget.tid.tolist(), strict=True)
    mine = np.array([pair in ids for pair in pairs], np.bool_)
    recorded = samples.has(SampleFlag.PREEMPTED) & profile.is_offcpu() & chosen[timeline.track]
    return max(0, int(budget.preempted_ns[mine].sum()) - int(samples.period[recorded].sum()))


def _sampled(
    profile: Profile, timeline: Timeline, table: WaitTable, parallelism: Parallelism, chosen: Bool
) -> tuple[I64, I64, I64, I64]:
    """Divide the time of each thread among its CPU samples.

    Returns:
        (rows, track, weight, alone): int64[k] each, samples by track; a sample counts for more, the fewer
        threads ran at its moment.
    """
    rows = np.flatnonzero(timeline.moments & chosen[timeline.track])
    if len(rows):  # of several events, one
        rows = rows[profile.samples.evsel[rows] == profile.samples.evsel[rows].min()]
    moment, track = timeline.begin_ns[rows], timeline.track[rows]
    moment_of, wait = table.overlapping(track, moment, moment + 1)
    number = parallelism.numbers_at(moment)
    number[moment_of[table.begin[wait] < moment[moment_of]]] = 0  # the clocks of samples and switches differ a little
    rows, track, number = (column[number > 0] for column in (rows, track, number))
    order = np.argsort(track, kind="stable")
    rows, track, number = rows[order], track[order], number[order]
    weight = shared_out(parallelism.weight, track, _FIXED // number)
    lone = np.flatnonzero(number == 1)
    alone = np.zeros(len(rows), np.int64)
    alone[lone] = shared_out(parallelism.alone_by, track[lone], np.ones(len(lone), np.int64))
    return rows, track, weight, alone


def _rows(
    profile: Profile,
    table: WaitTable,
    parallelism: Parallelism,
    rows: I64,
    track: I64,
    weight: I64,
    alone: I64,
) -> list[SerialRow]:
    """Return the rows, the heaviest first."""
    cpu_waits = CpuWaits(profile, table.tracks)
    names, function = functions_of(profile, rows)
    sums: dict[tuple[str, str], list[int]] = {}

    def add(index: int, name: str, *times: int, samples: int = 0) -> None:
        """Add the time of a thread in a function, and in the same time the preemption of its budget."""
        ready = np.array(times, np.int64)
        queued = cpu_waits.of(np.full(2, index), ready)
        for label, values in (
            (name, [*(ready - queued).tolist(), samples]),
            (FOR_CPU, [*queued.tolist(), 0]),
        ):
            total = sums.setdefault((table.tracks[index].comm, label), [0, 0, 0])
            total[:] = [one + more for one, more in zip(total, values, strict=True)]

    first, group_of = group(track, function)
    columns = (
        sum_by(group_of, weight, len(first)),
        sum_by(group_of, alone, len(first)),
        np.bincount(group_of, minlength=len(first)),
    )
    cells = zip(first.tolist(), *(column.tolist() for column in columns), strict=True)
    for row, spent, lone, samples in cells:
        add(int(track[row]), names[function[row]] or "[unknown]", spent, lone, samples=samples)
    size = len(parallelism.weight)
    bare = parallelism.weight - sum_by(track, weight, size), parallelism.alone_by - sum_by(track, alone, size)
    for index in np.flatnonzero(bare[0] | bare[1]).tolist():
        add(index, NOT_SAMPLED, int(bare[0][index]), int(bare[1][index]))
    made = [SerialRow(*key, *values) for key, values in sums.items() if any(values)]
    return sorted(made, key=lambda row: (-row.weight, row.comm, row.function))


def _stacks(profile: Profile, rows: I64, weight: I64, most: int) -> list[SerialStack]:
    stacks = heavy_stacks(profile, rows, weight, most)
    return [SerialStack(comm, frames, ns) for comm, frames, ns in stacks]


def _lone_waits(profile: Profile, table: WaitTable, parallelism: Parallelism, chosen: Bool) -> list[LoneWaits]:
    """Return the waits of chosen threads at whose end one thread ran, by kind, the longest first."""
    mine = np.append(chosen, np.zeros(len(table.tracks) - len(chosen), np.bool_))[table.track]
    before = parallelism.numbers_at(table.queued - 1)
    ends = (table.queued > parallelism.begin) & (table.queued <= parallelism.end) & (table.queued > table.begin)
    rows = np.flatnonzero(mine & ends & (before == 1))
    begin, end = table.begin[rows], table.queued[rows]
    one, none = (
        parallelism.sum_until(sums, end) - parallelism.sum_until(sums, begin)
        for sums in (parallelism.alone, parallelism.none)
    )
    subject = profile.select(table.row[rows])
    waits = classify(subject)
    causes = causes_of(subject, waits)
    comms = [printable(track.comm) for track in table.tracks]
    rows_of = {comm: row for row, comm in enumerate(dict.fromkeys(comms))}
    comm_of = np.array([*(rows_of[comm] for comm in comms), -1], np.int64)
    comm, waker = comm_of[table.track[rows]], comm_of[table.waker[rows]]
    first, group_of = group(comm, waits.wait_class, causes.function, waker)
    labels = list(rows_of)
    counted = np.bincount(group_of, minlength=len(first)).tolist()
    sums = [sum_by(group_of, column, len(first)).tolist() for column in (end - begin, one, none)]
    made = [
        LoneWaits(
            labels[comm[row]],
            WaitClass(waits.wait_class[row]).label,
            causes.names[causes.function[row]],
            labels[waker[row]] if waker[row] >= 0 else "",
            *numbers,
        )
        for row, *numbers in zip(first.tolist(), counted, *sums, strict=True)
    ]
    return sorted(made, key=lambda row: (-row.one, -row.waited, row.comm, row.function, row.waker))


def document(report: SerialReport) -> dict[str, Any]:
    """Return the report as dicts, lists, integers and printable texts; times in ns."""
    return {
        "version": VERSION,
        "recording": printable(report.source),
        "threads": report.threads,
        "begin_ns": report.begin_ns,
        "end_ns": report.end_ns,
        "total": report.total_ns,
        "paused": report.paused_ns,
        "threads_running": report.levels,
        "rows": [
            {
                "comm": row.comm,
                "function": row.function,
                "weight": row.weight,
                "alone": row.alone,
                "samples": row.samples,
            }
            for row in report.rows
        ],
        "stacks": [
            {
                "comm": thread_label(stack.comm),
                "frames": [name.label for name in stack.frames],
                "weight": stack.weight,
            }
            for stack in report.stacks
        ],
        "waits": [
            {
                "comm": row.comm,
                "class": row.wait_class,
                "function": row.function,
                "waker": row.waker,
                "waits": row.waits,
                "time": row.waited,
                "one_running": row.one,
                "none_running": row.none,
            }
            for row in report.waits
        ],
        "summed_at_most": report.summed_ns,
        "preempted": report.preempted_ns,
    }
