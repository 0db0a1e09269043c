# SPDX-License-Identifier: Apache-2.0
"""The report as a JSON document: `perf-offcpu report --json`.

Weights are integers in the unit that the document names (ns for time); rows are sorted by weight, and
frames stand root first. `version` grows when a key changes its meaning or goes away, not when one comes.
Every key is described in Documentation/perf-offcpu-report.txt.
"""

from __future__ import annotations

from typing import Any

from perf_offcpu.callpaths.names import Name, NameKind
from perf_offcpu.report.functions import FunctionTable
from perf_offcpu.report.groups import GroupTable
from perf_offcpu.report.histogram import Histogram
from perf_offcpu.report.summary import EventRow, StackRow, Summary, ThreadRow
from perf_offcpu.report.thread_budgets import BudgetTable
from perf_offcpu.report.totals import Total
from perf_offcpu.text import printable

VERSION = 1


def document(summary: Summary) -> dict[str, Any]:
    """The summary as dicts, lists, integers and printable texts."""
    return {
        "version": VERSION,
        "recording": _recording(summary),
        "events": [_event(row) for row in summary.events],
        "subject": {
            "events": [printable(name) for name in summary.subject],
            "offcpu": summary.is_offcpu,
            "unit": summary.unit,
        }
        | _total(summary.total),
        "threads": [_thread(row, summary) for row in summary.threads],
        "more_threads": _cut(summary.more_threads),
        "stacks": [_stack(row) for row in summary.stacks],
        "more_stacks": _cut(summary.more_stacks),
        "budget": _budget(summary.budget),
        "groups": _groups(summary.groups),
        "functions": _functions(summary.functions),
        "histogram": _histogram(summary.histogram),
        "notes": {str(cause): count for cause, count in summary.notes.items()},
        "losses": {printable(str(cause)): count for cause, count in summary.losses.items()},
    }


def _recording(summary: Summary) -> dict[str, Any]:
    meta = summary.meta
    return {
        "file": printable(meta.source),
        "hostname": printable(meta.hostname),
        "os_release": printable(meta.os_release),
        "arch": printable(meta.arch),
        "cpus": meta.nr_cpus,
        "command": [printable(word) for word in meta.cmdline],
        "first_ns": meta.first_ns,
        "last_ns": meta.last_ns,
    }


def _event(row: EventRow) -> dict[str, Any]:
    return {"name": printable(row.name), "unit": row.unit, "samples": row.samples} | _total(row.total)


def _total(total: Total) -> dict[str, Any]:
    """`count` is a lower bound and `average` null where sums of an unknown number of waits are in it."""
    return {
        "weight": total.weight,
        "count": total.count,
        "count_is_exact": total.count_is_exact,
        "average": total.average,
        "longest": total.longest,
    }


def _thread(row: ThreadRow, summary: Summary) -> dict[str, Any]:
    return {
        "comm": printable(row.comm),
        "pid": row.pid,
        "tid": row.tid,
        **_total(row.total),
        "beside": _beside(row, summary.beside),
    }


def _beside(row: ThreadRow, event: EventRow | None) -> dict[str, Any] | None:
    if event is None:
        return None
    return {"event": printable(event.name), "weight": row.beside.weight, "count": row.beside.count}


def _stack(row: StackRow) -> dict[str, Any]:
    return {
        "comm": row.comm,
        **_total(row.total),
        "states": row.states,
        "classes": row.classes,
        "syscalls": {printable(name): weight for name, weight in row.syscalls.items() if name},
        "still_blocked": row.still_blocked,
        "frames": [_frame(name) for name in row.frames],
    }


def _frame(name: Name) -> dict[str, str]:
    return {"name": name.label, "dso": name.dso, "kind": NameKind(name.kind).name.lower()}


def _cut(more: tuple[int, int]) -> dict[str, int]:
    rows, weight = more
    return {"rows": rows, "weight": weight}


def _budget(table: BudgetTable | None) -> dict[str, Any] | None:
    if table is None:
        return None
    return {
        "derived": table.derived,
        "threads": [
            {
                "comm": printable(row.comm),
                "pid": row.pid,
                "tid": row.tid,
                "wall": row.wall,
                "running": row.running,
                "runnable": row.runnable,
                "blocked": {letter or "?": ns for letter, ns in row.blocked.items()},
                "unknown": row.unknown,
            }
            for row in table.rows
        ],
        "more_threads": table.more,
    }


def _groups(table: GroupTable) -> dict[str, Any]:
    return {
        "keys": list(table.keys),
        "rows": [
            {"values": list(row.values), **_total(row.total), "runq": row.runq if table.runq_known else None}
            for row in table.rows
        ],
        "more": _cut(table.more),
    }


def _functions(table: FunctionTable | None) -> dict[str, Any] | None:
    if table is None:
        return None
    rows = [{**_frame(row.name), "inclusive": row.inclusive, "own": row.own} for row in table.rows]
    return {"rows": rows, "more": table.more}


def _histogram(table: Histogram | None) -> dict[str, Any] | None:
    if table is None:
        return None
    return {
        "buckets": [
            {"from": one.low, "below": one.high, "count": one.count, "weight": one.weight}
            for one in table.buckets
        ],
        "sums": {"samples": table.sums, **_total(table.summed)},
    }
