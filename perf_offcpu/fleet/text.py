# SPDX-License-Identifier: Apache-2.0
"""Print tables and stacks of a dataset in the form of the report."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from perf_offcpu.abi.offcpu import EVENT_NAME
from perf_offcpu.analysis.classes.wait_classes import BY_LABEL
from perf_offcpu.fleet.report import Head, Row, StackRow, StackTable, Table
from perf_offcpu.fleet.selection import utc
from perf_offcpu.report import style as say
from perf_offcpu.report.style import Column, Style
from perf_offcpu.report.tables import TITLES, coloured_table
from perf_offcpu.report.terminal import frame_lines
from perf_offcpu.text import printable

_NUMBERS = ("pid", "tid", "cpu")
_MOST_GAPS = 10
_HOUR = 3600 * 10**9


def head(facts: Head, style: Style) -> Iterator[str]:
    """Return the lines above a view: its dataset, selection, hosts and losses."""
    yield say.comment(f"Dataset:  {facts.source}")
    yield say.comment(f"Selected: {facts.selection}")
    times = f"{utc(facts.first_ns)} to {utc(facts.last_ns)} UTC, {hours(facts.recorded_ns)} in all"
    facts_known = (
        f"{say.plural(facts.hosts, 'host')}, {times}" if facts.hosts else "not known: the table hosts is empty"
    )
    yield say.comment(f"Recorded: {facts_known}")
    if facts.periods and EVENT_NAME in facts.events:
        ends = dict.fromkeys((facts.periods[0], facts.periods[-1]))
        periods = " to ".join(f"{ns / 1e6:g} ms" for ns in ends)
        text = f"One sample for each {periods} of waiting of a thread: waits and lengths are estimated."
        yield say.comment(text)


def _gaps(facts: Head) -> Iterator[str]:
    """Return the lines on time that hosts did not record."""
    if not facts.gaps:
        return
    whole = sum(gap.ns for gap in facts.gaps)
    share = _share(whole, whole + facts.recorded_ns)
    yield say.comment(f"Not recorded: {hours(whole)}, {share} of the time of these hosts")
    for gap in facts.gaps[:_MOST_GAPS]:
        yield say.comment(f"{hours(gap.ns):>10}  {gap.cause}, {gap.host}")
    if more := facts.gaps[_MOST_GAPS:]:
        yield say.comment(f"{hours(sum(gap.ns for gap in more)):>10}  in {len(more)} more rows (--json)")


def hours(ns: int) -> str:
    """Return a long time: `12.0 s`, `3.5 h`."""
    return f"{ns / 1e9:.1f} s" if ns < _HOUR else f"{ns / _HOUR:.1f} h"


def report(facts: Head, tables: Sequence[Table], idle: int, style: Style) -> Iterator[str]:
    """Return the lines of a report."""
    yield from head(facts, style)
    yield say.comment(f"Total:    {say.exact_amount(tables[0].weight, facts.unit, style)}")
    if idle and idle < tables[0].weight:
        share = _share(idle, tables[0].weight)
        text = f"{share} are of threads that merely wait for work (--idle hide leaves them out)"
        yield say.comment(f"Idle:     {text}")
    for table in tables:
        yield from _table(table, facts, style)
    yield from _losses(facts)


def stacks(facts: Head, table: StackTable, style: Style) -> Iterator[str]:
    """Return the lines of the heaviest stacks."""
    yield from head(facts, style)
    yield say.comment(f"Total:    {say.exact_amount(table.weight, facts.unit, style)}")
    order = "leaf first" if style.leaf_first else "root first"
    yield from say.section(f"Stacks by {_subject(facts)}, {order}", style)
    for row in table.rows:
        yield _stack_line(row, table.weight, facts, style)
        yield from frame_lines(row.frames, style)
    left = table.weight - sum(row.weight for row in table.rows)
    if table.stacks > len(table.rows):
        yield say.comment(
            f"and {table.stacks - len(table.rows)} more stacks: {say.exact_amount(left, facts.unit, style)}"
        )
    yield from _losses(facts)


def _stack_line(row: StackRow, whole: int, facts: Head, style: Style) -> str:
    share = f"{_share(row.weight, whole):>9}"
    unit = f" {style.unit}" if facts.unit == "ns" else ""
    thing = "wait" if _is_waits(facts) else "sample"
    classes = row.classes
    shown = " ".join(f"{name} {100 * part / (row.weight or 1):.0f}%" for name, part in classes.items())
    parts = [
        row.comm,
        say.amount(row.weight, facts.unit, style) + unit,
        say.plural(row.waits, thing),
        *([next(iter(classes))] if len(classes) == 1 else [shown]),
    ]
    return f"{style.paint(_colour(row.weight, whole), share)}  {'  '.join(filter(None, parts))}"


def _table(table: Table, facts: Head, style: Style) -> Iterator[str]:
    if not table.rows:
        return
    by = "what was waited for" if table.keys == ("class",) else ", ".join(table.keys)
    by += ", longest blocked first" if table.by_blocked else ""
    yield from say.section(f"{_subject(facts).capitalize()} by {printable(by)}", style)
    yield from coloured_table(list(_columns(table, facts, style)), style)
    rows, weight = table.more
    if rows:
        yield say.comment(f"and {rows} more rows: {say.exact_amount(weight, facts.unit, style)}")


def _columns(table: Table, facts: Head, style: Style) -> Iterator[Column]:
    rows = table.rows
    unit = f" {style.unit}" if facts.unit == "ns" else ""

    def amounts(title: str, values: Sequence[int | None], spare: int = 0) -> Column:
        return Column(title, [say.amount(value, facts.unit, style) for value in values], spare=spare)

    is_waits = _is_waits(facts)
    title = weight_title(facts)
    yield Column("Share", [_share(row.weight, table.weight) for row in rows])
    yield amounts(f"{title}{unit}", [row.weight for row in rows])
    counts = [f"{row.waits}{'' if row.waits_are_exact else '+'}" for row in rows]
    yield Column("Waits" if is_waits else "Samples", counts, spare=1)
    if is_waits:
        yield amounts(f"Average{unit}", list(map(_average, rows)), spare=4)
        yield amounts(f"Run queue{unit}", [row.runq for row in rows], spare=5)
    if table.by_blocked:
        yield amounts(f"Blocked{unit}", [row.blocked for row in rows])
    if any(row.recorded_ns for row in rows):
        yield Column("Recorded", [hours(row.recorded_ns) for row in rows], spare=3)
        rates = [f"{row.weight / row.recorded_ns:.3f}" if row.recorded_ns else say.NOT_KNOWN for row in rows]
        yield Column(f"{title} s/s", rates, spare=2)
    for index, key in enumerate(table.keys):
        title = TITLES.get(key, printable(key).capitalize())
        yield Column(title, [row.values[index] for row in rows], left=key not in _NUMBERS)
    if table.keys == ("class",):
        meanings = [BY_LABEL[row.values[0]].row.meaning if row.values[0] in BY_LABEL else "" for row in rows]
        yield Column("Waits for", meanings, left=True, spare=6)


def _average(row: Row) -> int | None:
    return (row.weight + row.waits // 2) // row.waits if row.waits and row.waits_are_exact else None


def _subject(facts: Head) -> str:
    return "off-cpu time" if _is_waits(facts) else ", ".join(facts.events)


def weight_title(facts: Head) -> str:
    """Return the title of a column of weights."""
    if _is_waits(facts):
        return "Off-cpu"
    return facts.events[0].capitalize() if len(facts.events) == 1 else "Weight"


def _is_waits(facts: Head) -> bool:
    return facts.events == (EVENT_NAME,)


def _share(weight: int, whole: int) -> str:
    return f"{100 * weight / whole if whole else 0:.2f}%"


def _colour(weight: int, whole: int) -> str:
    percent = 100 * weight / (whole or 1)
    return say.RED if percent >= 5 else say.GREEN if percent >= 0.5 else ""


def _losses(facts: Head) -> Iterator[str]:
    yield "#"
    yield from _gaps(facts)
    for title, counts in (("Samples to know about", facts.notes), ("Lost or damaged", facts.losses)):
        if counts:
            yield say.comment(title)
            yield from (say.comment(f"{count:>10}  {cause}") for cause, count in counts.items())
    if not facts.losses:
        yield say.comment("Nothing was lost.")
