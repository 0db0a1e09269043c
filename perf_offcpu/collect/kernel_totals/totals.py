# SPDX-License-Identifier: Apache-2.0
"""What the kernel side keeps until it is asked: sums of short waits, budgets, and what threads do.

And the records that they become, in the file that is open at that time.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from numpy.typing import NDArray

from perf_offcpu.collect.bpf.program import OffCpuProgram
from perf_offcpu.collect.kernel_totals.budget_shares import BudgetShares
from perf_offcpu.collect.kernel_totals.budgets import budget_samples
from perf_offcpu.collect.kernel_totals.last_states import LastTasks
from perf_offcpu.collect.kernel_totals.still_blocked import still_blocked_samples, with_user_stacks
from perf_offcpu.collect.kernel_totals.sums import sum_samples
from perf_offcpu.collect.kernel_totals.user_walk import walk_user_stacks
from perf_offcpu.collect.system.clock import now_ns
from perf_offcpu.perfdata.events import EventSpec


class Kept:
    """What a program has gathered and not sent.

    Args:
        program: loaded.
        waits, counters: the events that records are of: offcpu-time and offcpu-counters.
    """

    def __init__(self, program: OffCpuProgram, waits: EventSpec, counters: EventSpec) -> None:
        self._program, self._waits, self._counters = program, waits, counters
        self._shares = BudgetShares()

    @property
    def sum_capacity(self) -> int:
        """How many sums the kernel side has room for."""
        return self._program.config.sum_entries

    def drain_sums(self, *, end_of_file: bool = False) -> NDArray[Any]:
        """Take out the sums of short waits gathered so far; one row each.

        Args:
            end_of_file: samples of later go into another file; those of before have just been drained.
        """
        return self._program.drain_sums(end_of_file=end_of_file)

    def sum_records(self, sums: NDArray[Any]) -> Iterator[bytes]:
        """The records of the sums drained last, some thousand at a time."""
        stacks = self._program.stacks(sums["stack"])
        return sum_samples(self._waits, sums, stacks)

    def drain_budgets(self) -> NDArray[Any]:
        """Take out the budgets of threads that have ended; one row each."""
        return self._program.drain_budgets()

    @property
    def budget_capacity(self) -> int:
        """How many budgets the kernel side has room for."""
        return self._program.config.budget_entries

    def budget_records(self, budgets: NDArray[Any]) -> Iterator[bytes]:
        """The records of budgets, some hundred at a time; of those in earlier files, what was added since."""
        shares, now = self._shares.share(budgets), self._program.end_ns or now_ns()
        return budget_samples(self._counters, shares, self._program.modes, now, os.getpid())

    def last_tasks(self) -> LastTasks:
        """What the tasks that live do at the end."""
        return with_user_stacks(self._program.last_tasks(), walk_user_stacks)

    def present_tasks(self, drained_ns: int) -> LastTasks:
        """Return what they do now, while recording goes on; those that change just now may be missing.

        Args:
            drained_ns: the rings were emptied last after this time.
        """
        return self.last_tasks().unless_disturbed(self._program.last_tasks(), drained_ns)

    def last_records(self, last: LastTasks) -> Iterator[bytes]:
        """Those who still wait, in one piece, then the budgets of all."""
        yield still_blocked_samples(self._waits, last)
        yield from self.budget_records(last.budgets)

    def end_file(self, last: LastTasks) -> None:
        """The records of `last` are written: another file will have what comes after them."""
        self._shares.note(last.budgets)
