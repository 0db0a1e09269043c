# SPDX-License-Identifier: Apache-2.0
"""Drain sums, budgets and task states from the BPF program, and write them to the file. The maps in the kernel have
limited room; they are drained before they are full."""

import time
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perf_offcpu import losses
from perf_offcpu.abi.offcpu import WaitFlag
from perf_offcpu.collect.bpf.last_tasks import LastTasks
from perf_offcpu.collect.bpf.maps import Drained
from perf_offcpu.collect.collector import Collector
from perf_offcpu.collect.control import FLUSH_S
from perf_offcpu.collect.counters import Reading, account_sample, task_sample
from perf_offcpu.collect.kernel_totals import waits
from perf_offcpu.collect.kernel_totals.budgets import BudgetShares, budget_samples
from perf_offcpu.collect.output.file import OutputFile, Piece
from perf_offcpu.collect.system.background import Future, stepping_until
from perf_offcpu.collect.system.clock import now_ns
from perf_offcpu.collect.wait_objects.owners import with_holders, with_polled
from perf_offcpu.errors import FileFullError

LONGEST_PACE_S = 5.0  # longest time between two drains


class KernelTotals:
    """Move the totals that the BPF program keeps in its maps (sums, budgets, last task states) into the file. `drain`:
    empties the rings; called between writes, so that no ring overflows. `sums`: the number of sums written."""

    def __init__(self, collector: Collector, drain: Callable[[], object]) -> None:
        self._collector, self._program, self._drain = collector, collector.program, drain
        self._waits = collector.rings.owner.spec
        self._shares = BudgetShares(self._program.maps.header.enums["mode"])
        self._pending: Future[Drained] | None = None
        self._readings: list[Reading] = []  # of tasks of event loops, and of goroutines
        self._unwritten: Iterator[Piece] = iter(())
        self._drawn = DrawnStacks(self._program.draws_stacks)
        self._pace_s = LONGEST_PACE_S
        self._due = time.monotonic() + self._pace_s
        self.sums = 0

    @property
    def is_pending(self) -> bool:
        """True while the BPF maps are being drained, and until their content is written."""
        return self._pending is not None

    @property
    def is_ready(self) -> bool:
        """True if the maps have been drained, so that their content can be written without waiting."""
        return self._pending is not None and self._pending.done()

    def start(self, *, end_of_file: bool = False) -> None:
        """Take task readings; begin to drain the BPF maps; `write` writes both. `end_of_file`: the file then ends."""
        self._pending = self._program.maps.start_drain(end_of_file=end_of_file)
        for readings in self._collector.task_readings:
            self._readings += readings.take()

    def write_if_due(self, file: OutputFile) -> None:
        """Begin to drain the maps when one is expected to be half full; a later call writes their drained content."""
        if not self.is_pending and time.monotonic() >= self._due:
            self.start()
        if self.is_ready:
            self.write(file)

    def write(self, file: OutputFile, last: LastTasks | None = None) -> None:
        """Wait for the drain that `start` began; write its content. `last`: states of tasks if the file ends."""
        assert self._pending is not None
        drained = stepping_until(self._pending, self._drain)
        self._pending = None
        self._set_pace(drained)
        self._unwritten = pieces = self._pieces(
            drained, last, end_of_file=last is not None
        )  # now: the disk may be full from here on
        self._drain()  # copies of stacks precede the sums of their callers
        for piece in pieces:
            try:
                file.append(piece.records)
            except FileFullError as problem:
                self._unwritten = chain([piece.rest(problem.taken, problem.records)], pieces)
                raise
            self.sums += len(piece.ns) if piece.cause is losses.SUMS_UNWRITTEN else 0
            self._drain()

    def _set_pace(self, drained: Drained) -> None:
        config = self._program.config
        filled = max(len(drained.sums) / config.sum_entries, len(drained.budgets) / config.budget_entries)
        self._pace_s = min(LONGEST_PACE_S, max(FLUSH_S, self._pace_s * 0.5 / max(filled, 0.01)))
        self._due = time.monotonic() + self._pace_s

    def last_tasks(self, *, copied: bool = True) -> LastTasks:
        """Return the states of tasks with user stacks, polled objects, lock holders and, if `copied`, stack copies."""
        copy_bytes = self._waits.attr.sample_stack_user if copied else 0
        unread, again = self._collector.unread, self._program.last_tasks
        last = waits.with_user_stacks(again(), again, copy_bytes, unread)
        last = with_polled(last, self._program.maps.set_polled, again, unread)
        return with_holders(last, unread)

    def present_tasks(self, drained_ns: int) -> LastTasks:
        """Return `last_tasks` while recording goes on, without waits that ended meanwhile or began after `drained_ns`,
        a time before the last drain of the rings."""
        return self.last_tasks().unless_disturbed(self._program.last_tasks(), drained_ns)

    def unwritten(self, last: LastTasks | None = None) -> Iterator[Piece]:
        """Return the drained records that are not written yet, for a file that is almost full. `last`: states of tasks
        at its end; used only if `write` has not begun to write this drain."""
        if self._pending is not None:
            drained, self._pending = self._pending.result(), None
            return self._pieces(drained, last, end_of_file=True)
        return self._unwritten

    def remaining(self) -> Iterator[Piece]:
        """Drain the BPF maps after the end; return the records of their content, for a file that is almost full."""
        return self._pieces(self._program.maps.drain(), self.last_tasks(copied=False), end_of_file=True)

    def _pieces(self, drained: Drained, last: LastTasks | None, *, end_of_file: bool) -> Iterator[Piece]:
        """Yield the records of a drain, the most useful first: threads that wait now, then budgets, then sums. `last`:
        states of tasks at the end of the file; None if unknown, or if the file goes on."""
        end_ns = last.end_ns if last else now_ns()
        for number, blocked in waits.still_blocked_samples(self._waits, last) if last else ():
            yield Piece(losses.STILL_BLOCKED_UNWRITTEN, np.zeros(number, np.uint64), blocked)
        payloads, (readings, self._readings) = last.payloads if last else (), (self._readings, [])
        own = [account_sample(self._collector.counters_event, payload, end_ns) for payload in payloads]
        for record in own + [task_sample(self._collector.task_event, reading) for reading in readings]:
            yield Piece(losses.PYTHON_UNWRITTEN, np.zeros(1, np.uint64), record)
        if last is not None:
            # Budgets that are drained from here on, also of threads that ended at that moment, are shared.
            yield from self._budget_pieces(last.budgets, end_ns, noting=True)
        yield from self._budget_pieces(drained.budgets, end_ns)
        sums = self._drawn.share(drained.sums, end_of_file=end_of_file)
        for rows, records in waits.sum_samples(self._waits, sums, drained.stacks.find(sums["stack"])):
            yield Piece(losses.SUMS_UNWRITTEN, rows["total_ns"], records)

    def _budget_pieces(self, budgets: NDArray[Any], time_ns: int, *, noting: bool = False) -> Iterator[Piece]:
        """Yield records of `budgets` (sums over lives of threads) less their shares in earlier files. `noting`: later
        files subtract these shares, too."""
        shares, modes = self._shares.share(budgets, noting=noting), self._program.maps.header.enums["mode"]
        for number, records in budget_samples(self._collector.counters_event, shares, modes, time_ns):
            yield Piece(losses.BUDGETS_UNWRITTEN, np.zeros(number, np.uint64), records, batched=True)


_DRAWN = np.uint32(WaitFlag.DRAWN)
_MOST_HELD = 1 << 16  # sums, about 10 MB

Rows = NDArray[Any]


class DrawnStacks:
    """Shares exact sums of short waits among the user stacks of the waits that were drawn from them.

    The BPF program sums every wait under the threshold, and takes the stack of one wait for each `STACK_PERIOD_NS` of a
    thread's short waits (bpf/output.h). A drawn wait adds this period to a further sum with its stack and the flag
    DRAWN. So the expected weight of a stack is its time, however short its waits are (the estimator of Horvitz and
    Thompson, 1952, as in bpf/sampling.h). Each exact sum is divided in proportion to these weights: times and numbers
    of a thread's waits stay exact, their division among stacks is an estimate. A sum from which no wait was drawn is
    held, and added to the same sum of a later drain; it is returned without a stack when the file ends. `draws`: False
    if no stacks are drawn, so that no sum is held."""

    def __init__(self, draws: bool = True) -> None:
        self._draws = draws
        self._held: Rows | None = None

    def share(self, sums: Rows, *, end_of_file: bool) -> Rows:
        """Return `sums`, rows with the fields of `struct offcpu_sum_key` and `struct offcpu_sum`, with each exact sum
        divided among the stacks of the waits drawn from it, in rows with the flag DRAWN. Where stacks are drawn, sums
        without a drawn wait are held until a later call, or `end_of_file`."""
        is_drawn = (sums["flags"] & _DRAWN) != 0
        exact, drawn = sums[~is_drawn], sums[is_drawn & (sums["total_ns"] > 0)]
        if self._held is not None:
            exact, self._held = waits.united(np.concatenate([self._held, exact])), None
        owner = _owners(exact, drawn)
        is_shared = np.zeros(len(exact), np.bool_)
        is_shared[owner[owner >= 0]] = True
        alone = exact[~is_shared]
        if self._draws and not end_of_file and len(alone) <= _MOST_HELD:
            self._held, alone = alone, alone[:0]
        return np.concatenate([_shares(exact, drawn[owner >= 0], owner[owner >= 0]), alone])


def _keys(rows: Rows) -> Rows:
    """Return the SUM_KEY of each row, packed, without the flag DRAWN."""
    keys = np.empty(len(rows), [(name, rows.dtype[name]) for name in waits.SUM_KEY])
    for name in waits.SUM_KEY:
        keys[name] = rows[name]
    keys["flags"] &= ~_DRAWN
    return keys


def _owners(exact: Rows, drawn: Rows) -> NDArray[np.int64]:
    """Return int64[n]: index in `exact` of the sum with the key of each row of `drawn`; -1 if there is none, because
    all waits of that sum were sent as samples."""
    kinds, of_row = np.unique(np.concatenate([_keys(exact), _keys(drawn)]), return_inverse=True)
    row_of_kind = np.full(len(kinds), -1)
    row_of_kind[of_row[: len(exact)]] = np.arange(len(exact))
    owners: NDArray[np.int64] = row_of_kind[of_row[len(exact) :]]
    return owners


def _shares(exact: Rows, drawn: Rows, owner: NDArray[np.int64]) -> Rows:
    """Return the rows of `drawn` with their shares of the sums in `exact`. `owner`: from `_owners`, without -1."""
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
    """Return, for each owner in ascending order, the index of its row with the largest value."""
    order = np.lexsort((values, owner))
    last: NDArray[np.int64] = order[np.flatnonzero(np.diff(np.append(owner[order], -1)))]
    return last
