# SPDX-License-Identifier: Apache-2.0
"""inject: write a recording again, in a form that any perf from 6.1 on reports.

The first of two passes (`Survey`) gathers what only the whole recording shows, the second takes each chunk
through these stages:

* records of types that perf 6.1 does not know, or that do not fit their type, are left out and counted;
* samples are read, re-typed, completed, unwound (`stages`), and written (`samples`);
* sums that had no time, waits between context switches, and EXITs before a last wait (`late_exits`) are put
  where their time lies (`TimedRecords`).

Compressed input comes out decompressed, attrs are cut to the 128 bytes that perf 6.1 knows (`header`).
Everything else stays as it is, byte for byte and in its order. The byte order stays that of the input."""

import functools
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from perf_offcpu import losses
from perf_offcpu.abi.attr import PerfType, SoftwareConfig
from perf_offcpu.abi.machine import MACHINES
from perf_offcpu.abi.records import RecordType
from perf_offcpu.decode.account import CollectorAccount
from perf_offcpu.decode.batch import BatchCollector
from perf_offcpu.decode.deferred import DeferredMatcher, decode_deferred
from perf_offcpu.decode.load import recorded_arch
from perf_offcpu.decode.samples import is_offcpu, read_account, samples_by_event
from perf_offcpu.decode.switches.events import may_hold_switches
from perf_offcpu.decode.tasks.columns import task_records
from perf_offcpu.decode.tasks.replay import SIDE_TYPES, TaskReplay
from perf_offcpu.inject import stages as steps
from perf_offcpu.inject.header import RewriteOptions, has_stacks, written_events, written_features
from perf_offcpu.inject.late_exits import LateCopies, LateExits
from perf_offcpu.inject.samples import Rewritten, SampleRewriter, Stage, is_untimed
from perf_offcpu.losses import Losses
from perf_offcpu.model.columns import I64, Strings
from perf_offcpu.model.recording import Meta, Recording
from perf_offcpu.perfdata.compressed import CompressedWriter
from perf_offcpu.perfdata.events import Events, EventSpec, record_times, with_written_miscs
from perf_offcpu.perfdata.reader import PerfDataReader
from perf_offcpu.perfdata.scan import Chunk
from perf_offcpu.perfdata.write.columns import bytes_of, merged_records
from perf_offcpu.perfdata.write.pipe import PipeWriter
from perf_offcpu.perfdata.write.readable import readable_events, readable_records
from perf_offcpu.perfdata.write.writer import FileWriter
from perf_offcpu.unwind.unwinder import Unwinder

_HEADER_TYPES = (
    RecordType.HEADER_ATTR,
    RecordType.HEADER_EVENT_TYPE,
    RecordType.HEADER_TRACING_DATA,
    RecordType.HEADER_BUILD_ID,
    RecordType.HEADER_FEATURE,
)
"""Types of records of the pipe form that are not copied: the writer writes its own from attrs and features."""

_TRACE_TYPES = (RecordType.AUXTRACE_INFO, RecordType.AUXTRACE, RecordType.AUXTRACE_ERROR)
_TASK_TYPES = frozenset[int]({RecordType.COMM, RecordType.FORK, RecordType.EXIT})


def rewrite(path: str, out_fd: int, out_path: str, options: RewriteOptions | None = None) -> Rewritten:
    """Rewrite the recording at `path` ("-": standard input); return the counts of changes. `out_fd`: an empty, seekable
    file, or any descriptor for the pipe form, left open; `out_path`: its name, for messages. Raise FormatError if the
    input is no perf.data (damage inside is counted), RecordingError if the output cannot be written."""
    options, counters, waits = options or RewriteOptions(), Losses(), None
    with PerfDataReader.repeatable(path) as again:
        survey = Survey(again(), options.switches)
        if options.switches and may_hold_switches(survey.reader.events):
            waits = steps.wait_records(again(), counters)
        reader = again()
        reader.counters.update(counters)
        return _Rewriter(reader, survey, options, waits).run(out_fd, out_path)


class Survey:
    """The first pass: collects facts that samples need before they come in the file: the process of a thread (upstream
    swapped pid and tid), its end (the time of a sum), and deferred user callchains (each distinct one once, and 28
    bytes for each record). Also the times of samples, for the header features, with which a pipe begins. `adds_waits`:
    waits between switches will be added."""

    def __init__(self, reader: PerfDataReader, adds_waits: bool) -> None:
        self.reader, self._adds_waits = reader, adds_waits
        self.tasks = TaskReplay(Strings())
        """Threads, if the recording may have off-cpu samples; maps too, if samples have copies of user stacks."""
        self.exits = LateExits()
        """EXITs of these threads, and times of their waits."""
        self.late = LateCopies(reader.reopen)
        """Copies of user stacks that come after a sample that refers to them."""
        self.untimed: list[Chunk] = []
        """Off-cpu samples with a dummy time, as they were recorded."""
        self.sample_times: list[int] = []
        """Times of the first and last sample of each chunk, ns."""
        self.end_ns = 0
        """Last moment of the recording."""
        self.account = CollectorAccount()
        """Account of the recorder, used for its perf maps of JVMs; empty if no sample has a copy of the user stack."""
        self.deferred = BatchCollector()
        for chunk in reader.chunks():
            self._read(chunk)
        self.tasks.replay()

    def _read(self, chunk: Chunk) -> None:
        """Collect tasks, ends of threads, times, sums, deferred callchains of a chunk. The second pass counts
        damage."""
        events = self.reader.events
        times = record_times(chunk, events)
        self.end_ns = max(self.end_ns, int(times.max(initial=0)))
        stacks = any(map(has_stacks, events.specs))
        # In a pipe, the name of off-cpu time comes after its attr.
        bpf = (PerfType.SOFTWARE, SoftwareConfig.BPF_OUTPUT)
        offcpu = self._adds_waits or any((spec.attr.type, spec.attr.config) == bpf for spec in events.specs)
        if stacks or offcpu:
            records = task_records(chunk, SIDE_TYPES if stacks else _TASK_TYPES, events, Losses())
            self.exits.take_exits(chunk, records, events)
            self.tasks.notes.take(records)
        if stacks:
            read_account(chunk, events, self.account)
        timed = times[(chunk.types == RecordType.SAMPLE) & (times > 0)]
        self.sample_times += [int(timed.min()), int(timed.max())] if len(timed) else []
        for number, rows in samples_by_event(chunk, events, Losses()):
            if is_offcpu(events.specs[number]):
                self.exits.take_waits(chunk, rows, events.specs[number], events.order)
            untimed = rows[is_untimed(chunk, rows, events, number)]
            if len(untimed):
                self.untimed.append(merged_records([(untimed, chunk.take(untimed))]))
        self.deferred.add(decode_deferred(chunk, events, Losses()))
        self.late.note(chunk, events)


class TimedRecords:
    """Records to insert by their time: sums that had none, added waits, moved EXITs. `parts`: (times, int64[n] ns; n
    records). perf sorts as it reads: at each FINISHED_ROUND it delivers the records up to the highest time before the
    previous FINISHED_ROUND, and warns of earlier records that follow. So a record goes right before the first
    FINISHED_ROUND that comes after a time not lower than its own."""

    def __init__(self, parts: Iterable[tuple[I64, Chunk]], events: Events) -> None:
        self.events, filled = events, [part for part in parts if len(part[0])]
        self._times = np.sort(np.concatenate([np.empty(0, np.int64), *(times for times, _ in filled)]))
        self._records = merged_records(filled) if filled else None
        self._done = self._highest = 0

    def inserted(self, chunk: Chunk) -> Chunk:
        """Return a chunk with records inserted before its FINISHED_ROUNDs; to be called for each chunk in turn."""
        if self._records is None or self._done == len(self._times):
            return chunk
        rounds = np.flatnonzero(chunk.types == RecordType.FINISHED_ROUND)
        highest = np.maximum.accumulate(np.maximum(record_times(chunk, self.events), self._highest))
        self._highest = int(highest[-1])
        upto = np.maximum(np.searchsorted(self._times, highest[rounds], side="right"), self._done)
        due = np.arange(self._done, int(upto[-1]) if len(rounds) else self._done)
        if not len(due):
            return chunk
        self._done += len(due)
        before = rounds[np.searchsorted(upto, due, side="right")]
        return merged_records([(before, self._records.take(due)), (np.arange(len(chunk)), chunk)])

    def rest(self) -> Chunk | None:
        """Return the records not inserted so far, to append after the last chunk; None if there never were any."""
        return None if self._records is None else self._records.take(slice(self._done, None))


class _Rewriter:
    """The second pass: takes each chunk through the stages and writes it."""

    def __init__(
        self, reader: PerfDataReader, survey: Survey, options: RewriteOptions, waits: steps.WaitRecords | None
    ) -> None:
        self.reader, self.survey, self.options, self.waits = reader, survey, options, waits
        self.counters, self.features = reader.counters, survey.reader.features
        self.done = Rewritten(self.counters, waits=len(waits.times) if waits else 0)
        self.recorded = readable_events(survey.reader.events)
        self.written = written_events(self.recorded.specs, options, self.features)
        self.samples = SampleRewriter(self.recorded, self.written, self._stages(), options.merge, self.done)
        # (times, samples) of the samples that move within the file
        self.added = [(waits.times, waits.records)] if waits else []
        for chunk in survey.untimed if options.retype else ():
            self.added += self.samples.rewrite_all(chunk)

    def _stages(self) -> list[Stage]:
        """Return the stages of samples that the options ask for, in order."""
        options, survey, stages = self.options, self.survey, list[Stage]()
        if options.retype:
            tasks = survey.tasks.tasks
            stages.append(functools.partial(steps.retype_batch, tasks=tasks, end_ns=survey.end_ns, done=self.done))
        if options.merge:
            deferred = survey.deferred.release()
            matcher = DeferredMatcher(deferred.deferred, deferred.callchains)
            stages.append(functools.partial(steps.complete_batch, matcher=matcher, done=self.done))
        if options.keep_stacks:
            stages.append(steps.cut_user_parts)
        if (unwinder := self._unwinder()) is not None:
            stages.append(steps.StackUnwinder(unwinder, survey.tasks, survey.late, options.keep_stacks, self.done))
        if options.keep_stacks:
            stages.append(steps.drop_references)
        return stages

    def _unwinder(self) -> Unwinder | None:
        """Return the unwinder of copies of user stacks; None without copies, `options.search`, or a known machine."""
        tasks, search = self.survey.tasks, self.options.search
        arch = recorded_arch(self.features, self.recorded.specs)
        if search is None or arch not in MACHINES or not any(map(has_stacks, self.recorded.specs)):
            return None
        spaces, maps = tasks.spaces.tables()
        meta = Meta(arch=arch, source=self.reader.path)
        recording = Recording(strings=tasks.strings, spaces=spaces, maps=maps, dsos=tasks.notes.dsos(), meta=meta)
        recording = recording.replaced(perf_maps=self.survey.account.perf_maps, tasks=tasks.tasks)
        return Unwinder(recording, search)

    def _moved_exits(self) -> list[tuple[I64, Chunk]]:
        """Return the EXIT records to insert later in time (`LateExits`); [] if no sample is re-typed or added."""
        exits = self.survey.exits
        if self.waits:
            all_rows = np.arange(len(self.waits.times))
            exits.take_waits(self.waits.records, all_rows, self.waits.spec, self.recorded.order)
        changes = self.options.retype or self.waits
        return exits.moved(self.survey.tasks.tasks, self.recorded) if changes else []

    def run(self, out_fd: int, out_path: str) -> Rewritten:
        """Write the whole recording in its new form to `out_fd`; return the counts of changes."""
        events = [*self.written, *([self.waits.spec] if self.waits else [])]
        times = [*self.survey.sample_times]
        for added, _ in self.added:
            times += [int(time) for time in (added.min(), added.max()) if time >= 0] if len(added) else []
        span = min(times, default=-1), max(times, default=-1)
        features = written_features(self.features, events, span, self.recorded.order, self.counters)
        writer = self._writer(out_fd, out_path, events, features)
        timed = TimedRecords([*self.added, *self._moved_exits()], self.recorded)
        samples = functools.partial(self.samples.rewrite, with_untimed=not self.options.retype)
        stages = (self.survey.exits.left_out, self._of_known_types, self._readable, samples, timed.inserted)
        for chunk in self.reader.chunks():
            records = chunk
            for stage in stages:
                records = stage(records) if len(records) else records
            writer.append(bytes_of(records))
        if (rest := timed.rest()) is not None:
            writer.append(bytes_of(rest))
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
        """Return the records of a chunk that are copied by their type; count traces and types that perf cannot read."""
        kinds = chunk.types
        deferred, traces = kinds == RecordType.CALLCHAIN_DEFERRED, np.isin(kinds, _TRACE_TYPES)
        is_known = (kinds >= RecordType.MMAP) & (kinds <= RecordType.AUX_OUTPUT_HW_ID)
        is_known |= (kinds >= RecordType.HEADER_ATTR) & (kinds <= RecordType.FINISHED_INIT)
        self.counters.add(losses.NO_TRACES, int(traces.sum()))
        self.counters.add(losses.UNREADABLE_BY_PERF, int((~is_known & ~deferred).sum()))
        copied = is_known & ~traces & ~np.isin(kinds, _HEADER_TYPES)
        copied |= deferred & (not self.options.merge)
        if self.reader.directory:  # FINISHED_ROUND of one stream does not order the others
            copied &= kinds != RecordType.FINISHED_ROUND
        return chunk.take(np.flatnonzero(copied))

    def _readable(self, chunk: Chunk) -> Chunk:
        """Return the records of a chunk that fit their type, with header flags as perf 6.1 reads them; count others."""
        fits = readable_records(chunk, self.recorded, self.counters)
        return with_written_miscs(chunk.take(np.flatnonzero(fits)), self.recorded.order)
