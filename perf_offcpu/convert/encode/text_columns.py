# SPDX-License-Identifier: Apache-2.0
"""Format columns of numbers and texts, without a Python loop per sample."""

import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise, repeat

import numpy as np

from perf_offcpu.callpaths.tree import PathTree
from perf_offcpu.model.columns import I64, U8, Bool, stable_order

_BLOCK = 1 << 14
_COMMA, _POINT, _ZERO = b",.0"
_NULL = np.frombuffer(b"null", np.uint8)
_FRACTIONS = [f".{part:03}" for part in range(1000)]


def joined(*columns: str | Iterable[str]) -> list[str]:
    """Concatenate columns of texts row by row; a single str is the same in each row."""
    endless = (repeat(column) if isinstance(column, str) else column for column in columns)
    return list(map("".join, zip(*endless, strict=False)))


def picked(texts: Sequence[str] | Mapping[int, str], rows: I64) -> Iterable[str]:
    """Return texts[row] for each of `rows`, in this order."""
    return map(texts.__getitem__, rows.tolist())


def microseconds(times_ns: I64) -> list[str]:
    """Format times as microseconds with three decimals, so that nothing is rounded."""
    quotients = map(str, (times_ns // 1000).tolist())
    return list(map(operator.add, quotients, map(_FRACTIONS.__getitem__, (times_ns % 1000).tolist())))


def path_texts(tree: PathTree, nodes: I64, labels: Sequence[str] | None = None, separator: str = ";") -> list[str]:
    """Format the path to each node, root first: `main;handle;read`. `labels`: a text for each of `tree.names`; by
    default their labels, with `:` for `;`."""
    if labels is None:
        labels = [name.label.replace(";", ":") for name in tree.names]
    paths = tree.paths(nodes)
    texts = list(map(labels.__getitem__, paths.values.tolist()))
    return [separator.join(texts[begin:end]) for begin, end in pairwise(paths.offsets.tolist())]


def blocks(rows: I64, rows_in_block: int = _BLOCK) -> Iterator[I64]:
    """Yield consecutive slices of `rows`, of at most `rows_in_block` elements."""
    for begin in range(0, len(rows), rows_in_block):
        yield rows[begin : begin + rows_in_block]


def running_sums(group_of: I64, values: I64) -> I64:
    """Return int64[n]: for each row, the sum of the values in earlier rows of the same group."""
    order = stable_order(group_of)
    sums = np.cumsum(values[order]) - values[order]
    opens = np.flatnonzero(np.diff(group_of[order], prepend=-1))
    base = np.repeat(sums[opens], np.diff(opens, append=len(order)))
    result = np.empty(len(group_of), np.int64)
    result[order] = sums - base
    return result


def array_items(values: I64, decimals: int = 0, null: Bool | None = None) -> Iterator[str]:
    """Format non-negative numbers as the items of a JSON array, without brackets; yield the text in parts. `decimals`:
    digits after the point, 1500 with three is `1.500`; `null`: bool[n], True for `null` in place of a number."""
    for begin in range(0, len(values), _BLOCK):
        end = min(begin + _BLOCK, len(values))
        is_null = np.zeros(end - begin, np.bool_) if null is None else null[begin:end]
        text = _digits(np.where(is_null, 0, values[begin:end]), decimals, is_null)
        yield text if end < len(values) else text[:-1]


def _digits(values: I64, decimals: int, null: Bool) -> str:
    """Format numbers, each with a comma after it: the digits are a matrix, which without leading zeros is the text."""
    if int(values.min(initial=0)) < 0:
        raise ValueError("digits of a negative number")
    width = max(len(str(int(values.max(initial=0)))), decimals + 1, len(_NULL))
    point = width - decimals
    text: U8 = np.full((len(values), width + (decimals > 0) + 1), _COMMA, np.uint8)
    shown = np.ones(text.shape, np.bool_)
    rest = values.astype(np.uint64)
    for index in range(width - 1, -1, -1):
        column = index + (1 if decimals and index >= point else 0)
        if index < point - 1:
            shown[:, column] = rest != 0
        rest, digit = np.divmod(rest, np.uint64(10))
        text[:, column] = digit.astype(np.uint8) + np.uint8(_ZERO)
    if decimals:
        text[:, point] = _POINT
    shown[null] = False
    text[null, -1 - len(_NULL) : -1] = _NULL
    shown[null, -1 - len(_NULL) :] = True
    return text[shown].tobytes().decode("ascii")
