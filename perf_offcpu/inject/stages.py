# SPDX-License-Identifier: Apache-2.0
"""Stages that change samples, with decode's functions on their columns: re-type, complete, unwind.

*Re-typed* samples get a callchain, and pid, tid, period, ip and cgroup of their payload, which stays for what
perf has no fields for. Their event becomes a cpu-clock by type, so that no perf takes the samples for raw
ones or prints the payload as text; its name says what it is. Sums of perf 6.16 on carry a dummy time, with
which perf sorts them after the end of their threads and then shows neither comm nor symbols. They get the
last moment at which their thread lived, marked as a guess.

*Completed* samples get their deferred user callchain; where it never came, marker and cookie go.

*Unwound* samples lose their copy of registers and user stack, which can hold secrets and must not be passed
on; what was unwound becomes the user's part of the callchain. Copies that are kept are for perf's unwinder,
which adds what it finds to the callchain: there the user's part is cut.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from perf_offcpu import losses
from perf_offcpu.decode.deferred import DeferredMatcher, join_parts, without_user_parts
from perf_offcpu.decode.retype import repair_ids, retype
from perf_offcpu.decode.samples import is_offcpu
from perf_offcpu.decode.stacks.snapshot_store import (
    CallerRows,
    SnapshotStore,
    callers_of,
    has_snapshot,
    with_callers,
)
from perf_offcpu.decode.tasks.replay import TaskReplay
from perf_offcpu.inject.header import has_stacks, is_raw_offcpu
from perf_offcpu.inject.late_exits import LateCopies
from perf_offcpu.inject.options import Rewritten
from perf_offcpu.inject.payload_words import made_extensions, recorded_extensions, with_walk_ends
from perf_offcpu.inject.samples import SampleBatch, model_fields
from perf_offcpu.losses import Losses
from perf_offcpu.model.callchains import Ragged
from perf_offcpu.model.columns import I32, I64
from perf_offcpu.model.lookup import rows_at
from perf_offcpu.unwind.unwinder import Unwinder, Unwound


class Retyper:
    """Makes ordinary samples of raw off-cpu samples, and gives sums without a time one.

    Args:
        tasks: the whole recording's tasks, replayed.
        end_ns: its last moment.
        done: samples that were re-typed, and damaged payloads, are counted here.
    """

    def __init__(self, tasks: TaskReplay, end_ns: int, done: Rewritten) -> None:
        self.tasks, self.end_ns, self.done = tasks.tasks(), end_ns, done

    def __call__(self, batch: SampleBatch) -> SampleBatch:
        """Re-type a batch."""
        if not is_offcpu(batch.spec):
            return batch
        if is_raw_offcpu(batch.spec):
            batch = self._retyped(batch)
        samples = batch.samples
        samples.time_ns = np.where(samples.time_ns < 0, self._last_moments(samples.tid), samples.time_ns)
        batch.columns.scalars |= model_fields(samples)
        return batch

    def _retyped(self, batch: SampleBatch) -> SampleBatch:
        data, columns, order = batch.chunk.data, batch.columns, batch.order
        retyped, valid = retype(data, columns, batch.samples, order, self.done.losses)
        samples = repair_ids(retyped.samples, retyped.from_upstream, self.tasks)
        chains = retyped.callchains.take(samples.callchain)
        nr = np.where(retyped.from_upstream, -1, chains.lengths)
        extensions = recorded_extensions(data, columns.arrays["raw"], nr, order)
        # Of upstream's samples only sums have something to say in an extension.
        sums = np.flatnonzero(retyped.from_upstream & (samples.time_ns < 0))
        if len(sums):
            no_wakers = Ragged(np.zeros(len(sums) + 1, np.int64))
            extensions = extensions.replaced(sums, made_extensions(samples.take(sums), no_wakers, order))
        batch = replace(batch, samples=samples, chains=chains, extensions=extensions)
        batch.miscs = samples.cpumode.astype(np.uint16)
        batch = batch.take(valid)
        self.done.retyped += len(batch)
        return batch

    def _last_moments(self, tids: I32) -> I64:
        """Return int64[n]: the last moment at which perf still knows each thread, ns."""
        life = rows_at(self.tasks.tid, self.tasks.begin_ns, tids, np.full(len(tids), -1))
        begin, end = (np.append(times, -1)[life] for times in (self.tasks.begin_ns, self.tasks.end_ns))
        return np.where(end > 0, np.maximum(begin, end - 1), self.end_ns)


class Completer:
    """Completes samples whose user callchain was deferred.

    Args:
        matcher: of the recording's deferred records.
        done: samples that were completed, and those whose part never came, are counted here.
    """

    def __init__(self, matcher: DeferredMatcher, done: Rewritten) -> None:
        self.matcher, self.done = matcher, done

    def __call__(self, batch: SampleBatch) -> SampleBatch:
        """Complete the callchains of a batch."""
        if batch.chains is None:
            return batch
        samples = batch.samples
        merged = self.matcher.merge(batch.chains, np.arange(len(batch)), samples.tid, samples.time_ns)
        found = merged.deferred >= 0
        self.done.completed += int(found.sum())
        self.done.losses.add(losses.UNMERGED, int((~found).sum()))
        completed = merged.chains.take(merged.row)
        return replace(batch, chains=batch.chains.replaced(merged.samples, completed))


def cut_user_parts(batch: SampleBatch) -> SampleBatch:
    """Cut the user's part of callchains of samples that keep a copy of the user stack."""
    if batch.chains is None or not has_stacks(batch.spec):
        return batch
    return replace(batch, chains=without_user_parts(batch.chains, has_snapshot(batch.columns)))


def drop_references(batch: SampleBatch) -> SampleBatch:
    """Drop the registers of samples whose copy is in another sample: perf would unwind their one word."""
    if not has_stacks(batch.spec):
        return batch
    columns, kept = batch.columns, has_snapshot(batch.columns)
    arrays, scalars = dict(columns.arrays), dict(columns.scalars)
    for name in ("regs_user", "stack_user"):
        arrays[name] = replace(arrays[name], counts=np.where(kept, arrays[name].counts, 0))
    for name in ("regs_user_abi", "stack_user_size", "stack_user_dyn_size"):
        scalars[name] = np.where(kept, scalars[name], np.uint64(0))
    return replace(batch, columns=replace(columns, arrays=arrays, scalars=scalars))


class StackUnwinder:
    """Unwinds copies of user stacks.

    Args:
        unwinder: of the recording.
        tasks: the whole recording's tasks and maps, replayed.
        late: copies that samples refer to before they come.
        keep: samples with a copy keep it; only those that refer to one are unwound.
        done: stacks that were unwound, and those that could not be to their root, are counted here.
    """

    def __init__(self, unwinder: Unwinder, tasks: TaskReplay, late: LateCopies, keep: bool, done: Rewritten) -> None:
        self.unwinder, self.tasks, self.keep, self.done = unwinder, tasks, keep, done
        snapshots, samples, callers = late.release()
        spaces = tasks.attribute(samples).space
        self._callers, self._of_callers = CallerRows(), unwinder.unwind_all(snapshots, spaces, 0, Losses())
        """Rows of callers, and their user callchains."""
        self._callers.note(callers, np.arange(len(callers)))

    def __call__(self, batch: SampleBatch) -> SampleBatch:
        """Unwind a batch; samples without a copy get the stack of their caller."""
        if batch.chains is None or not has_stacks(batch.spec):
            return batch
        counters = Losses() if self.keep else self.done.losses
        store = SnapshotStore(counters)
        valid, mask = np.ones(len(batch), np.bool_), batch.spec.attr.sample_regs_user
        snapshot = store.add(batch.chunk, batch.columns, mask, valid, batch.order)
        rows = np.flatnonzero(snapshot >= 0)
        spaces = self.tasks.attribute(batch.samples).space[rows]
        found = self.unwinder.unwind_all(store.release(), spaces, batch.spec.attr.sample_stack_user, counters)
        of_caller = self._note_callers(batch, snapshot, found)
        others = np.flatnonzero((snapshot < 0) & (of_caller >= 0))
        shared = self._of_callers.take(of_caller[others])
        rows, found = (others, shared) if self.keep else (np.append(rows, others), Unwound.concat([found, shared]))
        self.done.unwound += len(rows)
        whole = join_parts(without_user_parts(batch.chains.take(rows)), found.chains)
        batch = replace(batch, chains=batch.chains.replaced(rows, whole))
        if batch.extensions is not None:
            batch.extensions = with_walk_ends(batch.extensions, rows, found.is_cut(), batch.order)
        return batch

    def _note_callers(self, batch: SampleBatch, snapshot: I32, unwound: Unwound) -> I32:
        """Keep the stacks of new callers; return int32[n], rows of `_of_callers`; negative without caller."""
        callers = callers_of(batch.chunk.data, batch.columns, batch.order)
        new = np.flatnonzero((callers != 0) & (snapshot >= 0))
        row = np.full(len(batch), -1, np.int32)
        row[new] = len(self._of_callers) + np.arange(len(new))
        self._of_callers = Unwound.concat([self._of_callers, unwound.take(snapshot[new])])
        rows = with_callers(row, callers, self._callers)
        self.done.losses.add(losses.CALLERS_NOT_COPIED, int((rows < -1).sum()))
        return rows
