# SPDX-License-Identifier: Apache-2.0
"""Share exact sums of short waits among the user stacks of the waits that were drawn from them.

The kernel side sums every wait under the threshold by thread, state, system call and cgroup, and takes the stack of
one wait for each `STACK_PERIOD_NS` of a thread's short waits (bpf/output.h). A drawn wait adds the period to another
row, by its stack. So the expected weight of a stack is its time, however short its waits are (the estimator of Horvitz
and Thompson, 1952, as in bpf/sampling.h). Here each exact sum is divided in proportion to these weights: times and
numbers of a thread's waits stay exact, their division among stacks is an estimate.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from perf_offcpu.abi.offcpu import WaitFlag

_KEY = ("tid", "pid", "state", "syscall", "flags", "cgroup", "object_id")
"""Members of `struct offcpu_sum_key` and `struct offcpu_sum` that exact and drawn rows of one sum have in common."""

_DRAWN = np.uint32(WaitFlag.DRAWN)
_MOST_HELD = 1 << 16  # sums, about 10 MB

Rows = NDArray[Any]


class DrawnStacks:
    """Shares the sums of drain after drain. A sum from which no wait was drawn is held, and added to the same sum of a
    later drain; it is returned without a stack when the file ends. `draws`: False if no stacks are drawn at all."""

    def __init__(self, draws: bool = True) -> None:
        self._draws = draws
        self._held: Rows | None = None

    def share(self, sums: Rows, *, end_of_file: bool) -> Rows:
        """Return `sums`, rows with the fields of `struct offcpu_sum_key` and `struct offcpu_sum`, with each exact sum
        divided among the stacks of the waits drawn from it; these rows have the flag DRAWN. Totals and counts of each
        sum are conserved."""
        is_drawn = (sums["flags"] & _DRAWN) != 0
        exact, drawn = sums[~is_drawn], sums[is_drawn & (sums["total_ns"] > 0)]
        if self._held is not None:
            exact, self._held = _united(np.concatenate([self._held, exact])), None
        owner = _owners(exact, drawn)
        is_shared = np.zeros(len(exact), np.bool_)
        is_shared[owner[owner >= 0]] = True
        alone = exact[~is_shared]
        if self._draws and not end_of_file and len(alone) <= _MOST_HELD:
            self._held, alone = alone, alone[:0]
        return np.concatenate([_shares(exact, drawn[owner >= 0], owner[owner >= 0]), alone])


def _keys(rows: Rows) -> Rows:
    """Return the `_KEY` of each row, packed, without the flag DRAWN."""
    keys = np.empty(len(rows), [(name, rows.dtype[name]) for name in _KEY])
    for name in _KEY:
        keys[name] = rows[name]
    keys["flags"] &= ~_DRAWN
    return keys


def _owners(exact: Rows, drawn: Rows) -> NDArray[np.int64]:
    """Return int64[n]: for each drawn row, the row of `exact` that it was drawn from; -1 if all waits of that sum were
    sent as samples."""
    kinds, of_row = np.unique(np.concatenate([_keys(exact), _keys(drawn)]), return_inverse=True)
    row_of_kind = np.full(len(kinds), -1)
    row_of_kind[of_row[: len(exact)]] = np.arange(len(exact))
    owners: NDArray[np.int64] = row_of_kind[of_row[len(exact) :]]
    return owners


def _united(rows: Rows) -> Rows:
    """Return exact rows with those of one `_KEY` added up."""
    kinds, of_row = np.unique(_keys(rows), return_inverse=True)
    if len(kinds) == len(rows):
        return rows
    order = np.argsort(of_row, kind="stable")
    first = np.searchsorted(of_row[order], np.arange(len(kinds)))
    result = rows[order][first]
    for name in ("total_ns", "count", "runq_ns", "woken"):
        result[name] = np.add.reduceat(rows[name][order], first)
    for name in ("longest_ns", "last_switch_in_ns"):
        result[name] = np.maximum.reduceat(rows[name][order], first)
    result["first_switch_out_ns"] = np.minimum.reduceat(rows["first_switch_out_ns"][order], first)
    return result


def _shares(exact: Rows, drawn: Rows, owner: NDArray[np.int64]) -> Rows:
    """Return the drawn rows with their shares of the totals of row `owner` of `exact`."""
    order = np.argsort(owner, kind="stable")
    drawn, owner = drawn[order], owner[order]
    # What is left of a sum may have more stacks than waits, if most waits were sent as samples: some are left out.
    number = exact["count"].astype(np.int64)
    has_room = number >= np.bincount(owner, minlength=len(exact))
    has_wait = has_room[owner] | (_divided(number, drawn["total_ns"], owner) > 0)
    drawn, owner = drawn[has_wait], owner[has_wait]
    result = drawn.copy()
    spare = number - np.bincount(owner, minlength=len(exact))  # each stack has one wait at least
    result["count"] = 1 + _divided(spare, drawn["count"], owner)
    result["total_ns"] = _divided(exact["total_ns"], drawn["total_ns"], owner)
    result["runq_ns"] = np.minimum(_divided(exact["runq_ns"], drawn["total_ns"], owner), result["total_ns"])
    for name in ("woken", "first_switch_out_ns", "last_switch_in_ns"):
        result[name] = exact[name][owner]
    # The longest wait of the sum was hardly drawn: it counts for the stack with the longest one that was.
    longest = _first_of_most(drawn["longest_ns"], owner)
    result["longest_ns"][longest] = exact["longest_ns"][owner[longest]]
    result["longest_ns"] = np.minimum(result["longest_ns"], result["total_ns"])
    return result


def _divided(totals: NDArray[Any], weights: NDArray[np.uint64], owner: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Return uint64[n]: totals[owner[i]] divided in proportion to weights[i] among the rows of one owner, rounded so
    that the parts add up to it. `owner` ascends; weights that are all 0 count as equal."""
    if not len(owner):
        return np.zeros(0, np.uint64)
    first = np.flatnonzero(np.diff(owner, prepend=-1))
    group = np.repeat(np.arange(len(first)), np.diff(np.append(first, len(owner))))
    parts = weights + 1e-9
    running = np.cumsum(parts)
    before = running[first] - parts[first]
    group_total = np.add.reduceat(parts, first)
    reached = np.minimum((running - before[group]) / group_total[group], 1.0)
    reached[np.append(first[1:], len(owner)) - 1] = 1.0
    end = np.rint(totals[owner] * reached).astype(np.int64)
    begin = np.append(0, end[:-1])
    begin[first] = 0
    shares: NDArray[np.uint64] = np.maximum(end - begin, 0).astype(np.uint64)
    return shares


def _first_of_most(values: NDArray[np.uint64], owner: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the row with the largest value of each owner."""
    order = np.lexsort((values, owner))
    last: NDArray[np.int64] = order[np.flatnonzero(np.diff(np.append(owner[order], -1)))]
    return last
