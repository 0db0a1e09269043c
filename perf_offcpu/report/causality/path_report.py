# SPDX-License-Identifier: Apache-2.0
"""Report a critical path: the time of a thread by other threads and functions, and by hops, as a tree."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from perf_offcpu import losses
from perf_offcpu.analysis.group import sum_by
from perf_offcpu.analysis.timeline import Timeline
from perf_offcpu.causality.critical_path import CriticalPath, Doing
from perf_offcpu.causality.path_rows import DOING, HopRow, PathRow, hop_rows, path_rows, rivals
from perf_offcpu.causality.path_stacks import chains_of
from perf_offcpu.model.profile import Profile
from perf_offcpu.report import style as say
from perf_offcpu.report.style import Column, Style, lay_out
from perf_offcpu.structs import frozen
from perf_offcpu.text import printable, thread_label

VERSION = 1
_SHOWN_RIVALS, _LEAST_RIVALS = 3, 10
"""Comms that are named, and CPU samples below which none is."""


@frozen
class PathReport:
    """A critical path, summed up; times in ns."""

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
    has_wakers: bool  # whether the recording has any
    summed_ns: int  # waits of the path's threads that were summed: at most so much of RUNNING is waiting
    preempted_ns: int  # of RUNNABLE, by budgets: when, is not known
    losses: dict[str, int]

    @property
    def total_ns(self) -> int:
        """Return the length of the window."""
        return self.end_ns - self.begin_ns

    def spent_ns(self, doing: Doing) -> int:
        """Return the time of the path in a state."""
        return sum(row.ns for row in self.rows if row.doing == doing)


def report_of(profile: Profile, timeline: Timeline, path: CriticalPath) -> PathReport:
    """Sum up a critical path."""
    root, ran = path.tracks[path.root], path.doing == Doing.RUNNING
    running = sum_by(path.track[ran], path.length_ns[ran], len(path.tracks))
    summed = int(np.minimum(running, path.summed_ns).sum())
    lost = {printable(str(cause)): count for cause, count in losses.by_text(profile.losses).items() if cause.is_loss}
    return PathReport(
        profile.meta.source,
        root.comm,
        root.pid,
        root.tid,
        int(path.begin_ns[0]),
        int(path.end_ns[-1]),
        len(path.hops.wait),
        path_rows(profile, timeline, path),
        hop_rows(path, chains_of(profile, path)),
        rivals(profile, timeline, path),
        bool((profile.samples.waker_tid >= 0).any()),
        summed,
        int(path.queued_ns.sum()),
        lost,
    )


def document(report: PathReport) -> dict[str, Any]:
    """Return the report as dicts, lists, integers and printable texts; times in ns."""
    return {
        "version": VERSION,
        "recording": printable(report.source),
        "thread": {"comm": report.comm, "pid": report.pid, "tid": report.tid},
        "begin_ns": report.begin_ns,
        "end_ns": report.end_ns,
        "total": report.total_ns,
        "wakeups": report.wakeups,
        "rows": [_row(row) for row in report.rows],
        "hops": [_hop(row) for row in report.hops],
        "runnable_samples": report.rivals,
        "summed_at_most": report.summed_ns,
        "preempted": report.preempted_ns,
        "losses": report.losses,
    }


def _row(row: PathRow) -> dict[str, Any]:
    doing = row.doing.name.lower()
    fields_of_row = {"comm": row.comm, "doing": doing, "class": row.wait_class, "function": row.function}
    return fields_of_row | {"time": row.ns, "segments": row.segments}


def _hop(row: HopRow) -> dict[str, Any]:
    own = {doing.name.lower(): ns for doing, ns in row.own_ns.items()}
    return {"depth": row.depth, "comm": row.comm, "wakeups": row.wakeups, "time": row.total_ns, "own": own}


def render(report: PathReport, style: Style, limit: int | None) -> Iterator[str]:
    """Return the lines of the report, without line ends. `limit`: most rows of each table; None for all."""
    name = thread_label(report.comm, report.pid, report.tid)
    seconds = f"{report.begin_ns / 1e9:.6f} to {report.end_ns / 1e9:.6f} s"
    yield say.comment(f"Recording: {report.source or '-'}")
    yield say.comment(f"Critical path of {name}: {say.exact_amount(report.total_ns, 'ns', style)}, {seconds}")
    yield from map(say.comment, _facts(report, style))
    yield from say.section("What the thread waited for, or did itself", style)
    yield from _rows(report, style, limit)
    yield from say.section("Who: a thread below another one ended its waits", style)
    yield from _hops(report, style, limit)
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
        comms = [f"{comm} {100 * one / number:.0f} %" for comm, one in list(report.rivals.items())[:_SHOWN_RIVALS]]
        amount = say.exact_amount(runnable, "ns", style)
        yield f"It waited for a CPU for {amount}; CPU samples on its CPUs then were of {', '.join(comms)}."
    if report.preempted_ns:
        preempted = say.exact_amount(report.preempted_ns, "ns", style)
        yield f"Runnable are also {preempted} of preemption, in proportion to the threads' budgets."
    if report.summed_ns:
        share = 100 * report.summed_ns / report.total_ns
        yield (
            f"At most {say.exact_amount(report.summed_ns, 'ns', style)}, {share:.1f} %, shown as running "
            "were short waits, which were summed: --off-cpu-thresh 0 records each of them."
        )


def _rows(report: PathReport, style: Style, limit: int | None) -> Iterator[str]:
    rows = report.rows[:limit]
    columns = [
        Column("Share", [_share(row.ns, report) for row in rows]),
        Column(f"Time {style.unit}", [say.amount(row.ns, "ns", style) for row in rows]),
        Column("Spans", [str(row.segments) for row in rows], spare=1),
        Column("Command", [thread_label(row.comm) for row in rows], left=True),
        Column("Doing", [_doing(row) for row in rows], left=True),
        Column("Function", [row.function for row in rows], left=True),
    ]
    yield from lay_out(columns, style.width)
    rest = report.rows[len(rows) :]
    if rest:
        left = say.exact_amount(sum(row.ns for row in rest), "ns", style)
        yield say.comment(f"and {say.plural(len(rest), 'more row')}: {left}")


def _hops(report: PathReport, style: Style, limit: int | None) -> Iterator[str]:
    rows = report.hops[:limit]

    def own(doing: Doing) -> Column:
        return Column(DOING.get(doing, "waiting"), [say.amount(row.own_ns[doing], "ns", style) for row in rows])

    shown = [doing for doing in Doing if doing != Doing.NOT_RECORDED or report.spent_ns(doing)]
    columns = [
        Column("Share", [_share(row.total_ns, report) for row in rows]),
        Column(f"Time {style.unit}", [say.amount(row.total_ns, "ns", style) for row in rows]),
        *map(own, shown),
        Column("Wake-ups", [str(row.wakeups) if row.depth else "" for row in rows]),
        Column("Command", ["  " * row.depth + thread_label(row.comm) for row in rows], left=True),
    ]
    yield from lay_out(columns, style.width)
    if len(report.hops) > len(rows):
        yield say.comment(f"and {say.plural(len(report.hops) - len(rows), 'more row')}")


def _share(ns: int, report: PathReport) -> str:
    return f"{100 * ns / report.total_ns:.2f}%"


def _doing(row: PathRow) -> str:
    return DOING.get(row.doing) or f"{row.wait_class} wait"
