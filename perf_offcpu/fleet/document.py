# SPDX-License-Identifier: Apache-2.0
"""Views of a dataset as JSON documents. Weights are integers in the unit of the event (ns for time)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from perf_offcpu.fleet.report import Head, StackTable, Table
from perf_offcpu.report.fields import fields, frame

VERSION = 1
"""Version of the documents; it grows when a key changes its meaning or is removed."""
_HEAD = "source selection hosts recorded_ns first_ns last_ns periods events unit losses notes"
_GAP = "host cause ns"
_ROW = "weight blocked runq waits waits_are_exact samples"


def report(head: Head, tables: Sequence[Table], idle: int) -> dict[str, Any]:
    """Return the document of `fleet report`."""
    return head_fields(head) | {"idle": idle, "tables": [_table(table) for table in tables]}


def stacks(head: Head, table: StackTable) -> dict[str, Any]:
    """Return the document of `fleet top`."""
    rows = [
        fields(row, "comm weight waits classes") | {"frames": [frame(name) for name in row.frames]}
        for row in table.rows
    ]
    return head_fields(head) | {"weight": table.weight, "stacks": table.stacks, "rows": rows}


def head_fields(head: Head) -> dict[str, Any]:
    """Return the facts on a selection."""
    gaps = [fields(gap, _GAP) for gap in head.gaps]
    return {"version": VERSION} | fields(head, _HEAD) | {"gaps": gaps}


def _table(table: Table) -> dict[str, Any]:
    rows = [dict(zip(table.keys, row.values, strict=True)) | fields(row, _ROW) for row in table.rows]
    return {"keys": list(table.keys), "weight": table.weight, "groups": table.groups, "rows": rows}
