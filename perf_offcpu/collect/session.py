# SPDX-License-Identifier: Apache-2.0
"""A recording from beginning to end.

    find the target, make the command's child, set up the kernel side         nothing is visible yet
    track: side-band on · what is there already goes into the file
    begin: waits and samples on · let the command go · give the file its name
    loop:  copy rings to the file until the command, the target, the time or a signal ends it
    end:   all off · copy the rest · sums, losses, counters · features and the true header

Whatever fails before the file has its name leaves an older file as it was. Whatever happens later leaves a
file that can be read: complete, or, if the recorder is killed, as far as it got.

With `--switch-output` a file ends, and a new one begins, while all of this goes on (`rotation`).

No FINISHED_ROUND records are written. They let perf sort and forget as it reads, but sums carry the time of
their last wait, which is long past when they are written. Without them perf sorts everything at the end.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from perf_offcpu import losses
from perf_offcpu.collect.collector import Collector
from perf_offcpu.collect.kernel_totals.last_states import LastTasks
from perf_offcpu.collect.kernel_totals.losses import Counter
from perf_offcpu.collect.kernel_totals.rest import counter, rest
from perf_offcpu.collect.kernel_totals.sums import BATCH as SUMS_AT_ONCE
from perf_offcpu.collect.options import STANDARD_OUTPUT, RecordOptions
from perf_offcpu.collect.output_file import OutputFile
from perf_offcpu.collect.progress import Progress
from perf_offcpu.collect.rings.pressure import Pressure, remedy
from perf_offcpu.collect.rings.waiter import FLUSH_S, Waiter
from perf_offcpu.collect.rotation import FileNames, Rotation
from perf_offcpu.collect.summary import Summary
from perf_offcpu.collect.system.clock import now_ns
from perf_offcpu.collect.system.cpus import CpuNews, CpuWatch
from perf_offcpu.collect.system.limits import raise_descriptor_limit, raise_priority, too_many_files
from perf_offcpu.collect.system.signals import EndingSignals
from perf_offcpu.collect.targets import Target, TargetWatch
from perf_offcpu.collect.workload import SIGNAL_EXIT_BASE, Workload
from perf_offcpu.errors import FileFullError, RecordingError

SUMS_S = 5.0
"""Sums are taken out of the kernel at least so often; more often if their map would fill up before."""

PROGRESS_S = 0.5
"""Whoever watches is told how it goes on so often."""

OF_TERMINALS = (signal.SIGINT, signal.SIGHUP)
GRACE_S = 2.0
"""A terminal sends these to the command, too, which may have a summary to print before it ends."""

LAST_SWITCH_S = 0.01
"""For each task that a CPU has to run: several slices of the scheduler."""

_STANDARD_ERROR = 2

Say = Callable[[str], None]
Show = Callable[[Progress], None]


def record(options: RecordOptions, say: Say, show: Show | None = None) -> Summary:
    """Make a recording; returns when it is complete and the command, if any, has ended.

    Args:
        say: is told, in short sentences, what is not quite as asked for.
        show: is told how it goes on, now and then.

    Raises:
        TargetError: the target is not there, or the command cannot be run.
        CapabilityError: the machine or the user lacks something.
        RecordingError: the file cannot be written, or the kernel refuses something.
        BrokenPipeError: the reader of a pipe is gone.
    """
    with contextlib.ExitStack() as stack:
        watch = stack.enter_context(contextlib.closing(TargetWatch(options.target)))
        workload = None
        if options.command:
            output_fd = _STANDARD_ERROR if options.output == STANDARD_OUTPUT else 1
            workload = stack.enter_context(contextlib.closing(Workload(options.command, output_fd)))
        with EndingSignals(rotating=options.rotation is not None) as signals:
            summary = _record(options, workload, watch, signals, say, show)
        # From here on the file is whole, and a further signal ends the recorder at once.
        if workload:
            summary.status = workload.end(GRACE_S if signals.received in OF_TERMINALS else 0)
        elif signals.received:
            summary.status = SIGNAL_EXIT_BASE + signals.received
    return summary


def _record(
    options: RecordOptions,
    workload: Workload | None,
    watch: TargetWatch,
    signals: EndingSignals,
    say: Say,
    show: Show | None,
) -> Summary:
    raise_descriptor_limit()
    raise_priority(options.realtime_priority)
    try:
        collector = Collector(options, say)
    except OSError as problem:
        raise too_many_files() if problem.errno in (errno.EMFILE, errno.ENFILE) else problem from None
    with collector, _Session(options, collector, signals, say, show) as session:
        session.open(workload)
        return session.run(workload, watch)


class _Session:
    """The phases of one recording, on a kernel side and a file that are open."""

    def __init__(
        self,
        options: RecordOptions,
        collector: Collector,
        signals: EndingSignals,
        say: Say,
        show: Show | None,
    ) -> None:
        self.options, self.collector, self.signals = options, collector, signals
        self.say, self.show = say, show
        self.names = FileNames(options.output, options.rotation or Rotation())
        path = self.names.next() if options.rotation else options.output
        self.pressure = Pressure()
        self.file = OutputFile(options, collector, path, options.target, self.pressure)
        self.file_since = time.monotonic()
        self.unwritten_sums = Counter(0)
        self.summary = Summary(self.file.shown, ring_bytes=collector.rings.data_bytes)

    def __enter__(self) -> _Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()

    def open(self, workload: Workload | None) -> None:
        """Up to the moment when the command runs and the file has its name."""
        self.collector.track()
        self.file.describe()
        if self.signals.received:
            raise _interrupted(self.signals.received)
        command = workload if self.options.target.command else None
        self.pressure.begin()
        self.collector.begin(command.pid if command else None)
        if workload:
            workload.start()
        self.file.commit()

    def run(self, workload: Workload | None, watch: TargetWatch) -> Summary:
        """From there to the finished file."""
        endings = [workload.pidfd] if workload else []
        rings = self.collector.ring_fds
        begin_s = time.process_time()
        try:
            self._loop(Waiter(rings, endings, self.signals, watch, self.options.duration_s))
            if not self.signals.received:
                _let_last_thread_leave()
            self._end()
        except RecordingError:
            # A full disk, most likely: what is in the file is worth an end of its own, if there is room.
            self.collector.end()
            unwritten = {
                losses.RECORDS_UNWRITTEN: Counter(self.collector.waiting_records()),
                losses.SUMS_UNWRITTEN: self.unwritten_sums,
            }
            self.file.finish_somehow(self.collector.span, unwritten, rest(self.collector.kept))
            raise
        self.summary.cpu_s = time.process_time() - begin_s
        return self.summary

    def _loop(self, waiter: Waiter) -> None:
        """Copy rings to the file until something ends the recording."""
        pace_s = SUMS_S
        now = time.monotonic()
        next_sums, next_show, next_look = now + pace_s, now + PROGRESS_S, now
        cpus = CpuWatch(self.collector.rings.owner.fds)
        while not waiter.wait():
            self._drain(self.file)
            now = time.monotonic()
            if now >= next_sums:
                filled = self._write_sums() / self.collector.kept.sum_capacity
                filled = max(filled, self._write_budgets() / self.collector.kept.budget_capacity)
                pace_s = _pace(pace_s, filled)
                next_sums = time.monotonic() + pace_s
            if now >= next_look:
                for cpu in self.collector.cpus_without_ring():
                    cpus.forget(cpu)
                waiter.add_rings(self._follow(cpus.news()))
                next_look = now + FLUSH_S
            if now >= next_show:
                if self.show:
                    self.show(self._progress())
                next_show = time.monotonic() + PROGRESS_S
            if self.options.rotation and self._is_full(self.options.rotation):
                self._rotate()

    def _follow(self, news: CpuNews) -> Iterator[int]:
        """Record on CPUs that came; gives descriptors of their rings."""
        for cpu in news.gone:
            self.say(f"CPU {cpu} went offline")
        for cpu in news.come:
            if self.options.output == STANDARD_OUTPUT:  # whose head, with the ids, has been read by now
                self.say(f"CPU {cpu} came online: in a pipe, only waits are recorded there, as sums")
                continue
            try:
                yield from self.collector.revive(cpu, self.file)
                self.say(f"CPU {cpu} came online, and is recorded from here on")
            except OSError as problem:
                self.say(f"CPU {cpu} came online and cannot be recorded in full: {problem.strerror}")

    def _drain(self, file: OutputFile) -> None:
        """Empty the rings."""
        with self.pressure.looking(lambda: self.collector.fill):
            self.collector.drain(file)

    def _write_sums(self, *, end_of_file: bool = False) -> int:
        """Move the sums gathered so far to the file; returns how many there were.

        Args:
            end_of_file: the rings are for the next file already.
        """
        sums = self.collector.kept.drain_sums(end_of_file=end_of_file)
        try:
            if not end_of_file:
                self.collector.drain(self.file)  # the stacks of their callers come before them
        except FileFullError:
            self.unwritten_sums = counter(sums)
            raise
        written = 0
        try:
            for records in self.collector.kept.sum_records(sums):
                self.file.append(records)
                written = min(written + SUMS_AT_ONCE, len(sums))
        except FileFullError as problem:
            self.unwritten_sums = counter(sums[written + problem.records :])
            raise
        self.summary.sums += len(sums)
        return len(sums)

    def _write_budgets(self) -> int:
        """Move the budgets of threads that have ended to the file; returns how many there were."""
        budgets = self.collector.kept.drain_budgets()
        for records in self.collector.kept.budget_records(budgets):
            self.file.append(records)
        return len(budgets)

    def _write_last(self, last: LastTasks) -> None:
        """Write who waits, and the budgets of those that live."""
        for records in self.collector.kept.last_records(last):
            self.file.append(records)

    def _is_full(self, rotation: Rotation) -> bool:
        """Whether a new file shall begin."""
        asked, self.signals.rotate = self.signals.rotate, False
        too_large = 0 < rotation.size_bytes <= self.file.size
        return asked or too_large or 0 < rotation.seconds <= time.monotonic() - self.file_since

    def _rotate(self) -> None:
        """End the file and go on in a new one; what comes meanwhile waits in the rings."""
        old = self.file
        self._drain(old)
        self._write_sums(end_of_file=True)
        self._write_budgets()
        present = self.collector.kept.present_tasks()
        self._write_last(present)
        self.collector.kept.end_file(present)
        old.finish(replace(self.collector.span, end_ns=present.end_ns))
        self.summary.file_bytes += old.size
        # Maps of everybody: children of the target are recorded, too, and nobody knows their ids.
        self.file = OutputFile(self.options, self.collector, self.names.next(), Target(), self.pressure)
        self.file.begin_ns, self.file_since = present.end_ns, time.monotonic()
        old.close()
        self.file.describe()
        self.file.commit()
        self.names.forget_oldest()
        self.summary.path, self.summary.files = self.file.shown, self.summary.files + 1
        self.say(f"[ perf-offcpu record: dump {old.path} ]")

    def _progress(self) -> Progress:
        collector, summary = self.collector, self.summary
        summary.counters, summary.lost_records = collector.counters(), collector.lost()
        return Progress(
            elapsed_s=(now_ns() - collector.span.begin_ns) / 1e9,
            samples=summary.events(losses.SAMPLES),
            sums=summary.sums,
            lost=sum(summary.losses().values()),
            ring_fill=collector.rings.recent_fill(),
            threshold_ns=collector.threshold_ns,
            file_bytes=self.file.size,
        )

    def _end(self) -> None:
        collector = self.collector
        collector.end()
        self._drain(self.file)
        self._write_sums()
        self._write_budgets()
        last = collector.kept.last_tasks()
        self._write_last(last)
        self.summary.still_blocked = len(last.waiting())
        self.file.finish(collector.span)
        self._sum_up()

    def _sum_up(self) -> None:
        summary, collector = self.summary, self.collector
        summary.counters, summary.span = collector.counters(), collector.span
        summary.sums += summary.events(losses.SNAPSHOTS)
        summary.oncpu_samples, summary.lost_records = collector.oncpu_samples(), collector.lost()
        summary.ring_fullest, summary.programs = collector.rings.fullest, collector.run_stats()
        summary.file_bytes += self.file.size
        if summary.rings_overflowed():
            compressed = bool(self.options.compression_level)
            summary.remedy = remedy(self.pressure.full, self.options.stack_bytes > 0, compressed)


def _let_last_thread_leave() -> None:
    """Give what has just ended the time to leave its CPU.

    A process has ended before its last thread is switched out for the last time, which completes that one's
    budget. Who waits for the end may take its CPU at that moment, and no list of tasks shows it any more.
    """
    runnable = int(Path("/proc/loadavg").read_text().split()[3].split("/")[0])
    time.sleep(LAST_SWITCH_S * max(1.0, runnable / (os.cpu_count() or 1)))


def _interrupted(signum: int) -> RecordingError:
    problem = RecordingError("interrupted before the recording began: nothing is written")
    problem.exit_status = SIGNAL_EXIT_BASE + signum
    return problem


def _pace(seconds: float, filled: float) -> float:
    """When to take out the sums next: so that their map is half full by then, within limits."""
    return min(SUMS_S, max(FLUSH_S, seconds * 0.5 / max(filled, 0.01)))
