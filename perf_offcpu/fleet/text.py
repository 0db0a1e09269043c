# SPDX-License-Identifier: Apache-2.0
"""Print tables, stacks and comparisons of a dataset in the form of the report."""

from collections.abc import Callable, Iterator, Sequence

from perf_offcpu.abi.offcpu import EVENT_NAME
from perf_offcpu.analysis.classes.wait_classes import BY_LABEL
from perf_offcpu.fleet.causes import FleetCauses
from perf_offcpu.fleet.diff.compare import STACK, Change, Changes, Comparison, Lengths
from perf_offcpu.fleet.diff.outliers import FEWEST, Outliers
from perf_offcpu.fleet.diff.significance import SIGNIFICANT
from perf_offcpu.fleet.report import Head, StackRow, StackTable, Table
from perf_offcpu.fleet.selection import utc
from perf_offcpu.report import style as say
from perf_offcpu.report.style import Column, Style
from perf_offcpu.report.tables import coloured_table, key_columns
from perf_offcpu.report.terminal import frame_lines, shares
from perf_offcpu.report.totals import Total
from perf_offcpu.report.verdict.text import wrapped
from perf_offcpu.structs import frozen
from perf_offcpu.text import printable
from perf_offcpu.units import UNITS

_MOST_GAPS, _MOST_CAUSES = 10, 8
_FOR_CPU = {"runqueue": "a CPU", "throttled": "CPU time (quota)"}
_HOUR = 3600 * 10**9


def head(facts: Head, style: Style) -> Iterator[str]:
    """Return the lines above a view: its dataset, selection, hosts and losses."""
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
    """Return a time in s or hours: `12.0 s`, `3.5 h`."""
    return f"{ns / 1e9:.1f} s" if ns < _HOUR else f"{ns / _HOUR:.1f} h"


def report(facts: Head, tables: Sequence[Table], idle: int, causes: FleetCauses | None, style: Style) -> Iterator[str]:
    """Return the lines of a report."""
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
    """Return the lines of the ranking of causes of waits."""
    total, causes = ranking.whole, ranking.causes
    on_cpu = sum(cause.weight for cause in causes if cause.wait_class in _FOR_CPU)
    blocked = total - on_cpu - (ranking.running or 0)
    parts = [] if ranking.running is None else [f"{_rounded(ranking.running, total)} running"]
    parts += [f"{_rounded(on_cpu, total)} waiting for a CPU", f"{_rounded(blocked, total)} blocked"]
    subject = "threads' time" if parts[2:] else "waits"
    yield from say.section(f"Of {hours(total)} of {subject}: {' · '.join(parts)}", style)
    shown = causes[:_MOST_CAUSES]
    columns = [
        Column("Share", [_rounded(cause.weight, total) for cause in shown]),
        Column("Time", [hours(cause.weight) for cause in shown]),
        Column(
            "Waits for",
            [_FOR_CPU.get(cause.wait_class, cause.wait_class or say.NOT_KNOWN) for cause in shown],
            left=True,
        ),
        Column("Threads", [_largest(cause.comms) for cause in shown], left=True),
        Column("Ended by", [_largest(cause.enders) for cause in shown], left=True),
    ]
    yield from coloured_table(columns, style)
    if ranking.ends.weight:
        text = f"{hours(ranking.ends.weight)} for threads and processes to end: {_largest(ranking.ends.comms)}"
        yield say.comment(f"Not counted: {text}")
    if ranking.idle:
        yield say.comment(f"Idle besides: {hours(ranking.idle)} of threads that only waited for work")
    first = next((cause.wait_class for cause in causes if cause.wait_class not in _FOR_CPU), "")
    if first:
        yield say.comment(f"Next: perf-offcpu fleet top {facts.source} --class {first}")
        yield say.comment(f"Examples: perf-offcpu fleet waits {facts.source} --class {first}")


def _rounded(weight: int, whole: int) -> str:
    percent = round(100 * weight / whole)
    return f"{percent} %" if percent or not weight else "< 1 %"


def _largest(weights: dict[str, int]) -> str:
    """Return the names with the largest weights, at most two, and the number of the others."""
    names = [name or say.NOT_KNOWN for name in weights]
    more = f", {len(names) - 2} more" if len(names) > 2 else ""
    return ", ".join(names[:2]) + more


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
    yield from say.more_rows((table.stacks - len(table.rows), left), "stack", facts.unit, style)
    yield from _losses(facts)


def _stack_line(row: StackRow, whole: int, facts: Head, style: Style) -> str:
    share = style.paint(say.share_colour(row.weight, whole), f"{say.share(row.weight, whole):>9}")
    weight = f"{say.amount(row.weight, facts.unit, style)} {_unit(facts, style)}".rstrip()
    waits = say.plural(row.waits, "wait" if _is_waits(facts) else "sample")
    return "  ".join(filter(None, (share, row.comm, weight, waits, shares(row.classes))))


def _table(table: Table, facts: Head, style: Style) -> Iterator[str]:
    by = "what was waited for" if table.keys == ("class",) else ", ".join(table.keys)
    by += ", longest blocked first" if table.by_blocked else ""
    yield from say.section(f"{_subject(facts).capitalize()} by {printable(by)}", style)
    yield from coloured_table(list(_columns(table, facts, style)), style)
    yield from say.more_rows(table.more, "row", facts.unit, style)


def _columns(table: Table, facts: Head, style: Style) -> Iterator[Column]:
    rows, is_waits, title = table.rows, _is_waits(facts), _weight_title(facts)

    def amounts(title: str, values: Sequence[int | None], spare: int = 0) -> Column:
        cells = [say.amount(value, facts.unit, style) for value in values]
        return Column(f"{title} {_unit(facts, style)}".rstrip(), cells, spare=spare)

    totals = [Total(row.weight, row.waits, row.are_counted) for row in rows]
    yield Column("Share", [say.share(row.weight, table.weight) for row in rows])
    yield amounts(title, [row.weight for row in rows])
    yield Column("Waits" if is_waits else "Samples", list(map(say.count_text, totals)), spare=1)
    if is_waits:
        yield amounts("Average", [total.average for total in totals], spare=4)
        yield amounts("Run queue", [row.runq for row in rows], spare=5)
    if table.by_blocked:
        yield amounts("Blocked", [row.blocked for row in rows])
    if any(row.recorded_ns for row in rows):
        yield Column("Recorded", [hours(row.recorded_ns) for row in rows], spare=3)
        rates = [f"{row.weight / row.recorded_ns:.3f}" if row.recorded_ns else say.NOT_KNOWN for row in rows]
        yield Column(f"{title} s/s", rates, spare=2)
    yield from key_columns(table.keys, [row.values for row in rows])
    if table.keys == ("class",):
        meanings = [BY_LABEL[row.values[0]].row.meaning if row.values[0] in BY_LABEL else "" for row in rows]
        yield Column("Waits for", meanings, left=True, spare=6)


def _subject(facts: Head) -> str:
    return "off-cpu time" if _is_waits(facts) else ", ".join(facts.events)


def _weight_title(facts: Head) -> str:
    if _is_waits(facts):
        return "Off-cpu"
    return facts.events[0].capitalize() if len(facts.events) == 1 else "Weight"


def _unit(facts: Head, style: Style) -> str:
    """Return the unit of weights; "" for counts of occurrences."""
    return style.unit if facts.unit == "ns" else ""


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


@frozen
class _Rates:
    """Formatter of rates of a selection, such as `Off-cpu ms` per second or `Instructions` per second."""

    style: Style
    facts: Head

    @property
    def unit(self) -> str:
        """Return the unit of weights; "" for counts of occurrences."""
        return _unit(self.facts, self.style)

    @property
    def subject(self) -> str:
        """Return the name of weights, with their unit."""
        return f"{_weight_title(self.facts)} {self.unit}".rstrip()

    def text(self, rate: float, *, sign: bool = False) -> str:
        """Return a rate, weight per recorded ns, as text: weight per second."""
        value = rate * 1e9 / (UNITS[self.unit] if self.unit else 1)
        return f"{value:+.3f}" if sign else f"{value:.3f}"

    def both(self, row: Change) -> str:
        """Return the rates before and after a change."""
        return f"{self.text(row.before)} → {self.text(row.after)}"


def comparison(compared: Comparison, old: Head, new: Head, style: Style, limit: int | None) -> Iterator[str]:
    """Return the lines of a comparison."""
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
    """Return changes of waits in words: mean and p99 (before → after), number of waits."""
    tail = f", p99 {_both(lengths.p99_ns, style)} {style.unit}" if lengths.p99_ns else ""
    number = f"{_ratio_text(lengths.waits)} waits"
    mean = f"{_both(lengths.mean_ns, style)} {style.unit} a wait, {_ratio_text(lengths.mean_ns)}, p {lengths.p:.4f}"
    return f"{mean}{tail}; {number}"


def _both(sides: tuple[float, float], style: Style) -> str:
    return " → ".join(f"{ns / UNITS[style.unit]:.4g}" for ns in sides)


def _ratio_text(sides: tuple[float, float]) -> str:
    return f"{100 * (sides[1] / sides[0] - 1):+.1f} %" if sides[0] else "new"


def _closed_loop(total: Change, loops: Sequence[str]) -> str:
    """Return the sentence that time per second is no measure of these waits."""
    names = f" ({', '.join(loops)})" if loops else ""
    lengths = total.lengths
    figures = f" ({_ratio_text(lengths.mean_ns)} in all)" if lengths and total.is_closed_loop else ""
    return (
        f"Closed loop{names}: waits changed their length{figures}, and their number the other way, as where each "
        "request waits for the one before. Time per second hardly shows that: judge by 'Each' and p99."
    )


def outliers(unlike: Outliers, new: Head, style: Style, limit: int | None) -> Iterator[str]:
    """Return the lines about hosts that are unlike the others."""
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
        Column("Host", [row.host for row in rows], left=True),
        *([Column("Service", [printable(row.group) for row in rows], left=True)] if groups else []),
        *key_columns(unlike.keys, [row.values for row in rows]),
    ]
    yield from coloured_table(columns, style)
    if len(unlike.rows) > len(rows):
        yield say.comment(f"and {say.plural(len(unlike.rows) - len(rows), 'more row')}")


def _percent(row: Change) -> str:
    return f"{100 * row.change / row.before:+.1f} %" if row.before else "new"
