# SPDX-License-Identifier: Apache-2.0
"""Drain sums, budgets and task states from the BPF program, and write them to the file.

The maps in the kernel have limited room; they are drained before they are full.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from numpy.typing import NDArray

from perf_offcpu import losses
from perf_offcpu.collect.bpf.last_tasks import LastTasks
from perf_offcpu.collect.collector import Collector
from perf_offcpu.collect.kernel_totals.budgets import BATCH as BUDGETS_AT_ONCE
from perf_offcpu.collect.kernel_totals.budgets import BudgetShares, budget_samples
from perf_offcpu.collect.kernel_totals.losses import Counter
from perf_offcpu.collect.kernel_totals.still_blocked import still_blocked_samples, with_user_stacks
from perf_offcpu.collect.kernel_totals.sums import BATCH as SUMS_AT_ONCE
from perf_offcpu.collect.kernel_totals.sums import sum_samples
from perf_offcpu.collect.output_file import OutputFile
from perf_offcpu.collect.rings.waiter import FLUSH_S
from perf_offcpu.collect.system.clock import now_ns
from perf_offcpu.errors import FileFullError
from perf_offcpu.losses import LossCause

LONGEST_PACE_S = 5.0
"""Longest time between two drains."""

Piece = tuple[LossCause, Counter, bytes]
"""(cause if the records are not written, how many they are, the records)."""


class KernelTotals:
    """Totals that a BPF program has not sent.

    Attributes:
        sums: number of sums written.
        unwritten: sums that were taken out of the kernel and did not fit into the file.
    """

    def __init__(self, collector: Collector) -> None:
        self._collector, self._program = collector, collector.program
        self._waits, self._shares = collector.rings.owner.spec, BudgetShares()
        self._pace_s = LONGEST_PACE_S
        self._due = time.monotonic() + self._pace_s
        self.sums = 0
        self.unwritten = Counter(0)

    def write_if_due(self, file: OutputFile) -> None:
        """Write sums and budgets if it is time: when the fuller map is expected to be half full."""
        if time.monotonic() < self._due:
            return
        config = self._program.config
        filled = self.write_sums(file) / config.sum_entries
        filled = max(filled, self.write_budgets(file) / config.budget_entries, 0.01)
        self._pace_s = min(LONGEST_PACE_S, max(FLUSH_S, self._pace_s * 0.5 / filled))
        self._due = time.monotonic() + self._pace_s

    def write_sums(self, file: OutputFile, *, end_of_file: bool = False) -> int:
        """Write the sums gathered so far; return their number.

        Args:
            end_of_file: the records that are in the rings by then go to the next file.
        """
        sums = self._program.maps.drain_sums(end_of_file=end_of_file)
        self.unwritten, written = _count(sums), 0
        if not end_of_file:
            self._collector.drain(file)  # copies of stacks precede the sums of their callers
        try:
            for records in self._sum_records(sums):
                file.append(records)
                written = min(written + SUMS_AT_ONCE, len(sums))
        except FileFullError as problem:
            self.unwritten = _count(sums[written + problem.records :])
            raise
        self.unwritten = Counter(0)
        self.sums += len(sums)
        return len(sums)

    def write_budgets(self, file: OutputFile) -> int:
        """Write the budgets of threads that have ended; return their number."""
        budgets = self._program.maps.drain_budgets()
        for records in self._budget_records(budgets):
            file.append(records)
        return len(budgets)

    def write_last(self, file: OutputFile, last: LastTasks) -> None:
        """Write the unfinished waits, and the budgets of threads that live."""
        for _, records in still_blocked_samples(self._waits, last):
            file.append(records)
        for records in self._budget_records(last.budgets):
            file.append(records)

    def end_file(self, last: LastTasks) -> None:
        """Note that `last` is written and that a new file follows, which gets what is added from here on."""
        self._shares.note(last.budgets)

    def last_tasks(self, *, copied: bool = True) -> LastTasks:
        """Return the states of tasks at the end.

        Args:
            copied: with copies of user stacks, if samples have them.
        """
        copy_bytes = self._waits.attr.sample_stack_user if copied else 0
        return with_user_stacks(self._program.last_tasks(), self._program.last_tasks, copy_bytes)

    def present_tasks(self, drained_ns: int) -> LastTasks:
        """Return the states of tasks while recording goes on, without those that change at this moment.

        Args:
            drained_ns: the rings were drained after this time.
        """
        return self.last_tasks().unless_disturbed(self._program.last_tasks(), drained_ns)

    def remaining(self) -> Iterator[Piece]:
        """Yield what the kernel still has after the end, for a file that takes no more than a little.

        The most useful comes first: threads that wait now, then time budgets, then short waits.
        """
        last = self.last_tasks(copied=False)
        for number, blocked in still_blocked_samples(self._waits, last):
            yield losses.STILL_BLOCKED_UNWRITTEN, Counter(number), blocked
        for budgets in (last.budgets, self._program.maps.drain_budgets()):
            for at, records in enumerate(self._budget_records(budgets)):
                rows = budgets[at * BUDGETS_AT_ONCE :][:BUDGETS_AT_ONCE]
                yield losses.BUDGETS_UNWRITTEN, Counter(len(rows)), records
        sums = self._program.maps.drain_sums()
        for at, records in enumerate(self._sum_records(sums)):
            yield losses.SUMS_UNWRITTEN, _count(sums[at * SUMS_AT_ONCE :][:SUMS_AT_ONCE]), records

    def _sum_records(self, sums: NDArray[Any]) -> Iterator[bytes]:
        return sum_samples(self._waits, sums, self._program.maps.user_stacks.find(sums["stack"]))

    def _budget_records(self, budgets: NDArray[Any]) -> Iterator[bytes]:
        """Return the records of budgets, without the shares that are in earlier files."""
        maps = self._program.maps
        shares, modes = self._shares.share(budgets), maps.header.enums["mode"]
        return budget_samples(self._collector.counters_event, shares, modes, maps.end_ns or now_ns())


def _count(sums: NDArray[Any]) -> Counter:
    """Return the number of sums and their time."""
    return Counter(len(sums), int(sums["total_ns"].sum()))
