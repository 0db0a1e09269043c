# SPDX-License-Identifier: Apache-2.0
"""A file of a recording, or its pipe, from the header to the end. A recording is one file, or with `--switch-output`
several. Each can be read without the others: it begins with the names of events and the existing tasks, and ends with
the account: losses and counts of its own time. Its features describe the machine, HOSTNAME to CMDLINE, PMU_MAPPINGS and
clocks: perf shows them in the header of reports, and accepts no file without NRCPUS and HOSTNAME. Features that perf
6.1 does not know (E_MACHINE and later) are left out: its `perf inject` reads past the end of its table of features when
a file has one (seen to crash with bit 200)."""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from perf_offcpu import losses
from perf_offcpu.abi.features import Feature
from perf_offcpu.binary.layout import Buffer
from perf_offcpu.collect.bpf.config import STACK_PERIOD_NS
from perf_offcpu.collect.counters import Counter, Span, counters_sample, lost_records
from perf_offcpu.collect.events.parser import tracing_data
from perf_offcpu.collect.events.perf_event import NATIVE
from perf_offcpu.collect.existing.inventory import Inventory
from perf_offcpu.collect.options import STANDARD_OUTPUT, RecordOptions
from perf_offcpu.collect.summary import Source
from perf_offcpu.collect.system import clock
from perf_offcpu.collect.system.background import in_background, stepping_until
from perf_offcpu.collect.system.clock import now_ns, wall_clock_pair
from perf_offcpu.collect.system.cpus import online_cpus, present_cpus
from perf_offcpu.collect.targets import Target
from perf_offcpu.errors import RecordingError
from perf_offcpu.files import read_kernel
from perf_offcpu.losses import LossCause
from perf_offcpu.perfdata.compressed import CompressedWriter
from perf_offcpu.perfdata.events import EventSpec
from perf_offcpu.perfdata.features import build_id_body, cmdline_body, encoded, event_desc_body, feature_body, text_body
from perf_offcpu.perfdata.write.output import AtomicFile
from perf_offcpu.perfdata.write.pipe import PipeWriter, event_names
from perf_offcpu.perfdata.write.writer import FileWriter
from perf_offcpu.resources import version

RESERVE = 512 << 10  # bytes of the disk that are held for the end of a file that finds the disk full
_SLACK = 64 << 10  # bytes of the reserve for the account, and for blocks of the disk that are not full


@dataclass(frozen=True, slots=True)
class Piece:
    """Records that are written at once, and the items (sums, budgets, …) that they describe."""

    cause: LossCause  # counted for each item if the records are not written
    ns: NDArray[np.uint64]  # uint64[items]: off-cpu time of each item, 0 if unknown
    records: bytes  # complete perf records, one for each item unless `batched`
    batched: bool = False  # all items are in one record

    @property
    def count(self) -> Counter:
        """Number of items in the records, and the sum of their off-cpu time."""
        return Counter(len(self.ns), int(self.ns.sum()))

    def rest(self, size: int, records: int) -> Piece:
        """Return the piece without its first `records` records, which are `size` bytes in all."""
        first = len(self.ns) * records if self.batched else records
        return replace(self, ns=self.ns[first:], records=self.records[size:])


class Counts(NamedTuple):
    """Losses and other counts of some time: `counters` by cause; `lost`: event id → records that found a ring full."""

    counters: dict[LossCause, Counter]
    lost: dict[int, int]

    @classmethod
    def of(cls, collector: Source) -> Counts:
        """Return the counts from the begin of the recording up to now."""
        return cls(collector.counters(), collector.lost_by_id())

    def since(self, before: Counts | None) -> Counts:
        """Return the difference to `before`, counts up to an earlier moment; None: return these counts unchanged."""
        if before is None:
            return self
        counters = {}
        for cause, counter in self.counters.items():
            old = before.counters.get(cause, Counter(0))
            # The highest threshold is no sum.
            ns = counter.ns if cause is losses.THRESHOLD_RAISED else counter.ns - old.ns
            counters[cause] = Counter(counter.events - old.events, ns)
        lost = {event_id: count - before.lost.get(event_id, 0) for event_id, count in self.lost.items()}
        return Counts(counters, lost)


class OutputFile:
    """Write one file of a recording, or its pipe. `path`: of the file, "-" for standard output. `target`: processes
    whose mappings the file begins with. Raises RecordingError: it cannot be written."""

    def __init__(self, options: RecordOptions, collector: Source, path: str, target: Target) -> None:
        self.options, self.collector, self.path = options, collector, path
        self._created_s = time.monotonic()
        self._first_ns = self._begin_ns = self._end_ns = 0
        self._clock_pair = wall_clock_pair()
        data_maps = options.stack_bytes > 0
        caches = collector.known_tasks, collector.known_kernel
        self._inventory = Inventory(target, collector.build_ids, data_maps, *caches)
        self._finished = self._paused = False
        self._begun: Counts | None = None
        self._ended: Counts | None = None
        self._disk = None if path == STANDARD_OUTPUT else AtomicFile(path, keep_old=True, reserve=RESERVE)
        try:
            self._writer = self._make_writer(collector.events)
            if self._disk is not None:  # in a pipe the names stand at the front
                # Not compressed: samples need them.
                self._plain.append(*event_names(collector.events, NATIVE))
        except BaseException:
            self.close()
            raise

    def _make_writer(self, events: list[EventSpec]) -> FileWriter | CompressedWriter | PipeWriter:
        if self._disk is None:
            return PipeWriter(1, events, self._known_features(events), self.shown, NATIVE)
        self._plain = FileWriter(self._disk.fd, events, self.path, NATIVE)
        level = self.options.compression_level
        return CompressedWriter(self._plain, level) if level else self._plain

    @property
    def shown(self) -> str:
        """Name of the file or pipe for messages."""
        return "standard output" if self._disk is None else self.path

    @property
    def size(self) -> int:
        """Bytes written so far: header and data, without features; for a pipe the data alone."""
        if isinstance(self._writer, PipeWriter):
            return self._writer.data_size
        return self._plain.data_offset + self._plain.data_size

    @property
    def age_s(self) -> float:
        """Seconds since the file was begun."""
        return time.monotonic() - self._created_s

    def append(self, *pieces: Buffer) -> None:
        """Append complete records. Raises RecordingError: a write fails; BrokenPipeError: the pipe is closed."""
        with self.collector.pressure.writing():
            self._writer.append(*pieces)

    def describe(self, drain: Callable[[], object]) -> None:
        """Write records of existing tasks and mappings. `drain`: is called meanwhile to empty the rings."""
        self._append_all(self._inventory.records(), drain)
        if isinstance(self._writer, PipeWriter):
            self._writer.append_build_ids(self._inventory.build_ids())

    def describe_again(self, drain: Callable[[], object]) -> None:
        """Write the existing tasks and mappings again, as side-band records of a CPU were missing."""
        self._append_all(self._inventory.later_records(), drain)

    def _append_all(self, pieces: Iterator[bytes], drain: Callable[[], object]) -> None:
        # A process may be long in coming: its maps are many, or locked.
        while (piece := stepping_until(in_background(lambda: next(pieces, None)), drain)) is not None:
            self.append(piece)
            self.collector.note_existing(piece)
            drain()

    def commit(self) -> None:
        """Make the file visible under its name."""
        if self._disk is not None:
            self._disk.commit()

    def go_on_in(self, later: OutputFile, counts: Counts, end_ns: int) -> None:
        """End the time of this file and begin that of the next file, `later`: losses up to `counts`, and waits that end
        before `end_ns`, belong to this file."""
        self._ended, self._end_ns = counts, end_ns
        later._begun, later._begin_ns = counts, end_ns

    def pause(self, recording: Span) -> None:
        """Write the account (losses, counts) since the begin or the last pause. `recording`: span up to this pause."""
        self._first_ns = self._first_ns or self._span(recording).begin_ns
        self.go_on_after(self._write_account(recording, {}))
        self._begin_ns, self._paused = 0, True

    def account(self, counts: Counts, end_ns: int) -> None:
        """Write the account up to `end_ns`, of losses up to `counts` and other counts; the next one begins there."""
        self._first_ns = self._first_ns or self._begin_ns or self.collector.span.begin_ns
        self._ended, self._end_ns = counts, end_ns
        self._write_account(self.collector.span, {})
        self._begun, self._begin_ns, self._ended, self._end_ns = counts, end_ns, None, 0

    def resume(self) -> None:
        """Note that a pause has ended, so that `finish` writes an account (losses, counts) of the time after it."""
        self._paused = False

    def go_on_after(self, counts: Counts) -> None:
        """Leave the losses in `counts` out of the next account of losses: they belong to the time before it."""
        self._begun = counts

    def finish(self, recording: Span) -> None:
        """Write the last account (losses, counts) and the header features. `recording`: the whole recording so far."""
        if not self._paused:
            self._write_account(recording, {})
        self._finished = True
        if self._disk is not None:
            self._disk.release()  # nothing but the features follows
        self._learn_ids()
        self._writer.finish(self._features(recording))

    def finish_somehow(self, recording: Span, unwritten: Mapping[LossCause, Counter], rest: Iterable[Piece]) -> None:
        """Write the last account and the features of a file to which appending failed, into the disk space held for
        them. `unwritten`: counts of records already lost. `rest`: is written if there is room, else counted as lost."""
        if self._finished:
            return
        held = self._disk is not None and self._disk.release()
        features = self._features(recording)
        room = (RESERVE if held else 0) - _SLACK - sum(map(len, features.values()))
        counts = dict(unwritten)
        with contextlib.suppress(RecordingError, BrokenPipeError):
            for piece in rest:
                if len(piece.records) <= room:
                    self.append(piece.records)
                    room -= len(piece.records)
                else:
                    counted, count = counts.get(piece.cause, Counter(0)), piece.count
                    counts[piece.cause] = Counter(counted.events + count.events, counted.ns + count.ns)
            self._write_account(recording, counts)
        with contextlib.suppress(RecordingError, BrokenPipeError):
            self._learn_ids()
            self._writer.finish(features)

    def discard(self) -> None:
        """Close and remove the file, committed or not. It has no samples yet."""
        if self._disk is not None:
            self._disk.withdraw()
        self.close()

    def close(self) -> None:
        """Close the file; remove it if it was not committed."""
        if self._disk is not None:
            self._disk.close()

    def _learn_ids(self) -> None:
        """Add to the file's events their ids on CPUs that came online since the file was begun."""
        if self._disk is not None:
            self._plain.learn_ids(self.collector.events)

    def _write_account(self, recording: Span, more: Mapping[LossCause, Counter]) -> Counts:
        """Write the account: losses and counts since the file was begun, or the last account. `more`: losses of this
        file alone. Return the counts up to this account."""
        ended = self._ended or Counts.of(self.collector)
        counts = ended.since(self._begun)
        counters = counts.counters | self._inventory.take_losses() | dict(more)
        if period := self.options.off_cpu_period_ns:
            counters[losses.SAMPLING_PERIOD] = Counter(1, period)
        elif self.collector.draws_stacks:
            counters[losses.STACK_PERIOD] = Counter(1, STACK_PERIOD_NS)
        sample = counters_sample(self.collector.counters_event, self._span(recording), counters)
        self.append(*lost_records(counts.lost), sample)
        return ended

    def _span(self, recording: Span) -> Span:
        begin_ns = self._begin_ns or recording.begin_ns
        return Span(begin_ns, self._end_ns or recording.end_ns or now_ns(), recording.threshold_ns)

    def _features(self, recording: Span) -> dict[int, bytes]:
        """Return feature → body of all header features; SAMPLE_TIME is the recorded time of the file."""
        span = self._span(recording)
        times = {"first": self._first_ns or span.begin_ns, "last": span.end_ns}
        return self._known_features(self.collector.events) | {
            Feature.BUILD_ID: build_id_body(self._inventory.build_ids(), NATIVE),
            Feature.SAMPLE_TIME: feature_body(Feature.SAMPLE_TIME, NATIVE, **times),
        }

    def _known_features(self, events: list[EventSpec]) -> dict[int, bytes]:
        """Return feature → body of the header features that are known when the file is begun."""
        tracepoints = [event.name for event in self.options.events if event.is_tracepoint]
        formats = {Feature.TRACING_DATA: tracing_data(tracepoints)} if tracepoints else {}
        machine = machine_features(self.options.argv, self._clock_pair)
        return machine | formats | {Feature.EVENT_DESC: event_desc_body(events, NATIVE)}


def machine_features(argv: Sequence[str], clock_pair: tuple[int, int]) -> dict[int, bytes]:
    """Return feature → body of the features that describe machine and recorder. `argv`: command line of the recorder.
    `clock_pair`: (CLOCK_REALTIME, recording's clock) in ns at one moment."""
    system = os.uname()
    cpu_id = [_cpu_field(name) for name in ("vendor_id", "cpu family", "model", "stepping")]  # as perf on x86
    texts = {
        Feature.HOSTNAME: system.nodename,
        Feature.OSRELEASE: system.release,
        Feature.VERSION: f"perf-offcpu {version()}",
        Feature.ARCH: system.machine,
        Feature.CPUDESC: _cpu_field("model name") or _cpu_field("Model") or _cpu_field("cpu"),
        Feature.CPUID: ",".join(cpu_id) if all(cpu_id) else "",
    }
    bodies: dict[int, bytes] = {bit: text_body(text, NATIVE) for bit, text in texts.items() if text}
    wall_ns, clock_ns = clock_pair
    memory = re.search(r"^MemTotal:\s+(\d+) kB", _read("/proc/meminfo"), re.MULTILINE)
    resolution_ns = max(1, round(time.clock_getres(clock.CLOCKID) * 1e9))
    facts: dict[Feature, dict[str, Any]] = {
        Feature.NRCPUS: {"available": max(present_cpus()) + 1, "online": len(online_cpus())},
        Feature.TOTAL_MEM: {"kb": int(memory[1]) if memory else 0},
        Feature.PMU_MAPPINGS: {"mappings": _pmus()},
        Feature.CLOCKID: {"resolution": resolution_ns},
        Feature.CLOCK_DATA: {"version": 1, "clockid": clock.CLOCKID, "wall_clock": wall_ns, "clockid_time": clock_ns},
    }
    bodies |= {bit: feature_body(bit, NATIVE, **values) for bit, values in facts.items()}
    return bodies | {Feature.CMDLINE: cmdline_body(argv, NATIVE)}


def _cpu_field(name: str) -> str:
    """Return a field of the first CPU in /proc/cpuinfo; "" if this architecture has no such field."""
    match = re.search(rf"^{name}\s*: (.*)$", _read("/proc/cpuinfo"), re.MULTILINE)
    return match[1].strip() if match else ""


def _pmus() -> list[dict[str, object]]:
    """Return the PMUs of this machine as values of the layout PMU_MAPPING (attr.type, name), by type."""
    pmus = []
    # direct: a directory of /sys
    for directory in Path("/sys/bus/event_source/devices").glob("*"):
        if (directory / "type").exists():  # direct: a file of /sys
            pmus.append((int(_read(directory / "type")), directory.name))
    return [{"type": number, "name": encoded(name)} for number, name in sorted(pmus)]


def _read(path: str | Path) -> str:
    return os.fsdecode(read_kernel(str(path)))
