# SPDX-License-Identifier: Apache-2.0
"""Put columns of texts together, without a Python loop per sample."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise, repeat

import numpy as np

from perf_offcpu.analysis.group import stable_order
from perf_offcpu.callpaths.tree import PathTree
from perf_offcpu.model.columns import I64, Bool

_FRACTIONS = [f".{part:03}" for part in range(1000)]


def joined(*columns: str | Iterable[str]) -> list[str]:
    """Join the texts of all columns row by row; a single text is the same in each row."""
    endless = (repeat(column) if isinstance(column, str) else column for column in columns)
    return list(map("".join, zip(*endless, strict=False)))


def picked(texts: Sequence[str] | Mapping[int, str], rows: I64) -> Iterable[str]:
    """Return the texts of some rows, in their order."""
    return map(texts.__getitem__, rows.tolist())


def microseconds(times_ns: I64) -> list[str]:
    """Return times as microseconds with three decimals: nothing is rounded."""
    whole = map(str, (times_ns // 1000).tolist())
    return list(map(operator.add, whole, map(_FRACTIONS.__getitem__, (times_ns % 1000).tolist())))


def path_texts(tree: PathTree, nodes: I64, labels: Sequence[str] | None = None, separator: str = ";") -> list[str]:
    """Join the labels on the path to each node, root first: `main;handle;read`.

    Args:
        labels: of the tree's names; by default their own, with `:` for the `;` that separates them.
    """
    if labels is None:
        labels = [name.label.replace(";", ":") for name in tree.names]
    paths = tree.paths(nodes)
    texts = list(map(labels.__getitem__, paths.values.tolist()))
    return [separator.join(texts[begin:end]) for begin, end in pairwise(paths.offsets.tolist())]


def blocks(chosen: Bool, rows_in_block: int = 1 << 14) -> Iterator[I64]:
    """Return the chosen rows in blocks of bounded size."""
    rows = np.flatnonzero(chosen)
    for begin in range(0, len(rows), rows_in_block):
        yield rows[begin : begin + rows_in_block]


def running_sums(group_of: I64, values: I64) -> I64:
    """Return int64[n]: the sum of the earlier values of the same group, row by row."""
    order = stable_order(group_of)
    sums = np.cumsum(values[order]) - values[order]
    opens = np.flatnonzero(np.diff(group_of[order], prepend=-1))
    base = np.repeat(sums[opens], np.diff(opens, append=len(order)))
    result = np.empty(len(group_of), np.int64)
    result[order] = sums - base
    return result
