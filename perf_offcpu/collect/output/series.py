# SPDX-License-Identifier: Apache-2.0
"""Manage the files of a recording: the current one, and the one before it until its sums are written. With
`--switch-output` a file ends and a new one begins while recording goes on. In a pause (`--control`) a file stays open,
or ends, so that the next one begins when recording goes on. The content of the BPF maps (sums, budgets, states of tasks
and objects) is written from here, too."""

import itertools
import os
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final, TypeVar

from perf_offcpu import losses
from perf_offcpu.collect.bpf.last_tasks import LastTasks
from perf_offcpu.collect.collector import Collector
from perf_offcpu.collect.control import Requests
from perf_offcpu.collect.counters import Counter
from perf_offcpu.collect.options import RecordOptions, Rotation
from perf_offcpu.collect.output.file import Counts, OutputFile
from perf_offcpu.collect.output.object_table import CodeTable, ObjectTable
from perf_offcpu.collect.output.totals import KernelTotals
from perf_offcpu.collect.python.event_loops import with_event_loops
from perf_offcpu.collect.python.functions import Functions, Wait, with_python_functions
from perf_offcpu.collect.summary import Summary
from perf_offcpu.collect.system.background import Future, in_background, stepping_until
from perf_offcpu.collect.system.clock import now_ns
from perf_offcpu.collect.targets import Target
from perf_offcpu.collect.wait_objects.owners import with_locks_of_jvms
from perf_offcpu.directories import Directory
from perf_offcpu.text import Say

T = TypeVar("T")
STEADY_WAIT_NS: Final = 1_000_000_000  # shortest unfinished wait whose Python functions a steady recording reads


class FileNames:
    """Make the names of the files of one recording, and remove the oldest files beyond `Rotation.max_files`. Each name
    ends with the time at which its file was begun, to 0.01 s, as with `perf record --timestamp-filename`."""

    def __init__(self, path: str, rotation: Rotation) -> None:
        self._path, self._max_files = path, rotation.max_files
        self._names: deque[str] = deque()
        self._hundredths = 0

    def next(self) -> str:
        """Return the name for a file that is begun now; no file has this name yet."""
        self._hundredths = max(int(time.time() * 100), self._hundredths + 1)
        name = self._name()
        # A directory that cannot be opened is reported where the file is created.
        with suppress(OSError), Directory.named(os.path.dirname(self._path)) as directory:
            while directory.status(os.path.basename(name)) is not None:
                self._hundredths += 1
                name = self._name()
        self._names.append(name)
        return name

    def forget_oldest(self) -> None:
        """Remove the oldest files beyond `max_files`."""
        while self._max_files and len(self._names) > self._max_files:
            with Directory.named(os.path.dirname(self._path)) as directory:
                directory.remove(os.path.basename(self._names.popleft()))

    def _name(self) -> str:
        seconds, hundredths = divmod(self._hundredths, 100)
        return f"{self._path}.{time.strftime('%Y%m%d%H%M%S', time.localtime(seconds))}{hundredths:02}"


@dataclass(slots=True)
class _PastFile:
    """A file that another has followed, and that still lacks the sums of its time. `present`: the states of tasks at
    its end; None until they are known, and once they are being written. `with_python`: the same states with Python
    functions, which take longer; None if these are not wanted."""

    file: OutputFile
    present: LastTasks | None = None
    with_python: Future[LastTasks] | None = None

    @property
    def is_read(self) -> bool:
        """True once the Python functions have been read, or if none are wanted."""
        return self.with_python is None or self.with_python.done()


class FileSeries:
    """Begin, fill and end the files of one recording, one after the other. `say` is called with a sentence for each
    file that is complete, and for each problem. `current`: the file that takes records; in a pause it may be complete.
    `is_between`: True in a pause after `current` was finished: the next file begins when recording goes on."""

    def __init__(self, options: RecordOptions, collector: Collector, requests: Requests, say: Say) -> None:
        self._options, self._collector, self._requests, self._say = options, collector, requests, say
        self._names = FileNames(options.output, options.rotation or Rotation())
        path = self._names.next() if options.rotation else options.output
        self.current = OutputFile(options, collector, path, options.target)
        self.is_between = False
        self._past: _PastFile | None = None
        self._totals = KernelTotals(collector, self.drain)
        self._objects, self._codes = ObjectTable(collector, self.drain), CodeTable(collector, self.drain)
        self._functions = dict[Wait, Functions]()  # of waits that had not ended when a file ended
        self._totals_begun = False  # the totals up to a pause or the end are drained and written
        self._paused_counts = Counts({}, {})
        self.summary = Summary(self.current.shown, ring_bytes=collector.rings.data_bytes)

    def close(self) -> None:
        """Close all files; remove files that have no name yet."""
        self._objects.close()
        if self._past:
            self._past.file.close()
        if not self.is_between:
            self.current.close()

    def progress(self) -> str:
        """Return a line of text on the progress of the recording."""
        return self.summary.progress(self._collector, self._totals.sums, self.current.size)

    def sum_up(self) -> None:
        """Add the numbers that are known at the end of the recording to the summary."""
        file_bytes = 0 if self.is_between else self.current.size
        self.summary.complete(self._collector, self._totals.sums, file_bytes, self._options)

    def write_due(self) -> None:
        """Write wait objects that were named meanwhile, and sums that are due; finish the previous file if ready."""
        self._objects.follow(self._open())
        if self._past is None:
            self._totals.write_if_due(self.current)
        elif self._totals.is_ready and self._past.is_read:
            self._finish_past(self._past)

    def rotate_if_due(self, rotation: Rotation) -> None:
        """Begin a new file if one is due (`is_due`) and the BPF maps are not being drained for a file."""
        if not self._totals.is_pending and self.is_due(rotation):
            self._rotate()

    def account_if_due(self) -> None:
        """If an account was asked for (`--control`), write it into the current file, which goes on: sums, budgets,
        unfinished waits and losses up to now; say the file's size. Do nothing while the BPF maps are being drained."""
        if not self._requests.account_due or self._totals.is_pending:
            return
        self._requests.account_due = False
        drained_ns = now_ns()
        self.drain()
        self._totals.start()
        counts = Counts.of(self._collector)
        present = self.while_draining(lambda: self._totals.present_tasks(drained_ns))
        self._objects.catch_up([self.current])
        self._codes.write_jit_maps(self.current, is_end=False)
        self._totals.write(self.current, present)
        self.drain()
        self.current.account(counts, present.end_ns)
        self._say(f"[ perf-offcpu record: account {self.current.size} {self.current.path} ]")

    def _open(self) -> list[OutputFile]:
        """Return the unfinished files: the current one, and the one before until its sums are written."""
        return [self.current, self._past.file] if self._past else [self.current]

    def drain(self) -> None:
        """Move the content of all rings to the current file, and descriptions of new Python functions to all unfinished
        files: the queue of the BPF program is short, and at the begin of a file all functions are new."""
        self._collector.drain(self.current)
        self._codes.follow(self._open())

    def describe_again(self) -> None:
        """Write tasks and mappings into the current file again, as some may have started on a CPU without events."""
        self.current.describe_again(self.drain)

    def while_draining(self, work: Callable[[], T]) -> T:
        """Run `work`, which may block, in a thread, and drain the rings meanwhile; return its result."""
        return stepping_until(in_background(work), self.drain)

    def is_due(self, rotation: Rotation) -> bool:
        """Return True if a new file shall begin: by request (consumed by this call), or by size or age of `current`."""
        return self._requests.take_rotate() or rotation.is_due(self.current.size, self.current.age_s)

    def _rotate(self) -> None:
        """Go on in a new file; the old one is finished when the sums of its time are complete. Until existing tasks are
        written to the new file, the old one takes all samples: a process may end before its records are written.
        Side-band records of this time go into both files."""
        new = self.while_draining(self._open_next)
        old = self.current
        try:
            with self._collector.side_band_also_to(new):
                new.describe(self.drain)
                self.while_draining(new.commit)
                drained_ns = now_ns()
                # Samples from here on are in the new file, where the copies to which they refer must be, too.
                self._collector.program.maps.copy_all()
                self._collector.drain(old)
        except BaseException:
            new.discard()
            raise
        self._set_period()
        self._totals.start(end_of_file=True)
        counts = Counts.of(self._collector)
        old.go_on_in(new, counts, drained_ns)
        self.current, self._past = new, _PastFile(old)
        self._past.present = self.while_draining(lambda: self._totals.present_tasks(drained_ns))
        old.go_on_in(new, counts, self._past.present.end_ns)
        if self._collector.pythons.offsets:
            present = self._past.present
            self._past.with_python = in_background(lambda: self._with_python(present))
        self.summary.path, self.summary.files = new.shown, self.summary.files + 1

    def _open_next(self) -> OutputFile:
        # Maps of all processes: children of the target are recorded, too, and their ids are not known here.
        options = replace(self._options, off_cpu_period_ns=self._requests.period_ns)
        return OutputFile(options, self._collector, self._names.next(), Target())

    def _last_tasks(self) -> LastTasks:
        """Return the tasks at the end, with the locks of JVMs for which they wait, if objects are recorded."""
        last, names = self._totals.last_tasks(), self._options.object_names
        locks_of, again = self._collector.jvms.awaited_locks, self._collector.program.last_tasks
        return with_locks_of_jvms(last, locks_of, again, named=names) if self._options.objects else last

    def _with_python(self, last: LastTasks) -> LastTasks:
        """Return `last` with the Python functions of blocked threads, and the tasks of event loops."""
        pythons, unread = self._collector.pythons, self._collector.unread
        least_ns = STEADY_WAIT_NS if self._options.is_steady else 0
        last = with_python_functions(last, dict(pythons.offsets), unread, self._functions, least_ns=least_ns)
        return with_event_loops(last, pythons.pids, unread)

    def _finish_past(self, past: _PastFile) -> None:
        """Write the sums and the last account of the file before the current one, close it, and remove excess files."""
        if past.with_python is not None:
            past.present = stepping_until(past.with_python, self.drain)
        present, past.present = past.present, None
        self._objects.finish(self._open())
        self._codes.follow(self._open())
        self._codes.write_jit_maps(past.file)
        self._totals.write(past.file, present)
        past.file.finish(self._collector.span)
        self.summary.file_bytes += past.file.size
        self._past = None
        self.while_draining(past.file.close)
        self.while_draining(self._names.forget_oldest)
        self.while_draining(lambda: self._say(f"[ perf-offcpu record: dump {past.file.path} ]"))

    def end_part(self, stop: Callable[[], None]) -> None:
        """Stop recording, for a pause or the end, and write sums, budgets and unfinished waits up to now; the caller
        writes the account of losses. `stop`: `Collector.pause` or `end`; returns when no wait is recorded any more."""
        self.while_draining(stop)
        self.drain()
        self.summary.recorded_ns += self._collector.span.end_ns - self._collector.span.begin_ns
        if self._past:
            self._finish_past(self._past)
        elif self._totals.is_pending:
            self._totals.write(self.current)
        self._totals.start(end_of_file=True)
        last = self.while_draining(self._last_tasks)
        last = self.while_draining(lambda: self._with_python(last))
        self.while_draining(self._collector.jvms.ask_all)
        self._objects.finish([self.current])
        self.drain()
        self._codes.write_jit_maps(self.current)
        self._totals_begun = True
        self._totals.write(self.current, last)
        self.summary.still_blocked = len(last.waiting())

    def finish_paused(self) -> None:
        """In a pause, stop side-band records, too, and finish the current file."""
        self.while_draining(self._collector.end)
        self.drain()
        self.current.finish(self._collector.span)

    def leave(self) -> None:
        """Finish and close the current file in a pause; nothing is recorded until `resume` begins the next file."""
        self.finish_paused()
        self.summary.file_bytes += self.current.size
        self.is_between = True
        self.current.close()
        self._names.forget_oldest()
        self._say(f"[ perf-offcpu record: dump {self.current.path} ]")
        self._paused_counts = Counts.of(self._collector)

    def resume(self) -> None:
        """Go on after a pause, in the same file, or in a new one after `leave`."""
        if self.is_between:
            self._begin_next()
            return
        self.while_draining(self._collector.wake)
        self._totals_begun = False
        self.current.resume()
        self.while_draining(self._collector.resume)

    def _begin_next(self) -> None:
        """Begin a file after a pause in which the last one ended."""
        self.current = self._open_next()
        self.is_between = False
        self._requests.take_rotate()
        self.current.go_on_after(self._paused_counts)
        self._collector.wake()
        self._collector.track()
        self.current.describe(self.drain)
        self._set_period()
        self._totals_begun = False
        self.while_draining(self._collector.resume)
        self.while_draining(self.current.commit)
        self.summary.path, self.summary.files = self.current.shown, self.summary.files + 1

    def _set_period(self) -> None:
        if period_ns := self._requests.period_ns:
            self._collector.program.maps.set_control(period_ns=period_ns)

    def finish_somehow(self) -> None:
        """Finish the unfinished files as far as possible after an error, such as a full disk."""
        self._collector.end()
        span, unwritten = self._collector.span, Counter(self._collector.waiting_records())
        # Threads that are still blocked would be in the file twice.
        is_taken = self._totals_begun and not self._totals.is_pending
        if self._past:
            self._past.file.finish_somehow(span, {}, self._totals.unwritten(self._past.present))
        unwritten_rows = itertools.chain(self._objects.unwritten, self._totals.unwritten())
        rest = unwritten_rows if is_taken else itertools.chain(unwritten_rows, self._totals.remaining())
        self.current.finish_somehow(span, {losses.RECORDS_UNWRITTEN: unwritten}, rest)
