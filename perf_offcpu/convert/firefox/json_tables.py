# SPDX-License-Identifier: Apache-2.0
"""Tables of a Firefox profile as JSON: columns beside each other, and strings by number."""

from __future__ import annotations

import json
from collections.abc import Iterator

import numpy as np

from perf_offcpu.convert.encode.json_numbers import array_items
from perf_offcpu.model.columns import I64
from perf_offcpu.text import printable


class Strings:
    """Numbers texts as they come."""

    def __init__(self) -> None:
        self._rows: dict[str, int] = {}

    def row(self, text: str) -> int:
        """The number of a text, printable or not."""
        return self._rows.setdefault(printable(text), len(self._rows))

    def rows(self, texts: list[str]) -> I64:
        """int64[texts]."""
        return np.array([self.row(text) for text in texts], np.int64)

    def json(self) -> str:
        """All of them, as a JSON array."""
        return json.dumps(list(self._rows), separators=(",", ":"))


_MINUS_ONE = frozenset({"address", "lib", "resource"})
"""Columns in which none is -1; in the others it is null."""


def table(length: int, **columns: I64 | bool | None) -> Iterator[str]:
    """A table of columns; None and a truth value stand for a column of nothing else."""
    yield "{"
    for name, values in columns.items():
        yield f'"{name}":['
        if values is None or isinstance(values, bool):
            yield ",".join([json.dumps(values)] * length)
        elif name in _MINUS_ONE:
            yield ",".join(map(str, values.tolist()))
        else:
            yield from array_items(values, null=values < 0)
        yield "],"
    yield f'"length":{length}}}'
