# SPDX-License-Identifier: Apache-2.0
"""Views of a dataset as JSON documents. Weights are integers in the unit of the event (ns for time)."""

from collections.abc import Sequence
from typing import Any

from perf_offcpu.fleet.causes import FleetCause, FleetCauses
from perf_offcpu.fleet.diff.compare import STACK, Change, Changes, Comparison
from perf_offcpu.fleet.diff.outliers import Outliers
from perf_offcpu.fleet.path import FleetPath
from perf_offcpu.fleet.report import Head, StackTable, Table
from perf_offcpu.fleet.waits import LongWait
from perf_offcpu.report.totals import fields, frame
from perf_offcpu.text import printable

VERSION = 1  # version of the documents; it grows when a key changes its meaning or is removed
_HEAD = "source selection hosts recorded_ns first_ns last_ns periods events unit losses notes"
_ROW = "weight blocked runq waits waits_are_exact samples"


def report(head: Head, tables: Sequence[Table], idle: int, causes: FleetCauses | None) -> dict[str, Any]:
    """Return the JSON document of `fleet report`. `idle`: the weight of idle threads that `tables` include."""
    ranking: dict[str, Any] | None = None
    if causes is not None:
        rows = [_cause(cause, head) for cause in causes.causes]
        ranking = fields(causes, "whole running idle") | {"causes": rows, "ends": _cause(causes.ends, head)}
    return head_fields(head) | {"verdict": ranking, "idle": idle, "tables": [_table(table) for table in tables]}


def _cause(cause: FleetCause, head: Head) -> dict[str, Any]:
    report, waits = (
        f"perf-offcpu fleet {verb} {head.source} --class {cause.wait_class}" for verb in ("report", "waits")
    )
    return fields(cause, "wait_class weight comms enders") | {"command": report, "examples": waits}


def stacks(head: Head, table: StackTable) -> dict[str, Any]:
    """Return the JSON document of `fleet top`."""
    rows = [fields(row, "comm weight waits classes") | {"frames": list(map(frame, row.frames))} for row in table.rows]
    return head_fields(head) | {"weight": table.weight, "stacks": table.stacks, "rows": rows}


def waits(head: Head, rows: Sequence[LongWait]) -> dict[str, Any]:
    """Return the JSON document of `fleet waits`."""
    shown = [{"host": row.host, **row.columns, "frames": list(map(frame, row.frames))} for row in rows]
    return head_fields(head) | {"rows": shown}


def head_fields(head: Head) -> dict[str, Any]:
    """Return the fields that all documents share: selection, hosts, recorded time, gaps, losses."""
    gaps = [fields(gap, "host cause ns") for gap in head.gaps]
    return {"version": VERSION} | fields(head, _HEAD) | {"gaps": gaps}


def _table(table: Table) -> dict[str, Any]:
    rows = [dict(zip(table.keys, row.values, strict=True)) | fields(row, _ROW) for row in table.rows]
    return {"keys": list(table.keys), "weight": table.weight, "groups": table.groups, "rows": rows}


def comparison(compared: Comparison, old: Head, new: Head) -> dict[str, Any]:
    """Return the JSON document of `fleet diff --baseline`, with all rows, also insignificant ones."""
    return head_fields(new) | {
        "baseline": old.selection,
        "paired": compared.paired,
        "block_ns": compared.block_ns,
        "hosts_compared": list(compared.hosts),
        "hosts_left_out": compared.left_out,
        "total": _change(compared.total, ()),
        "tables": [_changes(table) for table in compared.tables],
    }


def _changes(table: Changes) -> dict[str, Any]:
    keys = ("comm",) if table.keys == STACK else table.keys
    rows = [_change(row, keys) for row in table.rows]
    return {"keys": list(table.keys)} | fields(table.verdicts, "assignments least_p") | {"rows": rows}


def _change(row: Change, keys: tuple[str, ...]) -> dict[str, Any]:
    frames = {"frames": list(map(frame, row.frames))} if row.frames else {}
    rates = {name: getattr(row, name) * 1e9 for name in ("before", "after", "change")}
    verdict = {"p": row.p, "significant": row.is_significant, "lengths": _lengths(row)}
    return dict(zip(keys, row.values, strict=True)) | rates | verdict | frames


def _lengths(row: Change) -> dict[str, Any] | None:
    """Return the JSON object of the lengths of a row's waits; None if they are not known."""
    lengths = row.lengths
    if lengths is None:
        return None
    sides = {"waits": [rate * 1e9 for rate in lengths.waits], "mean_ns": list(lengths.mean_ns)}
    sides["p99_ns"] = list(lengths.p99_ns or ())
    return sides | {"p": lengths.p, "significant": lengths.is_significant, "closed_loop": row.is_closed_loop}


def outliers(unlike: Outliers, new: Head) -> dict[str, Any]:
    """Return the JSON document of `fleet diff` without a baseline."""
    rows = [
        dict(zip(unlike.keys, row.values, strict=True))
        | {"host": row.host, "service": printable(row.group), "z": row.z}
        | {"rate": row.rate * 1e9, "median": row.median * 1e9}
        for row in unlike.rows
    ]
    compared = fields(unlike, "limit groups hosts left_out")
    return head_fields(new) | {"keys": list(unlike.keys), "compared": compared, "rows": rows}


def path(followed: FleetPath, head: Head) -> dict[str, Any]:
    """Return the JSON document of `fleet path`."""
    steps = [
        fields(step, "network doing object")
        | {"threads": step.threads._asdict(), "peers": [peer._asdict() for peer in step.peers], "ns": ns}
        for step, ns in followed.steps
    ]
    clocks = [{"hosts": list(pair.hosts)} | fields(pair.offset, "ns error_ns pairs") for pair in followed.clocks]
    totals = fields(followed, "weight waits followed uncertain")
    return head_fields(head) | totals | {"steps": steps, "clocks": clocks}
