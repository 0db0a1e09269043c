# SPDX-License-Identifier: Apache-2.0
"""Report locks (`report --locks`): waiters, longest queue, and threads that held or released each lock."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from perf_offcpu.analysis.classes.classify import classify, of_idle_threads
from perf_offcpu.analysis.holders import holders_of
from perf_offcpu.analysis.selection.select import event_rows
from perf_offcpu.causality.locks import DeadThread, deadlocks_of, sentence_of
from perf_offcpu.model.profile import Profile
from perf_offcpu.report import style as say
from perf_offcpu.report.document import deadlock_fields, lock_fields
from perf_offcpu.report.objects import HELD, LockRow, LockTable, lock_table
from perf_offcpu.report.style import Column, Style, lay_out
from perf_offcpu.report.terminal import INDENT, frame_lines
from perf_offcpu.report.totals import cut_fields, fields, lost_fields
from perf_offcpu.report.verdict.text import wrapped
from perf_offcpu.structs import frozen
from perf_offcpu.text import id_text

VERSION = 2
_HANDS = 5
_FUNCTIONS = 2


@frozen
class LockReport:
    """Report on the locks of a recording; weights in ns."""

    source: str  # the recording
    total: int  # off-cpu time of all waits
    weight: int  # of it, waits for locks
    table: LockTable
    deadlocks: list[list[DeadThread]]
    losses: dict[str, int]


def report_of(profile: Profile, limit: int | None) -> LockReport:
    """Sum up the locks of a profile. `limit`: most locks, each with at most _HANDS holders; None: all of them."""
    chosen = np.isin(profile.samples.evsel, event_rows(profile)) & profile.is_offcpu()
    idle = of_idle_threads(profile, classify(profile).for_work)[chosen]
    subject = profile.select(chosen)
    waits, holders = classify(subject), holders_of(subject)
    table = lock_table(subject, waits, holders, limit, limit and _HANDS, idle)
    weight = sum(row.row.total.weight for row in table.rows) + table.more[1]
    total, deadlocks = int(subject.samples.period.sum()), deadlocks_of(subject, waits, holders)
    return LockReport(profile.meta.source, total, weight, table, deadlocks, lost_fields(profile))


def document(report: LockReport) -> dict[str, Any]:
    """Return the report as dicts, lists, integers and printable texts, for `--json`."""
    table = report.table
    return {
        "version": VERSION,
        **fields(report, "recording=source total weight"),
        "locks": list(map(lock_fields, table.rows)),
        "more": cut_fields(table.more),
        **deadlock_fields(report.deadlocks),
        "refused_holders": table.refused,
        "losses": report.losses,
    }


def render(report: LockReport, style: Style) -> Iterator[str]:
    """Yield the lines of the report, without line ends."""
    yield say.comment(f"Recording: {report.source or '-'}")
    yield "#"
    yield from map(say.comment, wrapped([*map(sentence_of, report.deadlocks), _sentence(report, style)]))
    if report.table.rows:
        yield from say.section("Locks by off-cpu time", style)
        yield from lay_out(_columns(report, style), style.width)
        yield from say.more_rows(report.table.more, "lock", "ns", style)
    for lock in report.table.rows:
        yield from _hands(lock, style)
    if report.table.refused:
        refused = say.plural(report.table.refused, "wait")
        yield from ("#", say.comment(f"{refused} whose recorded holder was no thread of the process"))
    if report.losses:
        yield from ("#", *say.counts("Lost or damaged", report.losses, style))


def _sentence(report: LockReport, style: Style) -> str:
    number = len(report.table.rows) + report.table.more[0]
    if not number:
        return "No wait for a lock has an object: sums of short waits and older recordings have none."
    weight, total = (say.time(ns, style) for ns in (report.weight, report.total))
    return f"{weight} of {total} off the CPU were waits for {say.plural(number, 'lock')}."


def _columns(report: LockReport, style: Style) -> list[Column]:
    locks = report.table.rows
    totals = [lock.row.total for lock in locks]
    return [
        say.shares((total.weight for total in totals), report.total),
        say.times("Off-cpu", (total.weight for total in totals), style),
        Column("Waits", [say.count_text(total) for total in totals]),
        say.times("Average", (total.average for total in totals), style, spare=4),
        say.times("Longest", (total.longest for total in totals), style, spare=3),
        Column("Threads", [str(lock.row.threads) for lock in locks], spare=1),
        Column("Queue", [str(lock.queue) for lock in locks], spare=2),
        Column("Hand-overs", [str(lock.hand_overs) for lock in locks], spare=5),
        say.names("Lock", (lock.row.name for lock in locks)),
        say.names("Waiting in", map(_waiting_in, locks), spare=6),
    ]


def _waiting_in(lock: LockRow) -> str:
    total, parts = lock.row.total.weight or 1, list(lock.waiting_in.items())
    shown = [f"{name} {100 * weight / total:.0f}%" for name, weight in parts[:_FUNCTIONS]]
    return ", ".join([*shown, *([f"{len(parts) - _FUNCTIONS} more"] if len(parts) > _FUNCTIONS else [])])


def _hands(lock: LockRow, style: Style) -> Iterator[str]:
    """Yield the lines of the threads that held (or released) a lock, with the stacks in which they released it."""
    hands, functions = lock.hands, [hand.function for hand in lock.hands]
    if not hands:
        return
    yield from say.section(_title(lock), style)
    columns = [
        say.shares((hand.weight for hand in hands), lock.row.total.weight),
        say.times("Waited", (hand.weight for hand in hands), style),
        Column("Times", [str(hand.times) for hand in hands], spare=2),
        Column("PID", [id_text(hand.pid) for hand in hands], spare=1),
        Column("TID", [id_text(hand.tid) for hand in hands]),
        say.names("Command", (hand.comm for hand in hands)),
        *([say.names("Released in", functions)] if any(functions) else []),
    ]
    yield from lay_out(columns, style.width)
    yield from say.more_rows(lock.more_hands, "thread", "ns", style)
    yield from map(say.comment, _rest(lock, style))
    for hand in hands:
        if hand.frames and style.stacks:
            _, *frames, _ = frame_lines(hand.frames, style)
            yield from ("", f"{INDENT}{hand.comm} {hand.tid}", *frames)


def _rest(lock: LockRow, style: Style) -> Iterator[str]:
    """Yield texts about parts of the weight that no thread of the table has: holder unknown, time after the wake-up."""
    total = lock.row.total.weight
    rest = total - lock.weight_known - lock.weight_unknown
    parts = (
        [(lock.weight_unknown, "holder not known"), (rest, "after the wake-up, mostly waiting for a CPU")]
        if lock.row.role == HELD
        else [(rest, "not known who released it, or nobody did (timeout, signal)")]
    )
    for weight, words in parts:
        if weight > 0:
            yield f"{say.share(weight, total)}  {say.time(weight, style)}  {words}"


def _title(lock: LockRow) -> str:
    if lock.row.role != HELD:
        return f"{lock.row.name}: who released it while others waited"
    changed = "" if lock.changed is None else f"; in {say.plural(lock.changed, 'wait')} another thread released it"
    return f"{lock.row.name}: who held it while others waited{changed}"
