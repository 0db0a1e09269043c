# SPDX-License-Identifier: Apache-2.0
"""Report a critical path: the time of a thread by other threads and functions, and by hops, as a tree."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from perf_offcpu.analysis.times.timeline import Timeline
from perf_offcpu.causality.critical_path import CriticalPath, Doing
from perf_offcpu.causality.path_rows import DOING, HopRow, PathRow, hop_rows, path_rows, rivals
from perf_offcpu.causality.path_stacks import chains_of
from perf_offcpu.model.columns import sum_by
from perf_offcpu.model.profile import Profile
from perf_offcpu.report import style as say
from perf_offcpu.report.style import Column, Style, lay_out
from perf_offcpu.report.totals import fields, lost_fields
from perf_offcpu.structs import frozen
from perf_offcpu.text import printable, thread_label

VERSION = 1
_SHOWN_RIVALS, _LEAST_RIVALS = 3, 10  # most comms that are named; fewest CPU samples by which comms are named


@frozen
class PathReport:
    """Sums of a critical path, by comm, state and function, and by hops; times in ns."""

    source: str  # the recording
    comm: str
    pid: int
    tid: int
    begin_ns: int  # the recording's clock
    end_ns: int
    wakeups: int  # wake-ups that were followed
    rows: list[PathRow]
    hops: list[HopRow]
    rivals: dict[str, int]  # comm → CPU samples while the path was runnable, on the same CPU
    has_wakers: bool  # True if any sample of the recording has a waker
    summed_ns: int  # waits of the path's threads that were summed: at most so much of RUNNING is waiting
    preempted_ns: int  # part of RUNNABLE from budgets, which do not tell when it was
    losses: dict[str, int]

    @property
    def total_ns(self) -> int:
        """Return the length of the path in ns."""
        return self.end_ns - self.begin_ns

    def spent_ns(self, doing: Doing) -> int:
        """Return the ns that threads of the path spent in a state."""
        return sum(row.ns for row in self.rows if row.doing == doing)


def report_of(profile: Profile, timeline: Timeline, path: CriticalPath) -> PathReport:
    """Return the sums of a critical path: by comm, state and function, and by hops."""
    root, ran = path.tracks[path.root], path.doing == Doing.RUNNING
    running = sum_by(path.track[ran], path.length_ns[ran], len(path.tracks))
    summed = int(np.minimum(running, path.summed_ns).sum())
    preempted, has_wakers = int(path.queued_ns.sum()), bool((profile.samples.waker_tid >= 0).any())
    thread = profile.meta.source, root.comm, root.pid, root.tid, int(path.begin_ns[0]), int(path.end_ns[-1])
    rows, hops = path_rows(profile, timeline, path), hop_rows(path, chains_of(profile, path))
    others, losses = rivals(profile, timeline, path), lost_fields(profile)
    return PathReport(*thread, len(path.hops.wait), rows, hops, others, has_wakers, summed, preempted, losses)


def document(report: PathReport) -> dict[str, Any]:
    """Return the report as dicts, lists, integers and printable texts, for `--json`; times in ns."""
    return {
        "version": VERSION,
        "recording": printable(report.source),
        "thread": fields(report, "comm pid tid"),
        **fields(report, "begin_ns end_ns total=total_ns wakeups"),
        "rows": [
            {"comm": row.comm, "doing": row.doing.name.lower()}
            | fields(row, "class=wait_class function time=ns segments")
            for row in report.rows
        ],
        "hops": [
            fields(row, "depth comm wakeups time=total_ns")
            | {"own": {doing.name.lower(): ns for doing, ns in row.own_ns.items()}}
            for row in report.hops
        ],
        **fields(report, "runnable_samples=rivals summed_at_most=summed_ns preempted=preempted_ns losses"),
    }


def render(report: PathReport, style: Style, limit: int | None) -> Iterator[str]:
    """Yield the lines of the report, without line ends. `limit`: most rows of each table; None: all."""
    name = thread_label(report.comm, report.pid, report.tid)
    seconds = f"{report.begin_ns / 1e9:.6f} to {report.end_ns / 1e9:.6f} s"
    yield say.comment(f"Recording: {report.source or '-'}")
    yield say.comment(f"Critical path of {name}: {say.exact_amount(report.total_ns, 'ns', style)}, {seconds}")
    yield from map(say.comment, _facts(report, style))
    yield from say.section("What the thread waited for, or did itself", style)
    rows = report.rows[:limit]
    yield from lay_out(_row_columns(rows, report, style), style.width)
    more = report.rows[len(rows) :]
    yield from say.more_rows((len(more), sum(row.ns for row in more)), "row", "ns", style)
    yield from say.section("Who: a thread below another one ended its waits", style)
    hops = report.hops[:limit]
    yield from lay_out(_hop_columns(hops, report, style), style.width)
    yield from say.and_more(len(report.hops) - len(hops), "more row")
    for cause, count in report.losses.items():
        yield say.comment(f"Lost: {count} {cause}")


def _facts(report: PathReport, style: Style) -> Iterator[str]:
    if not report.has_wakers:
        yield "The recording has no wakers: no wait can be explained by another thread."
        return
    yield f"Followed {say.plural(report.wakeups, 'wake-up')} by other threads."
    runnable = report.spent_ns(Doing.RUNNABLE)
    number = sum(report.rivals.values())
    if runnable and number >= _LEAST_RIVALS:
        rivals = list(report.rivals.items())[:_SHOWN_RIVALS]
        comms = ", ".join(f"{comm} {100 * samples / number:.0f} %" for comm, samples in rivals)
        amount = say.exact_amount(runnable, "ns", style)
        yield f"It waited for a CPU for {amount}; CPU samples on its CPUs then were of {comms}."
    if report.preempted_ns:
        preempted = say.exact_amount(report.preempted_ns, "ns", style)
        yield f"Runnable time includes {preempted} of preemption, in proportion: budgets do not tell when it was."
    if report.summed_ns:
        share = 100 * report.summed_ns / report.total_ns
        yield (
            f"At most {say.exact_amount(report.summed_ns, 'ns', style)}, {share:.1f} %, shown as running "
            "were short waits, which were summed: --off-cpu-thresh 0 records each of them."
        )


def _row_columns(rows: Sequence[PathRow], report: PathReport, style: Style) -> list[Column]:
    return [
        say.shares((row.ns for row in rows), report.total_ns),
        say.times("Time", (row.ns for row in rows), style),
        Column("Spans", [str(row.segments) for row in rows], spare=1),
        say.names("Command", (thread_label(row.comm) for row in rows)),
        say.names("Doing", (DOING.get(row.doing) or f"{row.wait_class} wait" for row in rows)),
        say.names("Function", (row.function for row in rows)),
    ]


def _hop_columns(rows: Sequence[HopRow], report: PathReport, style: Style) -> list[Column]:
    shown = [doing for doing in Doing if doing != Doing.NOT_RECORDED or report.spent_ns(doing)]
    return [
        say.shares((row.total_ns for row in rows), report.total_ns),
        say.times("Time", (row.total_ns for row in rows), style),
        *(
            Column(DOING.get(doing, "waiting"), [say.amount(row.own_ns[doing], "ns", style) for row in rows])
            for doing in shown
        ),
        Column("Wake-ups", [str(row.wakeups) if row.depth else "" for row in rows]),
        say.names("Command", ("  " * row.depth + thread_label(row.comm) for row in rows)),
    ]
