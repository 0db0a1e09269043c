# SPDX-License-Identifier: Apache-2.0
"""Answer a query in the engine's own SQL."""

from __future__ import annotations

import re
from collections.abc import Iterator
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
    for name in TABLES:
        if re.search(rf"\b{name}\b", query, re.IGNORECASE):
            tables.table(name)
    return tables.engine.sql(query)


def lines(columns: dict[str, list[Any]]) -> Iterator[str]:
    """Return a text table of a result."""
    if not columns:
        return
    yield from lay_out([_column(name, values) for name, values in columns.items()], None)


def _column(name: str, values: list[Any]) -> Column:
    left = any(isinstance(value, str) for value in values)
    cells = ["" if value is None else printable(str(value)) for value in values]
    return Column(printable(name), cells, left=left)
