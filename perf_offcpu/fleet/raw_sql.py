# SPDX-License-Identifier: Apache-2.0
"""Answer a query in the engine's own SQL."""

from __future__ import annotations

import decimal
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

from perf_offcpu.dataset.schema import TABLES
from perf_offcpu.fleet.tables import Tables
from perf_offcpu.report.text_table import Column, lay_out
from perf_offcpu.text import printable


def ask(tables: Tables, query: str) -> dict[str, list[Any]]:
    """Return the columns of the result: name → values.

    Raises:
        PerfOffcpuError: the engine refused the query.
    """
    tables.check_versions()
    for name in TABLES:
        if re.search(rf"\b{name}\b", query, re.IGNORECASE):
            tables.table(name)
    return tables.engine.sql(query)


def document(columns: Mapping[str, list[Any]]) -> list[dict[str, Any]]:
    """Return the rows of a result as a JSON document: numbers stay exact, NaN and infinity become null."""
    return [dict(zip(columns, map(_plain, row), strict=True)) for row in zip(*columns.values(), strict=True)]


def _plain(value: Any) -> Any:
    """Return a value of types that JSON has; others, such as times, as text."""
    if isinstance(value, Mapping):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if isinstance(value, decimal.Decimal):
        is_whole = value.is_finite() and value == value.to_integral_value()
        return int(value) if is_whole else _plain(float(value))
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    return value if value is None or isinstance(value, str | int) else str(value)


def lines(columns: dict[str, list[Any]]) -> Iterator[str]:
    """Return a text table of a result."""
    if not columns:
        return
    yield from lay_out([_column(name, values) for name, values in columns.items()], None)


def _column(name: str, values: list[Any]) -> Column:
    left = any(isinstance(value, str | Mapping | list) for value in values)
    cells = ["" if value is None else printable(str(value)) for value in values]
    return Column(printable(name), cells, left=left)
