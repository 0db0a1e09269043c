# SPDX-License-Identifier: Apache-2.0
"""inject: a recording in, the same recording out, in a form that any perf from 6.1 on reports.

Two passes. The first (`survey`) gathers what only the whole recording tells, the second copies record by
record, and on the way

* off-cpu samples become ordinary ones (`retype_records`);
* deferred callchains are put into their samples, as ordinary user parts (`complete_records`);
* if asked for, waits between context switches become an off-cpu event (`switch_output`);
* copies of user stacks become the user's part of callchains, and are left out (`unwind_records`);
* what is compressed comes out as it was before, attrs are cut to the 128 bytes that perf 6.1 knows;
* what no perf, or not every perf, could read is left out, and counted (`perfdata.write.sound`).

Everything else stays as it is, byte for byte and in its order. Sums of off-cpu time that had no time get one
in the past. They are moved to where it lies, for perf sorts as it reads: at each FINISHED_ROUND it gives out
what is older than the one before, and complains of what comes later than that.

The byte order stays that of the input.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Protocol

import numpy as np

from perf_offcpu import losses
from perf_offcpu.abi.features import Feature
from perf_offcpu.abi.records import RecordType
from perf_offcpu.binary.layout import Buffer
from perf_offcpu.decode.switches.events import may_tell_of_switches
from perf_offcpu.inject.branch_counters import drop_counters, without_counters
from perf_offcpu.inject.complete_records import Completer
from perf_offcpu.inject.head import known_tracepoints, output_events, output_features
from perf_offcpu.inject.retype_records import Retyper
from perf_offcpu.inject.samples import SampleRewriter, TimedSums
from perf_offcpu.inject.spool import repeatable
from perf_offcpu.inject.survey import Survey, survey
from perf_offcpu.inject.switch_waits import WaitRecords, wait_records
from perf_offcpu.inject.unwind_records import MakeUnwinder, StackCutter, frames_of, has_stacks
from perf_offcpu.losses import Losses
from perf_offcpu.model.columns import Bool
from perf_offcpu.perfdata.events import EventSpec
from perf_offcpu.perfdata.leaked_flag import with_written_miscs
from perf_offcpu.perfdata.reader import PerfDataReader
from perf_offcpu.perfdata.scan import Chunk
from perf_offcpu.perfdata.write.compressed import CompressedWriter
from perf_offcpu.perfdata.write.pipe import PipeWriter
from perf_offcpu.perfdata.write.sound import sound_events, sound_records
from perf_offcpu.perfdata.write.splice import aligned, interleave
from perf_offcpu.perfdata.write.writer import FileWriter
from perf_offcpu.structs import frozen, mutable

_HEADER_TYPES = (
    RecordType.HEADER_ATTR,
    RecordType.HEADER_EVENT_TYPE,
    RecordType.HEADER_TRACING_DATA,
    RecordType.HEADER_BUILD_ID,
    RecordType.HEADER_FEATURE,
)
"""Records of the pipe form whose content is the writer's to repeat."""

_TRACE_TYPES = (RecordType.AUXTRACE_INFO, RecordType.AUXTRACE, RecordType.AUXTRACE_ERROR)


class Writer(Protocol):
    """Where records go: `FileWriter`, `CompressedWriter` or `PipeWriter`."""

    def append(self, *pieces: Buffer) -> None:
        """Add whole records."""

    def finish(self, features: Mapping[int, bytes]) -> None:
        """End it."""


@frozen
class RewriteOptions:
    """What is done to a recording.

    Args:
        retype: off-cpu samples become ordinary ones; else they are copied as they are.
        merge: deferred callchains are put into their samples; else they are copied as they are, in records
            that perf 6.1 cannot read.
        pipe: the pipe form is written.
        compress: records are written compressed; not in the pipe form.
        switches: a recording of context switches without an off-cpu event gets one, of the waits between
            them; for that it is read into memory.
        keep_stacks: copies of user stacks stay in samples that have them; else they are left out.
        unwinder: makes of them the user's part of callchains; None: nobody does.
    """

    retype: bool = True
    merge: bool = True
    pipe: bool = False
    compress: bool = False
    switches: bool = False
    keep_stacks: bool = False
    unwinder: MakeUnwinder | None = None


@mutable
class Rewritten:
    """What inject did.

    Args:
        retyped: off-cpu samples that were re-typed.
        waits: samples that were added, for waits between context switches.
        completed: samples that got their deferred user callchain.
        unwound: samples whose copy of the user stack became their user callchain.
        copied: records copied unchanged.
        losses: as counted while reading, and records left out.
    """

    retyped: int = 0
    waits: int = 0
    completed: int = 0
    unwound: int = 0
    copied: int = 0
    losses: Losses = field(default_factory=Losses)


def rewrite(path: str, out_fd: int, out_path: str, options: RewriteOptions | None = None) -> Rewritten:
    """Write the recording at `path` ("-": standard input) anew.

    Args:
        out_fd: an empty file, open for writing and seekable, or any descriptor for the pipe form; stays
            the caller's.
        out_path: its name, for messages.

    Raises:
        FormatError: the input is no perf.data. Damage inside is counted.
        RecordingError: the output cannot be written.
    """
    with repeatable(path) as source:
        with source.open() as reader:
            found = survey(reader)
        options, counters, waits = options or RewriteOptions(), Losses(), None
        if options.switches and may_tell_of_switches(found.events):
            with source.open() as reader:
                waits = wait_records(reader, counters)
        with source.open() as reader:
            reader.counters.update(counters)
            return _Rewriter(reader, found, options, waits).run(out_fd, out_path)


class _Rewriter:
    """The second pass."""

    def __init__(
        self, reader: PerfDataReader, found: Survey, options: RewriteOptions, waits: WaitRecords | None
    ) -> None:
        self.reader, self.found, self.options, self.waits = reader, found, options, waits
        self.recorded = sound_events(found.events)
        self.events = without_counters(self.recorded)
        self.order, self.counters = reader.order, reader.counters
        self.retyper = Retyper(found.lives, self.order) if options.retype else None
        self.completer = (
            Completer(found.deferred, found.chains, self.order, self.counters) if options.merge else None
        )
        self.cutter = self._cutter()
        self.samples = SampleRewriter(self.events, self.retyper, self.completer, self.counters, self.cutter)
        added = (waits.records, waits.times) if waits else None
        self.sums = TimedSums(found.untimed, self.samples, added)
        self.copied = 0

    def run(self, out_fd: int, out_path: str) -> Rewritten:
        """Copy everything."""
        options = self.options
        specs = [*self.events.specs, *([self.waits.spec] if self.waits else [])]
        events = output_events(
            specs,
            retype=options.retype,
            merge=options.merge,
            keep_stacks=options.keep_stacks,
            tracepoints=known_tracepoints(self.found.features),
        )
        span = self.sums.span(self.found.first_ns, self.found.last_ns)
        features = output_features(self.found, events, span, self.order, self.counters)
        writer = self._writer(out_fd, out_path, events, features)
        for chunk in self.reader.chunks():
            writer.append(self._rewritten(chunk))
        writer.append(self.sums.rest().tobytes())
        writer.finish(features)
        completed = self.completer.completed if self.completer else 0
        waits = len(self.waits.records) if self.waits else 0
        return Rewritten(
            self.samples.retyped, waits, completed, self.cutter.unwound, self.copied, self.counters
        )

    def _cutter(self) -> StackCutter:
        found, make = self.found, self.options.unwinder
        unwind = None
        if make is not None and any(map(has_stacks, found.events.specs)):
            arch = found.features.text(Feature.ARCH)
            unwind = make(frames_of(found.tasks, arch, self.reader.path))
        return StackCutter(found.tasks, unwind, self.options.keep_stacks, self.order, self.counters)

    def _writer(
        self, fd: int, path: str, events: Sequence[EventSpec], features: Mapping[int, bytes]
    ) -> Writer:
        if self.options.pipe:
            return PipeWriter(fd, events, features, path, self.order, self.counters)
        writer = FileWriter(fd, events, path, self.order)
        return CompressedWriter(writer) if self.options.compress else writer

    def _rewritten(self, chunk: Chunk) -> Buffer:
        """The chunk's records as they go out, in order."""
        chunk = aligned(chunk.take(np.flatnonzero(self._copied_types(chunk))))
        if not len(chunk):
            return b""
        chunk = drop_counters(with_written_miscs(chunk, self.order), self.recorded)
        kept = sound_records(chunk, self.events, self.counters)
        placed = [*self.samples.rewrite(chunk, kept), self.sums.due(chunk)]
        self.copied += int(kept.sum())
        return interleave(chunk, kept, placed)

    def _copied_types(self, chunk: Chunk) -> Bool:
        """bool[len(chunk)]: which records are of a type that goes out."""
        kinds = chunk.types
        deferred = kinds == RecordType.CALLCHAIN_DEFERRED
        traces = np.isin(kinds, _TRACE_TYPES)
        known = (kinds >= RecordType.MMAP) & (kinds <= RecordType.AUX_OUTPUT_HW_ID)
        known |= (kinds >= RecordType.HEADER_ATTR) & (kinds <= RecordType.FINISHED_INIT)
        self.counters.add(losses.NO_TRACES, int(traces.sum()))
        self.counters.add(losses.UNREADABLE_BY_PERF, int((~known & ~deferred).sum()))
        copied: Bool = known & ~traces & ~np.isin(kinds, _HEADER_TYPES)
        if not self.options.merge:
            copied |= deferred
        if self.found.streams > 1:  # a round of one stream says nothing of the others
            copied &= kinds != RecordType.FINISHED_ROUND
        return copied
