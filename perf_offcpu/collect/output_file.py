# SPDX-License-Identifier: Apache-2.0
"""One file of a recording, or its pipe: from its header to its end.

A recording is one part, or with `--switch-output` several. Each can be read without the others: it begins
with names and with what runs at that moment, and ends with the losses and counts of its own time.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Mapping

from perf_offcpu.abi.features import Feature
from perf_offcpu.abi.records import CpuMode
from perf_offcpu.binary.layout import Buffer
from perf_offcpu.collect.collector import Collector
from perf_offcpu.collect.events.perf_event import NATIVE
from perf_offcpu.collect.events.tracepoints import tracing_data
from perf_offcpu.collect.existing.inventory import Inventory, event_names
from perf_offcpu.collect.kernel_totals.losses import Counter, Span, counters_sample, lost_records
from perf_offcpu.collect.options import STANDARD_OUTPUT, RecordOptions
from perf_offcpu.collect.rings.pressure import Pressure
from perf_offcpu.collect.system.clock import now_ns, wall_clock_pair
from perf_offcpu.collect.system.machine import machine_features
from perf_offcpu.collect.targets import Target
from perf_offcpu.errors import RecordingError
from perf_offcpu.losses import LossCause
from perf_offcpu.perfdata.events import EventSpec
from perf_offcpu.perfdata.features import BuildId
from perf_offcpu.perfdata.write.compressed import CompressedWriter
from perf_offcpu.perfdata.write.features import HOST_PID, build_id_body, event_desc_body, feature_body
from perf_offcpu.perfdata.write.output import AtomicFile
from perf_offcpu.perfdata.write.pipe import PipeWriter
from perf_offcpu.perfdata.write.writer import FileWriter

RESERVE = 512 << 10
"""Bytes of the disk that are held for the end of a file that finds the disk full."""

_SLACK = 64 << 10  # of the reserve: for the account, and for blocks that are not full


class OutputFile:
    """A file or pipe in the making.

    Args:
        path: the file's name, or "-".
        target: whose maps it begins with.
        pressure: watches the writes.

    Raises:
        RecordingError: it cannot be written.
    """

    def __init__(
        self, options: RecordOptions, collector: Collector, path: str, target: Target, pressure: Pressure
    ) -> None:
        self.options, self.collector, self.path, self.target = options, collector, path, target
        self._pressure = pressure
        self.clock_pair = wall_clock_pair()
        self.begin_ns = 0
        """When the waits in it begin; 0: with the recording."""
        self.build_ids: list[BuildId] = []
        self._finished = False
        self._counters = collector.counters()
        self._lost = collector.lost_by_id()
        self._output = None if path == STANDARD_OUTPUT else AtomicFile(path, keep_old=True, reserve=RESERVE)
        try:
            self._writer = self._make_writer(collector.events)
        except BaseException:
            self.close()
            raise

    def _make_writer(self, events: list[EventSpec]) -> FileWriter | CompressedWriter | PipeWriter:
        if self._output is None:
            features = self._known_features(events)
            return PipeWriter(1, events, features, "standard output", NATIVE)
        self._file = FileWriter(self._output.fd, events, self.path, NATIVE)
        level = self.options.compression_level
        return CompressedWriter(self._file, level) if level else self._file

    @property
    def shown(self) -> str:
        """Its name, for messages."""
        return self.path if self._output is not None else "standard output"

    @property
    def size(self) -> int:
        """Bytes written so far."""
        if isinstance(self._writer, PipeWriter):
            return self._writer.data_size
        return self._file.data_offset + self._file.data_size

    def append(self, *pieces: Buffer) -> None:
        """Take over bytes that are whole records; errors as of `FileWriter.append`."""
        with self._pressure.writing():
            self._writer.append(*pieces)

    def describe(self) -> None:
        """Write what is there already; side-band records must flow by now, and are taken along."""
        if self._output is not None:  # in a pipe the names stand at the front
            self._file.append(event_names(self.collector.events))  # not compressed: samples need them
        inventory = Inventory(self.target, data_maps=self.options.stack_bytes > 0)
        for piece in inventory.records():
            self.append(piece)
            self.collector.drain(self)
        self.build_ids = inventory.build_ids()
        if isinstance(self._writer, PipeWriter):
            self._writer.append_build_ids(self.build_ids)

    def commit(self) -> None:
        """Give the file its name."""
        if self._output is not None:
            self._output.commit()

    def finish(self, last: Span) -> None:
        """Write losses, counts and features: the end.

        Args:
            last: of the recording, up to now.
        """
        self._write_account(last, {})
        self._finished = True
        self._learn_ids()
        self._writer.finish(self._features(last))

    def finish_somehow(
        self,
        last: Span,
        unwritten: Mapping[LossCause, Counter],
        more: Iterable[tuple[LossCause, Counter, bytes]],
    ) -> None:
        """Write an end of a file that takes no more records, into the room that was held for it.

        Args:
            unwritten: what should have gone into it.
            more: what is to be written if there is room, else counted: (cause, count, records).
        """
        if self._finished:
            return
        held = self._output is not None and self._output.release()
        features = self._features(last)
        room = (RESERVE if held else 0) - _SLACK - sum(map(len, features.values()))
        counts = dict(unwritten)
        with contextlib.suppress(RecordingError, BrokenPipeError):
            for name, count, records in more:
                if len(records) <= room:
                    self.append(records)
                    room -= len(records)
                else:
                    counts[name] = _sum(counts.get(name), count)
            self._write_account(last, counts)
        with contextlib.suppress(RecordingError, BrokenPipeError):
            self._learn_ids()
            self._writer.finish(features)

    def _learn_ids(self) -> None:
        """CPUs may have come since the file was begun."""
        if self._output is not None:
            self._file.learn_ids(self.collector.events)

    def _write_account(self, last: Span, more: Mapping[LossCause, Counter]) -> None:
        """What was counted since the part began, and what the kernel lost."""
        lost = {one: count - self._lost.get(one, 0) for one, count in self.collector.lost_by_id().items()}
        counters = _since(self.collector.counters(), self._counters) | dict(more)
        event = self.collector.counters_event
        sample = counters_sample(event, self._span(last), counters, os.getpid())
        self.append(*lost_records(lost), sample)

    def close(self) -> None:
        """Close the file; one that was not committed is removed."""
        if self._output is not None:
            self._output.close()

    def _span(self, last: Span) -> Span:
        return Span(self.begin_ns or last.begin_ns, last.end_ns or now_ns(), last.threshold_ns)

    def _features(self, last: Span) -> dict[int, bytes]:
        """Features of the file. No sample lies outside of SAMPLE_TIME: it is the time that was recorded."""
        span = self._span(last)
        times = {"first": span.begin_ns, "last": span.end_ns}
        return self._known_features(self.collector.events) | {
            Feature.BUILD_ID: build_id_body(self._all_build_ids(), NATIVE),
            Feature.SAMPLE_TIME: feature_body(Feature.SAMPLE_TIME, NATIVE, **times),
        }

    def _all_build_ids(self) -> list[BuildId]:
        """Of what was mapped at its beginning, and of what has been mapped since the recording began."""
        known = {one.filename for one in self.build_ids}
        later = self.collector.build_ids.files.items()
        return self.build_ids + [
            BuildId(HOST_PID, CpuMode.USER, build_id.hex(), name)
            for name, build_id in sorted(later)
            if name not in known
        ]

    def _known_features(self, events: list[EventSpec]) -> dict[int, bytes]:
        """Those that are known from the beginning."""
        tracepoints = [event.name for event in self.options.events if event.is_tracepoint]
        described = {Feature.TRACING_DATA: tracing_data(tracepoints)} if tracepoints else {}
        return (
            machine_features(self.options.argv, self.clock_pair)
            | described
            | {Feature.EVENT_DESC: event_desc_body(events, NATIVE)}
        )


def _sum(one: Counter | None, other: Counter) -> Counter:
    return Counter(one.events + other.events, one.ns + other.ns) if one else other


def _since(now: Mapping[LossCause, Counter], before: Mapping[LossCause, Counter]) -> dict[LossCause, Counter]:
    """What was counted between two moments."""
    return {
        name: Counter(counter.events - before[name].events, counter.ns - before[name].ns)
        if name in before
        else counter
        for name, counter in now.items()
    }
