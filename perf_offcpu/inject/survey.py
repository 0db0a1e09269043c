# SPDX-License-Identifier: Apache-2.0
"""The first of inject's two passes: gather what only the whole recording shows.

To rewrite one sample one may have to know what comes much later: in which process its thread was (to exchange
pid and tid where upstream swapped them), when that thread ended (the time of a sum), and the user callchain
that was deferred. And a pipe begins with features that say when its last sample was.

Kept in memory are the lives of threads, the sums without a time, and deferred callchains (each different one
once, and 28 bytes for each record): little compared with the recording, which streams through twice.
"""

from __future__ import annotations

from dataclasses import field

from perf_offcpu.abi.attr import PerfType, SoftwareConfig
from perf_offcpu.abi.records import RecordType
from perf_offcpu.decode.batch import BatchCollector
from perf_offcpu.decode.deferred import DeferredMatcher, decode_deferred
from perf_offcpu.decode.samples import samples_by_event
from perf_offcpu.decode.tasks.columns import task_records
from perf_offcpu.decode.tasks.replay import SIDE_TYPES, TaskReplay
from perf_offcpu.inject.header import has_stacks
from perf_offcpu.inject.samples import is_untimed
from perf_offcpu.losses import Losses
from perf_offcpu.model.strings import Strings
from perf_offcpu.perfdata.events import EventSpec
from perf_offcpu.perfdata.reader import PerfDataReader
from perf_offcpu.perfdata.scan import Chunk
from perf_offcpu.perfdata.trailers import record_times
from perf_offcpu.perfdata.write.weave import woven
from perf_offcpu.structs import mutable

_TASK_TYPES = frozenset[int]({RecordType.COMM, RecordType.FORK, RecordType.EXIT})


@mutable
class Survey:
    """Findings of the first pass, complete once it has read all chunks.

    Attributes:
        tasks: the threads, if there is off-cpu time, and if samples have copies of user stacks the maps, too.
        untimed: off-cpu samples with a dummy time, as they were recorded.
        first_ns, last_ns: times of the first and last sample; -1 without any.
        end_ns: the last moment of the recording.
    """

    reader: PerfDataReader
    tasks: TaskReplay = field(default_factory=lambda: TaskReplay(Strings()))
    untimed: list[Chunk] = field(default_factory=list)
    first_ns: int = -1
    last_ns: int = -1
    end_ns: int = 0
    _deferred: BatchCollector = field(default_factory=BatchCollector)

    def take(self, chunk: Chunk) -> None:
        """Take up a chunk. Damage is not counted: the second pass meets it again."""
        events = self.reader.events
        times = record_times(chunk, events)
        self.end_ns = max(self.end_ns, int(times.max(initial=0)))
        stacks = any(map(has_stacks, events.specs))
        if stacks or any(map(_may_be_offcpu, events.specs)):
            kinds = SIDE_TYPES if stacks else _TASK_TYPES
            self.tasks.note_all(task_records(chunk, kinds, events, Losses()))
        timed = times[(chunk.types == RecordType.SAMPLE) & (times > 0)]
        if len(timed):
            first, last = int(timed.min()), int(timed.max())
            self.first_ns = first if self.first_ns < 0 else min(self.first_ns, first)
            self.last_ns = max(self.last_ns, last)
        for number, rows in samples_by_event(chunk, events, Losses()):
            untimed = rows[is_untimed(chunk, rows, events, number)]
            if len(untimed):
                self.untimed.append(woven([(untimed, chunk.take(untimed))]))
        self._deferred.add(decode_deferred(chunk, events, Losses()))

    def matcher(self) -> DeferredMatcher:
        """Return what finds the deferred callchains of samples."""
        batch = self._deferred.release()
        return DeferredMatcher(batch.deferred, batch.callchains)


def survey(reader: PerfDataReader) -> Survey:
    """Read a recording once."""
    found = Survey(reader)
    for chunk in reader.chunks():
        found.take(chunk)
    found.tasks.replay()
    return found


def _may_be_offcpu(spec: EventSpec) -> bool:
    """Return whether an evsel can turn out to be off-cpu time: in a pipe its name comes after its attr."""
    return spec.attr.type == PerfType.SOFTWARE and spec.attr.config == SoftwareConfig.BPF_OUTPUT
