# SPDX-License-Identifier: Apache-2.0
"""Show a comparison, as text and as JSON: the recordings, the verdict, then tables by absolute change."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from perf_offcpu import losses
from perf_offcpu.report import style as say
from perf_offcpu.report.diff.compare import Comparison, Cut, Row, Table
from perf_offcpu.report.diff.sides import Side
from perf_offcpu.report.diff.verdict import Verdict, sentences_of
from perf_offcpu.report.document import VERSION
from perf_offcpu.report.style import Column, Style
from perf_offcpu.report.tables import coloured_table, key_columns
from perf_offcpu.report.terminal import frame_lines, recording_text
from perf_offcpu.report.totals import Total, fields, frame, lost_fields, total_fields
from perf_offcpu.report.verdict.text import wrapped
from perf_offcpu.text import printable


def render(comparison: Comparison, verdict: Verdict | None, style: Style) -> Iterator[str]:
    """Yield the lines of the comparison, without line ends."""
    yield from _recordings(comparison, style)
    text = _Text(comparison, style)
    if verdict:
        *sentences, command = sentences_of(comparison, verdict)
        yield from map(say.comment, [*wrapped(sentences), command])
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
    how = f"a second of recorded time (per {per.name})"
    if per.name == "run":
        how = f"a whole run (per {per.name})"
        how += f": both recorded {printable(per.program)}; --per second compares rates" if per.program else ""
    if per.name == "unit":
        how = f"a unit of work (per {per.name}): {per.units[0]:g} before, {per.units[1]:g} now"
    for title, side in (("Before:   ", comparison.old), ("Now:      ", comparison.new)):
        yield say.comment(f"{title} {_recording(side, comparison.unit, style)}")
    yield say.comment(f"Compared:  {how}")
    yield "#"


def _recording(side: Side, unit: str, style: Style) -> str:
    samples, machine = side.subject.samples, recording_text(side.profile.meta, "the recording")
    weight = say.exact_amount(int(samples.period.sum()), unit, style)
    kind = "off the CPU" if side.is_offcpu else "sampled"
    waits = say.plural(int(samples.count.sum()), "wait" if side.is_offcpu else "sample")
    return f"{machine}; {side.recorded.total_ns / 1e9:.3f} s recorded, {waits}, {weight} {kind}"


class _Text:
    """Formatter of a comparison, all times in one unit."""

    def __init__(self, comparison: Comparison, style: Style) -> None:
        self.comparison, self.style = comparison, style
        self.unit = style.unit if comparison.unit == "ns" else "events"
        suffix = {"second": "/s", "unit": "/unit", "run": ""}[comparison.per.name]
        self.rate_unit = f"{self.unit}{suffix}"
        self.subject = "Off-cpu time" if comparison.new.is_offcpu else "Weight of the samples"

    def rate(self, value: float) -> str:
        """Format a weight per second, unit of work or run, without its unit."""
        if self.comparison.unit != "ns":
            return f"{value:.3f}"
        return say.amount(round(value), "ns", self.style)

    def change(self, value: float) -> str:
        """Format a change of a weight per second, unit of work or run, with its sign, without its unit."""
        return f"{'-' if value < 0 else '+'}{self.rate(abs(value))}"

    def total(self) -> str:
        """Return the line about the change of the total."""
        row = self.comparison.total
        noise = f"{'noise' if row.is_noise else 'more than noise'}, which is up to {self.rate(row.noise)}"
        change = f"{self._both(row)}, {self.change(row.change)} {self.unit}"
        return say.comment(f"{self.subject} per {self.comparison.per.name}: {change}; {noise}")

    def _both(self, weights: Row | Cut) -> str:
        return f"{self.rate(weights.before)} before, {self.rate(weights.after)} now"

    def table(self, by: str, table: Table, thing: str, *, threads: bool = False) -> Iterator[str]:
        """Yield the lines of a table with the title `… BY, largest change first`; `thing` names a row."""
        yield from say.section(f"{self.subject} {by}, largest change first", self.style)
        if table.rows:
            values = key_columns(table.keys, [tuple(map(printable, row.values)) for row in table.rows])
            columns = [*self._columns(table.rows, threads=threads), *(key for key in values if any(key.cells))]
            yield from coloured_table(columns, self.style, list(map(_colour, table.rows)))
        yield from self._rest(table, thing)

    def _cell(self, row: Row) -> str:
        return f"{'~' if row.is_noise else ''}{self.change(row.change)}"

    def _columns(self, rows: Sequence[Row], *, threads: bool) -> Iterator[Column]:
        def column(title: str, cell: Callable[[Row], str], spare: int = 0) -> Column:
            return Column(title, [cell(row) for row in rows], spare=spare)

        def amount(value: int | None) -> str:
            return say.amount(value, self.comparison.unit, self.style)

        yield column(f"Change {self.rate_unit}", self._cell)
        yield column("Change", lambda row: f"{100 * row.change / row.before:+.1f}%" if row.before else "new", 3)
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
        """Yield the lines of the stacks that changed."""
        table = self.comparison.stacks
        yield from say.section(f"{self.subject} by stack, largest change first; {self.style.order}", self.style)
        for row in table.rows:
            text = f"{self._cell(row)} {self.rate_unit}"
            waits = f"{self._waits(row.old)} before  {self._waits(row.new)} now"
            change = " " * max(0, 12 - len(text)) + self.style.paint(_colour(row), text)
            yield f"{change}  {row.values[0]}  {self._both(row)}  {waits}"
            yield from frame_lines(row.frames, self.style)
        yield from self._rest(table, "stack")

    def _waits(self, total: Total) -> str:
        thing = "wait" if self.comparison.new.is_offcpu else "sample"
        waits = say.plural(total.count, thing, say.count_text(total))
        if not self.comparison.new.is_offcpu or total.average is None:
            return waits
        return f"{waits} of {say.time(total.average, self.style)}"

    def _rest(self, table: Table, thing: str) -> Iterator[str]:
        """Yield the lines about rows that are left out, and about noise; `thing` names a row."""
        yield from say.and_more(table.more.rows, f"more {thing}", self._changes(table.more))
        if table.noise.rows:
            marked = "marked ~" if any(row.is_noise for row in table.rows) else "left out"
            yield say.comment(
                f"Noise, {marked}: {say.plural(table.noise.rows, thing)}: {self._changes(table.noise)}, "
                f"the largest {self.rate(table.noise.largest)} (below {table.errors:.1f} standard errors)"
            )

    def _changes(self, rows: Cut) -> str:
        return f"{self.change(rows.grown)} and {self.change(rows.shrunk)} {self.rate_unit} of {self._both(rows)}"


def _colour(row: Row) -> str:
    return "" if row.is_noise else say.RED if row.change > 0 else say.GREEN


def _lost(comparison: Comparison, style: Style) -> Iterator[str]:
    yield "#"
    counts = [losses.by_text(side.profile.losses) for side in (comparison.old, comparison.new)]
    causes = {cause: None for count in counts for cause in count if cause.is_loss}
    if not causes:
        yield say.comment("Nothing was lost.")
        return
    both = {cause: f"{counts[0].get(cause, 0):>10} {counts[1].get(cause, 0):>10}" for cause in causes}
    yield say.heading("Lost or damaged: before, now", style)
    yield from (say.comment(f"{numbers}  {cause}") for cause, numbers in both.items())


def document(comparison: Comparison, verdict: Verdict | None) -> dict[str, Any]:
    """Return the comparison as dicts, lists, numbers and printable texts, for `report --diff --json`. Weights of a
    recording are integers in `unit` (ns for time); `before`, `after`, `change` and `noise` are per second, unit or run,
    and no integers. Every key is described in Documentation/perf-offcpu-report.txt."""
    per = comparison.per
    return {
        "version": VERSION,
        "old": _side(comparison.old),
        "new": _side(comparison.new),
        "per": {"name": per.name, "old_units": per.units[0], "new_units": per.units[1]},
        "unit": comparison.unit,
        "offcpu": comparison.new.is_offcpu,
        "verdict": verdict and _verdict(comparison, verdict),
        "total": _row(comparison.total),
        "groups": _table(comparison.groups),
        "functions": comparison.functions and _table(comparison.functions),
        "objects": comparison.objects and _table(comparison.objects),
        "threads": _table(comparison.threads),
        "stacks": _table(comparison.stacks),
    }


def _side(side: Side) -> dict[str, Any]:
    meta = side.profile.meta
    machine = fields(meta, "file=source hostname os_release arch cpus=nr_cpus")
    command, recorded_ns = list(map(printable, meta.cmdline)), round(side.recorded.total_ns)
    return machine | {"command": command, "recorded_ns": recorded_ns, "losses": lost_fields(side.profile)}


def _verdict(comparison: Comparison, verdict: Verdict) -> dict[str, Any]:
    worse, better = (
        [_row(row) | {"comms": verdict.comms[row.number]} for row in rows] for rows in (verdict.worse, verdict.better)
    )
    old, new = (fields(idle, "threads weight") for idle in verdict.idle)
    return {
        "sentences": sentences_of(comparison, verdict),
        "worse": worse,
        "better": better,
        "idle": {"old": old, "new": new},
        "command": verdict.command,
    }


def _table(table: Table) -> dict[str, Any]:
    more, noise = (fields(cut, "rows before after grown shrunk largest") for cut in (table.more, table.noise))
    rows = {"keys": list(table.keys), "rows": list(map(_row, table.rows))}
    return rows | {"more": more, "noise": noise, "standard_errors": table.errors}


def _row(row: Row) -> dict[str, Any]:
    old, new = (
        total_fields(side) | {"threads": threads} for side, threads in zip((row.old, row.new), row.threads, strict=True)
    )
    weights = fields(row, "before after change busy_change noise is_noise")
    stack = {"frames": list(map(frame, row.frames))} if row.frames else {}
    return {"values": list(map(printable, row.values)), "old": old, "new": new, **weights, **stack}
