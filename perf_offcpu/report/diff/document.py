# SPDX-License-Identifier: Apache-2.0
"""Make the JSON document of `perf-offcpu report --diff --json`.

Weights of a recording are integers in `unit` (ns for time); `before`, `after`, `change` and `noise` are per
second, unit or run, and no integers. Every key is described in Documentation/perf-offcpu-report.txt.
"""

from __future__ import annotations

from typing import Any

from perf_offcpu.losses import by_text
from perf_offcpu.report.diff.compare import Comparison, Cut, Row, Table
from perf_offcpu.report.diff.sides import Side
from perf_offcpu.report.diff.verdict import Verdict, sentences_of
from perf_offcpu.report.document import VERSION
from perf_offcpu.report.totals import fields, frame, total_fields
from perf_offcpu.text import printable


def document(comparison: Comparison, verdict: Verdict | None) -> dict[str, Any]:
    """Return the comparison as dicts, lists, numbers and printable texts."""
    per = comparison.per
    return {
        "version": VERSION,
        "old": _side(comparison.old),
        "new": _side(comparison.new),
        "per": {"name": per.name, "old_units": per.units[0], "new_units": per.units[1]},
        "unit": comparison.unit,
        "offcpu": comparison.new.is_offcpu,
        "verdict": verdict and _verdict(comparison, verdict),
        "total": _row(comparison.total, ()),
        "groups": _table(comparison.groups),
        "functions": comparison.functions and _table(comparison.functions),
        "objects": comparison.objects and _table(comparison.objects),
        "threads": _table(comparison.threads),
        "stacks": _table(comparison.stacks),
    }


def _side(side: Side) -> dict[str, Any]:
    meta = side.profile.meta
    return {
        "file": printable(meta.source),
        **fields(meta, "hostname os_release arch"),
        "cpus": meta.nr_cpus,
        "command": list(map(printable, meta.cmdline)),
        "recorded_ns": round(side.recorded.total_ns),
        "losses": {printable(str(cause)): n for cause, n in by_text(side.profile.losses).items() if cause.is_loss},
    }


def _verdict(comparison: Comparison, verdict: Verdict) -> dict[str, Any]:
    keys = comparison.causes.keys if comparison.causes else ()
    worse, better = (
        [_row(row, keys) | {"comms": verdict.comms[row.number]} for row in rows]
        for rows in (verdict.worse, verdict.better)
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
    return {
        "keys": list(table.keys),
        "rows": [_row(row, table.keys) for row in table.rows],
        "more": _cut(table.more),
        "noise": _cut(table.noise),
        "standard_errors": table.errors,
    }


def _row(row: Row, keys: tuple[str, ...]) -> dict[str, Any]:
    old, new = (
        total_fields(side) | {"threads": threads} for side, threads in zip((row.old, row.new), row.threads, strict=True)
    )
    stack = {"frames": [frame(name) for name in row.frames]} if row.frames else {}
    return {
        "values": list(map(printable, row.values)),
        "old": old,
        "new": new,
        **fields(row, "before after change busy_change noise is_noise"),
        **stack,
    }


def _cut(cut: Cut) -> dict[str, Any]:
    return fields(cut, "rows before after grown shrunk largest")
