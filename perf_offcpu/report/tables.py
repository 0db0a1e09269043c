# SPDX-License-Identifier: Apache-2.0
"""The tables of the report: threads, their budgets, groups, lengths of waits."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from perf_offcpu.analysis.options import UNITS
from perf_offcpu.analysis.wait_classes import BY_LABEL
from perf_offcpu.report.functions import FunctionTable
from perf_offcpu.report.groups import GroupRow
from perf_offcpu.report.histogram import Histogram
from perf_offcpu.report.keys import symbol_label
from perf_offcpu.report.style import (
    DIM,
    Style,
    amount,
    comment,
    count,
    exactly,
    heading,
    heat,
    more,
    plural,
    share,
    what,
)
from perf_offcpu.report.summary import Summary, ThreadRow
from perf_offcpu.report.text_table import Column, lay_out
from perf_offcpu.report.thread_budgets import BudgetRow, BudgetTable
from perf_offcpu.text import printable, thread_label

_BAR = 40
_BESIDE_BAR = 60
"""Columns that a histogram's numbers take beside its bars."""
_TITLES = {"comm": "Command", "pid": "PID", "tid": "TID", "cpu": "CPU", "dso": "Shared object"}


def threads(summary: Summary, style: Style) -> Iterator[str]:
    """Off-cpu time by thread, with what the same threads did beside it."""
    if not summary.threads:
        return
    yield from ("#", heading(f"Threads by {what(summary)}", style), "#")
    weights = [row.total.weight for row in summary.threads]
    yield from _with_shares(_thread_columns(summary, style), weights, summary, style)
    yield from more(summary.more_threads, "threads", summary, style)


def _with_shares(
    columns: Sequence[Column], weights: Sequence[int], summary: Summary, style: Style
) -> Iterator[str]:
    """A table whose first column holds shares, coloured."""
    title, dots, *lines = lay_out(columns, style.width)
    yield from (style.paint(DIM, title), style.paint(DIM, dots))
    for weight, line in zip(weights, lines, strict=True):
        text = share(weight, summary)
        yield line.replace(text, style.paint(heat(weight, summary), text), 1)


def _thread_columns(summary: Summary, style: Style) -> list[Column]:
    rows, unit = summary.threads, f" {style.unit}" if summary.unit == "ns" else ""

    def column(title: str, cell: Callable[[ThreadRow], str], left: bool = False, spare: int = 0) -> Column:
        return Column(title, [cell(row) for row in rows], left, spare)

    def weight(of: Callable[[ThreadRow], int | None]) -> Callable[[ThreadRow], str]:
        return lambda row: amount(of(row), summary.unit, style)

    columns = [
        column("Share", lambda row: share(row.total.weight, summary)),
        column(f"{'Off-cpu' if summary.is_offcpu else 'Weight'}{unit}", weight(lambda row: row.total.weight)),
        column(_counted(summary), lambda row: count(row.total), spare=1),
    ]
    if summary.is_offcpu:
        columns += [
            column(f"Average{unit}", weight(lambda row: row.total.average), spare=4),
            column(f"Longest{unit}", weight(lambda row: row.total.longest), spare=3),
        ]
    columns += _beside_columns(summary, style)
    return [
        *columns,
        column("PID", lambda row: _id(row.pid), spare=2),
        column("TID", lambda row: _id(row.tid)),
        column("Command", lambda row: thread_label(row.comm), left=True),
    ]


def _counted(summary: Summary) -> str:
    return "Waits" if summary.is_offcpu else "Samples"


def _beside_columns(summary: Summary, style: Style) -> list[Column]:
    """What the same threads did beside it: normally their time on a CPU."""
    event = summary.beside
    if event is None:
        return []
    name = printable(event.name)
    counts = Column(f"{name} samples", [str(row.beside.count) for row in summary.threads], spare=6)
    if event.unit != "ns":
        return [counts]
    cells = [amount(row.beside.weight, event.unit, style) for row in summary.threads]
    return [Column(f"{name} {style.unit}", cells, spare=5), counts]


def _id(number: int) -> str:
    return str(number) if number >= 0 else "?"


def budget(summary: Summary, style: Style) -> Iterator[str]:
    """How the threads spent their lives inside the recording."""
    table = summary.budget
    if table is None or not table.rows:
        return
    source = "derived from the recorded waits" if table.derived else "counted at every switch"
    yield from ("#", heading(f"Thread budget: where the wall time went, {source}", style), "#")
    title, dots, *lines = lay_out(_budget_columns(table, style), style.width)
    yield from (style.paint(DIM, title), style.paint(DIM, dots), *lines)
    if table.more:
        yield comment(f"and {plural(table.more, 'more thread')}")
    parts = "runnable + blocked + rest" if table.derived else "running + runnable + blocked + unknown"
    yield comment(f"{parts} = wall" + ("; the rest was running, or is not known" if table.derived else ""))


def _budget_columns(table: BudgetTable, style: Style) -> list[Column]:
    rows = table.rows

    def column(title: str, cell: Callable[[BudgetRow], int | None], spare: int = 0) -> Column:
        return Column(title, [amount(cell(row), "ns", style) for row in rows], spare=spare)

    letters = sorted({letter for row in rows for letter in row.blocked}, key=_state_order)
    columns = [column(f"Wall {style.unit}", lambda row: row.wall)]
    if not table.derived:
        columns.append(column("Running", lambda row: row.running))
    columns.append(column("Runnable", lambda row: row.runnable))
    columns += [_blocked_column(letter, rows, style) for letter in letters]
    return [
        *columns,
        column(
            "Rest" if table.derived else "Unknown", lambda row: row.unknown, spare=0 if table.derived else 2
        ),
        Column("TID", [_id(row.tid) for row in rows]),
        Column("Command", [thread_label(row.comm) for row in rows], left=True),
    ]


def _state_order(letter: str) -> int:
    return "SDITtXZP".index(letter) if letter else len("SDITtXZP")


def _blocked_column(letter: str, rows: Sequence[BudgetRow], style: Style) -> Column:
    cells = [amount(row.blocked.get(letter, 0), "ns", style) for row in rows]
    return Column(f"Blocked {letter or '?'}", cells)


def groups(summary: Summary, style: Style) -> Iterator[str]:
    """Off-cpu time by class, or by the keys asked for."""
    table = summary.groups
    if not table.rows or (table.keys == ("class",) and not summary.is_offcpu):
        return
    by = "what was waited for" if table.keys == ("class",) else ", ".join(table.keys)
    yield from ("#", heading(f"{what(summary).capitalize()} by {by}", style), "#")
    yield from _with_shares(
        _group_columns(summary, style), [r.total.weight for r in table.rows], summary, style
    )
    yield from more(table.more, "rows", summary, style)


def _group_columns(summary: Summary, style: Style) -> list[Column]:
    table, unit = summary.groups, f" {style.unit}" if summary.unit == "ns" else ""

    def weights(title: str, cell: Callable[[GroupRow], int | None], spare: int = 0) -> Column:
        return Column(title, [amount(cell(row), summary.unit, style) for row in table.rows], spare=spare)

    columns = [
        Column("Share", [share(row.total.weight, summary) for row in table.rows]),
        weights(f"{'Off-cpu' if summary.is_offcpu else 'Weight'}{unit}", lambda row: row.total.weight),
        Column(
            "Waits" if summary.is_offcpu else "Samples", [count(row.total) for row in table.rows], spare=1
        ),
    ]
    if summary.is_offcpu:
        columns += [
            weights(f"Average{unit}", lambda row: row.total.average, 4),
            weights(f"Longest{unit}", lambda row: row.total.longest, 3),
        ]
    if table.runq_known:
        columns.append(weights(f"Run queue{unit}", lambda row: row.runq, 5))
    for at, key in enumerate(table.keys):
        numbers = key in ("pid", "tid", "cpu")
        columns.append(
            Column(_TITLES.get(key, key.capitalize()), [row.values[at] for row in table.rows], not numbers)
        )
    if table.keys == ("class",):
        meanings = [BY_LABEL[row.values[0]].row.meaning for row in table.rows]
        columns.append(Column("Waits for", meanings, left=True, spare=6))
    return columns


def functions(summary: Summary, style: Style) -> Iterator[str]:
    """Functions with all that they call, if asked for."""
    table = summary.functions
    if table is None or not table.rows:
        return
    title = f"Functions by {what(summary)}, with all that they call (rows overlap)"
    yield from ("#", heading(title, style), "#")
    weights = [row.inclusive for row in table.rows]
    yield from _with_shares(_function_columns(table, summary, style), weights, summary, style)
    if table.more:
        yield comment(f"and {plural(table.more, 'more function')}")


def _function_columns(table: FunctionTable, summary: Summary, style: Style) -> list[Column]:
    rows, unit = table.rows, f" {style.unit}" if summary.unit == "ns" else ""
    return [
        Column("Children", [share(row.inclusive, summary) for row in rows]),
        Column("Self", [share(row.own, summary) for row in rows]),
        Column(f"Children{unit}", [amount(row.inclusive, summary.unit, style) for row in rows], spare=1),
        Column(f"Self{unit}", [amount(row.own, summary.unit, style) for row in rows], spare=2),
        Column(_TITLES["dso"], [row.name.dso for row in rows], left=True, spare=3),
        Column("Symbol", [symbol_label(row.name) for row in rows], left=True),
    ]


def histogram(summary: Summary, style: Style) -> Iterator[str]:
    """How many waits of which length."""
    table = summary.histogram
    if table is None or not (table.buckets or table.sums):
        return
    whole = exactly(sum(one.weight for one in table.buckets), "ns", style)
    yield from ("#", heading(f"Lengths of single waits; shares are of their {whole}", style), "#")
    if table.buckets:
        title, dots, *lines = lay_out(_histogram_columns(table, style), style.width)
        yield from (style.paint(DIM, title), style.paint(DIM, dots), *lines)
    if table.sums:
        longest = f", none longer than {amount(table.summed.longest, 'ns', style)} {style.unit}"
        known = longest if table.summed.longest is not None else ""
        waits = plural(table.summed.count, "wait", count(table.summed))
        weight = exactly(table.summed.weight, "ns", style)
        yield comment(f"Besides {plural(table.sums, 'sum')} of {waits}: {weight}{known}")


def _histogram_columns(table: Histogram, style: Style) -> list[Column]:
    whole = sum(one.weight for one in table.buckets)
    most = max(one.count for one in table.buckets)
    room = _BAR if style.width is None else max(4, min(_BAR, style.width - _BESIDE_BAR))
    bars = ["#" * -(-one.count * room // most) for one in table.buckets]
    return [
        Column("From", [_length(one.low) for one in table.buckets]),
        Column("Below", ["" if one.high is None else _length(one.high) for one in table.buckets]),
        Column("Waits", [str(one.count) for one in table.buckets]),
        Column(f"Off-cpu {style.unit}", [amount(one.weight, "ns", style) for one in table.buckets]),
        Column("Share", [f"{100 * one.weight / (whole or 1):.2f}%" for one in table.buckets], spare=1),
        Column("Waits", bars, left=True, spare=2),
    ]


def _length(ns: int) -> str:
    """A round length of time: `5 ms`."""
    unit = max((unit for unit, factor in UNITS.items() if ns >= factor), key=UNITS.__getitem__, default="us")
    return f"{ns // UNITS[unit]} {unit}"
