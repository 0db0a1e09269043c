# SPDX-License-Identifier: Apache-2.0
"""Print a comparison: the recordings, the verdict, then tables whose rows are sorted by absolute change."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from perf_offcpu import losses
from perf_offcpu.report import style as say
from perf_offcpu.report.diff.compare import Comparison, Cut, Row, Table
from perf_offcpu.report.diff.sides import Side
from perf_offcpu.report.diff.verdict import Verdict, per_text, sentences_of
from perf_offcpu.report.style import Column, Style, cut, lay_out
from perf_offcpu.report.tables import TITLES
from perf_offcpu.report.terminal import INDENT, collapsed
from perf_offcpu.report.totals import Total
from perf_offcpu.report.verdict.text import wrapped
from perf_offcpu.text import printable


def render(comparison: Comparison, verdict: Verdict | None, style: Style) -> Iterator[str]:
    """Return the lines of the comparison, without line ends."""
    yield from _recordings(comparison, style)
    text = _Text(comparison, style)
    if verdict:
        yield from map(say.comment, wrapped(sentences_of(comparison, verdict)))
    else:
        yield text.total()
    if comparison.groups.keys != ("class",):
        yield from text.table(f"by {', '.join(comparison.groups.keys)}", comparison.groups, "row")
    elif comparison.new.is_offcpu:
        yield from text.table("by what was waited for", comparison.groups, "row")
    if comparison.functions:
        yield from text.table("by class and function of the program", comparison.functions, "function")
    if comparison.objects:
        yield from text.table("by object", comparison.objects, "object")
    yield from text.table("by comm", comparison.threads, "comm", threads=True)
    if style.stacks:
        yield from text.stacks()
    yield from _lost(comparison, style)


def _recordings(comparison: Comparison, style: Style) -> Iterator[str]:
    per = comparison.per
    how = f"a second of recorded time ({per_text(per)})"
    if per.name == "run":
        how = f"a whole run ({per_text(per)})"
        how += f": both recorded {printable(per.program)}; --per second compares rates" if per.program else ""
    if per.name == "unit":
        how = f"a unit of work ({per_text(per)}): {per.units[0]:g} before, {per.units[1]:g} now"
    for title, side in (("Before:   ", comparison.old), ("Now:      ", comparison.new)):
        yield say.comment(f"{title} {_recording(side, comparison.unit, style)}")
    yield say.comment(f"Compared:  {how}")
    yield "#"


def _recording(side: Side, unit: str, style: Style) -> str:
    meta, samples = side.profile.meta, side.subject.samples
    machine = (meta.hostname, f"{meta.os_release} {meta.arch}".strip(), f"{meta.nr_cpus} CPUs")
    facts = [part for part in machine if part and part != "0 CPUs"]
    weight = say.exact_amount(int(samples.period.sum()), unit, style)
    kind = "off the CPU" if side.is_offcpu else "sampled"
    waits = say.plural(int(samples.count.sum()), "wait" if side.is_offcpu else "sample")
    parts = [f"{side.source}{' of ' if facts else ''}{', '.join(facts)}"]
    parts.append(f"{side.recorded.total_ns / 1e9:.3f} s recorded, {waits}, {weight} {kind}")
    return "; ".join(parts)


class _Text:
    """Format changes, all in one unit."""

    def __init__(self, comparison: Comparison, style: Style) -> None:
        self.comparison, self.style = comparison, style
        self.unit = style.unit if comparison.unit == "ns" else "events"
        suffix = {"second": "/s", "unit": "/unit", "run": ""}[comparison.per.name]
        self.rate_unit = f"{self.unit}{suffix}"
        self.subject = "Off-cpu time" if comparison.new.is_offcpu else "Weight of the samples"

    def rate(self, value: float) -> str:
        """Format a weight per second, unit or run."""
        if self.comparison.unit != "ns":
            return f"{value:.3f}"
        return say.amount(round(value), "ns", self.style)

    def change(self, value: float) -> str:
        """Format a change, with its sign."""
        return f"{'-' if value < 0 else '+'}{self.rate(abs(value))}"

    def total(self) -> str:
        """Return the line of the total."""
        row = self.comparison.total
        noise = "noise" if row.is_noise else "more than noise"
        return say.comment(
            f"{self.subject} {per_text(self.comparison.per)}: {self.rate(row.before)} before, "
            f"{self.rate(row.after)} now, {self.change(row.change)} {self.unit}; {noise}, which is up to "
            f"{self.rate(row.noise)}"
        )

    def table(self, by: str, table: Table, thing: str, *, threads: bool = False) -> Iterator[str]:
        """Print a table."""
        yield from say.section(f"{self.subject} {by}, largest change first", self.style)
        if table.rows:
            columns = [*self._columns(table.rows, threads=threads), *_names(table)]
            title, dots, *lines = lay_out(columns, self.style.width)
            yield from (self.style.paint(say.DIM, title), self.style.paint(say.DIM, dots))
            for row, line in zip(table.rows, lines, strict=True):
                text = self._cell(row)
                yield line.replace(text, self.style.paint(_colour(row), text), 1)
        yield from self._rest(table, thing)

    def _cell(self, row: Row) -> str:
        return f"{'~' if row.is_noise else ''}{self.change(row.change)}"

    def _columns(self, rows: Sequence[Row], *, threads: bool) -> Iterator[Column]:
        def column(title: str, cell: Callable[[Row], str], spare: int = 0) -> Column:
            return Column(title, [cell(row) for row in rows], spare=spare)

        def amount(value: int | None) -> str:
            return say.amount(value, self.comparison.unit, self.style)

        yield column(f"Change {self.rate_unit}", self._cell)
        yield column("Change", _percent, 3)
        yield column("Noise", lambda row: self.rate(row.noise), 4)
        yield column("Before", lambda row: self.rate(row.before))
        yield column("Now", lambda row: self.rate(row.after))
        thing = "waits" if self.comparison.new.is_offcpu else "samples"
        yield column(f"Old {thing}", lambda row: say.count_text(row.old), 2)
        yield column(f"New {thing}", lambda row: say.count_text(row.new), 2)
        if self.comparison.new.is_offcpu:
            yield column(f"Old average {self.style.unit}", lambda row: amount(row.old.average), 1)
            yield column("New average", lambda row: amount(row.new.average), 1)
        if self.comparison.per.name != "run":
            yield column(f"Old {self.unit}", lambda row: amount(row.old.weight), 6)
            yield column(f"New {self.unit}", lambda row: amount(row.new.weight), 6)
        if threads:
            yield column("Old threads", lambda row: str(row.threads[0]), 5)
            yield column("New threads", lambda row: str(row.threads[1]), 5)

    def stacks(self) -> Iterator[str]:
        """Print the stacks."""
        order = "leaf first" if self.style.leaf_first else "root first"
        table = self.comparison.stacks
        yield from say.section(f"{self.subject} by stack, largest change first; {order}", self.style)
        for row in table.rows:
            text = f"{self._cell(row)} {self.rate_unit}"
            yield f"{' ' * max(0, 12 - len(text))}{self.style.paint(_colour(row), text)}  {self._facts(row)}"
            yield f"{INDENT}|"
            lead = "---"
            for name in collapsed(row.frames, self.style):
                yield cut(f"{INDENT}{lead}{name}", self.style.width)
                lead = "   "
            yield ""
        yield from self._rest(table, "stack")

    def _facts(self, row: Row) -> str:
        parts = [row.values[0], f"{self.rate(row.before)} before, {self.rate(row.after)} now"]
        parts += [f"{self._waits(row.old)} before", f"{self._waits(row.new)} now"]
        return "  ".join(parts)

    def _waits(self, total: Total) -> str:
        thing = "wait" if self.comparison.new.is_offcpu else "sample"
        waits = say.plural(total.count, thing, say.count_text(total))
        if not self.comparison.new.is_offcpu or total.average is None:
            return waits
        return f"{waits} of {say.amount(total.average, 'ns', self.style)} {self.style.unit}"

    def _rest(self, table: Table, thing: str) -> Iterator[str]:
        """Return the lines about rows that are left out, and about noise."""
        if table.more.rows:
            yield say.comment(f"and {say.plural(table.more.rows, f'more {thing}')}: {self._changes(table.more)}")
        if table.noise.rows:
            marked = "marked ~" if any(row.is_noise for row in table.rows) else "left out"
            yield say.comment(
                f"Noise, {marked}: {say.plural(table.noise.rows, thing)}: {self._changes(table.noise)}, "
                f"the largest {self.rate(table.noise.largest)} (below {table.errors:.1f} standard errors)"
            )

    def _changes(self, rows: Cut) -> str:
        weights = f"{self.rate(rows.before)} before, {self.rate(rows.after)} now"
        return f"{self.change(rows.grown)} and {self.change(rows.shrunk)} {self.rate_unit} of {weights}"


def _names(table: Table) -> Iterator[Column]:
    """Return the columns of the values; one without any value is left out."""
    for index, key in enumerate(table.keys):
        cells = [printable(row.values[index]) for row in table.rows]
        if any(cells):
            title = TITLES.get(key, key.capitalize())
            yield Column(title, cells, left=key not in ("pid", "tid", "cpu"))


def _percent(row: Row) -> str:
    return f"{100 * row.change / row.before:+.1f}%" if row.before else "new"


def _colour(row: Row) -> str:
    return "" if row.is_noise else say.RED if row.change > 0 else say.GREEN


def _lost(comparison: Comparison, style: Style) -> Iterator[str]:
    yield "#"
    sides = (comparison.old, comparison.new)
    counts = [losses.by_text(side.profile.losses) for side in sides]
    causes = {cause: None for count in counts for cause in count if cause.is_loss}
    if not causes:
        yield say.comment("Nothing was lost.")
        return
    yield say.heading("Lost or damaged: before, now", style)
    for cause in causes:
        before, now = (count.get(cause, 0) for count in counts)
        yield say.comment(f"{before:>10} {now:>10}  {cause}")
