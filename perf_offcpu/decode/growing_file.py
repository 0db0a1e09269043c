# SPDX-License-Identifier: Apache-2.0
"""Decode a recording while it is being written, part by part: from one account of the recorder (command `account` of
`record --control`) to the next. Each part is a Recording of its own. Tasks, mappings, objects and copies of stacks are
in the file once, and are known in all later parts."""

from collections.abc import Mapping

import numpy as np

from perf_offcpu.decode.account import CollectorAccount, ObjectRow
from perf_offcpu.decode.batch import Batch, BatchCollector
from perf_offcpu.decode.deferred import decode_deferred
from perf_offcpu.decode.load import assemble, note_tasks
from perf_offcpu.decode.samples import SampleDecoder
from perf_offcpu.decode.snapshot_store import SnapshotStore
from perf_offcpu.decode.tasks.replay import TaskReplay
from perf_offcpu.losses import Losses
from perf_offcpu.model.columns import Strings
from perf_offcpu.model.recording import SUM_FLAGS, Recording
from perf_offcpu.perfdata.reader import PerfDataReader


class GrowingFile:
    """Reads one file. `features`: body of each header feature, which the file has only at its end."""

    def __init__(self, path: str, features: Mapping[int, bytes]) -> None:
        self._path, self._reader = path, (reader := PerfDataReader.open(path))
        reader.features.bodies.update(features)
        self._place = reader.head.data_offset
        self._tasks, self._store = TaskReplay(Strings()), SnapshotStore(reader.counters, reopen=reader.reopen)
        self._objects: dict[int, ObjectRow] = {}
        self._rest = Batch()  # waits that ended after the last account

    def close(self) -> None:
        """Close the file."""
        self._reader.stream.close()

    def read(self, end: int | None) -> Recording | None:
        """Return what was recorded up to the last account before byte `end` since the one before; None without one. An
        `end` of None is that of a file that is complete."""
        if end is None:
            with PerfDataReader.open(self._path) as complete:
                end = complete.head.data_end or self._place
        reader, collector, account = self._reader, BatchCollector(), CollectorAccount(objects=self._objects)
        reader.counters = self._store.counters = counters = Losses()
        decoder = SampleDecoder(counters, account, collector.chains, snapshots=self._store)
        collector.add(self._rest)
        for chunk in reader.chunks_between(self._place, end):
            rows, parts = decoder.decode(chunk, reader.events)
            collector.add_interleaved(parts, rows)
            collector.add(decode_deferred(chunk, reader.events, counters))
            note_tasks(chunk, reader, self._tasks)
        self._place, self._objects = end, account.objects
        batch = collector.release()
        if not account.end_ns:
            self._rest = batch
            return None
        samples = batch.samples
        is_later = (samples.time_ns > account.end_ns) & ~samples.has(SUM_FLAGS)
        later, ended = np.flatnonzero(is_later), np.flatnonzero(~is_later)
        self._rest = Batch(samples.take(later), batch.callchains, batch.from_upstream[later])
        batch.samples, batch.from_upstream = samples.take(ended), batch.from_upstream[ended]
        batch.samples.snapshot = self._store.callers.settled(batch.samples.snapshot, counters)
        return assemble(reader, batch, self._tasks, account).replaced(snapshots=self._store.view())
