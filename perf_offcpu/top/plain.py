# SPDX-License-Identifier: Apache-2.0
"""Write intervals as lines of text, and as JSON documents, whose keys Documentation/perf-offcpu-top.txt describes."""

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from perf_offcpu.report import style as say
from perf_offcpu.report.style import Column, Style, lay_out
from perf_offcpu.report.totals import fields
from perf_offcpu.text import printable
from perf_offcpu.top.interval import Interval, Row

VERSION: Final = 1
_LOSSES: Final = 2
_BARS: Final = 5
_ROW: Final = "label blocked runnable running waits average longest now since since_is_least"


def document(
    interval: Interval, key: str, rows: Sequence[Row], limit: int | None, cost: Mapping[str, float], unread: int
) -> dict[str, Any]:
    """Return the JSON document of an interval: times in ns, at most `limit` of the `rows` by `key`. `cost`: part of
    this program → its CPU time in % of a CPU; `unread`: number of recordings that were not read in time."""
    return {
        "version": VERSION,
        "time": interval.utc_s,
        "begin_ns": interval.begin_ns,
        "end_ns": interval.end_ns,
        "now": int(interval.now().sum()),
        "classes": interval.by_class(),
        "running": interval.running_ns(),
        "runnable": interval.runnable_ns(),
        "cause": printable(interval.cause),
        "losses": interval.losses,
        "unread": unread,
        "cost": {part: round(percent, 2) for part, percent in cost.items()},
        "key": key,
        "rows": [fields(row, _ROW) for row in rows[:limit]],
        "more": len(rows) - len(rows[:limit]),
    }


def render(
    interval: Interval,
    key: str,
    rows: Sequence[Row],
    limit: int | None,
    cost: Mapping[str, float],
    unread: int,
    style: Style,
) -> Iterator[str]:
    """Yield the lines of an interval: its head, then the table. Arguments as of `document`."""
    yield style.paint(say.BOLD, say.cut(say.comment(f"{head(interval)}; {cost_text(cost)}"), style.width))
    for line in (classes_text(interval), cause_text(interval), losses_text(interval, unread)):
        yield say.cut(say.comment(line), style.width)
    if rows[:limit]:
        title, dots, *lines = lay_out(columns_of(interval, key, rows[:limit]), style.width)
        yield from (style.paint(say.DIM, title), style.paint(say.DIM, dots), *lines)
    yield from say.and_more(len(rows) - len(rows[:limit]), "more row")
    yield ""


def head(interval: Interval) -> str:
    """Return the first line of an interval: time of day, threads blocked, time running and waiting for a CPU."""
    clock = time.strftime("%H:%M:%S", time.localtime(interval.utc_s))
    blocked = say.plural(int(interval.now().sum()), "thread")
    cpu = f"running {per_second(interval.running_ns(), interval)}"
    cpu += f", for a CPU {per_second(interval.runnable_ns(), interval)} s/s"
    return f"{clock}, {interval.seconds:.2f} s: {blocked} blocked now; {cpu}"


def classes_text(interval: Interval) -> str:
    """Format the time blocked by class, in seconds per second, largest first."""
    classes = ", ".join(f"{label} {per_second(ns, interval)}" for label, ns in interval.by_class().items())
    return f"Blocked, s/s: {classes or 'none'}"


def cause_text(interval: Interval) -> str:
    """Return the line on the first cause."""
    return f"First cause: {printable(interval.cause) or 'none'}"


def losses_text(interval: Interval, unread: int) -> str:
    """Return the line on losses, largest numbers first. `unread`: number of recordings that were not read in time."""
    counts = sorted(interval.losses.items(), key=lambda item: -item[1])
    texts = [f"{count} {text}" for text, count in counts[:_LOSSES]]
    texts += [f"{len(counts) - _LOSSES} more causes"] if len(counts) > _LOSSES else []
    texts += [f"{say.plural(unread, 'interval')}: read too late"] if unread else []
    return f"Lost: {'; '.join(texts) or 'nothing'}"


def cost_text(cost: Mapping[str, float]) -> str:
    """Format the cost of this program, part → % of a CPU: `cost 2.1 % of a CPU (top 1.2, recorder 0.9)`."""
    parts = ", ".join(f"{part} {percent:.1f}" for part, percent in cost.items())
    return f"cost {sum(cost.values()):.1f} % of a CPU ({parts})"


def per_second(ns: int | None, interval: Interval) -> str:
    """Format a time as a part of the interval's length, in s/s; NOT_KNOWN for None."""
    return say.NOT_KNOWN if ns is None else f"{ns / 1e9 / interval.seconds:.3f}"


def milliseconds(ns: int | None) -> str:
    """Format a time in ms; NOT_KNOWN for None."""
    return say.amount(ns, "ns", Style())


def since_text(row: Row) -> str:
    """Format the length so far of a row's longest unfinished wait, s: `12.3`, `>12.3`: at least; "": no thread is
    blocked."""
    return f"{'>' if row.since_is_least else ''}{row.since / 1e9:.1f}" if row.now else ""


def columns_of(interval: Interval, key: str, rows: Sequence[Row]) -> list[Column]:
    """Return the columns of the table by `key`."""
    return [
        Column("Blocked s/s", [per_second(row.blocked, interval) for row in rows]),
        Column("For CPU s/s", [per_second(row.runnable, interval) for row in rows], spare=3),
        Column("Running s/s", [per_second(row.running, interval) for row in rows], spare=4),
        Column("Waits/s", [f"{row.waits / interval.seconds:.1f}" for row in rows], spare=2),
        Column("Average ms", [milliseconds(row.average) for row in rows], spare=5),
        Column("Longest ms", [milliseconds(row.longest) for row in rows], spare=1),
        Column("Now", [str(row.now or "") for row in rows]),
        Column("Since s", [since_text(row) for row in rows]),
        say.names(key.capitalize(), (row.label for row in rows)),
    ]


def bars(interval: Interval, width: int) -> list[str]:
    """Return a line for each of the longest blocked classes: label, s/s, and a bar; `width`: in columns."""
    classes = list(interval.by_class().items())[:_BARS]
    widest = max([len(label) for label, _ in classes], default=0)
    most = max([ns for _, ns in classes], default=1)
    room = max(width - widest - 12, 4)
    return [
        f"{label:<{widest}} {per_second(ns, interval):>8} {'█' * max(1, ns * room // most)}" for label, ns in classes
    ]
