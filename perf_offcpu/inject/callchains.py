# SPDX-License-Identifier: Apache-2.0
"""Stages: the user's part of callchains comes from deferred records and from copies of user stacks.

Samples whose deferred part never came lose marker and cookie, and keep their kernel part.

Stack bytes can hold secrets, and a recording is rewritten to be passed on. So by default a sample loses its
registers and stack, and what was unwound from them becomes the user's part of its callchain. Copies are kept
for perf's own unwinder, which adds what it finds to the callchain: there the user's part is cut.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from perf_offcpu import losses
from perf_offcpu.abi.attr import SampleType
from perf_offcpu.decode.deferred import DeferredMatcher
from perf_offcpu.decode.stacks.callers import CallerRows, sum_callers, with_callers
from perf_offcpu.decode.stacks.gather import SnapshotStore, has_snapshot
from perf_offcpu.decode.stacks.user_parts import first_words, join_parts, kernel_parts
from perf_offcpu.decode.tasks.replay import TaskReplay
from perf_offcpu.inject.payload_words import with_walk_ends
from perf_offcpu.inject.samples import SampleBatch
from perf_offcpu.losses import Losses
from perf_offcpu.model.callchains import Ragged
from perf_offcpu.model.columns import I32
from perf_offcpu.perfdata.events import EventSpec
from perf_offcpu.unwind.unwinder import Unwinder, Unwound

_STACK = SampleType.REGS_USER | SampleType.STACK_USER


def has_stacks(spec: EventSpec) -> bool:
    """Return whether an evsel's samples have copies of user stacks."""
    return spec.attr.sample_type & _STACK == _STACK


def without_stacks(spec: EventSpec) -> EventSpec:
    """Return the evsel of samples without their copies of user stacks."""
    if not has_stacks(spec):
        return spec
    kind = spec.attr.sample_type & ~_STACK
    return replace(spec, attr=replace(spec.attr, sample_type=kind, sample_regs_user=0, sample_stack_user=0))


class Completer:
    """Completes samples whose user callchain was deferred.

    Args:
        matcher: of the recording's deferred records.
        counters: where samples whose part never came are counted.

    Attributes:
        done: samples that got their user part so far.
    """

    def __init__(self, matcher: DeferredMatcher, counters: Losses) -> None:
        self.matcher, self.counters = matcher, counters
        self.done = 0

    def __call__(self, batch: SampleBatch) -> SampleBatch:
        """Complete the callchains of a batch."""
        if batch.chains is None:
            return batch
        own = np.arange(len(batch))
        merged = self.matcher.merge(batch.chains, own, batch.samples.tid, batch.samples.time_ns)
        if not len(merged.samples):
            return batch
        found = merged.deferred >= 0
        self.done += int(found.sum())
        self.counters.add(losses.UNMERGED, int((~found).sum()))
        own[merged.samples] = len(batch) + merged.row
        return replace(batch, chains=Ragged.concat([batch.chains, merged.chains]).take(own))


def cut_user_parts(batch: SampleBatch) -> SampleBatch:
    """Cut the user's part of callchains of samples that keep a copy of the user stack."""
    if batch.chains is None or not has_stacks(batch.spec):
        return batch
    kept = np.where(has_snapshot(batch.columns), kernel_parts(batch.chains), batch.chains.lengths)
    return replace(batch, chains=first_words(batch.chains, kept))


class StackUnwinder:
    """Unwinds copies of user stacks.

    Args:
        unwinder: of the recording.
        tasks: the whole recording's tasks and maps, replayed.
        counters: where stacks that could not be followed to their root are counted.

    Attributes:
        done: samples that were unwound so far.
    """

    def __init__(self, unwinder: Unwinder, tasks: TaskReplay, counters: Losses) -> None:
        self.unwinder, self.tasks, self.counters = unwinder, tasks, counters
        self.done = 0
        self._callers = CallerRows()
        self._of_callers = Unwound()
        """User callchains of callers of sums, by `_callers`."""

    def __call__(self, batch: SampleBatch) -> SampleBatch:
        """Unwind a batch; sums without a copy get the stack of their caller."""
        if batch.chains is None or not has_stacks(batch.spec):
            return batch
        store = SnapshotStore(self.counters)
        all_valid, mask = np.ones(len(batch), np.bool_), batch.spec.attr.sample_regs_user
        snapshot = store.add(batch.chunk, batch.columns, mask, all_valid, batch.order)
        rows = np.flatnonzero(snapshot >= 0)
        spaces = self.tasks.attribute(batch.samples).space[rows]
        found = self.unwinder.unwind_all(store.release(), spaces, self.counters)
        self.done += len(rows)
        of_caller = self._note_callers(batch, snapshot, found)
        others = np.flatnonzero((snapshot < 0) & (of_caller >= 0))
        rows = np.concatenate([rows, others])
        found = Unwound.concat([found, self._of_callers.take(of_caller[others])])
        whole = join_parts(batch.chains, kernel_parts(batch.chains), rows.astype(np.int32), found.chains)
        row = np.arange(len(batch))
        row[rows] = len(batch) + np.arange(len(rows))
        batch = replace(batch, chains=Ragged.concat([batch.chains, whole]).take(row))
        if batch.extensions is not None:
            batch.extensions = with_walk_ends(batch.extensions, rows, found.is_cut(), batch.order)
        return batch

    def _note_callers(self, batch: SampleBatch, snapshot: I32, found: Unwound) -> I32:
        """Keep the stacks of new callers; return int32[n], rows of `_of_callers`, -1 where there is none."""
        callers = sum_callers(batch.chunk.data, batch.columns, batch.order)
        new = np.flatnonzero((callers != 0) & (snapshot >= 0))
        row = np.full(len(batch), -1, np.int32)
        row[new] = len(self._of_callers) + np.arange(len(new))
        self._of_callers = Unwound.concat([self._of_callers, found.take(snapshot[new])])
        return with_callers(row, callers, self._callers, self.counters)
