# SPDX-License-Identifier: Apache-2.0
"""Find copies of user stacks that come after a sample that refers to them, in the first pass of inject.

The recorder empties the rings of the CPUs one after the other. A sample of one CPU can thus precede the
sample of another CPU that has the copy of its stack. Such copies are few.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from perf_offcpu.decode.samples import is_offcpu, model_samples, sample_columns, samples_by_event
from perf_offcpu.decode.stacks.snapshot_store import SnapshotStore, callers_of, has_snapshot
from perf_offcpu.inject.header import has_stacks
from perf_offcpu.losses import Losses
from perf_offcpu.model.columns import U64, distinct
from perf_offcpu.model.recording import Samples
from perf_offcpu.model.snapshots import Snapshots
from perf_offcpu.perfdata.events import Events
from perf_offcpu.perfdata.scan import Chunk


class LateCopies:
    """The copies that a sample refers to before they come.

    Args:
        reopen: as of `SnapshotStore`.
    """

    def __init__(self, reopen: Callable[[str], int | None]) -> None:
        self._store = SnapshotStore(Losses(), reopen=reopen)
        self._seen, self._awaited = set[int](), set[int]()
        self._samples, self._callers = list[Samples](), list[int]()

    def note(self, chunk: Chunk, events: Events) -> None:
        """Look at the samples of a chunk. Damage is not counted: the second pass meets it again."""
        for number, rows in samples_by_event(chunk, events, Losses()):
            spec = events.specs[number]
            if not has_stacks(spec) or not is_offcpu(spec):
                continue
            columns = sample_columns(chunk, rows, spec, events.order)
            callers = np.where(columns.ok, callers_of(chunk.data, columns, events.order), np.uint64(0))
            own = has_snapshot(columns)
            self._awaited.update(set(distinct(callers[~own]).tolist()) - self._seen - {0})
            unique, first = np.unique(np.where(own, callers, np.uint64(0)), return_index=True)
            new = [
                (caller, row)
                for caller, row in zip(unique.tolist(), first.tolist(), strict=True)
                if caller and caller not in self._seen
            ]
            self._seen.update(caller for caller, _ in new)
            late = [(caller, row) for caller, row in new if caller in self._awaited]
            if late:
                wanted = np.zeros(len(rows), np.bool_)
                wanted[[row for _, row in late]] = True
                self._store.add(chunk, columns, spec.attr.sample_regs_user, wanted, events.order)
                samples = model_samples(columns, spec, number, chunk.miscs[rows])
                self._samples.append(samples.take(np.flatnonzero(wanted)))
                self._callers += [caller for caller, _ in sorted(late, key=lambda one: one[1])]

    def release(self) -> tuple[Snapshots, Samples, U64]:
        """Return the copies, the samples that they are in, and their callers."""
        samples = Samples.concat(self._samples) if self._samples else Samples()
        return self._store.release(), samples, np.array(self._callers, np.uint64)
