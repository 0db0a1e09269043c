# SPDX-License-Identifier: Apache-2.0
"""Print the report: header lines with `#` as perf writes them, tables, stacks, losses. Totals are printed in the unit
of `--unit` and, in full, in ns; rows in the unit, rounded to three decimals."""

import itertools
import time
from collections.abc import Iterator, Mapping, Sequence

from perf_offcpu import losses
from perf_offcpu.abi.task_state import STATE_NAMES
from perf_offcpu.analysis.event_loops import sentences_of
from perf_offcpu.analysis.goroutines import goroutine_sentences
from perf_offcpu.analysis.times.wakeups import INTERRUPT
from perf_offcpu.callpaths.options import Name, NameKind
from perf_offcpu.causality.locks import sentence_of
from perf_offcpu.model.recording import Meta
from perf_offcpu.report import style as say
from perf_offcpu.report import tables
from perf_offcpu.report.breakdowns import Oversleep
from perf_offcpu.report.objects import HELD, RELEASED, ObjectRow
from perf_offcpu.report.style import Column, Style, cut
from perf_offcpu.report.summary import StackRow, Summary
from perf_offcpu.report.tables import coloured_table, share_colours, total_columns
from perf_offcpu.report.verdict.text import WIDTH, lines_of, wrapped
from perf_offcpu.text import printable

INDENT = " " * 12


def render(summary: Summary, style: Style) -> Iterator[str]:
    """Yield the lines of the report, without line ends."""
    top = [*first_screen(summary)]
    yield from (say.comment(line).rstrip() for line in [*top, *([""] if top else [])])
    head = [_recording, _events, _sampling]
    sums = [tables.threads, tables.budget, tables.groups, objects, event_loops, tables.functions]
    for lines in [*head, *sums, _stacks, tables.histogram, _losses]:
        yield from lines(summary, style)


def recording_text(meta: Meta, unnamed: str = "-") -> str:
    """Return a recording's file (without one, `unnamed`) and machine: `perf.data of web1, 6.12.3 x86_64, 8 CPUs`."""
    machine = (meta.hostname, f"{meta.os_release} {meta.arch}".strip(), f"{meta.nr_cpus} CPUs")
    facts = [part for part in machine if part and part != "0 CPUs"]
    return f"{meta.source or unnamed}{' of ' if facts else ''}{', '.join(facts)}"


def _recording(summary: Summary, _: Style) -> Iterator[str]:
    meta = summary.meta
    yield say.comment(f"Recording: {recording_text(meta)}")
    if meta.cmdline:
        yield say.comment(f"Command:   {' '.join(meta.cmdline)}")
    if meta.duration_ns:
        lasted = f"{meta.duration_ns / 1e9:.3f} s from first to last sample"
        lasted += f", {meta.paused_ns / 1e9:.3f} s of it not recorded" if meta.paused_ns else ""
        if meta.wall_clock_ns:
            seconds = (meta.wall_clock_ns + meta.first_ns - meta.wall_clock_at_ns) // 10**9
            lasted += time.strftime(", beginning %Y-%m-%d %H:%M:%S UTC", time.gmtime(seconds))
        yield say.comment(f"Time:      {lasted}")
    if meta.unprivileged:
        yield from map(say.comment, wrapped([f"{losses.UNPRIVILEGED.text.capitalize()}."], WIDTH))
    yield "#"


def first_screen(summary: Summary) -> Iterator[str]:
    """Yield the lines that come first: losses by which the file ends early (losses.CUT), deadlocks, tasks, verdict."""
    for cause in losses.CUT:
        if count := summary.losses.get(cause):
            yield printable(f"Cut: {count} {cause}")
    yield from wrapped(map(sentence_of, summary.deadlocks), WIDTH)
    tasks = sentences_of(summary.loops, summary.loop_times) + goroutine_sentences(summary.goroutines)
    yield from wrapped(map(printable, tasks), WIDTH)
    if summary.verdict:
        yield from map(printable, lines_of(summary.verdict, summary.meta))


def _sampling(summary: Summary, style: Style) -> Iterator[str]:
    """Yield lines on how far estimates from samples differ from exact counts."""
    sampling = summary.meta.sampling
    if sampling.stack_period_ns:
        short = f"{summary.meta.threshold_ns / 1e6:g} ms"
        period = f"{sampling.stack_period_ns / 1e6:g} ms"
        yield say.comment(
            f"Waits under {short}: exact sums; a stack was taken for each {period} of them in a thread, so"
        )
        yield say.comment("that a stack's part of a sum is an estimate (+-: its standard error).")
    if not sampling:
        return
    limited = " (--max-rate)" if sampling.longest_period_ns else ""
    period = f"{sampling.period_text} of waiting of a thread{limited}"
    yield say.comment(f"One sample for each {period}: waits and lengths are estimated.")
    exact = f"{say.exact_amount(sampling.waits_ns, 'ns', style)}, {sampling.waits} waits"
    time_error = _error(sampling.estimated_ns, sampling.waits_ns)
    errors = f"{time_error} of the time, {_error(sampling.estimated_waits, sampling.waits)} of the waits"
    yield say.comment(f"All that ended, counted exactly: {exact}; the samples differ by {errors}.")


def _error(estimate: int, exact: int) -> str:
    """Return by how many percent an estimate differs from the exact number, with a sign: `+1.20 %`."""
    return f"{100 * (estimate - exact) / exact:+.2f} %" if exact else "0 %"


def _events(summary: Summary, style: Style) -> Iterator[str]:
    for event in summary.events:
        weight = say.exact_amount(event.total.weight, event.unit, style)
        of_waits = f" of {say.count_text(event.total)} waits" if event.total.count != event.samples else ""
        mark = " (this report)" if event.name in summary.subject else ""
        samples = f"{say.plural(event.samples, 'sample')}{of_waits}"
        yield say.comment(f"Event '{event.name}'{mark}: {samples}, {weight}")
    for name in summary.subject:
        if name not in {event.name for event in summary.events}:
            yield say.comment(f"Event '{name}': no samples")


def _stacks(summary: Summary, style: Style) -> Iterator[str]:
    if not summary.stacks or not style.stacks:
        return
    yield from say.section(f"Stacks by {summary.subject_name}, {style.order}", style)
    for row in summary.stacks:
        text, colour = (cell(row.total.weight, summary.total.weight) for cell in (say.share, say.share_colour))
        yield f"{style.paint(colour, f'{text:>9}')}  {_stack_facts(row, summary, style)}"
        yield from frame_lines(row.frames, style)
    yield from say.more_rows(summary.more_stacks, "stack", summary.unit, style)
    letters = sorted({letter for row in summary.stacks for letter in row.states})
    if letters:
        yield say.comment("States: " + ", ".join(f"{letter} {STATE_NAMES[letter]}" for letter in letters))


def _stack_facts(row: StackRow, summary: Summary, style: Style) -> str:
    unit = f" {style.unit}" if summary.unit == "ns" else ""
    waits = say.plural(row.total.count, "wait" if summary.is_offcpu else "sample", say.count_text(row.total))
    parts = [row.comm, say.amount(row.total.weight, summary.unit, style) + unit, waits]
    if summary.is_offcpu and row.total.count > 1:
        lengths = (("average", row.total.average), ("longest", row.total.longest))
        parts += [f"{fact} {say.amount(ns, summary.unit, style)}" for fact, ns in lengths if ns is not None]
    if summary.is_offcpu:
        calls = {f"{printable(name)}()": part for name, part in row.syscalls.items() if name}
        parts += [shares(row.states), shares(row.classes), shares(calls)]
    if row.error_ns:
        parts.append(f"+-{say.amount(row.error_ns, summary.unit, style)}")
    if row.still_blocked:
        parts.append(f"{row.still_blocked} still blocked at the end")
    return "  ".join(filter(None, parts))


def shares(weights: dict[str, int]) -> str:
    """Return the name of a single weight, `S`, or the names of several with their shares: `S 80% D 20%`."""
    total = sum(weights.values())
    if len(weights) < 2:
        return "".join(weights)
    return " ".join(f"{name} {100 * part / (total or 1):.0f}%" for name, part in weights.items())


def frame_lines(frames: Sequence[Name], style: Style) -> Iterator[str]:
    """Yield the lines of a stack below its title, the last one empty. `frames`: root first."""
    yield f"{INDENT}|"
    lead = "---"
    for text in collapsed(frames, style):
        yield cut(f"{INDENT}{lead}{text}", style.width)
        lead = "   "
    yield ""


def collapsed(frames: Sequence[Name], style: Style) -> Iterator[str]:
    """Yield frames (given root first) in the style's order, a line for each run of one name: `NAME (3 frames)`."""
    for name, same in itertools.groupby(frames[::-1] if style.leaf_first else frames):
        times = sum(1 for _ in same)
        yield _frame(name, style) + (f" ({times} frames)" if times > 1 else "")


def _frame(name: Name, style: Style) -> str:
    if name.kind == NameKind.KERNEL:
        return f"{name.label} [k]"
    shown = name.dso and not name.label.startswith("[")
    return f"{name.label} ({name.dso})" if shown else name.label


def _losses(summary: Summary, style: Style) -> Iterator[str]:
    yield "#"
    if summary.notes:
        yield from say.counts("Samples to know about", summary.notes, style)
    if summary.losses:
        yield from say.counts("Lost or damaged", summary.losses, style)
    else:
        yield say.comment("Nothing was lost.")


_ROLES = {HELD: "held by", RELEASED: "released by"}
_SHOWN = 2
_TASK_ROWS = 25
_SAID_FROM_NS = 1_000_000


def objects(summary: Summary, style: Style) -> Iterator[str]:
    """Yield the table of objects waited for, with the threads that held them or ended the waits."""
    table = summary.objects
    if not table.rows:
        return
    yield from say.section("What was waited for: locks, files, connections, processes", style)
    rows = table.rows
    columns = [
        *total_columns([row.total for row in rows], summary, style),
        Column("Threads", [str(row.threads) for row in rows], spare=5),
        say.names("Class", (row.wait_class for row in rows), spare=2),
        say.names("Object", (row.name for row in rows)),
        say.names("By", (_network(row) or by_text(row.role, row.by, row.total.weight) for row in rows), spare=6),
    ]
    yield from coloured_table(columns, style, share_colours((row.total.weight for row in rows), summary))
    yield from say.more_rows(table.more, "object", summary.unit, style)
    if table.without:
        without = say.exact_amount(table.without, summary.unit, style)
        yield say.comment(f"without an object: {without}")
    yield from _oversleep(summary.oversleep, style)


def event_loops(summary: Summary, style: Style) -> Iterator[str]:
    """Yield the table of tasks of event loops at the end of the recording."""
    rows = [(f"{row.comm} {row.loop.tid}", group) for row in summary.loops for group in row.groups]
    if not rows:
        return
    yield from say.section("Tasks of event loops at the end", style)
    shown = rows[:_TASK_ROWS]
    columns = [
        Column("Tasks", [str(group.tasks) for _, group in shown]),
        say.names("Loop", (loop for loop, _ in shown), spare=2),
        say.names("Waits for", (group.waits_for for _, group in shown)),
        say.names("In", (group.function for _, group in shown)),
        say.names("Held by", (", ".join(group.holders) for _, group in shown), spare=6),
    ]
    yield from coloured_table(columns, style)
    if len(rows) > _TASK_ROWS:
        yield say.comment(f"{len(rows) - _TASK_ROWS} more rows")


def _network(row: ObjectRow) -> str:
    """Return the causes of waits for a connection, `peer slow 97%, retransmissions 3%`; "" if most are not known."""
    total = row.total.weight
    parts = [f"{cause} {100 * weight / total:.0f}%" for cause, weight in [*row.network.items()][:_SHOWN]]
    return ", ".join(parts) if 2 * sum(row.network.values()) > total else ""


def by_text(role: str, by: Mapping[str, int], whole: int) -> str:
    """Return `held by worker 80%, main 15%, not known 5%`; "" if no thread is known, or interrupts alone. `by`: comm →
    weight; `whole`: weight of all waits."""
    if not any(by.values()) or set(by) == {INTERRUPT}:
        return ""
    parts = list(by.items())[:_SHOWN]
    unknown = whole - sum(by.values())
    if 100 * unknown >= whole:
        parts.append(("not known", unknown))
    shares = ", ".join(f"{name} {100 * weight / whole:.0f}%" for name, weight in parts)
    more = f", {len(by) - _SHOWN} more" if len(by) > _SHOWN else ""
    return f"{_ROLES.get(role, 'ended by')} {shares}{more}"


def _oversleep(oversleep: Oversleep | None, style: Style) -> Iterator[str]:
    """Yield a line if a sleep took at least a millisecond longer than asked."""
    if oversleep is None or oversleep.longest < _SAID_FROM_NS:
        return
    sleeps, median = say.plural(oversleep.sleeps, "sleep"), say.time(oversleep.median, style)
    longest = say.time(oversleep.longest, style)
    yield say.comment(f"{sleeps} took longer than asked: {median} in the median, {longest} at most")
