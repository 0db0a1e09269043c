# SPDX-License-Identifier: Apache-2.0
"""Find the functions that run while few threads of a program run, and waits at whose end only one thread ran."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from perf_offcpu.analysis.causes import causes_of
from perf_offcpu.analysis.classes.classify import classify
from perf_offcpu.analysis.classes.wait_classes import WaitClass
from perf_offcpu.analysis.times.cpu_waits import CpuWaits
from perf_offcpu.analysis.times.timeline import Timeline
from perf_offcpu.causality.parallel import Parallelism, parallelism_of
from perf_offcpu.causality.path_rows import functions_of
from perf_offcpu.causality.path_stacks import of_one_event, shared_out
from perf_offcpu.causality.wait_table import WaitTable
from perf_offcpu.model.columns import I64, Bool, group, sum_by
from perf_offcpu.model.profile import Profile
from perf_offcpu.model.recording import SampleFlag
from perf_offcpu.report import style as say
from perf_offcpu.report.breakdowns import HeavyStack, heavy_stacks
from perf_offcpu.report.style import Column, Style, lay_out
from perf_offcpu.report.terminal import frame_lines
from perf_offcpu.report.totals import fields
from perf_offcpu.structs import frozen
from perf_offcpu.text import printable, thread_label

VERSION = 1
NOT_SAMPLED = ""
FOR_CPU = "[waiting for a CPU]"
_FIXED = 1 << 20


@frozen
class SerialRow:
    """Time in which threads of one comm ran in one function, in sum; ns."""

    comm: str
    function: str  # NOT_SAMPLED for threads without CPU samples, FOR_CPU for the time of preemption
    weight: int  # time divided by the number of threads that ran
    alone: int  # time in which no other thread ran
    samples: int


@frozen
class LoneWaits:
    """Waits of one comm, class, function and waker at whose end a single thread ran, in sum; ns."""

    comm: str
    wait_class: str
    function: str
    waker: str  # comm; "" unknown
    waits: int  # number of waits
    waited: int  # time until the wake-ups
    one: int  # part of `waited` in which one thread ran
    none: int  # part of `waited` in which no thread ran


@frozen
class SerialReport:
    """Report on when few threads of a program ran: times by number of running threads, functions, waits; ns."""

    source: str
    threads: int
    begin_ns: int  # the recording's clock
    end_ns: int
    levels: list[int]  # time in which 0, 1, 2, … threads ran
    rows: list[SerialRow]  # weights sum to the time in which any thread ran
    stacks: list[HeavyStack]  # of CPU samples
    waits: list[LoneWaits]
    summed_ns: int  # waits that were only summed, and count as running
    preempted_ns: int  # preemptions that were not recorded as waits: when, is not known

    @property
    def total_ns(self) -> int:
        """Return the length of the window without pauses, ns."""
        return sum(self.levels)

    @property
    def paused_ns(self) -> int:
        """Return the time of pauses in the window, ns."""
        return self.end_ns - self.begin_ns - self.total_ns


def serial_of(
    profile: Profile, timeline: Timeline, chosen: Bool, window: tuple[int, int] | None, stacks: int
) -> SerialReport:
    """Return the report on when few threads of a program ran. `chosen`: bool[tracks of the timeline], the program's
    threads. `window`: (begin, end) of the recording's clock; None: the program's life. `stacks`: most stacks."""
    origin, samples = timeline.origin_ns, profile.samples
    table = WaitTable(profile, timeline)
    since_origin = window and (window[0] - origin, window[1] - origin)
    parallelism = parallelism_of(profile, timeline, table, chosen, since_origin)
    rows, track, weight, alone = _sampled(profile, timeline, table, parallelism, chosen)
    waits = profile.is_offcpu() & chosen[timeline.track]
    preempted = waits & samples.has(SampleFlag.PREEMPTED)
    summed_ns, recorded_ns = (int(samples.period[which].sum()) for which in (waits & ~timeline.waits, preempted))
    preempted_ns = _preempted(profile, timeline, chosen, recorded_ns)
    head = profile.meta.source, int(chosen.sum()), parallelism.begin + origin, parallelism.end + origin
    serial_rows = _rows(profile, table, parallelism, rows, track, weight, alone)
    heavy, lone = heavy_stacks(profile, rows, weight, stacks), _lone_waits(profile, table, parallelism, chosen)
    return SerialReport(*head, parallelism.levels().tolist(), serial_rows, heavy, lone, summed_ns, preempted_ns)


def _preempted(profile: Profile, timeline: Timeline, chosen: Bool, recorded_ns: int) -> int:
    """Return the ns of preemption in the budgets of chosen threads, without `recorded_ns`, which are in waits."""
    budget = profile.budget
    tracks = [timeline.tracks[row] for row in np.flatnonzero(chosen).tolist()]
    ids = {(track.pid, track.tid) for track in tracks}
    pairs = zip(budget.pid.tolist(), budget.tid.tolist(), strict=True)
    of_program = np.array([pair in ids for pair in pairs], np.bool_)
    return max(0, int(budget.preempted_ns[of_program].sum()) - recorded_ns)


def _sampled(
    profile: Profile, timeline: Timeline, table: WaitTable, parallelism: Parallelism, chosen: Bool
) -> tuple[I64, I64, I64, I64]:
    """Divide the time of each thread among its CPU samples; a sample gets more, the fewer threads ran at its moment.
    Return int64[k] four times, by track: row of a CPU sample, its track, ns of `SerialRow.weight` and of `alone`."""
    rows = of_one_event(profile, np.flatnonzero(timeline.moments & chosen[timeline.track]))
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
    profile: Profile, table: WaitTable, parallelism: Parallelism, rows: I64, track: I64, weight: I64, alone: I64
) -> list[SerialRow]:
    cpu_waits = CpuWaits(profile, table.tracks)
    names, function = functions_of(profile, rows)
    sums: dict[tuple[str, str], list[int]] = {}

    def add(index: int, name: str, *times: int, samples: int = 0) -> None:
        """Add `times` (weight, alone) of track `index` to function `name`, but their preempted part to FOR_CPU."""
        ready = np.array(times, np.int64)
        queued = cpu_waits.of(np.full(2, index), ready)
        for label, values in ((name, [*(ready - queued).tolist(), samples]), (FOR_CPU, [*queued.tolist(), 0])):
            total = sums.setdefault((table.tracks[index].comm, label), [0, 0, 0])
            total[:] = map(int.__add__, total, values)

    first, group_of = group(track, function)
    sizes = np.bincount(group_of, minlength=len(first))
    columns = (first, sum_by(group_of, weight, len(first)), sum_by(group_of, alone, len(first)), sizes)
    for row, spent, lone, samples in zip(*(column.tolist() for column in columns), strict=True):
        add(int(track[row]), names[function[row]] or "[unknown]", spent, lone, samples=samples)
    size = len(parallelism.weight)
    bare = parallelism.weight - sum_by(track, weight, size), parallelism.alone_by - sum_by(track, alone, size)
    for index in np.flatnonzero(bare[0] | bare[1]).tolist():
        add(index, NOT_SAMPLED, int(bare[0][index]), int(bare[1][index]))
    made = [SerialRow(*key, *values) for key, values in sums.items() if any(values)]
    return sorted(made, key=lambda row: (-row.weight, row.comm, row.function))


def _lone_waits(profile: Profile, table: WaitTable, parallelism: Parallelism, chosen: Bool) -> list[LoneWaits]:
    """Return waits of `chosen` threads at whose end a single thread ran, in sums; most time with one thread first."""
    is_chosen = np.append(chosen, np.zeros(len(table.tracks) - len(chosen), np.bool_))[table.track]
    before = parallelism.numbers_at(table.queued - 1)
    ends = (table.queued > parallelism.begin) & (table.queued <= parallelism.end) & (table.queued > table.begin)
    rows = np.flatnonzero(is_chosen & ends & (before == 1))
    begin, end = table.begin[rows], table.queued[rows]
    until, both = parallelism.sum_until, (parallelism.alone, parallelism.none)
    with_one, none = (until(sums, end) - until(sums, begin) for sums in both)
    subject = profile.select(table.row[rows])
    waits = classify(subject)
    causes = causes_of(subject, waits)
    comms = [printable(track.comm) for track in table.tracks]
    rows_of = {comm: row for row, comm in enumerate(dict.fromkeys(comms))}
    comm_of = np.array([*(rows_of[comm] for comm in comms), -1], np.int64)
    comm, waker = comm_of[table.track[rows]], comm_of[table.waker[rows]]
    first, group_of = group(comm, waits.wait_class, causes.function, waker)
    labels = [*rows_of, ""]
    counted = np.bincount(group_of, minlength=len(first)).tolist()
    sums = [sum_by(group_of, column, len(first)).tolist() for column in (end - begin, with_one, none)]
    lone_waits = []
    for row, *numbers in zip(first.tolist(), counted, *sums, strict=True):
        wait_class, function = WaitClass(waits.wait_class[row]).label, causes.names[causes.function[row]]
        lone_waits.append(LoneWaits(labels[comm[row]], wait_class, function, labels[waker[row]], *numbers))
    return sorted(lone_waits, key=lambda row: (-row.one, -row.waited, row.comm, row.function, row.waker))


_WAITS = "comm class=wait_class function waker waits time=waited one_running=one none_running=none"


def document(report: SerialReport) -> dict[str, Any]:
    """Return the report as dicts, lists, integers and printable texts, for `--json`; times in ns."""
    times = "begin_ns end_ns total=total_ns paused=paused_ns"
    return {
        "version": VERSION,
        **fields(report, f"recording=source threads {times} threads_running=levels"),
        "rows": [fields(row, "comm function weight alone samples") for row in report.rows],
        "stacks": [
            {"comm": thread_label(stack.comm), "frames": stack.labels, "weight": stack.weight}
            for stack in report.stacks
        ],
        "waits": [fields(row, _WAITS) for row in report.waits],
        **fields(report, "summed_at_most=summed_ns preempted=preempted_ns"),
    }


_LEVELS = 8


def render(report: SerialReport, style: Style, limit: int | None) -> Iterator[str]:
    """Yield the lines of the report, without line ends. `limit`: most rows of each table; None: all."""
    seconds = f"{report.begin_ns / 1e9:.6f} to {report.end_ns / 1e9:.6f} s"
    total = say.exact_amount(report.total_ns, "ns", style)
    yield say.comment(f"Recording: {report.source or '-'}")
    yield say.comment(f"Serialization of {say.plural(report.threads, 'thread')}: {total}, {seconds}")
    for ns, words in (
        (report.paused_ns, "in between was not recorded, and is left out"),
        (report.summed_ns, "of short waits, which were summed (--off-cpu-thresh 0), counts as running"),
        (report.preempted_ns, "of preemption is divided in proportion: budgets do not tell when it was"),
    ):
        if ns:
            yield say.comment(f"{say.exact_amount(ns, 'ns', style)} {words}")
    ran = "ran, or waited for a CPU," if report.preempted_ns else "ran"
    yield from say.section(f"Threads that {ran} at the same time", style)
    yield from lay_out(_level_columns(report, style), style.width)
    yield from say.section(f"What ran while few did: time divided by the threads that {ran} then", style)
    rows = report.rows[:limit]
    yield from lay_out(_row_columns(rows, report, style), style.width)
    more = report.rows[len(rows) :]
    yield from say.more_rows((len(more), sum(row.weight for row in more)), "row", "ns", style)
    yield from say.section("Waits that ended while one thread ran", style)
    waits = report.waits[:limit]
    yield from lay_out(_wait_columns(waits, style), style.width)
    yield from say.and_more(len(report.waits) - len(waits), "more row")
    if style.stacks and report.stacks:
        yield from say.section(f"Stacks that ran while few did, {style.order}", style)
        for stack in report.stacks:
            share = say.share(stack.weight, report.total_ns)
            yield f"{share:>9}  {stack.comm}  {say.time(stack.weight, style)}"
            yield from frame_lines(stack.frames, style)


def _level_columns(report: SerialReport, style: Style) -> list[Column]:
    levels = {str(number): ns for number, ns in enumerate(report.levels[:_LEVELS])}
    if len(report.levels) > _LEVELS:
        levels[f"{_LEVELS} or more"] = sum(report.levels[_LEVELS:])
    return [
        say.shares(levels.values(), report.total_ns),
        say.times("Time", levels.values(), style),
        Column("Ready" if report.preempted_ns else "Running", list(levels)),
    ]


def _row_columns(rows: Sequence[SerialRow], report: SerialReport, style: Style) -> list[Column]:
    return [
        say.shares((row.weight for row in rows), report.total_ns),
        say.times("Weight", (row.weight for row in rows), style),
        say.times("Alone", (row.alone for row in rows), style),
        Column("Samples", [str(row.samples) for row in rows], spare=1),
        say.names("Command", (row.comm for row in rows)),
        say.names("Function", (row.function or "[no CPU sample]" for row in rows)),
    ]


def _wait_columns(rows: Sequence[LoneWaits], style: Style) -> list[Column]:
    return [
        say.times("One ran", (row.one for row in rows), style),
        say.times("None ran", (row.none for row in rows), style),
        say.times("Waited", (row.waited for row in rows), style),
        Column("Waits", [str(row.waits) for row in rows]),
        say.names("Command", (row.comm for row in rows)),
        say.names("Class", (row.wait_class for row in rows)),
        say.names("Woken by", (row.waker or "-" for row in rows)),
        say.names("Function", (row.function for row in rows)),
    ]
