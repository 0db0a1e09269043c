# SPDX-License-Identifier: Apache-2.0
"""Comparisons and outliers as JSON documents. Rates are ns per second recorded."""

from __future__ import annotations

from typing import Any

from perf_offcpu.fleet.diff.compare import STACK, Comparison, Row, Table
from perf_offcpu.fleet.diff.outliers import Outliers
from perf_offcpu.fleet.document import head_fields
from perf_offcpu.fleet.report import Head
from perf_offcpu.report.fields import fields, frame
from perf_offcpu.text import printable


def comparison(found: Comparison, old: Head, new: Head) -> dict[str, Any]:
    """Return the document of `fleet diff --baseline`; all rows, also rows without a significant change."""
    return head_fields(new) | {
        "baseline": old.selection,
        "paired": found.paired,
        "hosts_compared": list(found.hosts),
        "hosts_left_out": found.left_out,
        "total": _row(found.total, ()),
        "tables": [_table(table) for table in found.tables],
    }


def _table(table: Table) -> dict[str, Any]:
    return {
        "keys": list(table.keys),
        "assignments": table.verdicts.assignments,
        "least_p": table.verdicts.least_p,
        "rows": [_row(row, ("comm",) if table.keys == STACK else table.keys) for row in table.rows],
    }


def _row(row: Row, keys: tuple[str, ...]) -> dict[str, Any]:
    frames = {"frames": [frame(name) for name in row.frames]} if row.frames else {}
    rates = {name: getattr(row, name) * 1e9 for name in ("before", "after", "change")}
    found = {"p": row.p, "significant": row.is_significant}
    return dict(zip(keys, row.values, strict=True)) | rates | found | frames


def outliers(found: Outliers, new: Head) -> dict[str, Any]:
    """Return the document of `fleet diff` without a baseline."""
    rows = [
        dict(zip(found.keys, row.values, strict=True))
        | {"host": row.host, "service": printable(row.group), "z": row.z}
        | {"rate": row.rate * 1e9, "median": row.median * 1e9}
        for row in found.rows
    ]
    compared = fields(found, "limit groups hosts left_out")
    return head_fields(new) | {"keys": list(found.keys), "compared": compared, "rows": rows}
