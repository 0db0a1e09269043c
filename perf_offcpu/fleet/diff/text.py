# SPDX-License-Identifier: Apache-2.0
"""Print comparisons of selections and outliers among hosts."""

from __future__ import annotations

from collections.abc import Iterator

from perf_offcpu.callpaths.options import UNITS
from perf_offcpu.fleet.diff.compare import STACK, Comparison, Row, Table
from perf_offcpu.fleet.diff.outliers import FEWEST, Outliers
from perf_offcpu.fleet.diff.significance import SIGNIFICANT
from perf_offcpu.fleet.report import Head
from perf_offcpu.fleet.text import head
from perf_offcpu.report import style as say
from perf_offcpu.report.style import Style
from perf_offcpu.report.tables import TITLES, coloured_table
from perf_offcpu.report.terminal import frame_lines
from perf_offcpu.report.text_table import Column
from perf_offcpu.report.verdict.text import wrapped
from perf_offcpu.text import printable


def comparison(found: Comparison, old: Head, new: Head, style: Style, limit: int | None) -> Iterator[str]:
    """Return the lines of a comparison."""
    yield from head(new, style)
    yield say.comment(f"Baseline: {old.selection}")
    yield from map(say.comment, wrapped(list(_method(found))))
    yield say.comment(f"Total:    {_total(found.total, style)}")
    for table in found.tables:
        yield from _stacks(table, style, limit) if table.keys == STACK else _table(table, style, limit)


def _method(found: Comparison) -> Iterator[str]:
    first, second = found.hosts
    if found.paired:
        yield f"{say.plural(first, 'host')} compared with themselves."
    else:
        yield f"{say.plural(first, 'host')} of the baseline compared with {second} others."
    if found.left_out:
        where = "one side" if found.paired else "both sides"
        yield f"{say.plural(found.left_out, 'host')} left out: on {where}."
    verdicts = found.tables[0].verdicts
    every = f"all {verdicts.assignments}" if verdicts.exact else f"{verdicts.assignments}"
    yield (
        f"p: the part of {every} assignments of hosts in which any row of the table changes as much, in its "
        f"standard errors; below {SIGNIFICANT:g} it is no chance."
    )
    if verdicts.least_p >= SIGNIFICANT:
        yield f"So few hosts cannot show a change: no p is below {verdicts.least_p:.2g}."


def _total(row: Row, style: Style) -> str:
    unit = f"{style.unit}/s"
    return (
        f"{_rate(row.before, style)} → {_rate(row.after, style)} {unit} of a host, "
        f"{_percent(row)}, {_p(row.p)}"
    )


def _shown(table: Table, limit: int | None) -> tuple[list[Row], list[Row]]:
    """Return the rows to show, and the other significant rows."""
    real = [row for row in table.rows if row.is_significant]
    return real[:limit], real[limit:] if limit is not None else []


def _table(table: Table, style: Style, limit: int | None) -> Iterator[str]:
    rows, more = _shown(table, limit)
    yield from say.section(
        f"Off-cpu {style.unit} per second of a host, by {printable(', '.join(table.keys))}", style
    )
    if rows:
        columns = [
            Column("Before", [_rate(row.before, style) for row in rows]),
            Column("After", [_rate(row.after, style) for row in rows]),
            Column("Change", [_rate(row.change, style, sign=True) for row in rows]),
            Column("%", [_percent(row) for row in rows], spare=1),
            Column("p", [_p(row.p).removeprefix("p ") for row in rows], spare=2),
        ]
        columns += [
            Column(TITLES.get(key, printable(key).capitalize()), [row.values[at] for row in rows], left=True)
            for at, key in enumerate(table.keys)
        ]
        yield from coloured_table(columns, style)
    yield from _rest(table, more)


def _stacks(table: Table, style: Style, limit: int | None) -> Iterator[str]:
    rows, more = _shown(table, limit)
    yield from say.section(f"Stacks, {style.unit} per second of a host, root first", style)
    for row in rows:
        rates = f"{_rate(row.before, style)} → {_rate(row.after, style)}"
        change = style.paint(say.RED if row.change > 0 else say.GREEN, _rate(row.change, style, sign=True))
        yield f"{change}  {rates}  {_percent(row)}  {_p(row.p)}  {row.values[0]}"
        yield from frame_lines(row.frames, style)
    yield from _rest(table, more)


def _rest(table: Table, more: list[Row]) -> Iterator[str]:
    if more:
        yield say.comment(f"and {len(more)} more rows that changed")
    if noise := sum(not row.is_significant for row in table.rows):
        yield say.comment(f"{say.plural(noise, 'row')} of {len(table.rows)} changed no more than by chance")


def outliers(found: Outliers, new: Head, style: Style, limit: int | None) -> Iterator[str]:
    """Return the lines about hosts that are unlike the others."""
    yield from head(new, style)
    groups = f" in {found.groups} services" if found.groups > 1 else ""
    few = f" {say.plural(found.left_out, 'host')} in smaller groups left out." if found.left_out else ""
    text = (
        f"{say.plural(found.hosts, 'host')}{groups}, each compared with the median of the others.{few} "
        f"z: distance in robust standard deviations; shown from {found.limit:.1f} on, and if it is 1 % of a "
        "host's off-cpu time."
    )
    yield from map(say.comment, wrapped([text]))
    yield from say.section(f"Hosts unlike the others, by {printable(', '.join(found.keys))}", style)
    rows = found.rows[:limit]
    if not rows:
        few = f"No host was compared: a service needs {FEWEST} hosts."
        yield say.comment("No host is unlike the others." if found.hosts else few)
        return
    columns = [
        Column("z", [f"{row.z:+.1f}" for row in rows]),
        Column(f"{style.unit}/s", [_rate(row.rate, style) for row in rows]),
        Column("Median", [_rate(row.median, style) for row in rows]),
        Column("Host", [row.host for row in rows], left=True),
        *([Column("Service", [printable(row.group) for row in rows], left=True)] if groups else []),
    ]
    columns += [
        Column(TITLES.get(key, printable(key).capitalize()), [row.values[at] for row in rows], left=True)
        for at, key in enumerate(found.keys)
    ]
    yield from coloured_table(columns, style)
    if len(found.rows) > len(rows):
        yield say.comment(f"and {len(found.rows) - len(rows)} more rows")


def _rate(rate: float, style: Style, *, sign: bool = False) -> str:
    value = rate * 1e9 / UNITS[style.unit]
    return f"{value:+.3f}" if sign else f"{value:.3f}"


def _percent(row: Row) -> str:
    return f"{100 * row.change / row.before:+.1f} %" if row.before else "new"


def _p(p: float) -> str:
    return f"p {p:.4f}"
