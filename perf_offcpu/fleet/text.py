# SPDX-License-Identifier: Apache-2.0
"""Print tables and stacks of a dataset in the form of the report."""

from collections.abc import Iterator, Sequence
from functools import partial

from perf_offcpu.abi.offcpu import EVENT_NAME
from perf_offcpu.analysis.classes.wait_classes import BY_LABEL
from perf_offcpu.fleet.causes import FleetCauses
from perf_offcpu.fleet.report import Head, StackRow, StackTable, Table
from perf_offcpu.fleet.selection import utc
from perf_offcpu.report import style as say
from perf_offcpu.report.style import Column, Style
from perf_offcpu.report.tables import coloured_table, key_columns
from perf_offcpu.report.terminal import frame_lines, shares
from perf_offcpu.report.totals import Total
from perf_offcpu.report.verdict.text import FOR_CPU
from perf_offcpu.text import printable

_MOST_GAPS, _MOST_CAUSES = 10, 8
_HOUR = 3600 * 10**9


def head(facts: Head, style: Style) -> Iterator[str]:
    """Yield the lines above a view: dataset, selection, hosts, and the sampling period if waits were sampled."""
    yield say.comment(f"Dataset:  {facts.source}")
    yield say.comment(f"Selected: {facts.selection}")
    times = f"{utc(facts.first_ns)} to {utc(facts.last_ns)} UTC, {hours(facts.recorded_ns)} in all"
    hosts = f"{say.plural(facts.hosts, 'host')}, {times}" if facts.hosts else "not known: the table hosts is empty"
    yield say.comment(f"Recorded: {hosts}")
    if facts.periods and EVENT_NAME in facts.events:
        ends = dict.fromkeys((facts.periods[0], facts.periods[-1]))
        periods = " to ".join(f"{ns / 1e6:g} ms" for ns in ends)
        text = f"One sample for each {periods} of waiting of a thread: waits and lengths are estimated."
        yield say.comment(text)


def hours(ns: int) -> str:
    """Format a time in s or, from one hour on, in hours: `12.0 s`, `3.5 h`."""
    return f"{ns / 1e9:.1f} s" if ns < _HOUR else f"{ns / _HOUR:.1f} h"


def report(facts: Head, tables: Sequence[Table], idle: int, causes: FleetCauses | None, style: Style) -> Iterator[str]:
    """Yield the lines of `fleet report`; `idle`: weight of idle threads in `tables`."""
    yield from head(facts, style)
    if causes is not None and causes.whole:
        yield from _first_screen(causes, facts, style)
    yield say.comment(f"Total:    {say.exact_amount(tables[0].weight, facts.unit, style)}")
    if idle and idle < tables[0].weight:
        share = say.share(idle, tables[0].weight)
        text = f"{share} are of threads that merely wait for work (--idle hide leaves them out)"
        yield say.comment(f"Idle:     {text}")
    for table in tables:
        if table.rows:
            yield from _table(table, facts, style)
    yield from _losses(facts)


def _first_screen(ranking: FleetCauses, facts: Head, style: Style) -> Iterator[str]:
    """Yield the lines of the ranking of causes, the first part of the report."""
    total, causes = ranking.whole, ranking.causes
    on_cpu = sum(cause.weight for cause in causes if cause.wait_class in FOR_CPU)
    blocked = total - on_cpu - (ranking.running or 0)
    parts = [] if ranking.running is None else [f"{_rounded(ranking.running, total)} running"]
    parts += [f"{_rounded(on_cpu, total)} waiting for a CPU", f"{_rounded(blocked, total)} blocked"]
    subject = "threads' time" if parts[2:] else "waits"
    yield from say.section(f"Of {hours(total)} of {subject}: {' · '.join(parts)}", style)
    shown = causes[:_MOST_CAUSES]
    columns = [
        Column("Share", [_rounded(cause.weight, total) for cause in shown]),
        Column("Time", [hours(cause.weight) for cause in shown]),
        say.names("Waits for", (FOR_CPU.get(cause.wait_class, cause.wait_class or say.NOT_KNOWN) for cause in shown)),
        say.names("Threads", (_largest(cause.comms) for cause in shown)),
        say.names("Ended by", (_largest(cause.enders) for cause in shown)),
    ]
    yield from coloured_table(columns, style)
    if ranking.ends.weight:
        text = f"{hours(ranking.ends.weight)} for threads and processes to end: {_largest(ranking.ends.comms)}"
        yield say.comment(f"Not counted: {text}")
    if ranking.idle:
        yield say.comment(f"Idle besides: {hours(ranking.idle)} of threads that only waited for work")
    first = next((cause.wait_class for cause in causes if cause.wait_class not in FOR_CPU), "")
    if first:
        yield say.comment(f"Next: perf-offcpu fleet top {facts.source} --class {first}")
        yield say.comment(f"Examples: perf-offcpu fleet waits {facts.source} --class {first}")


def _rounded(weight: int, whole: int) -> str:
    percent = round(100 * weight / whole)
    return f"{percent} %" if percent or not weight else "< 1 %"


def _largest(weights: dict[str, int]) -> str:
    """Format the first two names of `weights` (name → weight, largest first) and the number of further ones."""
    names = [name or say.NOT_KNOWN for name in weights]
    more = f", {len(names) - 2} more" if len(names) > 2 else ""
    return ", ".join(names[:2]) + more


def stacks(facts: Head, table: StackTable, style: Style) -> Iterator[str]:
    """Yield the lines of `fleet top`."""
    yield from head(facts, style)
    yield say.comment(f"Total:    {say.exact_amount(table.weight, facts.unit, style)}")
    yield from say.section(f"Stacks by {_subject(facts)}, {style.order}", style)
    for row in table.rows:
        yield _stack_line(row, table.weight, facts, style)
        yield from frame_lines(row.frames, style)
    left = table.weight - sum(row.weight for row in table.rows)
    yield from say.more_rows((table.stacks - len(table.rows), left), "stack", facts.unit, style)
    yield from _losses(facts)


def _stack_line(row: StackRow, whole: int, facts: Head, style: Style) -> str:
    share = style.paint(say.share_colour(row.weight, whole), f"{say.share(row.weight, whole):>9}")
    weight = f"{say.amount(row.weight, facts.unit, style)} {style.unit if facts.unit == 'ns' else ''}".rstrip()
    waits = say.plural(row.waits, "wait" if _is_waits(facts) else "sample")
    return "  ".join(filter(None, (share, row.comm, weight, waits, shares(row.classes))))


def _table(table: Table, facts: Head, style: Style) -> Iterator[str]:
    by = "what was waited for" if table.keys == ("class",) else ", ".join(table.keys)
    by += ", longest blocked first" if table.by_blocked else ""
    yield from say.section(f"{_subject(facts).capitalize()} by {printable(by)}", style)
    yield from coloured_table(list(_columns(table, facts, style)), style)
    yield from say.more_rows(table.more, "row", facts.unit, style)


def _columns(table: Table, facts: Head, style: Style) -> Iterator[Column]:
    rows, is_waits, title = table.rows, _is_waits(facts), weight_title(facts)
    amounts = partial(say.weights, unit=facts.unit, style=style)
    totals = [Total(row.weight, row.waits, row.are_counted) for row in rows]
    yield say.shares((row.weight for row in rows), table.weight)
    yield amounts(title, (row.weight for row in rows))
    yield Column("Waits" if is_waits else "Samples", list(map(say.count_text, totals)), spare=1)
    if is_waits:
        yield amounts("Average", (total.average for total in totals), spare=4)
        yield amounts("Run queue", (row.runq for row in rows), spare=5)
    if table.by_blocked:
        yield amounts("Blocked", (row.blocked for row in rows))
    if any(row.recorded_ns for row in rows):
        yield Column("Recorded", [hours(row.recorded_ns) for row in rows], spare=3)
        rates = [f"{row.weight / row.recorded_ns:.3f}" if row.recorded_ns else say.NOT_KNOWN for row in rows]
        yield Column(f"{title} s/s", rates, spare=2)
    yield from key_columns(table.keys, [row.values for row in rows])
    if table.keys == ("class",):
        meanings = [BY_LABEL[row.values[0]].row.meaning if row.values[0] in BY_LABEL else "" for row in rows]
        yield say.names("Waits for", meanings, spare=6)


def _subject(facts: Head) -> str:
    return "off-cpu time" if _is_waits(facts) else ", ".join(facts.events)


def weight_title(facts: Head) -> str:
    """Return the title of a column of weights: `Off-cpu`, the name of the only event, or `Weight`."""
    if _is_waits(facts):
        return "Off-cpu"
    return facts.events[0].capitalize() if len(facts.events) == 1 else "Weight"


def _is_waits(facts: Head) -> bool:
    return facts.events == (EVENT_NAME,)


def _losses(facts: Head) -> Iterator[str]:
    yield "#"
    if facts.gaps:
        gap_ns = sum(gap.ns for gap in facts.gaps)
        share = say.share(gap_ns, gap_ns + facts.recorded_ns)
        yield say.comment(f"Not recorded: {hours(gap_ns)}, {share} of the time of these hosts")
    for gap in facts.gaps[:_MOST_GAPS]:
        yield say.comment(f"{hours(gap.ns):>10}  {gap.cause}, {gap.host}")
    if more := facts.gaps[_MOST_GAPS:]:
        yield say.comment(f"{hours(sum(gap.ns for gap in more)):>10}  in {say.plural(len(more), 'more row')} (--json)")
    for title, counts in (("Samples to know about", facts.notes), ("Lost or damaged", facts.losses)):
        if counts:
            yield say.comment(title)
            yield from (say.comment(f"{count:>10}  {cause}") for cause, count in counts.items())
    if not facts.losses:
        yield say.comment("Nothing was lost.")
