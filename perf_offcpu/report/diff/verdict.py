# SPDX-License-Identifier: Apache-2.0
"""Summarize the changes between two recordings in a few sentences: the largest ones, and noise. Waits of idle threads
are no cost: a cause is named only if at least half of its change is of other threads."""

import shlex
from collections.abc import Iterator, Sequence

from perf_offcpu import losses
from perf_offcpu.model.columns import group, sum_by
from perf_offcpu.report.diff.compare import Comparison, Row, Table
from perf_offcpu.report.diff.sides import Groups, Per, Side
from perf_offcpu.report.style import plural
from perf_offcpu.report.totals import Total
from perf_offcpu.report.verdict.text import cause_words, names_text, time_text
from perf_offcpu.structs import frozen
from perf_offcpu.text import thread_label

_CAUSES = 3
_OF_LARGEST = 10  # a cause is named if its change is at least a tenth of the largest


@frozen
class Idle:
    """Number and time of idle threads, which only wait for work."""

    threads: int
    weight: float  # per second, unit or run


@frozen
class Verdict:
    """Causes that became worse or better: rows of `Comparison.causes`, the largest change first."""

    table: Table  # `Comparison.causes`
    worse: list[Row]
    better: list[Row]
    idle: tuple[Idle, Idle]  # of the old recording and of the new one
    lost: tuple[int, int]  # number of causes of losses, in the old recording and the new one
    comms: dict[int, list[str]]  # `Row.number` → comms of its threads, the longest waiting first
    command: str  # command line that shows the changes as a flame graph


def verdict_of(comparison: Comparison, options: Sequence[tuple[str, str]], diff: str) -> Verdict | None:
    """Return the verdict; None if the samples are no waits. Its `command` keeps the `options`, (option, value), of the
    command line, and compares with `diff`, the file of the older recording."""
    table = comparison.causes
    if table is None:
        return None
    costs = [row for row in table.rows if not row.is_noise and 2 * row.busy_change / row.change >= 1]
    largest = abs(costs[0].change) if costs else 0.0
    costs = [row for row in costs if _OF_LARGEST * abs(row.change) >= largest]
    worse, better = ([row for row in costs if (row.change > 0) == up][:_CAUSES] for up in (True, False))
    old, new = comparison.old, comparison.new
    lost, new_lost = (sum(cause.is_loss for cause in side.profile.losses) for side in (old, new))
    kept = [word for pair in options if pair[0] != "--class" or not costs for word in pair]
    narrowed = ["--class", costs[0].values[0]] if costs else []
    words = ["perf-offcpu", "convert", "--flamegraph", "--diff", diff, *kept, *narrowed]
    comms = {row.number: _comms(comparison, table.groups, row.number) for row in (*worse, *better)}
    return Verdict(table, worse, better, (_idle(old), _idle(new)), (lost, new_lost), comms, shlex.join(words))


def _idle(side: Side) -> Idle:
    samples = side.subject.samples.take(side.idle)
    hidden, hidden_ms = (side.profile.losses.get(cause, 0) for cause in (losses.IDLE_THREADS, losses.IDLE_MS))
    weight = int(samples.period.sum()) + hidden_ms * 10**6
    return Idle(len(group(samples.pid, samples.tid)[0]) + hidden, weight * side.scale)


def _comms(comparison: Comparison, groups: Groups, number: int) -> list[str]:
    weights: dict[str, float] = {}
    for side, group_of in ((comparison.old, groups.old), (comparison.new, groups.new)):
        samples = side.subject.samples.take(group_of == number)
        first, of_comm = group(samples.comm)
        sums = sum_by(of_comm, samples.period, len(first)).tolist()
        for comm, weight in zip(samples.comm[first].tolist(), sums, strict=True):
            label = thread_label(side.subject.strings[comm])
            weights[label] = weights.get(label, 0.0) + weight * side.scale
    return sorted(weights, key=lambda label: -weights[label])


def sentences_of(comparison: Comparison, verdict: Verdict) -> list[str]:
    """Return the sentences of the verdict; the last one names its command."""
    causes = [
        f"{word}: {'; '.join(_cause(row, verdict.comms[row.number], comparison.per) for row in rows)}."
        for word, rows in (("Worse", verdict.worse), ("Better", verdict.better))
        if rows
    ]
    noise = _noise(verdict.table, comparison.per, found_causes=bool(causes))
    idle = _idle_threads(verdict, comparison.per)
    return [_total(comparison), *causes, *noise, *idle, _losses(verdict), f"Next: {verdict.command}"]


def _total(comparison: Comparison) -> str:
    row = comparison.total
    percent = f", {100 * row.change / row.before:+.1f} %" if row.before else ""
    noise = f"noise, which is up to {_time(row.noise)}" if row.is_noise else f"noise: up to {_time(row.noise)}"
    now = f"{_time(row.after)}, before {_time(row.before)}"
    return f"Off-cpu time per {comparison.per.name}: {now} ({_signed(row.change)}{percent}; {noise})."


def _cause(row: Row, comms: Sequence[str], per: Per) -> str:
    wait_class, program, meaning, function = row.values
    where = f" in {function}" if function else ""
    counts = f"{_waits(row.old)} before, {_waits(row.new)} now"
    if not row.old.count or not row.new.count:
        counts = f"{_waits(row.new)}, none before" if row.new.count else f"{_waits(row.old)}, none now"
    return (
        f"{cause_words(wait_class, program, meaning)}{where} ({names_text(comms)}) {_signed(row.change)} "
        f"per {per.name}, {_time(row.before)} to {_time(row.after)}: {counts}"
    )


def _waits(total: Total) -> str:
    mean = "" if total.average is None else f" of {time_text(total.average)}"
    return f"{plural(total.count, 'wait')}{mean}"


def _noise(table: Table, per: Per, *, found_causes: bool) -> Iterator[str]:
    causes, cut = table.groups.number, table.noise
    if not found_causes:
        of_idle = (table.rows or table.more.rows) and cut.rows < causes
        yield "Only threads that merely wait for work changed." if of_idle else "No change is more than noise."
    if cut.rows:
        changes = f"{_signed(cut.grown)} and {_signed(cut.shrunk)} per {per.name}"
        yield f"Noise: {cut.rows} of {plural(causes, 'cause')}: {changes}, the largest {_time(cut.largest)}."


def _idle_threads(verdict: Verdict, per: Per) -> Iterator[str]:
    old, new = verdict.idle
    if old.threads or new.threads:
        before = f"{plural(old.threads, 'thread')} before ({_time(old.weight)} per {per.name})"
        yield f"Merely waited for work, not judged: {before}, {new.threads} now ({_time(new.weight)})."


def _losses(verdict: Verdict) -> str:
    old, new = verdict.lost
    if not old and not new:
        return "Nothing was lost."
    where = "both recordings" if old and new else f"the {'old' if old else 'new'} recording"
    return f"Lost: in {where}, see the end."


def _signed(ns: float) -> str:
    return f"{'-' if ns < 0 else '+'}{_time(abs(ns))}"


def _time(ns: float) -> str:
    return time_text(round(ns)) if round(ns) else "0"
