# SPDX-License-Identifier: Apache-2.0
"""The first of inject's two passes: what only the whole recording tells.

To rewrite one sample one may have to know what comes much later: in which process its thread was (to exchange
pid and tid where upstream swapped them), when that thread ended (the time of a sum), and the user callchain
that was deferred. And a pipe begins with features that say when its last sample was.

Kept in memory are the lives of threads, the sums without a time, and deferred callchains (each different one
once, and 28 bytes for each record): little beside the recording. Everything else streams through twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field

import numpy as np

from perf_offcpu.abi.attr import PerfType, SoftwareConfig
from perf_offcpu.abi.records import RecordType
from perf_offcpu.decode.batch import Gathering
from perf_offcpu.decode.deferred import decode_deferred
from perf_offcpu.decode.samples import is_offcpu
from perf_offcpu.decode.tasks.columns import task_records
from perf_offcpu.decode.tasks.replay import SIDE_TYPES, TaskReplay
from perf_offcpu.inject.retype_records import Lives
from perf_offcpu.inject.unwind_records import has_stacks
from perf_offcpu.losses import Losses
from perf_offcpu.model.callchains import Ragged
from perf_offcpu.model.columns import I32, Bool
from perf_offcpu.model.recording import DeferredChains
from perf_offcpu.model.strings import Strings
from perf_offcpu.perfdata.events import Events, EventSpec
from perf_offcpu.perfdata.features import Features
from perf_offcpu.perfdata.reader import PerfDataReader
from perf_offcpu.perfdata.scan import Chunk
from perf_offcpu.perfdata.trailers import NO_TIME, record_times, sample_times
from perf_offcpu.perfdata.write.splice import Records, aligned, records_of
from perf_offcpu.structs import mutable

_TASK_TYPES = frozenset[int]({RecordType.COMM, RecordType.FORK, RecordType.EXIT})


@mutable
class Survey:
    """What the first pass found.

    Args:
        events, features: complete, for the pipe form too.
        lives: the threads, if there is off-cpu time.
        first_ns, last_ns: times of the first and last sample; -1 without any.
        untimed: off-cpu samples with a dummy time, as they were.
        deferred: the deferred records; their callchains are rows of `chains`.
        streams: how many streams the records come in: more than one in a directory.
        tasks: the threads, and if samples have copies of user stacks the maps, too.
    """

    events: Events
    features: Features
    lives: Lives
    first_ns: int
    last_ns: int
    untimed: Records
    deferred: DeferredChains
    chains: Ragged
    streams: int
    tasks: TaskReplay


def survey(reader: PerfDataReader) -> Survey:
    """Read a recording once. Damage is not counted: the second pass meets it again."""
    surveyor = _Surveyor(reader)
    for chunk in reader.chunks():
        surveyor.take(chunk)
    return surveyor.result()


@mutable
class _Surveyor:
    reader: PerfDataReader
    tasks: TaskReplay = field(default_factory=lambda: TaskReplay(Strings()))
    untimed: list[Records] = field(default_factory=list)
    deferred: Gathering = field(default_factory=Gathering)
    first_ns: int = -1
    last_ns: int = -1
    end_ns: int = 0
    streams: set[str] = field(default_factory=set)

    def take(self, chunk: Chunk) -> None:
        events = self.reader.events
        self.streams.add(chunk.origin.removesuffix("zstd").strip())
        stacks = any(map(has_stacks, events.specs))
        if stacks or any(map(_may_be_offcpu, events.specs)):
            kinds = SIDE_TYPES if stacks else _TASK_TYPES
            self.tasks.note_all(task_records(chunk, kinds, events, Losses()))
            self.end_ns = max(self.end_ns, int(record_times(chunk, events).max(initial=0)))
        self._samples(chunk, events)
        self.deferred.add(decode_deferred(chunk, events, Losses()))

    def _samples(self, chunk: Chunk, events: Events) -> None:
        rows = np.flatnonzero(chunk.types == RecordType.SAMPLE)
        if not len(rows):
            return
        evsel = events.of_samples(chunk, rows)
        times = sample_times(chunk, rows, evsel, events)
        dummy = times >= NO_TIME
        real = times[~dummy & (times > 0)].astype(np.int64)
        if len(real):
            self.first_ns = int(real.min()) if self.first_ns < 0 else min(self.first_ns, int(real.min()))
            self.last_ns = max(self.last_ns, int(real.max()))
        sums = dummy & offcpu_of(evsel, events.specs)
        if sums.any():
            self.untimed.append(records_of(aligned(chunk.take(rows[sums]))))

    def result(self) -> Survey:
        self.tasks.replay()
        batch = self.deferred.batch()
        return Survey(
            self.reader.events,
            self.reader.features,
            Lives(self.tasks.tasks(), self.end_ns),
            self.first_ns,
            self.last_ns,
            Records.concat(self.untimed),
            batch.deferred,
            batch.callchains,
            len(self.streams),
            self.tasks,
        )


def _may_be_offcpu(spec: EventSpec) -> bool:
    """Whether an evsel can turn out to be off-cpu time: in a pipe its name comes after its attr."""
    return spec.attr.type == PerfType.SOFTWARE and spec.attr.config == SoftwareConfig.BPF_OUTPUT


def offcpu_of(evsel: I32, specs: Sequence[EventSpec]) -> Bool:
    """bool[n]: whether each sample (its evsel, -1 unknown) is off-cpu time."""
    known = np.array([is_offcpu(spec) for spec in specs] + [False])
    chosen: Bool = known[evsel]
    return chosen
