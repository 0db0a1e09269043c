# SPDX-License-Identifier: Apache-2.0
"""What a recording holds in the kernel when its file takes no more: written as far as there is room."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from numpy.typing import NDArray

from perf_offcpu import losses
from perf_offcpu.collect.kernel_totals.budgets import BATCH as BUDGETS_AT_ONCE
from perf_offcpu.collect.kernel_totals.losses import Counter
from perf_offcpu.collect.kernel_totals.sums import BATCH as SUMS_AT_ONCE
from perf_offcpu.collect.kernel_totals.totals import Kept
from perf_offcpu.losses import LossCause

Piece = tuple[LossCause, Counter, bytes]
"""(what counts it if it is not written, how much that is, records)."""


def rest(kept: Kept) -> Iterator[Piece]:
    """The most telling first: threads that wait now, then where time went, then short waits."""
    last = kept.last_tasks()
    still_blocked, *budgets = kept.last_records(last)
    yield losses.STILL_BLOCKED_UNWRITTEN, Counter(len(last.waiting())), still_blocked
    ended = kept.drain_budgets()
    for rows, records in ((last.budgets, budgets), (ended, kept.budget_records(ended))):
        yield from _pieces(losses.BUDGETS_UNWRITTEN, rows, records, BUDGETS_AT_ONCE)
    sums = kept.drain_sums()
    yield from _pieces(losses.SUMS_UNWRITTEN, sums, kept.sum_records(sums), SUMS_AT_ONCE)


def _pieces(cause: LossCause, rows: NDArray[Any], records: Iterable[bytes], at_once: int) -> Iterator[Piece]:
    for at, piece in enumerate(records):
        yield cause, counter(rows[at * at_once :][:at_once]), piece


def counter(rows: NDArray[Any]) -> Counter:
    """How many sums or budgets, and the time of sums."""
    total = rows["total_ns"].sum() if "total_ns" in (rows.dtype.names or ()) else 0
    return Counter(len(rows), int(total))
