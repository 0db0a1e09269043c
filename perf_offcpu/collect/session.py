# SPDX-License-Identifier: Apache-2.0
"""A recording from beginning to end.

    find the target, make the command's child, set up the kernel side         nothing is visible yet
    track: side-band on · what is there already goes into the file
    begin: waits and samples on · let the command go · give the file its name
    loop:  copy rings to the file until the command, the target, the time or a signal ends it
           sums so far, now and then
    end:   all off · copy the rest · sums, losses, counters · features and the final header

A failure before the file has its name leaves an older file as it was. A later one leaves a file that can be
read: complete, or, if the recorder is killed, as far as it got.

With `--switch-output` a file ends and a new one begins while all of this goes on (`rotation`). With
`--control` recording pauses and goes on, with the same programs and rings. A pause is in the file, which
takes the side-band records of that time and has an account for each part; if a new file is asked for in a
pause, the file ends at once, and the new one begins when recording goes on.

Rings fill all the time, so that the recorder must not wait for anything else: what may block in the kernel
(grace periods, iterators, /proc, names and ends of files) is done in a thread, and rings are emptied
meanwhile. Only a write to the file itself can hold the recorder up.

No FINISHED_ROUND records are written. They let perf sort and forget as it reads, but a sum carries the time
of its last wait, which is long past when the sum is written. Without them perf sorts everything at the end.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import TypeVar

from perf_offcpu import losses
from perf_offcpu.collect.bpf.last_tasks import LastTasks
from perf_offcpu.collect.collector import Collector
from perf_offcpu.collect.hotplug import Hotplug
from perf_offcpu.collect.kernel_totals.losses import Counter
from perf_offcpu.collect.kernel_totals.python_stacks import with_python_functions
from perf_offcpu.collect.kernel_totals.totals import KernelTotals
from perf_offcpu.collect.options import STANDARD_OUTPUT, RecordOptions
from perf_offcpu.collect.output_file import Counts, OutputFile
from perf_offcpu.collect.requests import Requests
from perf_offcpu.collect.rings.waiter import FLUSH_S, STEADY_FLUSH_S, Waiter
from perf_offcpu.collect.rotation import FileNames, Rotation
from perf_offcpu.collect.summary import Summary
from perf_offcpu.collect.system.background import in_background, stepping_until
from perf_offcpu.collect.system.clock import now_ns
from perf_offcpu.collect.system.signals import RecordingSignals
from perf_offcpu.collect.targets import Target, TargetWatch
from perf_offcpu.collect.wait_objects.table import ObjectTable
from perf_offcpu.collect.workload import SIGNAL_EXIT_BASE, Workload, let_last_thread_leave
from perf_offcpu.errors import RecordingError

PROGRESS_S = 0.5
"""Time between two calls that show progress."""

LOOK_S = 1.0
"""Time between two looks for CPUs that went or came."""

PAUSED_S = 60.0
"""Longest wait while recording pauses; a command, a signal or a ring that has filled ends it."""

Say = Callable[[str], None]
T = TypeVar("T")


@dataclass(slots=True)
class _PastFile:
    """A file that another has followed, and that still lacks the sums of its time.

    Args:
        present: the states of tasks at its end; None until they are known, and once they are being written.
        with_python: these with Python functions, which take longer.
    """

    file: OutputFile
    present: LastTasks | None = None
    with_python: Future[LastTasks] | None = None

    @property
    def is_read(self) -> bool:
        """Return True once the Python functions have been read, or if none are wanted."""
        return self.with_python is None or self.with_python.done()


class Session:
    """The phases of one recording, on a kernel side and a file that are open."""

    def __init__(
        self,
        options: RecordOptions,
        collector: Collector,
        signals: RecordingSignals,
        say: Say,
        show: Say | None,
        ready: Callable[[], None],
    ) -> None:
        self.ready = ready
        self.options, self.collector, self.signals = options, collector, signals
        self.say, self.show = say, show
        self.names = FileNames(options.output, options.rotation or Rotation())
        path = self.names.next() if options.rotation else options.output
        self.file = OutputFile(options, collector, path, options.target)
        self.past: _PastFile | None = None
        self.totals = KernelTotals(collector, self._drain)
        self.objects = ObjectTable(collector)
        self.hotplug = Hotplug(collector, options.output == STANDARD_OUTPUT, say)
        self.requests = Requests(options, signals, say)
        self.paused = False
        self.between_files = False  # in a pause: the file is complete
        self._totals_begun = False  # the totals of the part that ends are being written
        self._paused_counts = Counts({}, {})
        self.summary = Summary(self.file.shown, ring_bytes=collector.rings.data_bytes)

    def run(self, workload: Workload | None, watch: TargetWatch, enders: list[int]) -> Summary:
        """Record until something ends the recording; return its numbers.

        Args:
            enders: descriptors that end it when one becomes readable.
        """
        try:
            self._begin(workload)
            begin_s = time.process_time()
            self._record(workload, watch, enders)
            self.summary.cpu_s = time.process_time() - begin_s
        finally:
            if self.past:
                self.past.file.close()
            if not self.between_files:
                self.file.close()
        return self.summary

    def _begin(self, workload: Workload | None) -> None:
        """Do everything up to the moment when the command runs and the file has its name."""
        self.collector.track()
        self.file.describe(self._drain)
        if self.signals.received:
            problem = RecordingError("interrupted before the recording began: nothing is written")
            problem.exit_status = SIGNAL_EXIT_BASE + self.signals.received
            raise problem
        command = workload if self.options.target.command else None
        self.collector.pressure.begin()
        self._while_draining(lambda: self.collector.begin(command.pid if command else None))
        if workload:
            workload.start()
        self._while_draining(self.file.commit)
        self.ready()

    def _record(self, workload: Workload | None, watch: TargetWatch, enders: list[int]) -> None:
        endings = [*enders, *([workload.pidfd] if workload else [])]
        fds, duration_s = self.collector.ring_fds, self.options.duration_s
        waiter = Waiter(fds, endings, self.signals, watch, duration_s, self.requests.control)
        try:
            while not self._loop(waiter) and self._pause(waiter):
                pass
            if not self.paused:
                if not self.signals.received:
                    self._while_draining(let_last_thread_leave)
                self._end_part(self.collector.end)
                self.file.finish(self.collector.span)
            elif not self.between_files:
                self._end_paused_file()
            file_bytes = 0 if self.between_files else self.file.size
            self.summary.complete(self.collector, self.totals.sums, file_bytes, self.options)
        except RecordingError:
            # Most likely the disk is full: what is in the file is worth an end, if there is room for one.
            self._finish_somehow()
            raise

    def _finish_somehow(self) -> None:
        """Write an end into files that take no more than a little."""
        self.collector.end()
        span, unwritten = self.collector.span, Counter(self.collector.waiting_records())
        # Threads that are still blocked would be in the file twice.
        is_taken = self._totals_begun and not self.totals.is_pending
        if self.past:
            self.past.file.finish_somehow(span, {}, self.totals.unwritten(self.past.present))
        known = itertools.chain(self.objects.unwritten(), self.totals.unwritten())
        rest = known if is_taken else itertools.chain(known, self.totals.remaining())
        self.file.finish_somehow(span, {losses.RECORDS_UNWRITTEN: unwritten}, rest)

    def _loop(self, waiter: Waiter) -> bool:
        """Copy rings to the file until something ends or pauses the recording; return False for a pause."""
        flush_s = STEADY_FLUSH_S if self.options.is_steady else FLUSH_S
        next_look = time.monotonic()
        next_show = next_look + PROGRESS_S
        while not self._wait(waiter, flush_s):
            self._drain()
            if self.requests.obey("disable"):
                return False
            if self.requests.stopping:
                break
            self.objects.follow(self._files())
            if self.past is None:
                self.totals.write_if_due(self.file)
            elif self.totals.is_ready and self.past.is_read:
                self._finish_past(self.past)
            now = time.monotonic()
            if now >= next_look:
                waiter.add_rings(self.hotplug.follow(self.file))
                next_look = now + LOOK_S
            if self.show and now >= next_show:
                self.show(self.summary.progress(self.collector, self.totals.sums, self.file.size))
                next_show = now + PROGRESS_S
            # While the maps are drained for this file or the past one, a new file has to wait.
            if self.options.rotation and not self.totals.is_pending and self._is_full(self.options.rotation):
                self._rotate()
        return True

    def _pause(self, waiter: Waiter) -> bool:
        """Record no waits until recording goes on; return False if it ends before that."""
        self._end_part(self.collector.pause)
        self.file.pause(self.collector.span)
        self._while_draining(self.collector.sleep)
        self.paused = True
        self.say("Events disabled")
        self.requests.control.acknowledge()
        while True:
            # Before the first wait: commands may have come together with `disable`.
            goes_on = self.requests.obey("enable")
            if self._is_file_over(goes_on):
                self._leave_file()
            if goes_on:
                self._go_on()
                return True
            if self.requests.stopping or self._wait(waiter, PAUSED_S):
                return False
            if not self.between_files:
                self._drain()

    def _is_file_over(self, goes_on: bool) -> bool:
        """Return whether the file ends in this pause: because a new one is due, or CPUs came or went."""
        rotation = self.options.rotation
        if self.between_files or rotation is None:
            return False
        # The file lacks the processes that started on a CPU which came in the pause.
        return self._is_full(rotation) or (goes_on and self.hotplug.has_changed)

    def _end_paused_file(self) -> None:
        """Stop side-band records, too, and complete the file."""
        self._while_draining(self.collector.end)
        self._drain()
        self.file.finish(self.collector.span)

    def _leave_file(self) -> None:
        """Complete the file in a pause, and follow nothing more until recording goes on."""
        self._end_paused_file()
        self.summary.file_bytes += self.file.size
        self.between_files = True
        self.file.close()
        self.names.forget_oldest()
        self.say(f"[ perf-offcpu record: dump {self.file.path} ]")
        self._paused_counts = Counts.of(self.collector)

    def _go_on(self) -> None:
        """Record again after a pause."""
        if self.between_files:
            self._begin_next()
        else:
            self._while_draining(self.collector.wake)
            self._totals_begun = False
            self.file.resume()
            self._while_draining(self.collector.resume)
        self.paused = False
        self.say("Events enabled")
        self.requests.control.acknowledge()

    def _begin_next(self) -> None:
        """Begin a file after a pause in which the last one ended."""
        self.file = self._open_next()
        self.between_files = False
        self.requests.take_rotate()
        self.file.go_on_after(self._paused_counts)
        self.collector.wake()
        self.collector.track()
        self.file.describe(self._drain)
        self._set_period()
        self._totals_begun = False
        self._while_draining(self.collector.resume)
        self._while_draining(self.file.commit)
        self.summary.path, self.summary.files = self.file.shown, self.summary.files + 1

    def _set_period(self) -> None:
        if period_ns := self.requests.period_ns:
            self.collector.program.maps.set_control(period_ns=period_ns)

    def _wait(self, waiter: Waiter, most_s: float) -> bool:
        with self.collector.pressure.sleeping():
            return waiter.wait(most_s)

    def _files(self) -> list[OutputFile]:
        """Return the files that lack something: while one takes over from another, both."""
        return [self.file, self.past.file] if self.past else [self.file]

    def _drain(self) -> None:
        self.collector.drain(self.file)

    def _while_draining(self, work: Callable[[], T]) -> T:
        """Do in a thread what may block, and empty the rings meanwhile; return its result."""
        return stepping_until(in_background(work), self._drain)

    def _is_full(self, rotation: Rotation) -> bool:
        """Return whether a new file shall begin."""
        return self.requests.take_rotate() or rotation.is_due(self.file.size, self.file.age_s)

    def _rotate(self) -> None:
        """Go on in a new file; the old one gets its end when the sums of its time are complete.

        The new file is begun while the old one still takes the samples: a process that ends then would not be
        found any more when its last samples are in the new file. What starts meanwhile is in both files.
        """
        new = self._while_draining(self._open_next)
        old = self.file
        try:
            with self.collector.side_band_also_to(new):
                new.describe(self._drain)
                self._while_draining(new.commit)
                drained_ns = now_ns()
                # What comes between is in the new file, its copy would not be.
                self.collector.program.maps.copy_all()
                self._drain()
        except BaseException:
            new.discard()
            raise
        self._set_period()
        self.totals.start(end_of_file=True)
        counts = Counts.of(self.collector)
        old.go_on_in(new, counts, drained_ns)
        self.file, self.past = new, _PastFile(old)
        self.past.present = self._while_draining(lambda: self.totals.present_tasks(drained_ns))
        old.go_on_in(new, counts, self.past.present.end_ns)
        if self.options.pystack:
            present = self.past.present
            self.past.with_python = in_background(lambda: self._with_python(present))
        self.summary.path, self.summary.files = new.shown, self.summary.files + 1

    def _open_next(self) -> OutputFile:
        # Maps of all processes: children of the target are recorded, too, and their ids are not known here.
        options = replace(self.options, off_cpu_period_ns=self.requests.period_ns)
        return OutputFile(options, self.collector, self.names.next(), Target())

    def _with_python(self, last: LastTasks) -> LastTasks:
        """Add the Python functions of threads that are blocked, if they are asked for."""
        again = self.collector.program.last_tasks
        pystack = self.options.pystack
        return with_python_functions(last, again, pystack, self.say) if pystack else last

    def _finish_past(self, past: _PastFile) -> None:
        """Write the end of a file that another has followed, and remove the oldest."""
        if past.with_python is not None:
            past.present = stepping_until(past.with_python, self._drain)
        present, past.present = past.present, None
        self.objects.finish(self._files(), self._drain)
        self.totals.write(past.file, present)
        past.file.finish(self.collector.span)
        self.summary.file_bytes += past.file.size
        self.past = None
        self._while_draining(past.file.close)
        self._while_draining(self.names.forget_oldest)
        self._while_draining(lambda: self.say(f"[ perf-offcpu record: dump {past.file.path} ]"))

    def _end_part(self, stop: Callable[[], None]) -> None:
        """Stop recording, and write the totals of the time up to now; the account follows.

        Args:
            stop: returns when no wait is recorded any more. After a pause, side-band records flow on.
        """
        self._while_draining(stop)
        self._drain()
        self.summary.recorded_ns += self.collector.span.end_ns - self.collector.span.begin_ns
        if self.past:
            self._finish_past(self.past)
        elif self.totals.is_pending:
            self.totals.write(self.file)
        self.totals.start(end_of_file=True)
        last = self._while_draining(lambda: self._with_python(self.totals.last_tasks()))
        self.objects.finish([self.file], self._drain)
        self._totals_begun = True
        self.totals.write(self.file, last)
        self.summary.still_blocked = len(last.waiting())
