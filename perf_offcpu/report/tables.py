# SPDX-License-Identifier: Apache-2.0
"""Print the tables of the report: threads, their budgets, groups, functions, lengths of waits."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from perf_offcpu.analysis.classes.wait_classes import BY_LABEL
from perf_offcpu.callpaths.keys import symbol_label
from perf_offcpu.report import style as say
from perf_offcpu.report.breakdowns import FunctionTable, Histogram
from perf_offcpu.report.style import Column, Style, lay_out
from perf_offcpu.report.summary import Summary
from perf_offcpu.report.thread_budgets import BudgetRow, BudgetTable
from perf_offcpu.report.totals import Total
from perf_offcpu.text import id_text, printable, thread_label
from perf_offcpu.units import UNITS

_BAR = 40
_BESIDE_BAR = 60
"""Terminal columns that a histogram's numbers take next to its bars."""
TITLES = {"comm": "Command", "pid": "PID", "tid": "TID", "cpu": "CPU", "dso": "Shared object"}
_STATE_ORDER = "QSDITtXZP"


def threads(summary: Summary, style: Style) -> Iterator[str]:
    """Print off-cpu time by thread, with the samples of another event of the same threads."""
    rows = summary.threads
    if not rows:
        return
    columns = [
        *total_columns([row.total for row in rows], summary, style),
        *_beside_columns(summary, style),
        Column("PID", [id_text(row.pid) for row in rows], spare=2),
        Column("TID", [id_text(row.tid) for row in rows]),
        Column("Command", [thread_label(row.comm) for row in rows], left=True),
    ]
    if all(row.idle_because for row in rows):
        columns.append(Column("Idle because it waits for", [row.idle_because for row in rows], left=True))
    yield from say.section(f"Threads by {summary.subject_name}", style)
    yield from coloured_table(columns, style, [row.total.weight for row in rows], summary)
    yield from say.more_rows(summary.more_threads, "threads", summary.unit, style)


def coloured_table(
    columns: Sequence[Column], style: Style, weights: Sequence[int] = (), summary: Summary | None = None
) -> Iterator[str]:
    """Print a table; with weights its first column holds their shares, which are coloured."""
    title, dots, *lines = lay_out(columns, style.width)
    yield from (style.paint(say.DIM, title), style.paint(say.DIM, dots))
    if summary is None:
        yield from lines
        return
    for weight, line in zip(weights, lines, strict=True):
        text, colour = (of(weight, summary.total.weight) for of in (say.share, say.share_colour))
        yield line.replace(text, style.paint(colour, text), 1)


def total_columns(totals: Sequence[Total], summary: Summary, style: Style) -> list[Column]:
    """Return the columns of totals: share, weight, number, and for waits the average and the longest."""
    shares, counts = (
        [say.share(total.weight, summary.total.weight) for total in totals],
        list(map(say.count_text, totals)),
    )
    weights = [total.weight for total in totals]
    if not summary.is_offcpu:
        weight = _weights("Weight", weights, summary, style)
        return [Column("Share", shares), weight, Column("Samples", counts, spare=1)]
    return [
        Column("Share", shares),
        _weights("Off-cpu", weights, summary, style),
        Column("Waits", counts, spare=1),
        _weights("Average", [total.average for total in totals], summary, style, spare=4),
        _weights("Longest", [total.longest for total in totals], summary, style, spare=3),
    ]


def _weights(title: str, values: Sequence[int | None], summary: Summary, style: Style, spare: int = 0) -> Column:
    """Return a column of weights in the subject's unit."""
    unit = f" {style.unit}" if summary.unit == "ns" else ""
    return Column(f"{title}{unit}", [say.amount(value, summary.unit, style) for value in values], spare=spare)


def _beside_columns(summary: Summary, style: Style) -> list[Column]:
    """Return the columns of the other event: normally the threads' time on a CPU."""
    event = summary.beside
    if event is None:
        return []
    name = printable(event.name)
    counts = Column(f"{name} samples", [str(row.beside.count) for row in summary.threads], spare=6)
    if event.unit != "ns":
        return [counts]
    cells = [say.amount(row.beside.weight, event.unit, style) for row in summary.threads]
    return [Column(f"{name} {style.unit}", cells, spare=5), counts]


def budget(summary: Summary, style: Style) -> Iterator[str]:
    """Print the time budgets of threads."""
    table = summary.budget
    if table is None or not table.rows:
        return
    source = "derived from the recorded waits" if table.derived else "counted at every switch"
    yield from say.section(f"Thread budget: where the wall time went, {source}", style)
    yield from coloured_table(_budget_columns(table, style), style)
    parts = "runnable + blocked + rest" if table.derived else "running + runnable + blocked + unknown"
    yield say.comment(f"{parts} = wall" + ("; the rest was running, or is not known" if table.derived else ""))


def _budget_columns(table: BudgetTable, style: Style) -> list[Column]:
    total = _shown_total(table)
    rows, derived = [*table.rows, *table.rest, *total], table.derived

    def column(title: str, cell: Callable[[BudgetRow], int | None], spare: int = 0) -> Column:
        return Column(title, [say.amount(cell(row), "ns", style) for row in rows], spare=spare)

    def blocked(letter: str) -> Column:
        return column(
            "Throttled" if letter == "Q" else f"Blocked {letter or '?'}",
            lambda row: row.blocked.get(letter, 0),
        )

    letters = sorted({letter for row in rows for letter in row.blocked}, key=_state_rank)
    return [
        column(f"Wall {style.unit}", lambda row: row.wall),
        *([] if derived else [column("Running", lambda row: row.running)]),
        column("Runnable", lambda row: row.runnable),
        *map(blocked, letters),
        column("Rest" if derived else "Unknown", lambda row: row.unknown, spare=0 if derived else 2),
        *_budget_names(table),
    ]


def _budget_names(table: BudgetTable) -> Iterator[Column]:
    """Return the columns that say whose budget a row is; the rows of sums come last."""
    sums = [f"and {say.plural(row.threads, 'thread')} of {_of_comm(row)}" for row in table.rest]
    sums += [f"total of {say.plural(row.threads, 'thread')}" for row in _shown_total(table)]
    blank = [""] * len(sums)
    if table.by == "thread":
        yield Column("TID", [*(id_text(row.tid) for row in table.rows), *blank])
    else:
        yield Column("Threads", [*(str(row.threads) for row in table.rows), *blank])
    if table.by == "pid":
        yield Column("PID", [*(id_text(row.pid) for row in table.rows), *blank])
    if table.by == "cgroup":
        yield Column("Cgroup", [*(row.cgroup for row in table.rows), *sums], left=True)
    else:
        yield Column("Command", [*map(_of_comm, table.rows), *sums], left=True)


def _shown_total(table: BudgetTable) -> list[BudgetRow]:
    return [table.total] if table.total and len(table.rows) > 1 else []


def _of_comm(row: BudgetRow) -> str:
    return thread_label(row.comm) if row.comm or row.threads == 1 else "several names"


def _state_rank(letter: str) -> int:
    return _STATE_ORDER.index(letter) if letter else len(_STATE_ORDER)


def groups(summary: Summary, style: Style) -> Iterator[str]:
    """Print off-cpu time by class, or by the sort keys."""
    table = summary.groups
    if not table.rows or (table.keys == ("class",) and not summary.is_offcpu):
        return
    by = "what was waited for" if table.keys == ("class",) else ", ".join(table.keys)
    by += ", longest blocked first" if table.by_blocked else ""
    yield from say.section(f"{summary.subject_name.capitalize()} by {by}", style)
    weights = [row.total.weight for row in table.rows]
    yield from coloured_table(_group_columns(summary, style), style, weights, summary)
    yield from say.more_rows(table.more, "rows", summary.unit, style)


def _group_columns(summary: Summary, style: Style) -> list[Column]:
    table = summary.groups
    columns = total_columns([row.total for row in table.rows], summary, style)
    if table.runq_known:
        columns.append(_weights("Run queue", [row.runq for row in table.rows], summary, style, spare=5))
    if table.by_blocked:
        columns.append(_weights("Blocked", [row.blocked for row in table.rows], summary, style))
    for index, key in enumerate(table.keys):
        title, values = TITLES.get(key, key.capitalize()), [row.values[index] for row in table.rows]
        columns.append(Column(title, values, left=key not in ("pid", "tid", "cpu")))
    if table.keys == ("class",):
        meanings = [BY_LABEL[row.values[0]].row.meaning for row in table.rows]
        columns.append(Column("Waits for", meanings, left=True, spare=6))
    return columns


def functions(summary: Summary, style: Style) -> Iterator[str]:
    """Print functions with all that they call, if asked for."""
    table = summary.functions
    if table is None or not table.rows:
        return
    yield from say.section(f"Functions by {summary.subject_name}, with all that they call (rows overlap)", style)
    weights = [row.inclusive for row in table.rows]
    yield from coloured_table(_function_columns(table, summary, style), style, weights, summary)
    if table.more:
        yield say.comment(f"and {say.plural(table.more, 'more function')}")


def _function_columns(table: FunctionTable, summary: Summary, style: Style) -> list[Column]:
    rows = table.rows
    inclusive, own = [row.inclusive for row in rows], [row.own for row in rows]
    return [
        Column("Children", [say.share(weight, summary.total.weight) for weight in inclusive]),
        Column("Self", [say.share(weight, summary.total.weight) for weight in own]),
        _weights("Children", inclusive, summary, style, spare=1),
        _weights("Self", own, summary, style, spare=2),
        Column(TITLES["dso"], [row.name.dso for row in rows], left=True, spare=3),
        Column("Symbol", [symbol_label(row.name) for row in rows], left=True),
    ]


def histogram(summary: Summary, style: Style) -> Iterator[str]:
    """Print the number of waits by length."""
    table = summary.histogram
    if table is None or not (table.buckets or table.sums):
        return
    whole = say.exact_amount(sum(bucket.weight for bucket in table.buckets), "ns", style)
    yield from say.section(f"Lengths of single waits; shares are of their {whole}", style)
    if table.buckets:
        yield from coloured_table(_histogram_columns(table, style), style)
    if table.sums:
        longest = f", none longer than {say.amount(table.summed.longest, 'ns', style)} {style.unit}"
        longest_text = longest if table.summed.longest is not None else ""
        waits = say.plural(table.summed.count, "wait", say.count_text(table.summed))
        weight = say.exact_amount(table.summed.weight, "ns", style)
        yield say.comment(f"Besides {say.plural(table.sums, 'sum')} of {waits}: {weight}{longest_text}")


def _histogram_columns(table: Histogram, style: Style) -> list[Column]:
    whole = sum(bucket.weight for bucket in table.buckets)
    most = max(bucket.count for bucket in table.buckets)
    room = _BAR if style.width is None else max(4, min(_BAR, style.width - _BESIDE_BAR))
    bars = ["#" * -(-bucket.count * room // most) for bucket in table.buckets]
    return [
        Column("From", [_length(bucket.low) for bucket in table.buckets]),
        Column("Below", ["" if bucket.high is None else _length(bucket.high) for bucket in table.buckets]),
        Column("Waits", [str(bucket.count) for bucket in table.buckets]),
        Column(f"Off-cpu {style.unit}", [say.amount(bucket.weight, "ns", style) for bucket in table.buckets]),
        Column("Share", [f"{100 * bucket.weight / (whole or 1):.2f}%" for bucket in table.buckets], spare=1),
        Column("Waits", bars, left=True, spare=2),
    ]


def _length(ns: int) -> str:
    """Format a round length of time: `5 ms`."""
    unit = max((unit for unit, factor in UNITS.items() if ns >= factor), key=UNITS.__getitem__, default="us")
    return f"{ns // UNITS[unit]} {unit}"
