# SPDX-License-Identifier: Apache-2.0
"""Stages that change a batch of samples, with the functions of `decode`: re-type, complete, unwind.

*Re-typed* samples get a callchain, and pid, tid, period, ip and cgroup of their payload, which stays for what
perf has no fields for. Their event becomes a cpu-clock by type, so that no perf takes the samples for raw
ones or prints the payload as text; its name says what it is. Sums of perf 6.16 on carry a dummy time, with
which perf sorts them after the end of their threads and then shows neither comm nor symbols. They get the
last moment at which their thread lived, marked as a guess.

*Completed* samples get their deferred user callchain; where it never came, marker and cookie go.

*Unwound* samples lose their copy of registers and user stack, which can hold secrets and must not be passed
on; what was unwound becomes the user's part of the callchain. Copies that are kept are for perf's unwinder,
which adds what it finds to the callchain: there the user's part is cut.

*Waits between context switches* are off-cpu time for any perf, recorded without BPF. They are samples of an event that
is added to the recording, and have their id at the same place as the samples of its other events. If the recorded
samples have no id, as a single event's may, no event can be added."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from perf_offcpu import losses
from perf_offcpu.abi.attr import SampleType, SoftwareConfig
from perf_offcpu.binary.layout import Order
from perf_offcpu.decode.deferred import DeferredMatcher, join_parts, merge_deferred, without_user_parts
from perf_offcpu.decode.load import read_recording
from perf_offcpu.decode.retype import repair_ids, retype
from perf_offcpu.decode.samples import is_offcpu
from perf_offcpu.decode.snapshot_store import CallerRows, SnapshotStore, callers_of, has_snapshot, with_callers
from perf_offcpu.decode.tasks.replay import TaskReplay
from perf_offcpu.inject.header import has_stacks, is_raw_offcpu
from perf_offcpu.inject.late_exits import LateCopies
from perf_offcpu.inject.samples import (
    Rewritten,
    SampleBatch,
    made_extensions,
    model_fields,
    payloads,
    recorded_extensions,
    with_walk_ends,
)
from perf_offcpu.losses import Losses, Stage
from perf_offcpu.model.callchains import Ragged
from perf_offcpu.model.columns import I32, I64
from perf_offcpu.model.lookup import rows_at
from perf_offcpu.model.recording import Evsel, SampleFlag, Samples, Tasks
from perf_offcpu.perfdata.events import EventSpec
from perf_offcpu.perfdata.reader import PerfDataReader
from perf_offcpu.perfdata.scan import Chunk
from perf_offcpu.perfdata.write.columns import Column, sample_chunk
from perf_offcpu.perfdata.write.writer import RECORD_SIZE_MAX
from perf_offcpu.structs import frozen
from perf_offcpu.unwind.unwinder import Unwinder, Unwound


def retype_batch(batch: SampleBatch, tasks: Tasks, end_ns: int, done: Rewritten) -> SampleBatch:
    """Re-type raw off-cpu samples; count damaged payloads. Sums without a time get the last moment at which their
    thread lived; a thread without an end lived to `end_ns`, the last moment of the recording."""
    if not is_offcpu(batch.spec):
        return batch
    if is_raw_offcpu(batch.spec):
        batch = _retyped(batch, tasks, done)
    samples = batch.samples
    life = rows_at(tasks.tid, tasks.begin_ns, samples.tid, np.full(len(samples), -1))
    begin, end = (np.append(times, -1)[life] for times in (tasks.begin_ns, tasks.end_ns))
    last_ns = np.where(end > 0, np.maximum(begin, end - 1), end_ns)  # at which perf still knows the thread
    samples.time_ns = np.where(samples.time_ns < 0, last_ns, samples.time_ns)
    batch.columns.scalars |= model_fields(samples)
    return batch


def _retyped(batch: SampleBatch, tasks: Tasks, done: Rewritten) -> SampleBatch:
    """Return the raw off-cpu samples with a valid payload, with samples, callchains and extensions read from it."""
    data, columns, order = batch.chunk.data, batch.columns, batch.order
    retyped, valid = retype(data, columns, batch.samples, order, done.losses)
    samples = repair_ids(retyped.samples, retyped.from_upstream, tasks)
    chains = retyped.callchains.take(samples.callchain)
    nr = np.where(retyped.from_upstream, -1, chains.lengths)
    extensions = recorded_extensions(data, columns.arrays["raw"], nr, order)
    # Of upstream's samples only sums have something to say in an extension.
    sums = np.flatnonzero(retyped.from_upstream & (samples.time_ns < 0))
    if len(sums):
        no_wakers = Ragged(np.zeros(len(sums) + 1, np.int64))
        extensions = extensions.replaced(sums, made_extensions(samples.take(sums), no_wakers, order))
    miscs = samples.cpumode.astype(np.uint16)
    batch = replace(batch, samples=samples, chains=chains, extensions=extensions, miscs=miscs).take(valid)
    done.retyped += len(batch)
    return batch


def complete_batch(batch: SampleBatch, matcher: DeferredMatcher, done: Rewritten) -> SampleBatch:
    """Add deferred user callchains to the callchains of a batch; count samples that got theirs, and that did not."""
    if batch.chains is None:
        return batch
    samples = batch.samples
    merged = matcher.merge(batch.chains, np.arange(len(batch)), samples.tid, samples.time_ns)
    is_complete = merged.deferred >= 0
    done.completed += int(is_complete.sum())
    done.losses.add(losses.UNMERGED, int((~is_complete).sum()))
    return replace(batch, chains=batch.chains.replaced(merged.samples, merged.chains.take(merged.row)))


def cut_user_parts(batch: SampleBatch) -> SampleBatch:
    """Cut the user part from callchains of samples that keep a copy of the user stack: perf's unwinder adds it."""
    if batch.chains is None or not has_stacks(batch.spec):
        return batch
    return replace(batch, chains=without_user_parts(batch.chains, has_snapshot(batch.columns)))


def drop_references(batch: SampleBatch) -> SampleBatch:
    """Remove registers and stack from samples that only refer to another sample's copy: perf would unwind from the
    single word in their stack field."""
    if not has_stacks(batch.spec):
        return batch
    columns, kept = batch.columns, has_snapshot(batch.columns)
    copies = {name: columns.arrays[name] for name in ("regs_user", "stack_user")}
    arrays = {name: replace(rows, counts=np.where(kept, rows.counts, 0)) for name, rows in copies.items()}
    sizes = ("regs_user_abi", "stack_user_size", "stack_user_dyn_size")
    scalars = {name: np.where(kept, columns.scalars[name], np.uint64(0)) for name in sizes}
    changed = replace(columns, arrays=columns.arrays | arrays, scalars=columns.scalars | scalars)
    return replace(batch, columns=changed)


class StackUnwinder:
    """The stage that unwinds copies of user stacks. `tasks`: finds the address space of a sample; `late`: copies that
    come after a sample that refers to them; `keep`: samples keep their copy, and only samples that refer to another's
    copy are unwound; `done`: counts unwound stacks, and stacks that could not be unwound to their root."""

    def __init__(self, unwinder: Unwinder, tasks: TaskReplay, late: LateCopies, keep: bool, done: Rewritten) -> None:
        self.unwinder, self.tasks, self.keep, self.done = unwinder, tasks, keep, done
        snapshots, samples, callers = late.release()
        spaces = tasks.attribute(samples).space
        self._callers, self._of_callers = CallerRows(), unwinder.unwind_all(snapshots, spaces, 0, Losses())
        """`_callers`: caller number → row in `_of_callers`: user callchain unwound from the copy with that number."""
        self._callers.note(callers, np.arange(len(callers)))

    def __call__(self, batch: SampleBatch) -> SampleBatch:
        """Return the batch with unwound user callchains, also of samples that refer to the copy of another sample."""
        if batch.chains is None or not has_stacks(batch.spec):
            return batch
        counters = Losses() if self.keep else self.done.losses
        store, attr = SnapshotStore(counters), batch.spec.attr
        all_valid = np.ones(len(batch), np.bool_)
        snapshot = store.add(batch.chunk, batch.columns, attr.sample_regs_user, all_valid, batch.order)
        rows = np.flatnonzero(snapshot >= 0)
        spaces = self.tasks.attribute(batch.samples).space[rows]
        unwound = self.unwinder.unwind_all(store.release(), spaces, attr.sample_stack_user, counters)
        of_caller = self._note_callers(batch, snapshot, unwound)
        others = np.flatnonzero((snapshot < 0) & (of_caller >= 0))
        shared = self._of_callers.take(of_caller[others])
        if self.keep:
            rows, unwound = others, shared
        else:
            rows, unwound = np.append(rows, others), Unwound.concat([unwound, shared])
        self.done.unwound += len(rows)
        completed = join_parts(without_user_parts(batch.chains.take(rows)), unwound.chains)
        extensions = batch.extensions
        if extensions is not None:
            extensions = with_walk_ends(extensions, rows, unwound.is_cut(), batch.order)
        return replace(batch, chains=batch.chains.replaced(rows, completed), extensions=extensions)

    def _note_callers(self, batch: SampleBatch, snapshot: I32, unwound: Unwound) -> I32:
        """Keep the callchains `unwound` from new copies that have a number for references in `_of_callers`; return
        int32[n]: the row there for each sample, negative for none. `snapshot`: int32[n], row of its copy in `unwound`,
        negative for none."""
        callers = callers_of(batch.chunk.data, batch.columns, batch.order)
        new = np.flatnonzero((callers != 0) & (snapshot >= 0))
        row = np.full(len(batch), -1, np.int32)
        row[new] = len(self._of_callers) + np.arange(len(new))
        self._of_callers = Unwound.concat([self._of_callers, unwound.take(snapshot[new])])
        rows = with_callers(row, callers, self._callers)
        self.done.losses.add(losses.CALLERS_NOT_COPIED, int((rows < -1).sum()))
        return rows


_WORDS_MAX = (RECORD_SIZE_MAX - 512) // 8
"""Most words of callchains that fit into a sample: its own callchain is in the field and in the payload, so its words
count twice; the words of its waker's count once."""

_PLACES_OF_ID = SampleType.IDENTIFIER | SampleType.ID | SampleType.ADDR | SampleType.STREAM_ID | SampleType.CPU
"""Fields that decide where samples and trailers have their id, and that must be as in the other events."""
_BEFORE_ID = SampleType.IP | SampleType.TID | SampleType.TIME
_OWN = _BEFORE_ID | SampleType.PERIOD | SampleType.CALLCHAIN | SampleType.RAW
_ID_MAX = 2**64 - 1


@frozen
class WaitRecords:
    """SAMPLE records to add for waits between context switches, sorted by time."""

    spec: EventSpec  # their event
    records: Chunk  # n records
    times: I64  # int64[n], ns


def wait_records(reader: PerfDataReader, counters: Losses) -> WaitRecords | None:
    """Read a whole recording into memory and return its waits between context switches; None if it has no switches, has
    an off-cpu event, or its samples have no id (counted). Counted are also switches that are no wait, and callchains
    too long for a record; other losses are not."""
    recording = merge_deferred(read_recording(reader))
    specs = reader.events.specs
    if len(recording.evsels) == len(specs):
        return None
    for cause, count in recording.losses.items():
        counters.add(cause, count if cause.stage is Stage.SWITCHES else 0)
    samples = recording.samples.take(recording.samples.has(SampleFlag.OFFCPU))
    spec = _spec(recording.evsels[-1], specs)
    if spec is None:
        counters.add(losses.NO_ID_IN_SAMPLES, len(samples))
        return None
    lengths = np.append(recording.callchains.lengths, 0)[[samples.callchain, samples.waker_callchain]]
    long = 2 * lengths[0] + lengths[1] > _WORDS_MAX
    counters.add(losses.CALLCHAIN_TOO_LONG, int(long.sum()))
    samples = samples.take(~long)
    return WaitRecords(spec, _records(samples, recording.callchains, spec, reader.order), samples.time_ns)


def _spec(evsel: Evsel, specs: Sequence[EventSpec]) -> EventSpec | None:
    """Return the event to add to `specs`, with an unused id; None if their samples have no id to tell events apart."""
    ids = [number for spec in specs for number in spec.ids]
    sample_type = specs[0].attr.sample_type
    kind = sample_type & _PLACES_OF_ID | _OWN
    by_identifier = bool(kind & SampleType.IDENTIFIER)
    by_id = bool(kind & SampleType.ID) and sample_type & _BEFORE_ID == _BEFORE_ID
    if not ids or not (by_identifier or by_id) or max(ids) >= _ID_MAX:
        return None
    attr = evsel.attr._replace(config=SoftwareConfig.CPU_CLOCK, sample_type=kind)
    return EventSpec(attr, evsel.name, (max(ids) + 1,))


def _records(samples: Samples, callchains: Ragged, spec: EventSpec, order: Order) -> Chunk:
    """Encode samples of the model as SAMPLE records of event `spec`, with payloads."""
    none = len(callchains)  # the row of an empty callchain, added here
    with_none = Ragged(np.append(callchains.offsets, callchains.offsets[-1]), callchains.values)
    chains, wakers = (
        with_none.take(np.where(rows < 0, none, rows)) for rows in (samples.callchain, samples.waker_callchain)
    )
    columns: dict[str, Column] = {
        **dict.fromkeys(("identifier", "id"), spec.ids[0]),
        **dict.fromkeys(("addr", "stream_id", "cpu_res"), 0),
        **model_fields(samples),
        "callchain": (chains.offsets, chains.values),
        **payloads(samples, chains, made_extensions(samples, wakers, order), order),
    }
    return sample_chunk(spec.shape, samples.cpumode.astype(np.uint16), columns, len(samples), order)
