# SPDX-License-Identifier: Apache-2.0
"""Print the tables of the report: threads, their budgets, groups, functions, lengths of waits."""

from collections.abc import Callable, Iterable, Iterator, Sequence

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
_BESIDE_BAR = 60  # terminal columns that a histogram's numbers take next to its bars
TITLES = {"comm": "Command", "pid": "PID", "tid": "TID", "cpu": "CPU", "dso": "Shared object"}
_STATE_ORDER = [*"QSDITtXZP", ""]


def threads(summary: Summary, style: Style) -> Iterator[str]:
    """Yield the table of off-cpu time by thread, with the samples of another event of the same threads."""
    rows = summary.threads
    if not rows:
        return
    columns = [
        *total_columns([row.total for row in rows], summary, style),
        *_beside_columns(summary, style),
        Column("PID", [id_text(row.pid) for row in rows], spare=2),
        Column("TID", [id_text(row.tid) for row in rows]),
        say.names("Command", (thread_label(row.comm) for row in rows)),
    ]
    if all(row.idle_because for row in rows):
        columns.append(say.names("Idle because it waits for", (row.idle_because for row in rows)))
    yield from say.section(f"Threads by {summary.subject_name}", style)
    yield from coloured_table(columns, style, share_colours((row.total.weight for row in rows), summary))
    yield from say.more_rows(summary.more_threads, "thread", summary.unit, style)


def coloured_table(columns: Sequence[Column], style: Style, colours: Sequence[str] = ()) -> Iterator[str]:
    """Yield the lines of a table. `colours`: escape codes for the first cell of each row; default: none."""
    title, dots, *lines = lay_out(columns, style.width)
    yield from (style.paint(say.DIM, title), style.paint(say.DIM, dots))
    for text, colour, line in zip(columns[0].cells, colours or [""] * len(lines), lines, strict=True):
        yield line.replace(text, style.paint(colour, text), 1)


def share_colours(weights: Iterable[int], summary: Summary) -> list[str]:
    """Return the escape code of each weight, by its share of the report's total."""
    return [say.share_colour(weight, summary.total.weight) for weight in weights]


def total_columns(totals: Sequence[Total], summary: Summary, style: Style) -> list[Column]:
    """Return the columns of totals: share, weight, number, and for waits the average and the longest."""
    weights, title = [total.weight for total in totals], "Off-cpu" if summary.is_offcpu else "Weight"
    share, weight = say.shares(weights, summary.total.weight), say.weights(title, weights, summary.unit, style)
    count = Column("Waits" if summary.is_offcpu else "Samples", list(map(say.count_text, totals)), spare=1)
    if not summary.is_offcpu:
        return [share, weight, count]
    average = say.weights("Average", (total.average for total in totals), summary.unit, style, spare=4)
    longest = say.weights("Longest", (total.longest for total in totals), summary.unit, style, spare=3)
    return [share, weight, count, average, longest]


def key_columns(keys: Sequence[str], rows: Sequence[tuple[str, ...]]) -> Iterator[Column]:
    """Yield the columns of sort keys. `rows`: printable values in the order of the keys."""
    for index, key in enumerate(keys):
        title = TITLES.get(key, printable(key).capitalize())
        yield Column(title, [values[index] for values in rows], left=key not in ("pid", "tid", "cpu"))


def _beside_columns(summary: Summary, style: Style) -> list[Column]:
    """Return the columns of the event `Summary.beside`, normally CPU samples: time, number of samples."""
    event = summary.beside
    if event is None:
        return []
    name, rows = printable(event.name), summary.threads
    counts = Column(f"{name} samples", [str(row.beside.count) for row in rows], spare=6)
    return [*([say.times(name, (row.beside.weight for row in rows), style, 5)] if event.unit == "ns" else []), counts]


def budget(summary: Summary, style: Style) -> Iterator[str]:
    """Yield the table of the time budgets of threads."""
    table = summary.budget
    if table is None or not table.rows:
        return
    source = "derived from the recorded waits" if table.derived else "counted at every switch"
    yield from say.section(f"Thread budget: where the wall time went, {source}", style)
    yield from coloured_table(_budget_columns(table, style), style)
    parts = "runnable + blocked + rest" if table.derived else "running + runnable + blocked + unknown"
    yield say.comment(f"{parts} = wall" + ("; the rest was running, or is not known" if table.derived else ""))


def _budget_columns(table: BudgetTable, style: Style) -> list[Column]:
    rows, derived = [*table.rows, *table.rest, *_shown_total(table)], table.derived

    def column(title: str, cell: Callable[[BudgetRow], int | None], spare: int = 0) -> Column:
        return Column(title, [say.amount(cell(row), "ns", style) for row in rows], spare=spare)

    def blocked(letter: str) -> Column:
        title = "Throttled" if letter == "Q" else f"Blocked {letter or '?'}"
        return column(title, lambda row: row.blocked.get(letter, 0))

    letters = sorted({letter for row in rows for letter in row.blocked}, key=_STATE_ORDER.index)
    return [
        column(f"Wall {style.unit}", lambda row: row.wall),
        *([] if derived else [column("Running", lambda row: row.running)]),
        column("Runnable", lambda row: row.runnable),
        *map(blocked, letters),
        column("Rest" if derived else "Unknown", lambda row: row.unknown, spare=0 if derived else 2),
        *_budget_names(table),
    ]


def _budget_names(table: BudgetTable) -> Iterator[Column]:
    """Yield the columns that name the rows of a budget: TID, or the number of threads; PID, if by process; command, or
    cgroup. The last rows, sums of other threads and the total, have only a text in the last column."""
    rows = table.rows
    sums = [f"and {say.plural(row.threads, 'thread')} of {_of_comm(row)}" for row in table.rest]
    sums += [f"total of {say.plural(row.threads, 'thread')}" for row in _shown_total(table)]
    blank = [""] * len(sums)
    of_thread = table.by == "thread"
    ids = (id_text(row.tid) if of_thread else str(row.threads) for row in rows)
    yield Column("TID" if of_thread else "Threads", [*ids, *blank])
    if table.by == "pid":
        yield Column("PID", [*(id_text(row.pid) for row in rows), *blank])
    if table.by == "cgroup":
        yield say.names("Cgroup", [*(row.cgroup for row in rows), *sums])
    else:
        yield say.names("Command", [*map(_of_comm, rows), *sums])


def _shown_total(table: BudgetTable) -> list[BudgetRow]:
    return [table.total] if table.total and len(table.rows) > 1 else []


def _of_comm(row: BudgetRow) -> str:
    return thread_label(row.comm) if row.comm or row.threads == 1 else "several names"


def groups(summary: Summary, style: Style) -> Iterator[str]:
    """Yield the table of weights by class, or by the sort keys."""
    table = summary.groups
    if not table.rows or (table.keys == ("class",) and not summary.is_offcpu):
        return
    by = "what was waited for" if table.keys == ("class",) else ", ".join(table.keys)
    by += ", longest blocked first" if table.by_blocked else ""
    yield from say.section(f"{summary.subject_name.capitalize()} by {by}", style)
    colours = share_colours((row.total.weight for row in table.rows), summary)
    yield from coloured_table(_group_columns(summary, style), style, colours)
    yield from say.more_rows(table.more, "row", summary.unit, style)


def _group_columns(summary: Summary, style: Style) -> list[Column]:
    table = summary.groups
    columns = total_columns([row.total for row in table.rows], summary, style)
    if table.runq_known:
        columns.append(say.weights("Run queue", (row.runq for row in table.rows), summary.unit, style, spare=5))
    if table.by_blocked:
        columns.append(say.weights("Blocked", (row.blocked for row in table.rows), summary.unit, style))
    columns += key_columns(table.keys, [row.values for row in table.rows])
    if table.keys == ("class",):
        meanings = (BY_LABEL[row.values[0]].row.meaning for row in table.rows)
        columns.append(say.names("Waits for", meanings, spare=6))
    return columns


def functions(summary: Summary, style: Style) -> Iterator[str]:
    """Yield the table of functions with all that they call, if asked for."""
    table = summary.functions
    if table is None or not table.rows:
        return
    yield from say.section(f"Functions by {summary.subject_name}, with all that they call (rows overlap)", style)
    colours = share_colours((row.inclusive for row in table.rows), summary)
    yield from coloured_table(_function_columns(table, summary, style), style, colours)
    yield from say.and_more(table.more, "more function")


def _function_columns(table: FunctionTable, summary: Summary, style: Style) -> list[Column]:
    rows, total = table.rows, summary.total.weight
    inclusive, own = [row.inclusive for row in rows], [row.own for row in rows]
    return [
        Column("Children", [say.share(weight, total) for weight in inclusive]),
        Column("Self", [say.share(weight, total) for weight in own]),
        say.weights("Children", inclusive, summary.unit, style, spare=1),
        say.weights("Self", own, summary.unit, style, spare=2),
        say.names(TITLES["dso"], (row.name.dso for row in rows), spare=3),
        say.names("Symbol", (symbol_label(row.name) for row in rows)),
    ]


def histogram(summary: Summary, style: Style) -> Iterator[str]:
    """Yield the table of the number of waits by length."""
    table = summary.histogram
    if table is None or not (table.buckets or table.sums):
        return
    total = say.exact_amount(sum(bucket.weight for bucket in table.buckets), "ns", style)
    yield from say.section(f"Lengths of single waits; shares are of their {total}", style)
    if table.buckets:
        yield from coloured_table(_histogram_columns(table, style), style)
    if table.sums:
        summed = table.summed
        waits = say.plural(summed.count, "wait", say.count_text(summed))
        longest = "" if summed.longest is None else f", none longer than {say.time(summed.longest, style)}"
        weight = say.exact_amount(summed.weight, "ns", style)
        yield say.comment(f"Besides {say.plural(table.sums, 'sum')} of {waits}: {weight}{longest}")


def _histogram_columns(table: Histogram, style: Style) -> list[Column]:
    buckets, total = table.buckets, sum(bucket.weight for bucket in table.buckets)
    most = max(bucket.count for bucket in buckets)
    room = _BAR if style.width is None else max(4, min(_BAR, style.width - _BESIDE_BAR))
    return [
        Column("From", [_length(bucket.low) for bucket in buckets]),
        Column("Below", ["" if bucket.high is None else _length(bucket.high) for bucket in buckets]),
        Column("Waits", [str(bucket.count) for bucket in buckets]),
        say.times("Off-cpu", (bucket.weight for bucket in buckets), style),
        Column("Share", [say.share(bucket.weight, total) for bucket in buckets], spare=1),
        say.names("Waits", ("#" * -(-bucket.count * room // most) for bucket in buckets), spare=2),
    ]


def _length(ns: int) -> str:
    """Format a round length of time, given in ns: `5 ms`."""
    unit = max((unit for unit, factor in UNITS.items() if ns >= factor), key=UNITS.__getitem__, default="us")
    return f"{ns // UNITS[unit]} {unit}"
