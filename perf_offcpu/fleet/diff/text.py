# SPDX-License-Identifier: Apache-2.0
"""Print comparisons of selections and outliers among hosts."""

from __future__ import annotations

from collections.abc import Iterator

from perf_offcpu.fleet.diff.compare import STACK, Comparison, Row, Table
from perf_offcpu.fleet.diff.outliers import FEWEST, Outliers
from perf_offcpu.fleet.diff.significance import SIGNIFICANT
from perf_offcpu.fleet.report import Head
from perf_offcpu.fleet.text import head, weight_title
from perf_offcpu.report import style as say
from perf_offcpu.report.style import Column, Style
from perf_offcpu.report.tables import TITLES, coloured_table
from perf_offcpu.report.terminal import frame_lines
from perf_offcpu.report.verdict.text import wrapped
from perf_offcpu.structs import frozen
from perf_offcpu.text import printable
from perf_offcpu.units import UNITS


@frozen
class _Rates:
    """The form of rates of a selection: `Off-cpu ms` per second, `Instructions` per second."""

    style: Style
    of: Head

    @property
    def unit(self) -> str:
        """Return the unit of weights; "" for counts of occurrences."""
        return self.style.unit if self.of.unit == "ns" else ""

    @property
    def subject(self) -> str:
        """Return the name of weights, with their unit."""
        return f"{weight_title(self.of)} {self.unit}".rstrip()

    def text(self, rate: float, *, sign: bool = False) -> str:
        """Return a weight by ns of recorded time as one by second."""
        value = rate * 1e9 / (UNITS[self.unit] if self.unit else 1)
        return f"{value:+.3f}" if sign else f"{value:.3f}"


def comparison(compared: Comparison, old: Head, new: Head, style: Style, limit: int | None) -> Iterator[str]:
    """Return the lines of a comparison."""
    yield from head(new, style)
    yield say.comment(f"Baseline: {old.selection}")
    yield from map(say.comment, wrapped(list(_method(compared))))
    rates = _Rates(style, new)
    yield say.comment(f"Total:    {_total(compared.total, rates)}")
    for table in compared.tables:
        yield from _stacks(table, rates, limit) if table.keys == STACK else _table(table, rates, limit)


def _method(compared: Comparison) -> Iterator[str]:
    first, second = compared.hosts
    if compared.paired:
        yield f"{say.plural(first, 'host')} compared with themselves."
    else:
        yield f"{say.plural(first, 'host')} of the baseline compared with {second} others."
    if compared.left_out:
        where = "one side" if compared.paired else "both sides"
        yield f"{say.plural(compared.left_out, 'host')} left out: on {where}."
    verdicts = compared.tables[0].verdicts
    every = f"all {verdicts.assignments}" if verdicts.exact else f"{verdicts.assignments}"
    yield (
        f"p: the part of {every} assignments of hosts in which any row of the table changes as much, in its "
        f"standard errors; below {SIGNIFICANT:g} it is no chance."
    )
    if verdicts.least_p >= SIGNIFICANT:
        yield f"So few hosts cannot show a change: no p is below {verdicts.least_p:.2g}."


def _total(row: Row, rates: _Rates) -> str:
    return f"{rates.text(row.before)} → {rates.text(row.after)} {rates.unit}/s of a host, {_percent(row)}, {_p(row.p)}"


def _shown(table: Table, limit: int | None) -> tuple[list[Row], list[Row]]:
    """Return the rows to show, and the other significant rows."""
    real = [row for row in table.rows if row.is_significant]
    return real[:limit], real[limit:] if limit is not None else []


def _table(table: Table, rates: _Rates, limit: int | None) -> Iterator[str]:
    rows, more = _shown(table, limit)
    title = f"{rates.subject} per second of a host, by {printable(', '.join(table.keys))}"
    yield from say.section(title, rates.style)
    if rows:
        columns = [
            Column("Before", [rates.text(row.before) for row in rows]),
            Column("After", [rates.text(row.after) for row in rows]),
            Column("Change", [rates.text(row.change, sign=True) for row in rows]),
            Column("%", [_percent(row) for row in rows], spare=1),
            Column("p", [_p(row.p).removeprefix("p ") for row in rows], spare=2),
        ]
        columns += [
            Column(TITLES.get(key, printable(key).capitalize()), [row.values[index] for row in rows], left=True)
            for index, key in enumerate(table.keys)
        ]
        yield from coloured_table(columns, rates.style)
    yield from _rest(table, more)


def _stacks(table: Table, rates: _Rates, limit: int | None) -> Iterator[str]:
    rows, more = _shown(table, limit)
    yield from say.section(f"Stacks, {rates.subject} per second of a host, root first", rates.style)
    for row in rows:
        both = f"{rates.text(row.before)} → {rates.text(row.after)}"
        colour = say.RED if row.change > 0 else say.GREEN
        change = rates.style.paint(colour, rates.text(row.change, sign=True))
        yield f"{change}  {both}  {_percent(row)}  {_p(row.p)}  {row.values[0]}"
        yield from frame_lines(row.frames, rates.style)
    yield from _rest(table, more)


def _rest(table: Table, more: list[Row]) -> Iterator[str]:
    if more:
        yield say.comment(f"and {len(more)} more rows that changed")
    if noise := sum(not row.is_significant for row in table.rows):
        yield say.comment(f"{say.plural(noise, 'row')} of {len(table.rows)} changed no more than by chance")


def outliers(found: Outliers, new: Head, style: Style, limit: int | None) -> Iterator[str]:
    """Return the lines about hosts that are unlike the others."""
    rates = _Rates(style, new)
    yield from head(new, style)
    groups = f" in {found.groups} services" if found.groups > 1 else ""
    few = f" {say.plural(found.left_out, 'host')} in smaller groups left out." if found.left_out else ""
    text = (
        f"{say.plural(found.hosts, 'host')}{groups}, each compared with the median of the others.{few} "
        f"z: distance in robust standard deviations; shown from {found.limit:.1f} on, and if it is 1 % of a "
        f"host's {'off-cpu time' if rates.subject.startswith('Off-cpu') else 'weight'}."
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
        Column(f"{rates.subject}/s", [rates.text(row.rate) for row in rows]),
        Column("Median", [rates.text(row.median) for row in rows]),
        Column("Host", [row.host for row in rows], left=True),
        *([Column("Service", [printable(row.group) for row in rows], left=True)] if groups else []),
    ]
    columns += [
        Column(TITLES.get(key, printable(key).capitalize()), [row.values[index] for row in rows], left=True)
        for index, key in enumerate(found.keys)
    ]
    yield from coloured_table(columns, style)
    if len(found.rows) > len(rows):
        yield say.comment(f"and {len(found.rows) - len(rows)} more rows")


def _percent(row: Row) -> str:
    return f"{100 * row.change / row.before:+.1f} %" if row.before else "new"


def _p(p: float) -> str:
    return f"p {p:.4f}"
