# SPDX-License-Identifier: Apache-2.0
"""inject: a recording in, the same recording out, in a form that any perf from 6.1 on reports.

Two passes. The first (`survey`) gathers what only the whole recording shows, the second takes chunk after
chunk through these stages:

* records of types that perf 6.1 does not know, or that do not fit their type, are left out and counted;
* samples are read, re-typed, completed, unwound (`stages`), and written (`samples`);
* sums that had no time, and waits between context switches, are put where their time lies (`timed_samples`).

What is compressed comes out as it was before, attrs are cut to the 128 bytes that perf 6.1 knows (`header`).
Everything else stays as it is, byte for byte and in its order. The byte order stays that of the input.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from perf_offcpu import losses
from perf_offcpu.abi.cfi import MACHINE_OF_ARCH
from perf_offcpu.abi.features import Feature
from perf_offcpu.abi.records import RecordType
from perf_offcpu.decode.switches.events import may_hold_switches
from perf_offcpu.inject.header import has_stacks, written_events, written_features
from perf_offcpu.inject.options import RewriteOptions, Rewritten
from perf_offcpu.inject.samples import SampleRewriter, Stage
from perf_offcpu.inject.stages import Completer, Retyper, StackUnwinder, cut_user_parts
from perf_offcpu.inject.survey import Survey, survey
from perf_offcpu.inject.switch_waits import WaitRecords, wait_records
from perf_offcpu.inject.timed_samples import TimedSamples
from perf_offcpu.losses import Losses
from perf_offcpu.model.columns import I64
from perf_offcpu.model.recording import Meta, Recording
from perf_offcpu.perfdata.events import EventSpec
from perf_offcpu.perfdata.leaked_flag import with_written_miscs
from perf_offcpu.perfdata.reader import PerfDataReader
from perf_offcpu.perfdata.scan import Chunk
from perf_offcpu.perfdata.write.compressed import CompressedWriter
from perf_offcpu.perfdata.write.pipe import PipeWriter
from perf_offcpu.perfdata.write.readable import readable_events, readable_records
from perf_offcpu.perfdata.write.weave import bytes_of
from perf_offcpu.perfdata.write.writer import FileWriter
from perf_offcpu.unwind.unwinder import Unwinder

_HEADER_TYPES = (
    RecordType.HEADER_ATTR,
    RecordType.HEADER_EVENT_TYPE,
    RecordType.HEADER_TRACING_DATA,
    RecordType.HEADER_BUILD_ID,
    RecordType.HEADER_FEATURE,
)
"""Records of the pipe form whose content is the writer's to repeat."""

_TRACE_TYPES = (RecordType.AUXTRACE_INFO, RecordType.AUXTRACE, RecordType.AUXTRACE_ERROR)


def rewrite(path: str, out_fd: int, out_path: str, options: RewriteOptions | None = None) -> Rewritten:
    """Write the recording at `path` ("-": standard input) again.

    Args:
        out_fd: an empty file, open for writing and seekable, or any descriptor for the pipe form; stays
            the caller's.
        out_path: its name, for messages.

    Raises:
        FormatError: the input is no perf.data. Damage inside is counted.
        RecordingError: the output cannot be written.
    """
    options, counters, waits = options or RewriteOptions(), Losses(), None
    with PerfDataReader.repeatable(path) as again:
        found = survey(again())
        if options.switches and may_hold_switches(found.reader.events):
            waits = wait_records(again(), counters)
        reader = again()
        reader.counters.update(counters)
        return _Rewriter(reader, found, options, waits).run(out_fd, out_path)


class _Rewriter:
    """The second pass."""

    def __init__(
        self, reader: PerfDataReader, found: Survey, options: RewriteOptions, waits: WaitRecords | None
    ) -> None:
        self.reader, self.found, self.options, self.waits = reader, found, options, waits
        self.counters, self.features = reader.counters, found.reader.features
        self.done = Rewritten(self.counters, waits=len(waits.times) if waits else 0)
        self.recorded = readable_events(found.reader.events)
        self.written = written_events(self.recorded.specs, options, self.features)
        self.samples = SampleRewriter(self.recorded, self.written, self._stages(), options.merge, self.done)
        self.timed = TimedSamples(self._timed(), self.recorded)

    def _stages(self) -> list[Stage]:
        """Return what is done to samples, in order."""
        options, found, stages = self.options, self.found, list[Stage]()
        if options.retype:
            stages.append(Retyper(found.tasks, found.end_ns, self.done))
        if options.merge:
            stages.append(Completer(found.matcher(), self.done))
        unwinder = self._unwinder()
        if options.keep_stacks:
            stages.append(cut_user_parts)
        elif unwinder is not None:
            stages.append(StackUnwinder(unwinder, found.tasks, self.done))
        return stages

    def _unwinder(self) -> Unwinder | None:
        """Return what unwinds copies of stacks; None where there are none, or that cannot be."""
        tasks, search, arch = self.found.tasks, self.options.search, self.features.text(Feature.ARCH)
        if search is None or arch not in MACHINE_OF_ARCH or not any(map(has_stacks, self.recorded.specs)):
            return None
        spaces, maps = tasks.spaces.tables()
        meta = Meta(arch=arch, source=self.reader.path)
        recording = Recording(strings=tasks.strings, spaces=spaces, maps=maps, dsos=tasks.dsos(), meta=meta)
        return Unwinder(recording, search)

    def _timed(self) -> list[tuple[I64, Chunk]]:
        """Return the samples that get another place, with their times."""
        parts = [(self.waits.times, self.waits.records)] if self.waits else []
        for chunk in self.found.untimed if self.options.retype else ():
            parts += self.samples.rewrite_all(chunk)
        return parts

    def run(self, out_fd: int, out_path: str) -> Rewritten:
        """Copy everything."""
        events = [*self.written, *([self.waits.spec] if self.waits else [])]
        span = self.timed.span(self.found.first_ns, self.found.last_ns)
        features = written_features(self.features, events, span, self.recorded.order, self.counters)
        writer = self._writer(out_fd, out_path, events, features)
        stages = (self._of_known_types, self._readable, self._with_samples, self.timed.inserted)
        for chunk in self.reader.chunks():
            records = chunk
            for stage in stages:
                records = stage(records) if len(records) else records
            writer.append(bytes_of(records))
        writer.append(*map(bytes_of, self.timed.rest()))
        writer.finish(features)
        return self.done

    def _writer(
        self, fd: int, path: str, events: Sequence[EventSpec], features: Mapping[int, bytes]
    ) -> FileWriter | CompressedWriter | PipeWriter:
        order = self.recorded.order
        if self.options.pipe:
            return PipeWriter(fd, events, features, path, order, self.counters)
        writer = FileWriter(fd, events, path, order)
        return CompressedWriter(writer) if self.options.compress else writer

    def _of_known_types(self, chunk: Chunk) -> Chunk:
        """Return the records of types that are written."""
        kinds = chunk.types
        deferred = kinds == RecordType.CALLCHAIN_DEFERRED
        traces = np.isin(kinds, _TRACE_TYPES)
        known = (kinds >= RecordType.MMAP) & (kinds <= RecordType.AUX_OUTPUT_HW_ID)
        known |= (kinds >= RecordType.HEADER_ATTR) & (kinds <= RecordType.FINISHED_INIT)
        self.counters.add(losses.NO_TRACES, int(traces.sum()))
        self.counters.add(losses.UNREADABLE_BY_PERF, int((~known & ~deferred).sum()))
        copied = known & ~traces & ~np.isin(kinds, _HEADER_TYPES)
        if not self.options.merge:
            copied |= deferred
        if self.reader.directory:  # of several streams: a round of one says nothing of the others
            copied &= kinds != RecordType.FINISHED_ROUND
        return chunk.take(np.flatnonzero(copied))

    def _readable(self, chunk: Chunk) -> Chunk:
        """Return the records that fit their type."""
        fits = readable_records(chunk, self.recorded, self.counters)
        return with_written_miscs(chunk.take(np.flatnonzero(fits)), self.recorded.order)

    def _with_samples(self, chunk: Chunk) -> Chunk:
        """Return the records with samples as they are written; sums that get a time are in `timed`."""
        return self.samples.rewrite(chunk, with_untimed=not self.options.retype)
