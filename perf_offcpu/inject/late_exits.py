# SPDX-License-Identifier: Apache-2.0
"""Move the EXIT of a thread after its last wait; collect copies of user stacks that come after samples that need them.

A thread that is killed waits some more while it exits, after the kernel has written its EXIT. perf 6.12
forgets the thread at that record, and shows its last samples as those of ":TID". So the EXIT gets the time
after the last wait, before the thread id is used again, and is inserted by that time.

The recorder empties the rings of the CPUs one after the other. A sample of one CPU can thus precede the
sample of another CPU that has the copy of its stack. Such copies are few."""

from collections.abc import Callable, Iterable

import numpy as np

from perf_offcpu.abi.offcpu import PAYLOAD
from perf_offcpu.abi.records import RECORD_LAYOUTS, RecordType
from perf_offcpu.abi.sample import TRAILER
from perf_offcpu.binary.columnar import gather_fields, move_rows
from perf_offcpu.binary.layout import Order
from perf_offcpu.decode.retype import repair_ids
from perf_offcpu.decode.samples import is_offcpu, model_samples, sample_columns, samples_by_event
from perf_offcpu.decode.snapshot_store import SnapshotStore, callers_of, has_snapshot
from perf_offcpu.decode.tasks.columns import TaskRecords
from perf_offcpu.inject.header import has_stacks
from perf_offcpu.losses import Losses
from perf_offcpu.model.callchains import Snapshots
from perf_offcpu.model.columns import I32, I64, U64, distinct, is_among
from perf_offcpu.model.lookup import rows_at
from perf_offcpu.model.recording import Samples, Tasks
from perf_offcpu.perfdata.events import NO_TIME, Events, EventSpec, read_trailers
from perf_offcpu.perfdata.scan import HEADER_SIZE, Chunk
from perf_offcpu.perfdata.write.columns import merged_records


class LateCopies:
    """Collector of copies of user stacks that come in the file after a sample that refers to them by the number
    `caller` of its payload (`decode.snapshot_store`). `reopen`: chunk's origin → descriptor, None if gone."""

    def __init__(self, reopen: Callable[[str], int | None]) -> None:
        self._store = SnapshotStore(Losses(), reopen=reopen)
        self._seen, self._awaited = {0}, set[int]()
        self._samples, self._callers = list[Samples](), list[U64]()

    def note(self, chunk: Chunk, events: Events) -> None:
        """Collect copies of user stacks to which earlier samples refer. Damage is counted by the second pass only."""
        for number, rows in samples_by_event(chunk, events, Losses()):
            spec = events.specs[number]
            if not has_stacks(spec) or not is_offcpu(spec):
                continue
            columns = sample_columns(chunk, rows, spec, events.order)
            callers = np.where(columns.ok, callers_of(chunk.data, columns, events.order), np.uint64(0))
            has_copy = has_snapshot(columns)
            self._awaited.update(set(distinct(callers[~has_copy]).tolist()) - self._seen)
            own_callers, first = np.unique(np.where(has_copy, callers, np.uint64(0)), return_index=True)
            pairs = list(zip(own_callers.tolist(), first.tolist(), strict=True))
            late = sorted(row for caller, row in pairs if caller in self._awaited and caller not in self._seen)
            self._seen.update(own_callers.tolist())
            if late:
                is_late = np.zeros(len(rows), np.bool_)
                is_late[late] = True
                self._store.add(chunk, columns, spec.attr.sample_regs_user, is_late, events.order)
                samples = model_samples(columns, spec, number, chunk.miscs[rows])
                self._samples.append(samples.take(late))
                self._callers.append(callers[late])

    def release(self) -> tuple[Snapshots, Samples, U64]:
        """Return the late copies of user stacks, the n samples with them, uint64[n]: each one's number for
        references."""
        callers = np.concatenate([np.empty(0, np.uint64), *self._callers])
        return self._store.release(), Samples.concat([Samples(), *self._samples]), callers


_BODY_TIME = HEADER_SIZE + RECORD_LAYOUTS[RecordType.EXIT].offset("time")

_INTERVAL = 27  # binary digits of 0.13 s in ns: a thread id is not used again sooner


class LateExits:
    """EXITs that precede a wait of their thread: collects them in the first pass, moves them in the second."""

    def __init__(self) -> None:
        self._exits: list[tuple[I64, I32, I64, Chunk]] = []  # numbers among all EXITs, tids, times, records
        self._waits: list[tuple[I32, I32, I64]] = []  # pids, tids, times of waits
        self._seen = self._passed = 0  # EXITs of the first and of the second pass
        self._moved = np.empty(0, np.int64)

    def take_exits(self, chunk: Chunk, tasks: Iterable[TaskRecords], events: Events) -> None:
        """Collect the EXITs of a chunk whose trailer has a time. `tasks`: the task records of the chunk."""
        exits = np.flatnonzero(chunk.types == RecordType.EXIT)
        for records in tasks:
            if records.kind == RecordType.EXIT:
                timed = np.flatnonzero(read_trailers(chunk, records.rows, events).time)
                rows = records.rows[timed]
                numbers = self._seen + np.searchsorted(exits, rows)
                own = merged_records([(rows, chunk.take(rows))])
                tids = records.own["tid"][timed].view(np.int32)
                self._exits.append((numbers, tids, records.time_ns[timed], own))
        self._seen += len(exits)

    def take_waits(self, chunk: Chunk, rows: I64, spec: EventSpec, order: Order) -> None:
        """Collect the times of off-cpu samples, `rows` of a chunk: the last of each thread in each 2^_INTERVAL ns."""
        columns = sample_columns(chunk, rows, spec, order)
        if "time" not in columns.scalars:
            return
        ok = columns.ok & (columns.scalars["time"] < NO_TIME)
        if "raw" in columns.arrays:  # the sleeper is in the payload
            ok &= columns.arrays["raw"].counts >= 8
            ids = gather_fields(chunk.data, columns.arrays["raw"].starts[ok], PAYLOAD.fields[:2], order)
        else:
            ids = {name: columns.scalars[name][ok] for name in ("pid", "tid")}
        times = columns.scalars["time"][ok].astype(np.int64)
        threads = ids["pid"].astype(np.uint64) << np.uint64(32) | ids["tid"]
        by_thread = np.lexsort((times, threads))
        threads, times = threads[by_thread], times[by_thread]
        follows = (threads[1:] == threads[:-1]) & (times[1:] >> _INTERVAL == times[:-1] >> _INTERVAL)
        last = np.flatnonzero(~np.append(follows, False)[: len(times)])
        pids, tids = ((threads[last] >> np.uint64(shift)).astype(np.uint32).view(np.int32) for shift in (32, 0))
        self._waits.append((pids, tids, times[last]))

    def moved(self, tasks: Tasks, events: Events) -> list[tuple[I64, Chunk]]:
        """Return the EXITs to insert after the last wait of their thread, as pairs of new times (int64[n], ns) and n
        records with these times; `left_out` leaves out the original ones. `tasks`: all threads of the recording."""
        if not self._waits or not self._exits:
            return []
        pid, tid, time_ns = map(np.concatenate, zip(*self._waits, strict=True))
        samples = Samples.sparse(len(pid), pid=pid, tid=tid, time_ns=time_ns)
        waits = repair_ids(samples, np.ones(len(pid), np.bool_), tasks)
        last = np.full(len(tasks) + 1, -1)  # also of threads that no record names
        np.maximum.at(last, rows_at(tasks.tid, tasks.begin_ns, waits.tid, waits.time_ns), waits.time_ns)
        reused = np.append(tasks.tid[1:] == tasks.tid[:-1], False)
        limit = np.where(reused, np.append(tasks.begin_ns[1:], 0), np.iinfo(np.int64).max)
        latest, parts = np.append(np.minimum(last[:-1] + 1, limit - 1), -1), list[tuple[I64, Chunk]]()
        for numbers, tids, times, chunk in self._exits:
            later = latest[rows_at(tasks.tid, tasks.begin_ns, tids, times)]
            rows = np.flatnonzero(later > times)
            if len(rows):
                self._moved = np.append(self._moved, numbers[rows])
                parts.append((later[rows], _with_times(chunk.take(rows), later[rows], events)))
        return parts

    def left_out(self, chunk: Chunk) -> Chunk:
        """Return a chunk of the second pass without the EXITs that `moved` returned; call it for each chunk in turn."""
        exits = np.flatnonzero(chunk.types == RecordType.EXIT)
        numbers = self._passed + np.arange(len(exits))
        self._passed += len(exits)
        rows = exits[is_among(numbers, self._moved)] if len(self._moved) else exits[:0]
        return chunk.take(np.delete(np.arange(len(chunk)), rows)) if len(rows) else chunk


def _with_times(chunk: Chunk, times: I64, events: Events) -> Chunk:
    """Return a copy of EXIT records with `times` (ns) in their bodies and trailers."""
    chunk = merged_records([(np.arange(len(chunk)), chunk)])
    trailers = read_trailers(chunk, np.arange(len(chunk)), events)
    words = times.astype(f"{events.order}i8").view(np.uint8)
    in_trailer = chunk.starts + chunk.sizes - trailers.size
    for number in distinct(trailers.evsel).tolist():
        in_trailer[trailers.evsel == number] += TRAILER.offset("time", events.specs[number].attr.sample_type)
    for starts in (chunk.starts + _BODY_TIME, in_trailer):
        move_rows(chunk.data, starts, words, 8 * np.arange(len(times)), np.full(len(times), 8))
    return chunk
