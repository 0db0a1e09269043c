# SPDX-License-Identifier: Apache-2.0
"""Group samples by any columns, and sum up the groups exactly. All views are sums over groups: by (thread, stack) for
folded lines, by tree node for flame graphs, by thread for the report. Keys are packed into one integer. If the values
are close together, as row ids are, groups are found through a table in linear time, else by sorting. Sums are exact
integers: 1000 threads that wait three hours exceed 2^53 ns, the limit of exact doubles (see `sum_by`)."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from perf_offcpu.errors import PerfOffcpuError
from perf_offcpu.model.columns import I64

_Keys = NDArray[Any]  # int32 or int64

_TABLE_PER_ROW = 8
_TABLE_MIN = 1 << 16
_BLOCK = 1 << 17  # rows added at once: their temporary columns stay in the processor's cache
_SUM_LIMIT = 2.0**62
_EXACT_LIMIT = 2.0**52
_LOW_BITS = 26
_ROW_LIMIT = 1 << 53 - _LOW_BITS


def group(*columns: NDArray[Any]) -> tuple[I64, I64]:
    """Group n rows by equality of all columns (integers, n each). Return (first, group_of): int64[groups], first row
    of each group; int64[n], group of each row. Groups are numbered in ascending order of (column 0, column 1, …)."""
    key, size = _dense(columns[0])
    for column in columns[1:]:
        other, other_size = _dense(column)
        if size * other_size > _table_size(len(key)):  # ranks are often few enough to need no sorting
            key, size = _ranked(key, size)
            if size * other_size > _table_size(len(key)):
                other, other_size = _ranked(other, other_size)
        key = key.astype(_key_type(size * other_size), copy=False)
        key *= other_size
        key += other
        size *= other_size
        del other  # columns of millions of rows: none is kept longer than it is needed
    group_of, groups = _ranked(key.astype(np.int64, copy=False), size)
    del key
    first = np.empty(groups, np.int64)
    for end in range(len(group_of), 0, -_BLOCK):
        begin = max(end - _BLOCK, 0)
        first[group_of[begin:end][::-1]] = np.arange(end - 1, begin - 1, -1)  # the last assignment stays
    return first, group_of


def sum_by(group_of: I64, values: NDArray[Any], groups: int) -> I64:
    """Return int64[groups]: the exact sum of the values of each group.

    `np.bincount` is the fastest way on all versions of numpy (`np.add.at` is 20 times slower before 1.25), but it adds
    doubles. So the high and the low bits of the values are added separately: both sums stay below 2^53, the high one
    because all values together stay below 2^62, and doubles are exact there.

    `group_of`: int64[n], the group of each value; -1 for none. `values`: integers. Raises PerfOffcpuError: a sum could
    exceed 63 bits, which means damaged weights."""
    magnitude = _magnitude(values)
    if magnitude >= _SUM_LIMIT:
        raise PerfOffcpuError("the weights add up to more than 2^62: some samples of this event are damaged")
    block, sums = min(max(_BLOCK, groups), _ROW_LIMIT), np.zeros(groups, np.int64)
    for begin in range(0, len(values), block):
        place, part = group_of[begin : begin + block] + 1, values[begin : begin + block]
        if magnitude < _EXACT_LIMIT:  # no partial sum of doubles is rounded
            sums += np.bincount(place, part, groups + 1)[1:].astype(np.int64)
            continue
        part = part.astype(np.int64)
        high, low = (
            np.bincount(place, bits, groups + 1)[1:].astype(np.int64)
            for bits in (part >> _LOW_BITS, part & ((1 << _LOW_BITS) - 1))
        )
        sums += (high << _LOW_BITS) + low
    return sums


def _magnitude(values: NDArray[Any]) -> float:
    """Return the approximate sum of the absolute values."""
    if values.dtype.kind == "u" or int(values.min(initial=0)) >= 0:
        return float(values.sum(dtype=np.float64))
    return float(np.abs(values.astype(np.float64)).sum())


def stable_order(group_of: I64) -> I64:
    """Return int64[n]: the rows sorted by group number, stable; linear for up to 2^16 groups."""
    few = len(group_of) > 0 and int(group_of.min()) >= 0 and int(group_of.max()) < 1 << 16
    order: I64 = np.argsort(group_of.astype(np.uint16) if few else group_of, kind="stable")
    return order


def max_by(group_of: I64, values: NDArray[Any], groups: int) -> I64:
    """Return int64[groups]: the largest of the `values` (at least -1 each) of each group; -1 for an empty group."""
    largest = np.full(groups + 1, -1, np.int64)
    np.maximum.at(largest, group_of, values)
    return largest[:-1]


def _key_type(size: int) -> type[np.int32 | np.int64]:
    """Return the dtype of keys below `size`: small ones take half the memory and time."""
    return np.int32 if size <= 1 << 31 else np.int64


def _dense(column: NDArray[Any]) -> tuple[_Keys, int]:
    """Return integers[n], codes from 0 in the order of the values, and the number of possible codes."""
    if not len(column):
        return column.astype(np.int32), 1
    low, high = int(column.min()), int(column.max())
    if high - low < _table_size(len(column)):
        dense = np.empty(len(column), _key_type(high - low + 1))
        if column.dtype.itemsize < dense.itemsize:
            column = column.astype(dense.dtype)
        np.subtract(column, column.dtype.type(low), out=dense, casting="unsafe")  # the difference is small
        return dense, high - low + 1
    values, rank = np.unique(column, return_inverse=True)
    return rank, len(values)


def _ranked(key: _Keys, size: int) -> tuple[_Keys, int]:
    """Return integers[n], the rank of each key < `size` among distinct keys, and their number; may overwrite `key`."""
    if size > _table_size(len(key)):
        values, rank = np.unique(key, return_inverse=True)
        return rank, len(values)
    seen = np.zeros(size, np.bool_)
    seen[key] = True
    values = np.flatnonzero(seen)
    if len(values) == size:
        return key, size
    rank_of = np.empty(size, key.dtype)
    rank_of[values] = np.arange(len(values))
    return np.take(rank_of, key, out=key, mode="clip"), len(values)  # the mode that does not make a copy first


def _table_size(rows: int) -> int:
    return max(_TABLE_MIN, rows * _TABLE_PER_ROW)
