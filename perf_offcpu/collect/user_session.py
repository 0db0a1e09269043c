# SPDX-License-Identifier: Apache-2.0
"""Run a recording of an ordinary user from beginning to end: `session` without BPF programs, pauses and further files.
Rings are emptied every TICK_S, because only threads that are known to sleep can be looked at."""

import time
from collections.abc import Callable
from typing import Final

from perf_offcpu import losses
from perf_offcpu.collect.control import Control, RecordingSignals
from perf_offcpu.collect.options import RecordOptions
from perf_offcpu.collect.output.file import OutputFile
from perf_offcpu.collect.output.object_table import ObjectTable
from perf_offcpu.collect.rings.waiter import FLUSH_S, Waiter
from perf_offcpu.collect.summary import Summary
from perf_offcpu.collect.system.background import in_background, stepping_until
from perf_offcpu.collect.targets import TargetWatch
from perf_offcpu.collect.unprivileged.collector import UserCollector
from perf_offcpu.collect.workload import SIGNAL_EXIT_BASE, Workload
from perf_offcpu.errors import RecordingError

TICK_S: Final = 0.006
_SECOND_S: Final = 1.0  # time between two readings of what is gone when threads end, and between two progress lines


class UserSession:
    """Record waits of own threads into one file. `say` and `show` as for `session.record`."""

    def __init__(
        self,
        options: RecordOptions,
        collector: UserCollector,
        signals: RecordingSignals,
        say: Callable[[str], None],
        show: Callable[[str], None] | None,
    ) -> None:
        self.options, self.collector, self.signals, self.show = options, collector, signals, show
        self.file = OutputFile(options, collector, options.output, options.target)
        self.objects = ObjectTable(collector)
        self.summary = Summary(self.file.shown, ring_bytes=collector.rings.data_bytes)
        say(f"[ perf-offcpu record: {losses.UNPRIVILEGED.text} ]")

    def run(
        self, workload: Workload | None, watch: TargetWatch, enders: list[int], ready: Callable[[], None]
    ) -> Summary:
        """Record until something ends the recording; return its summary; arguments as for `session.Session.run`."""
        collector, file = self.collector, self.file
        try:
            collector.begin()
            file.describe(collector.drain)
            if self.signals.received:
                problem = RecordingError("interrupted before the recording began: nothing is written")
                problem.exit_status = SIGNAL_EXIT_BASE + self.signals.received
                raise problem
            collector.pressure.begin()
            if workload:
                workload.start()
            stepping_until(in_background(file.commit), collector.look)
            ready()
            begin_s = time.process_time()
            endings = [*enders, *([workload.pidfd] if workload else [])]
            waiter = Waiter((), endings, self.signals, watch, self.options.duration_s, Control(None))
            try:
                self._copy(waiter)
                self._finish()
            except RecordingError:
                collector.end()
                file.finish_somehow(collector.span, {}, ())
                raise
            self.summary.cpu_s = time.process_time() - begin_s
        finally:
            self.objects.close()
            file.close()
        return self.summary

    def _copy(self, waiter: Waiter) -> None:
        next_write = due = time.monotonic() + FLUSH_S
        while True:
            with self.collector.pressure.sleeping():
                if waiter.wait(TICK_S):
                    return
            self.collector.look()
            self.objects.follow([self.file])  # soon, because processes may end
            if time.monotonic() < next_write:
                continue
            next_write = time.monotonic() + FLUSH_S
            self.collector.write(self.file)
            if time.monotonic() >= due:
                due = time.monotonic() + _SECOND_S
                self.collector.read_delays()
                if self.show:
                    self.show(self.summary.progress(self.collector, 0, self.file.size))

    def _finish(self) -> None:
        collector, file, summary = self.collector, self.file, self.summary
        collector.end()
        collector.finish(file)
        self.objects.finish([file], lambda: None)
        summary.recorded_ns = collector.span.end_ns - collector.span.begin_ns
        summary.still_blocked = collector.still_blocked
        file.finish(collector.span)
        summary.complete(collector, collector.sums, file.size, self.options)
