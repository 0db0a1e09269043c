# SPDX-License-Identifier: Apache-2.0
"""Make the common parts of the JSON documents of all reports: fields of rows, totals, frames."""

from __future__ import annotations

from typing import Any

from perf_offcpu.callpaths.names import Name, NameKind
from perf_offcpu.report.totals import Total
from perf_offcpu.text import printable


def fields(row: object, names: str) -> dict[str, Any]:
    """Return the named fields of a row, texts printable."""
    values = ((name, getattr(row, name)) for name in names.split())
    return {name: printable(value) if isinstance(value, str) else value for name, value in values}


def total_fields(total: Total) -> dict[str, Any]:
    """Return a total; `count` is a lower bound and `average` null if sums of unknown numbers are in it."""
    return fields(total, "weight count count_is_exact average longest")


def frame(name: Name) -> dict[str, str]:
    """Return a frame."""
    return {"name": name.label, "dso": name.dso, "kind": NameKind(name.kind).name.lower()}


def cut_fields(more: tuple[int, int]) -> dict[str, int]:
    """Return the number and weight of rows over a limit."""
    return {"rows": more[0], "weight": more[1]}
