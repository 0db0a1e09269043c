# SPDX-License-Identifier: Apache-2.0
"""Run a recording from beginning to end.

    find the target, fork the command's child, load BPF, open events          nothing is visible yet
    track: side-band on · existing tasks and mappings go into the file
    begin: waits and samples on · let the command go · give the file its name
    loop:  copy rings to the file until the command, the target, the time or a signal ends it
           sums so far, now and then
    end:   all off · copy the rest · sums, losses, counters · features and the final header

A failure before the file has its name leaves an older file as it was. A later one leaves a file that can be read:
complete, or, if the recorder is killed, as far as it got.

With `--switch-output` a file ends and a new one begins while all of this goes on (`output.series`). With `--control`
recording pauses and goes on, with the same programs and rings. The file stays open in a pause: it takes the side-band
records of that time, and has an account (losses and counts) for each time between pauses. If a new file is asked for in
a pause, the file ends at once, and the new one begins when recording goes on.

Rings fill all the time, so that the recorder must not wait for anything else: what may block in the kernel (grace
periods, iterators, /proc, names and ends of files) is done in a thread, and rings are emptied meanwhile. Only a write
to the file itself can hold the recorder up.

No FINISHED_ROUND records are written. They let perf sort and forget as it reads, but a sum carries the time of its last
wait, which is long past when the sum is written. Without them perf sorts everything at the end."""

import contextlib
import errno
import signal
import time
from collections.abc import Callable, Iterable, Mapping

from perf_offcpu import losses
from perf_offcpu.collect.collector import Collector
from perf_offcpu.collect.control import FLUSH_S, STEADY_FLUSH_S, Control, RecordingSignals, Requests, Waiter
from perf_offcpu.collect.options import STANDARD_OUTPUT, RecordOptions
from perf_offcpu.collect.output.file import OutputFile
from perf_offcpu.collect.output.object_table import ObjectTable
from perf_offcpu.collect.output.series import FileSeries
from perf_offcpu.collect.rings.pressure import DrainPriority
from perf_offcpu.collect.rings.rings import Sink
from perf_offcpu.collect.summary import Summary
from perf_offcpu.collect.system.background import in_background, stepping_until
from perf_offcpu.collect.system.cpus import online_since
from perf_offcpu.collect.system.privileges import raise_descriptor_limit, raise_priority, too_many_files
from perf_offcpu.collect.targets import TargetWatch, open_pidfd
from perf_offcpu.collect.unprivileged.collector import UserCollector
from perf_offcpu.collect.workload import SIGNAL_EXIT_BASE, Workload, let_last_thread_leave
from perf_offcpu.errors import RecordingError
from perf_offcpu.files import descriptor
from perf_offcpu.text import Say

TERMINAL_SIGNALS = (signal.SIGINT, signal.SIGHUP)
GRACE_S = 2.0  # a terminal sends these signals to the command, too, which may print a summary before it ends
PROGRESS_S = 0.5  # time between two calls that show progress
LOOK_S = 1.0  # time between two looks for CPUs that went or came
PAUSED_S = 60.0  # longest wait while recording pauses; a command, a signal or a ring that has filled ends it
TICK_S = 0.006  # time between two drains as an ordinary user
SECOND_S = 1.0  # time between two readings of run-queue delays, and two progress lines, as an ordinary user


def record(
    options: RecordOptions, say: Say, show: Say | None = None, ready: Callable[[], None] = lambda: None
) -> Summary:
    """Make a recording; return its summary when it is complete and the command, if any, has ended.

    Args:
        say: is called with a short sentence for each deviation from the options.
        show: is called every PROGRESS_S with a line on the progress.
        ready: is called once, after recording has begun.

    Raises:
        TargetError: the target is not there, or the command cannot be run.
        CapabilityError: the machine lacks a feature, or the user a privilege.
        RecordingError: the file cannot be written, or the kernel refuses something.
        BrokenPipeError: the reader of a pipe is gone.
    """
    with contextlib.ExitStack() as stack:
        watch = stack.enter_context(contextlib.closing(TargetWatch(options.target)))
        enders = [stack.enter_context(descriptor(open_pidfd(options.until_exit)))] if options.until_exit else []
        workload = None
        if options.command:
            output_fd = 2 if options.output == STANDARD_OUTPUT else 1
            workload = stack.enter_context(contextlib.closing(Workload(options.command, output_fd)))
        with RecordingSignals(rotating=options.rotation is not None) as signals, contextlib.ExitStack() as inner:
            session: Session | UserSession
            raise_descriptor_limit()
            if options.unprivileged:
                command_pid = workload.pid if workload and options.target.command else 0
                own = inner.enter_context(UserCollector(options, command_pid, say))
                session = UserSession(options, own, signals, say, show)
            else:
                session = Session(options, inner.enter_context(_open_collector(options, say)), signals, say, show)
            summary = _run(session, workload, watch, enders, ready)
        # The file is complete; a further signal ends the recorder at once.
        if workload:
            summary.status = workload.end(GRACE_S if signals.received in TERMINAL_SIGNALS else 0)
        elif signals.received:
            summary.status = SIGNAL_EXIT_BASE + signals.received
    return summary


def _open_collector(options: RecordOptions, say: Say) -> Collector:
    raise_priority(options.realtime_priority)
    try:
        return Collector(options, say)
    except OSError as problem:
        raise too_many_files() if problem.errno in (errno.EMFILE, errno.ENFILE) else problem from None


def _run(
    session: "Session | UserSession",
    workload: Workload | None,
    watch: TargetWatch,
    enders: list[int],
    ready: Callable[[], None],
) -> Summary:
    """Record until something ends the recording; return its summary. `enders`: descriptors that end it when readable.
    `ready`: is called once, after recording has begun."""
    try:
        session.begin(workload)
        ready()
        begin_s = time.process_time()
        endings = [*enders, *([workload.pidfd] if workload else [])]
        waiter = Waiter(session.ring_fds, endings, session.signals, watch, session.options.duration_s, session.control)
        try:
            session.record(waiter)
        except RecordingError:
            # Most likely the disk is full: finish the file, if there is room, so that its content can be read.
            session.finish_somehow()
            raise
        session.summary.cpu_s = time.process_time() - begin_s
    finally:
        session.close()
    return session.summary


def _refuse_interrupted(signals: RecordingSignals) -> None:
    if signals.received:
        problem = RecordingError("interrupted before the recording began: nothing is written")
        problem.exit_status = SIGNAL_EXIT_BASE + signals.received
        raise problem


class Session:
    """Run the phases of one recording, with a collector that is open: begin, copy rings, pause and go on, end."""

    def __init__(
        self, options: RecordOptions, collector: Collector, signals: RecordingSignals, say: Say, show: Say | None
    ) -> None:
        self.options, self.collector, self.signals = options, collector, signals
        self.say, self.show = say, show
        self.requests = Requests(options.control, options.off_cpu_period_ns, options.rotation is not None, signals, say)
        self.control, self.ring_fds = self.requests.control, collector.ring_fds
        self.files = FileSeries(options, collector, self.requests, say)
        self.summary, self.close, self.finish_somehow = self.files.summary, self.files.close, self.files.finish_somehow
        self.hotplug = Hotplug(collector, options.output == STANDARD_OUTPUT, say)
        # Recordings that run for days take no CPU from others.
        self.priority = DrainPriority(not options.is_steady and not options.realtime_priority)
        self.paused = False

    def begin(self, workload: Workload | None) -> None:
        """Begin to record: track processes, describe existing tasks, enable waits, start the command, name the file."""
        files = self.files
        self.collector.track()
        files.current.describe(files.drain)
        _refuse_interrupted(self.signals)
        command = workload if self.options.target.command else None
        self.collector.pressure.begin()
        files.while_draining(lambda: self.collector.begin(command.pid if command else None))
        if workload:
            workload.start()
        files.while_draining(files.current.commit)

    def record(self, waiter: Waiter) -> None:
        """Copy rings to the file, also after pauses, until something ends the recording; then finish the file."""
        while True:
            with self.priority.raised():
                is_over = self._copy(waiter)
            if is_over or not self._pause(waiter):
                break
        if not self.paused:
            if not self.signals.received:
                self.files.while_draining(let_last_thread_leave)
            self.files.end_part(self.collector.end)
            self.files.current.finish(self.collector.span)
        elif not self.files.is_between:
            self.files.finish_paused()
        self.files.sum_up()

    def _copy(self, waiter: Waiter) -> bool:
        """Copy rings to the file until something ends the recording (return True) or pauses it (return False)."""
        flush_s = STEADY_FLUSH_S if self.options.is_steady else FLUSH_S
        next_look = time.monotonic()
        next_show = next_look + PROGRESS_S
        while not self._wait(waiter, flush_s):
            self.files.drain()
            self.priority.adapt()
            if self.requests.obey("disable"):
                return False
            if self.requests.stopping:
                break
            self.files.write_due()
            self.files.account_if_due()
            self.collector.jvms.step()
            now = time.monotonic()
            if now >= next_look:
                self._follow_cpus(waiter)
                next_look = now + LOOK_S
            if self.show and now >= next_show:
                self.show(self.files.progress())
                next_show = now + PROGRESS_S
            if self.options.rotation:
                self.files.rotate_if_due(self.options.rotation)
        return True

    def _follow_cpus(self, waiter: Waiter) -> None:
        """Open events on CPUs that came online, and describe tasks again, as some may have started there before."""
        if rings := self.hotplug.follow(self.files.current):
            waiter.add_rings(rings)
            self.files.describe_again()

    def _pause(self, waiter: Waiter) -> bool:
        """Pause the recording; return True once it has gone on, False if something ended it in the pause."""
        files = self.files
        files.end_part(self.collector.pause)
        files.current.pause(self.collector.span)
        files.while_draining(self.collector.sleep)
        self.paused = True
        self.say("Events disabled")
        self.requests.control.acknowledge()
        while True:
            # Before the first wait: commands may have come together with `disable`.
            goes_on = self.requests.obey("enable")
            if self.options.rotation and not files.is_between and files.is_due(self.options.rotation):
                files.leave()
            if goes_on:
                self._go_on(waiter)
                return True
            if self.requests.stopping or self._wait(waiter, PAUSED_S):
                return False
            if not files.is_between:
                files.drain()

    def _go_on(self, waiter: Waiter) -> None:
        """Go on after a pause, in the same file or a new one, and acknowledge the command of `--control`."""
        if not self.files.is_between:
            self._follow_cpus(waiter)  # before waits of tasks that started there are recorded
        self.files.resume()
        self.paused = False
        self.say("Events enabled")
        self.requests.control.acknowledge()

    def _wait(self, waiter: Waiter, most_s: float) -> bool:
        with self.collector.pressure.sleeping():
            return waiter.wait(most_s)


def changed_cpus(
    before: Mapping[int, int], now: Mapping[int, int], without_ring: Iterable[int] = ()
) -> tuple[list[int], list[int]]:
    """Return (CPUs that went offline, CPUs that came online), ascending, from two results of `online_since`.
    `without_ring`: CPUs that have lost their events; if one of them is online now, it was offline in between."""
    recorded = before.keys() - set(without_ring)
    online = [cpu for cpu, since in now.items() if cpu not in recorded or before[cpu] != since]
    return sorted(recorded - now.keys()), sorted(online)


class Hotplug:
    """Record on CPUs that come online, and say so for each CPU that goes offline or comes online. The kernel removes
    the perf events of a CPU that goes offline, so they are opened again when it comes back; not if `to_pipe`, as
    the head of a pipe, with the ids of events, has been read by then."""

    def __init__(self, collector: Collector, to_pipe: bool, say: Say) -> None:
        self._collector, self._to_pipe, self._say = collector, to_pipe, say
        now = online_since()
        self._cpus = {cpu: now[cpu] for cpu in collector.rings.owner.fds if cpu in now}

    def follow(self, sink: Sink) -> list[int]:
        """Open events on CPUs that came online, drain their former rings to `sink`, and say which CPUs went and came;
        return descriptors that become readable when the new rings fill."""
        before, self._cpus = self._cpus, online_since()
        offline, online = changed_cpus(before, self._cpus, self._collector.cpus_without_ring())
        for cpu in offline:
            self._say(f"CPU {cpu} went offline")
        return [fd for cpu in online for fd in self._open(cpu, sink)]

    def _open(self, cpu: int, sink: Sink) -> list[int]:
        if self._to_pipe:
            self._say(f"CPU {cpu} came online: in a pipe, only waits are recorded there, as sums")
            return []
        try:
            fds = self._collector.open_cpu(cpu, sink)
        except OSError as problem:
            self._say(f"CPU {cpu} came online and cannot be recorded in full: {problem.strerror}")
            return []
        self._say(f"CPU {cpu} came online, and is recorded from here on")
        return fds


class UserSession:
    """Run a recording of an ordinary user: of own threads, without BPF programs, pauses and further files. Rings are
    drained every TICK_S, because their records show which threads sleep and can be looked at."""

    def __init__(
        self, options: RecordOptions, collector: UserCollector, signals: RecordingSignals, say: Say, show: Say | None
    ) -> None:
        self.options, self.collector, self.signals, self.show = options, collector, signals, show
        self.control, self.ring_fds = Control(None), ()
        self.file = OutputFile(options, collector, options.output, options.target)
        self.objects = ObjectTable(collector, lambda: None)
        self.summary = Summary(self.file.shown, ring_bytes=collector.rings.data_bytes)
        say(f"[ perf-offcpu record: {losses.UNPRIVILEGED.text} ]")

    def begin(self, workload: Workload | None) -> None:
        """Begin to record: describe existing tasks, start the command, give the file its name."""
        self.collector.begin()
        self.file.describe(self.collector.drain)
        _refuse_interrupted(self.signals)
        self.collector.pressure.begin()
        if workload:
            workload.start()
        stepping_until(in_background(self.file.commit), self.collector.look)

    def record(self, waiter: Waiter) -> None:
        """Read sleeping threads, and copy rings to the file, until something ends the recording; then finish it."""
        collector, file, summary = self.collector, self.file, self.summary
        self._copy(waiter)
        collector.read_waiting()
        collector.end()
        collector.jvms.ask_all()
        collector.finish(file)
        self.objects.finish([file])
        summary.recorded_ns = collector.span.end_ns - collector.span.begin_ns
        summary.still_blocked = collector.still_blocked
        file.finish(collector.span)
        summary.complete(collector, collector.sums, file.size, self.options)

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
                due = time.monotonic() + SECOND_S
                self.collector.read_delays()
                self.collector.jvms.step()
                if self.show:
                    self.show(self.summary.progress(self.collector, 0, self.file.size))

    def finish_somehow(self) -> None:
        """Finish the file as far as possible after an error, such as a full disk."""
        self.collector.end()
        self.file.finish_somehow(self.collector.span, {}, ())

    def close(self) -> None:
        """Close the file; remove it if it has no name yet."""
        self.objects.close()
        self.file.close()
