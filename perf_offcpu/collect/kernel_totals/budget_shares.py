# SPDX-License-Identifier: Apache-2.0
"""What of a thread's budget belongs to the present file: `--switch-output`.

The kernel side keeps one budget for a thread's whole life in the recording. Where files are ended on the way,
each gets what was added since the one before: from the moment up to which that told of the thread.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

I64 = NDArray[np.int64]
U64 = NDArray[np.uint64]


class BudgetShares:
    """Remembers how much of each budget was written."""

    def __init__(self) -> None:
        self._written: list[NDArray[Any]] = []

    def share(self, budgets: NDArray[Any]) -> NDArray[Any]:
        """Budgets without what is in earlier files.

        Args:
            budgets: rows of `struct offcpu_budget`, of whole lives.

        Returns:
            As many rows; those that are in an earlier file begin where that ended.
        """
        shares = budgets.copy()
        if not self._written or not len(budgets):
            return shares
        written = np.concatenate(self._written)
        at = _rows(written, budgets)
        known = np.flatnonzero(at >= 0)
        before = written[at[known]]
        shares["switches"][known] -= before["switches"]
        shares["ns"][known] = _difference(shares["ns"][known], before["ns"])
        shares["begin_ns"][known] = before["end_ns"]
        shares["end_ns"] = np.maximum(shares["end_ns"], shares["begin_ns"])
        return shares

    def note(self, budgets: NDArray[Any]) -> None:
        """Budgets of whole lives whose shares were written.

        Those of the last call are kept, too: a thread that has ended since is not among the new ones, and its
        budget comes later.
        """
        self._written = [*self._written[-1:], budgets.copy()]


def _difference(now: U64, before: U64) -> U64:
    """uint64[n, buckets]: `now - before`, with nothing below 0 and the same sums.

    A wait that was not over was put into buckets by what was known of it: a second wake-up, or that its
    thread was just born, can change that later.
    """
    change = (now - before).view(np.int64)
    missing = np.minimum(change, 0).sum(axis=1)
    change = np.maximum(change, 0)
    rows, largest = np.arange(len(change)), change.argmax(axis=1)
    change[rows, largest] = np.maximum(change[rows, largest] + missing, 0)
    return change.view(np.uint64)


def _rows(known: NDArray[Any], wanted: NDArray[Any]) -> I64:
    """int64[n]: the last row of `known` with the thread and begin of each wanted one, -1 none."""
    both = np.concatenate([known, wanted])
    keys = np.stack([both["tid"].astype(np.uint64), both["begin_ns"]], axis=1)
    unique, of = np.unique(keys, axis=0, return_inverse=True)
    of = of.reshape(-1)
    rows = np.full(len(unique), -1, np.int64)
    np.maximum.at(rows, of[: len(known)], np.arange(len(known)))
    return rows[of[len(known) :]]
