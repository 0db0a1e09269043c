# SPDX-License-Identifier: Apache-2.0
"""Print comparisons of a dataset, and hosts unlike the others, in the form of the report."""

from collections.abc import Callable, Iterator, Sequence

from perf_offcpu.fleet.diff.compare import STACK, Change, Changes, Comparison, Lengths
from perf_offcpu.fleet.diff.outliers import FEWEST, Outliers
from perf_offcpu.fleet.diff.significance import SIGNIFICANT
from perf_offcpu.fleet.report import Head
from perf_offcpu.fleet.text import head, hours, weight_title
from perf_offcpu.report import style as say
from perf_offcpu.report.style import Column, Style
from perf_offcpu.report.tables import coloured_table, key_columns
from perf_offcpu.report.terminal import frame_lines
from perf_offcpu.report.verdict.text import wrapped
from perf_offcpu.structs import frozen
from perf_offcpu.text import printable
from perf_offcpu.units import UNITS


@frozen
class _Rates:
    """Formatter of the rates of a selection, in weight per second: off-CPU time, or a number such as instructions."""

    style: Style
    facts: Head

    @property
    def unit(self) -> str:
        """Return the unit of weights; "" for counts of occurrences."""
        return self.style.unit if self.facts.unit == "ns" else ""

    @property
    def subject(self) -> str:
        """Return the name of weights with their unit, such as `Off-cpu ms`."""
        return f"{weight_title(self.facts)} {self.unit}".rstrip()

    def text(self, rate: float, *, sign: bool = False) -> str:
        """Format a rate (weight per recorded ns) as weight per second; `sign`: also with a plus sign."""
        value = rate * 1e9 / (UNITS[self.unit] if self.unit else 1)
        return f"{value:+.3f}" if sign else f"{value:.3f}"

    def both(self, row: Change) -> str:
        """Format the rates of a row as `before → after`."""
        return f"{self.text(row.before)} → {self.text(row.after)}"


def comparison(compared: Comparison, old: Head, new: Head, style: Style, limit: int | None) -> Iterator[str]:
    """Yield the lines of `fleet diff --baseline`, at most `limit` rows of each table (None: all)."""
    yield from head(new, style)
    yield say.comment(f"Baseline: {old.selection}")
    yield from map(say.comment, wrapped(_method(compared)))
    rates, total = _Rates(style, new), compared.total
    yield say.comment(f"Total:    {rates.both(total)} {rates.unit}/s of a host, {_percent(total)}, p {total.p:.4f}")
    if total.lengths:
        yield say.comment(f"Each:     {_each(total.lengths, style)}")
    loops = [row.values[0] for row in compared.tables[0].rows if row.is_closed_loop]
    if loops or total.is_closed_loop:
        yield from map(say.comment, wrapped([_closed_loop(total, loops)]))
    for table in compared.tables:
        yield from _changes(table, rates, limit)


def _method(compared: Comparison) -> Iterator[str]:
    first, second = compared.hosts
    units = "shifts of the second period" if compared.block_ns else "assignments of hosts"
    if compared.block_ns:
        yield f"{first} blocks of {hours(compared.block_ns)} of one host compared with {second} others of it."
    elif compared.paired:
        yield f"{say.plural(first, 'host')} compared with themselves."
    else:
        yield f"{say.plural(first, 'host')} of the baseline compared with {second} others."
    if compared.left_out:
        where = "one side" if compared.paired else "both sides"
        yield f"{say.plural(compared.left_out, 'host')} left out: on {where}."
    verdicts = compared.tables[0].verdicts
    every = f"all {verdicts.assignments}" if verdicts.exact else f"{verdicts.assignments}"
    yield (
        f"p: the part of {every} {units} in which any row of the table changes as much, in its "
        f"standard errors; below {SIGNIFICANT:g} it is no chance."
    )
    if verdicts.least_p >= SIGNIFICANT:
        compared_units = "blocks" if compared.block_ns else "hosts"
        yield f"So few {compared_units} cannot show a change: no p is below {verdicts.least_p:.2g}."


def _changes(table: Changes, rates: _Rates, limit: int | None) -> Iterator[str]:
    """Yield the lines of the significant rows of a table, at most `limit`, and the numbers of rows left out."""
    real = [row for row in table.rows if row.is_shown]
    if table.keys == STACK:
        yield from say.section(f"Stacks, {rates.subject} per second of a host, root first", rates.style)
        for row in real[:limit]:
            colour = say.RED if row.change > 0 else say.GREEN
            change = rates.style.paint(colour, rates.text(row.change, sign=True))
            each = f"  each {_each(row.lengths, rates.style)}" if row.lengths else ""
            yield f"{change}  {rates.both(row)}  {_percent(row)}  p {row.p:.4f}  {row.values[0]}{each}"
            yield from frame_lines(row.frames, rates.style)
    else:
        title = f"{rates.subject} per second of a host, by {printable(', '.join(table.keys))}"
        yield from say.section(title, rates.style)
        yield from _change_table(table.keys, real[:limit], rates)
    if limit is not None and len(real) > limit:
        yield say.comment(f"and {say.plural(len(real) - limit, 'more row')} that changed")
    if noise := len(table.rows) - len(real):
        yield say.comment(f"{say.plural(noise, 'row')} of {len(table.rows)} changed no more than by chance")


def _change_table(keys: Sequence[str], rows: Sequence[Change], rates: _Rates) -> Iterator[str]:
    columns = [
        Column("Before", [rates.text(row.before) for row in rows]),
        Column("After", [rates.text(row.after) for row in rows]),
        Column("Change", [rates.text(row.change, sign=True) for row in rows]),
        Column("%", list(map(_percent, rows)), spare=1),
        Column("p", [f"{row.p:.4f}" for row in rows], spare=2),
        *_length_columns(rows, rates.style),
        *key_columns(keys, [row.values for row in rows]),
    ]
    return coloured_table(columns, rates.style) if rows else iter(())


def _length_columns(rows: Sequence[Change], style: Style) -> Iterator[Column]:
    """Yield the columns of numbers and lengths of waits; none if no row has them."""
    lengths = [row.lengths for row in rows]
    if not any(lengths):
        return
    unit = style.unit

    def cells(text: Callable[[Lengths], str]) -> list[str]:
        return [text(length) if length else say.NOT_KNOWN for length in lengths]

    yield Column("Waits/s", cells(lambda length: _ratio_text(length.waits)), spare=4)
    yield Column(f"Each {unit}", cells(lambda length: _both(length.mean_ns, style)))
    yield Column("%", cells(lambda length: _ratio_text(length.mean_ns)), spare=3)
    yield Column("p of each", cells(lambda length: f"{length.p:.4f}"), spare=2)
    p99 = cells(lambda length: _both(length.p99_ns, style) if length.p99_ns else say.NOT_KNOWN)
    yield Column(f"p99 {unit}", p99, spare=1)


def _each(lengths: Lengths, style: Style) -> str:
    """Format how waits changed: mean and p99 length as `before → after`, number of waits in percent."""
    tail = f", p99 {_both(lengths.p99_ns, style)} {style.unit}" if lengths.p99_ns else ""
    number = f"{_ratio_text(lengths.waits)} waits"
    mean = f"{_both(lengths.mean_ns, style)} {style.unit} a wait, {_ratio_text(lengths.mean_ns)}, p {lengths.p:.4f}"
    return f"{mean}{tail}; {number}"


def _both(sides: tuple[float, float], style: Style) -> str:
    return " → ".join(f"{ns / UNITS[style.unit]:.4g}" for ns in sides)


def _ratio_text(sides: tuple[float, float]) -> str:
    return f"{100 * (sides[1] / sides[0] - 1):+.1f} %" if sides[0] else "new"


def _closed_loop(total: Change, loops: Sequence[str]) -> str:
    """Return the sentence on closed loops (`Change.is_closed_loop`), which says to judge by the length of waits.
    `loops`: names of the rows that are one; `total`: the change of all waits."""
    names = f" ({', '.join(loops)})" if loops else ""
    lengths = total.lengths
    figures = f" ({_ratio_text(lengths.mean_ns)} in all)" if lengths and total.is_closed_loop else ""
    return (
        f"Closed loop{names}: waits changed their length{figures}, and their number the other way, as where each "
        "request waits for the one before. Time per second hardly shows that: judge by 'Each' and p99."
    )


def outliers(unlike: Outliers, new: Head, style: Style, limit: int | None) -> Iterator[str]:
    """Yield the lines of `fleet diff` without a baseline, at most `limit` outliers (None: all)."""
    rates = _Rates(style, new)
    yield from head(new, style)
    groups = f" in {unlike.groups} services" if unlike.groups > 1 else ""
    few = f" {say.plural(unlike.left_out, 'host')} in smaller groups left out." if unlike.left_out else ""
    text = (
        f"{say.plural(unlike.hosts, 'host')}{groups}, each compared with the median of the others.{few} "
        f"z: distance in robust standard deviations; shown from {unlike.limit:.1f} on, and if it is 1 % of a "
        f"host's {'off-cpu time' if rates.subject.startswith('Off-cpu') else 'weight'}."
    )
    yield from map(say.comment, wrapped([text]))
    yield from say.section(f"Hosts unlike the others, by {printable(', '.join(unlike.keys))}", style)
    rows = unlike.rows[:limit]
    if not rows:
        few = f"No host was compared: a service needs {FEWEST} hosts."
        yield say.comment("No host is unlike the others." if unlike.hosts else few)
        return
    columns = [
        Column("z", [f"{row.z:+.1f}" for row in rows]),
        Column(f"{rates.subject}/s", [rates.text(row.rate) for row in rows]),
        Column("Median", [rates.text(row.median) for row in rows]),
        say.names("Host", (row.host for row in rows)),
        *([say.names("Service", (printable(row.group) for row in rows))] if groups else []),
        *key_columns(unlike.keys, [row.values for row in rows]),
    ]
    yield from coloured_table(columns, style)
    yield from say.and_more(len(unlike.rows) - len(rows), "more row")


def _percent(row: Change) -> str:
    return f"{100 * row.change / row.before:+.1f} %" if row.before else "new"
