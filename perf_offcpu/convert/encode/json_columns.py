# SPDX-License-Identifier: Apache-2.0
"""Columns as JSON texts: what events of a trace are put together from, without a Python loop per event."""

from __future__ import annotations

import json
import operator
from collections.abc import Iterable

import numpy as np

from perf_offcpu.analysis.group import stable_order
from perf_offcpu.callpaths.tree import PathTree
from perf_offcpu.model.columns import I64

_FRACTIONS = [f".{part:03}" for part in range(1000)]


def joined(*columns: Iterable[str]) -> list[str]:
    """Row by row, the texts of all columns; as many as the shortest has (`itertools.repeat` has no end)."""
    return list(map("".join, zip(*columns, strict=False)))


def microseconds(times_ns: I64) -> list[str]:
    """Times as microseconds with three decimals: nothing is rounded."""
    whole = map(str, (times_ns // 1000).tolist())
    return list(map(operator.add, whole, map(_FRACTIONS.__getitem__, (times_ns % 1000).tolist())))


def picked(texts: list[str], rows: I64) -> Iterable[str]:
    """The texts of some rows, in their order."""
    return map(texts.__getitem__, rows.tolist())


def members(details: dict[str, str]) -> str:
    """`"name":"text",` for each member."""
    return "".join(f"{json.dumps(name)}:{json.dumps(text)}," for name, text in details.items())


def path_texts(tree: PathTree, nodes: I64) -> tuple[list[str], list[str]]:
    """JSON strings of nodes, by node; "" where no sample ends.

    Args:
        nodes: those at which samples end, in any order, also repeated.

    Returns:
        (names, stacks): the innermost name, and the whole path, root first: `"main;handle;read"`.
    """
    names, stacks = [""] * len(tree), [""] * len(tree)
    used = np.unique(nodes)
    own = [json.dumps(name.label) for name in tree.names]
    fields = [json.dumps(name.label.replace(";", ":"))[1:-1] for name in tree.names]
    paths = tree.paths(used)
    frames = [fields[name] for name in paths.values.tolist()]
    ends = paths.offsets.tolist()
    for node, begin, end in zip(used.tolist(), ends, ends[1:], strict=False):
        names[node] = own[tree.name[node]]
        stacks[node] = f'"{";".join(frames[begin:end])}"'
    return names, stacks


def running_sums(of: I64, values: I64) -> I64:
    """int64[n]: the sum of the earlier values of the same group, row by row."""
    order = stable_order(of)
    sums = np.cumsum(values[order]) - values[order]
    opens = np.flatnonzero(np.diff(of[order], prepend=-1))
    base = np.repeat(sums[opens], np.diff(opens, append=len(order)))
    result = np.empty(len(of), np.int64)
    result[order] = sums - base
    return result
