# SPDX-License-Identifier: Apache-2.0
"""Print the objects that were waited for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from perf_offcpu.analysis.wakeups import INTERRUPT
from perf_offcpu.report import style as say
from perf_offcpu.report.objects.rows import HELD, RELEASED
from perf_offcpu.report.objects.sleeps import Oversleep
from perf_offcpu.report.style import Style
from perf_offcpu.report.summary import Summary
from perf_offcpu.report.tables import coloured_table, total_columns
from perf_offcpu.report.text_table import Column

_ROLES = {HELD: "held by", RELEASED: "released by"}
_SHOWN = 2
_SAID_FROM_NS = 1_000_000


def objects(summary: Summary, style: Style) -> Iterator[str]:
    """Print the objects that were waited for, with the threads that held them or ended the waits."""
    table = summary.objects
    if not table.rows:
        return
    yield from say.section("What was waited for: locks, files, connections, processes", style)
    rows = table.rows
    columns = [
        *total_columns([row.total for row in rows], summary, style),
        Column("Threads", [str(row.threads) for row in rows], spare=5),
        Column("Class", [row.wait_class for row in rows], left=True, spare=2),
        Column("Object", [row.name for row in rows], left=True),
        Column("By", [by_text(row.role, row.by) for row in rows], left=True, spare=6),
    ]
    yield from coloured_table(columns, style, [row.total.weight for row in rows], summary)
    yield from say.more_rows(table.more, "objects", summary.unit, style)
    if table.without:
        without = say.exact_amount(table.without, summary.unit, style)
        yield say.comment(f"without an object: {without}")
    yield from _oversleep(summary.oversleep, style)


def by_text(role: str, by: Mapping[str, int]) -> str:
    """Return `held by worker 80%, main 20%`; "" if nobody is known, or interrupts alone."""
    whole = sum(by.values())
    if not whole or set(by) == {INTERRUPT}:
        return ""
    parts = [f"{name} {100 * weight / whole:.0f}%" for name, weight in list(by.items())[:_SHOWN]]
    more = f", {len(by) - _SHOWN} more" if len(by) > _SHOWN else ""
    return f"{_ROLES.get(role, 'ended by')} {', '.join(parts)}{more}"


def _oversleep(oversleep: Oversleep | None, style: Style) -> Iterator[str]:
    """Print a line if sleeps took at least a millisecond longer than asked."""
    if oversleep is None or oversleep.longest < _SAID_FROM_NS:
        return
    median, longest = (
        f"{say.amount(ns, 'ns', style)} {style.unit}" for ns in (oversleep.median, oversleep.longest)
    )
    sleeps = say.plural(oversleep.sleeps, "sleep")
    yield say.comment(f"{sleeps} took longer than asked: {median} in the median, {longest} at most")
