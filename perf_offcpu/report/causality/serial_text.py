# SPDX-License-Identifier: Apache-2.0
"""Print how much of the time of a program was serial, and in which functions."""

from __future__ import annotations

from collections.abc import Iterator

from perf_offcpu.report import style as say
from perf_offcpu.report.causality.serial import SerialReport, SerialStack
from perf_offcpu.report.style import Column, Style, lay_out
from perf_offcpu.report.terminal import frame_lines

_LEVELS = 8


def render(report: SerialReport, style: Style, limit: int | None) -> Iterator[str]:
    """Return the lines of the report, without line ends. `limit`: most rows of each table; None for all."""
    seconds = f"{report.begin_ns / 1e9:.6f} to {report.end_ns / 1e9:.6f} s"
    total = say.exact_amount(report.total_ns, "ns", style)
    yield say.comment(f"Recording: {report.source or '-'}")
    yield say.comment(f"Serialization of {say.plural(report.threads, 'thread')}: {total}, {seconds}")
    yield from map(say.comment, _facts(report, style))
    what = "ran, or waited for a CPU," if report.preempted_ns else "ran"
    yield from say.section(f"Threads that {what} at the same time", style)
    yield from _levels(report, style)
    yield from say.section(f"What ran while few did: time divided by the threads that {what} then", style)
    yield from _rows(report, style, limit)
    yield from say.section("Waits that ended while one thread ran", style)
    yield from _waits(report, style, limit)
    if style.stacks and report.stacks:
        order = "leaf first" if style.leaf_first else "root first"
        yield from say.section(f"Stacks that ran while few did, {order}", style)
        for stack in report.stacks:
            yield from _stack(stack, report, style)


def _facts(report: SerialReport, style: Style) -> Iterator[str]:
    if report.paused_ns:
        paused = say.exact_amount(report.paused_ns, "ns", style)
        yield f"{paused} in between was not recorded, and is left out"
    if report.summed_ns:
        summed = say.exact_amount(report.summed_ns, "ns", style)
        yield f"{summed} of short waits, which were summed (--off-cpu-thresh 0), counts as running"
    if report.preempted_ns:
        preempted = say.exact_amount(report.preempted_ns, "ns", style)
        yield f"{preempted} of preemption is divided in proportion: budgets do not tell when it was"


def _percent(ns: int, report: SerialReport) -> str:
    return f"{100 * ns / (report.total_ns or 1):.2f}%"


def _levels(report: SerialReport, style: Style) -> Iterator[str]:
    shown = [(str(number), ns) for number, ns in enumerate(report.levels[:_LEVELS])]
    if len(report.levels) > _LEVELS:
        shown.append((f"{_LEVELS} or more", sum(report.levels[_LEVELS:])))
    columns = [
        Column("Share", [_percent(ns, report) for _, ns in shown]),
        Column(f"Time {style.unit}", [say.amount(ns, "ns", style) for _, ns in shown]),
        Column("Ready" if report.preempted_ns else "Running", [number for number, _ in shown]),
    ]
    yield from lay_out(columns, style.width)


def _rows(report: SerialReport, style: Style, limit: int | None) -> Iterator[str]:
    rows = report.rows[:limit]
    columns = [
        Column("Share", [_percent(row.weight, report) for row in rows]),
        Column(f"Weight {style.unit}", [say.amount(row.weight, "ns", style) for row in rows]),
        Column(f"Alone {style.unit}", [say.amount(row.alone, "ns", style) for row in rows]),
        Column("Samples", [str(row.samples) for row in rows], spare=1),
        Column("Command", [row.comm for row in rows], left=True),
        Column("Function", [row.function or "[no CPU sample]" for row in rows], left=True),
    ]
    yield from lay_out(columns, style.width)
    if len(report.rows) > len(rows):
        rest = say.exact_amount(sum(row.weight for row in report.rows[len(rows) :]), "ns", style)
        yield say.comment(f"and {say.plural(len(report.rows) - len(rows), 'more row')}: {rest}")


def _waits(report: SerialReport, style: Style, limit: int | None) -> Iterator[str]:
    rows = report.waits[:limit]
    columns = [
        Column(f"One ran {style.unit}", [say.amount(row.one, "ns", style) for row in rows]),
        Column(f"None ran {style.unit}", [say.amount(row.none, "ns", style) for row in rows]),
        Column(f"Waited {style.unit}", [say.amount(row.waited, "ns", style) for row in rows]),
        Column("Waits", [str(row.waits) for row in rows]),
        Column("Command", [row.comm for row in rows], left=True),
        Column("Class", [row.wait_class for row in rows], left=True),
        Column("Woken by", [row.waker or "-" for row in rows], left=True),
        Column("Function", [row.function for row in rows], left=True),
    ]
    yield from lay_out(columns, style.width)
    if len(report.waits) > len(rows):
        yield say.comment(f"and {say.plural(len(report.waits) - len(rows), 'more row')}")


def _stack(stack: SerialStack, report: SerialReport, style: Style) -> Iterator[str]:
    amount = f"{say.amount(stack.weight, 'ns', style)} {style.unit}"
    yield f"{_percent(stack.weight, report):>9}  {stack.comm}  {amount}"
    yield from frame_lines(stack.frames, style)
