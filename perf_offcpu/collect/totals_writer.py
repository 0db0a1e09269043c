# SPDX-License-Identifier: Apache-2.0
"""Write what the kernel side sums up into the file: sums of short waits, budgets, states of tasks.

The maps in the kernel have limited room; they are emptied before they are full.
"""

from __future__ import annotations

import time

from perf_offcpu.collect.collector import Collector
from perf_offcpu.collect.kernel_totals.last_states import LastTasks
from perf_offcpu.collect.kernel_totals.losses import Counter
from perf_offcpu.collect.kernel_totals.rest import counter
from perf_offcpu.collect.kernel_totals.sums import BATCH
from perf_offcpu.collect.output_file import OutputFile
from perf_offcpu.collect.rings.waiter import FLUSH_S
from perf_offcpu.errors import FileFullError

LONGEST_PACE_S = 5.0
"""Totals are written at least so often."""


class TotalsWriter:
    """Move totals from the kernel to a file.

    Attributes:
        sums: number of sums written.
        unwritten: sums that were taken out of the kernel and did not fit into the file.
    """

    def __init__(self, collector: Collector) -> None:
        self._collector, self._kept = collector, collector.kept
        self._pace_s = LONGEST_PACE_S
        self._due = time.monotonic() + self._pace_s
        self.sums = 0
        self.unwritten = Counter(0)

    def write_if_due(self, file: OutputFile) -> None:
        """Write sums and budgets if it is time: when the fuller map is expected to be half full."""
        if time.monotonic() < self._due:
            return
        filled = self.write_sums(file) / self._kept.sum_capacity
        filled = max(filled, self.write_budgets(file) / self._kept.budget_capacity, 0.01)
        self._pace_s = min(LONGEST_PACE_S, max(FLUSH_S, self._pace_s * 0.5 / filled))
        self._due = time.monotonic() + self._pace_s

    def write_sums(self, file: OutputFile, *, end_of_file: bool = False) -> int:
        """Write the sums gathered so far; return their number.

        Args:
            end_of_file: what is in the rings is for the next file already.
        """
        sums = self._kept.drain_sums(end_of_file=end_of_file)
        self.unwritten, written = counter(sums), 0
        if not end_of_file:
            self._collector.drain(file)  # copies of stacks precede the sums of their callers
        try:
            for records in self._kept.sum_records(sums):
                file.append(records)
                written = min(written + BATCH, len(sums))
        except FileFullError as problem:
            self.unwritten = counter(sums[written + problem.records :])
            raise
        self.unwritten = Counter(0)
        self.sums += len(sums)
        return len(sums)

    def write_budgets(self, file: OutputFile) -> int:
        """Write the budgets of threads that have ended; return their number."""
        budgets = self._kept.drain_budgets()
        for records in self._kept.budget_records(budgets):
            file.append(records)
        return len(budgets)

    def write_last(self, file: OutputFile, last: LastTasks) -> None:
        """Write who waits, and the budgets of threads that live."""
        for records in self._kept.last_records(last):
            file.append(records)
