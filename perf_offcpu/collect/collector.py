# SPDX-License-Identifier: Apache-2.0
"""The kernel's part of one recording: BPF program, perf events and rings, opened, connected and switched together.

Making a Collector takes the most time (the BPF program is compiled) and records nothing yet. It is switched on in two
steps, so that processes that already run can be read from /proc in between:

    collector = Collector(options, say)
    collector.track()       # side-band records of all processes flow into the rings
    ...                     # scan /proc
    collector.begin()       # waits and samples of the target flow, too
    ...                     # collector.drain(sink)
    collector.pause()       # only side-band records flow
    collector.resume()      # waits and samples flow again
    collector.end()         # nothing flows any more; counters and sums are final

Programs, events and rings belong to file descriptors: however the recorder ends, the kernel then removes them all."""

import contextlib
from collections.abc import Collection
from contextlib import AbstractContextManager, closing
from dataclasses import replace
from typing import Any

from numpy.typing import NDArray

from perf_offcpu import losses
from perf_offcpu.abi.attr import AttrFlag
from perf_offcpu.abi.offcpu import EVENT_NAME
from perf_offcpu.collect.bpf.program import OffCpuProgram
from perf_offcpu.collect.counters import Counter, Span, counters_event, task_event
from perf_offcpu.collect.events import evsels, perf_event
from perf_offcpu.collect.events.evsels import Support
from perf_offcpu.collect.existing.inventory import KnownTasks
from perf_offcpu.collect.existing.kernel_maps import KernelMaps
from perf_offcpu.collect.existing.maps import MappedBuildIds
from perf_offcpu.collect.jvms import Jvms
from perf_offcpu.collect.kernel_totals.user_stacks import Unread
from perf_offcpu.collect.options import RecordOptions, bpf_config
from perf_offcpu.collect.python.processes import PythonProcesses
from perf_offcpu.collect.rings.pressure import Pressure, run_delay
from perf_offcpu.collect.rings.rings import Rings, Sink, default_ring_bytes
from perf_offcpu.collect.rings.side_band import SideBand
from perf_offcpu.collect.sampling import OutputEvents, SamplingEvents
from perf_offcpu.collect.system.clock import now_ns
from perf_offcpu.collect.system.cpus import online_cpus
from perf_offcpu.collect.targets import descendants
from perf_offcpu.collect.task_readings import TaskReader, TaskReadings
from perf_offcpu.losses import LossCause, Losses
from perf_offcpu.perfdata.events import EventSpec
from perf_offcpu.structs import Closing
from perf_offcpu.text import Say

SIDE_RING_BYTES = 512 << 10  # size of each ring of side-band records: room for some thousand execs between two drains
LAST_RUN_NS = 10_000_000  # longest time after the end in which a BPF program that runs at the end may write a record


def _loop_reader() -> TaskReader:
    from perf_offcpu.collect.python.event_loops import LoopReader

    return LoopReader()


def _goroutine_reader(lost: Losses) -> TaskReader:
    from perf_offcpu.collect.go.goroutines import GoroutineReader  # 5 ms

    return GoroutineReader(lost)


class Collector(Closing):
    """Own and switch the BPF programs, perf events and rings of one recording.

    `say` is called with a sentence for each deviation from the options. Raises CapabilityError: the machine lacks
    a feature, or the user a privilege; RecordingError: the kernel refuses a program, an event or a ring.

    Attributes:
        span: the time in which waits are recorded, since the last `resume`; its end is 0 until `pause` or `end`.
        draws_stacks: True if sums of short waits have no stack, and stacks of randomly drawn waits are taken.
        rings: the rings of samples.
        pressure: measures the time between two drains.
        build_ids: build-ids of mapped files.
        pythons, jvms: followers of the processes that run CPython, and JVMs.
        task_readings: readings of the tasks of event loops, and of goroutines.
        unread: counts of stacks and other data that could not be read from other processes.
        known_tasks, known_kernel: records of tasks and kernel made for one file, to be used again in the next.
        counters_event, task_event: the events of samples that the recorder itself makes and writes; they have no ring.
    """

    def __init__(self, options: RecordOptions, say: Say) -> None:
        self.options, self._say = options, say
        self.span = Span(0, 0, options.least_ns)
        with contextlib.ExitStack() as stack:
            cpus = online_cpus()
            support = self._probe_support(cpus[0])
            defers = bool(support.sampling_flags & AttrFlag.DEFER_CALLCHAIN)
            self.program = stack.enter_context(OffCpuProgram(bpf_config(options, defers)))
            self.draws_stacks = self.program.draws_stacks
            self._open_rings(support, cpus, defers and self.program.ends_at_exit, stack)
            self.pressure = Pressure(runnable=stack.enter_context(run_delay()))
            self.build_ids = MappedBuildIds()
            self.known_tasks, self.known_kernel = KnownTasks(), KernelMaps()
            self.unread = Unread()
            self._loops, lost = frozenset[int](), self.unread.lost
            self.pythons = stack.enter_context(closing(PythonProcesses(lost, self._recorded, self.program.maps)))
            self.task_readings = [
                TaskReadings(_loop_reader, options.task_rate_hz, self._recorded_loops, lost),
                TaskReadings(lambda: _goroutine_reader(lost), options.goroutine_rate_hz, self._recorded, lost),
            ]
            for readings in self.task_readings:
                stack.callback(readings.stop)
            says_ended = options.target.is_system or bool(options.command)
            maps = self.program.maps if self.program.follows_jvms else None
            self.jvms = Jvms(say, lost, self._recorded, maps, asks=options.asks_jvms, says_ended=says_ended)
            self._followers = (self.pythons, self.jvms) if self.program.reads_python else (self.jvms,)
            side_band = SideBand(self.build_ids, self.known_kernel, lost, self._followers)
            self._side_band = stack.enter_context(closing(side_band))
            sampling = SamplingEvents(options, support, self.rings.owner, self.program.filter_fd, say)
            self._sampling = stack.enter_context(closing(sampling))
            python = self.program.names_on_cpu and bool(options.events)
            outputs = OutputEvents(self.rings.owner, self.program.maps.set_output, python)
            self._outputs = stack.enter_context(closing(outputs))
            stack.callback(self.program.close)  # before the events that it writes to
            self.counters_event, self.task_event = counters_event(support), task_event(support)
            self._failures = self.program.maps.output_failures()
            for cpu, fd in self.rings.owner.fds.items():
                self.program.maps.set_output(cpu, fd)
            self.program.attach()
            self._resources = stack.pop_all()

    def _probe_support(self, cpu: int) -> Support:
        support = evsels.probe_support(cpu)
        if not self.options.deferred_stacks:
            return support
        deferring = evsels.with_deferral(support, cpu)
        if deferring is None:
            self._say("this kernel does not defer user callchains (Linux 7.0 and newer do): they are walked at once")
        return deferring or support

    def _open_rings(self, support: Support, cpus: tuple[int, ...], deferred: bool, stack: contextlib.ExitStack) -> None:
        """Open the events that own the rings of samples (`rings`) and of side-band records (`_side_rings`); `stack`
        closes them. `deferred`: let the kernel walk the user stacks of waits later."""
        options, wait_bytes = self.options, self.options.stack_bytes
        if wait_bytes and not self.program.ends_at_exit:
            self._say("stacks of waits are walked along frame pointers: no sched_exit_tp in this kernel, no kprobes")
            wait_bytes = 0
        on_cpu_rate = options.frequency_hz * len(options.events)
        rate = options.max_rate + on_cpu_rate if options.max_rate and not options.period else 0
        self.rings = Rings(
            EVENT_NAME,
            lambda wakeup: evsels.offcpu_attr(support, wakeup, wait_bytes, deferred),
            cpus,
            options.ring_bytes or default_ring_bytes(len(cpus), wait_bytes > 0, rate),
            self._say,
        )
        stack.callback(self.rings.close)
        self._side_rings = Rings(
            evsels.TRACKER_NAME,
            lambda wakeup: evsels.tracker_attr(support, wakeup, data_maps=options.stack_bytes > 0),
            cpus,
            self.rings.data_bytes if options.deferred_stacks else SIDE_RING_BYTES,
            lambda text: None,  # the user did not ask for this size
        )
        stack.callback(self._side_rings.close)

    @property
    def events(self) -> list[EventSpec]:
        """All events in the file's order: on-CPU events, offcpu-time, side band, Python functions, counters, tasks."""
        waits = self.rings.owner.spec
        copies = [event for event in self._outputs if event.name == waits.name]
        python = [event.spec for event in self._outputs if event.name != waits.name]
        waits = replace(waits, ids=(*waits.ids, *(number for event in copies for number in event.ids)))
        sampling = [event.spec for event in self._sampling]
        tasks = [self.task_event] if self.options.task_rate_hz or self.options.goroutine_rate_hz else []
        return [*sampling, waits, self._side_rings.owner.spec, *python, self.counters_event, *tasks]

    @property
    def ring_fds(self) -> list[int]:
        """Descriptors of all rings; each becomes readable when its ring is so full that it wakes the recorder."""
        return [fd for rings in (self.rings, self._side_rings) for fd in rings.owner.fds.values()]

    def track(self) -> None:
        """Enable side-band records: forks, exits, comms and mmaps of all processes flow into the rings."""
        self.known_kernel.changes += 1  # earlier changes came without records
        self._side_rings.owner.enable()

    def begin(self, command_pid: int | None) -> None:
        """Add the targets, and let their waits and on-CPU samples flow into the rings. `command_pid`: the process that
        will exec the target command; None if no command is the target."""
        self._add_targets()
        if command_pid is not None:
            self.program.maps.add_target(command_pid, mode="target_armed")
            self.jvms.family.add(command_pid)
        self.resume()

    def resume(self) -> None:
        """Go on after `pause`, or after `end` and `track`. Children of targets, born meanwhile, are recorded, too."""
        self.rings.owner.enable()
        self._outputs.enable()
        self.span = Span(now_ns(), 0, self.options.least_ns)
        self.program.enable()
        self._sampling.enable()
        for readings in self.task_readings:
            readings.start()

    def _add_targets(self) -> None:
        target, maps = self.options.target, self.program.maps
        ids = {"process": target.processes, "thread": target.threads, "user": target.users, "cpu": target.cpus}
        for kind, numbers in ids.items():
            for number in numbers:
                maps.add_target(number, kind)
        for number in descendants(target.roots) if target.roots else ():  # again: there may be more by now
            maps.add_target(number, "process")
        for comm in target.comms:
            maps.add_comm(comm)
        for group in target.groups:
            maps.add_group(group.id)

    def pause(self) -> None:
        """Stop waits and samples; side-band records flow on, so that `resume` can follow. Blocks until no BPF program
        runs; another thread can drain the rings meanwhile."""
        for readings in self.task_readings:
            readings.stop()
        self._sampling.disable()
        self.program.disable()
        end_ns = min(now_ns(), self.program.maps.end_ns + LAST_RUN_NS)
        self.span = Span(self.span.begin_ns, end_ns, self.options.least_ns)
        self.rings.owner.disable()
        self._outputs.disable()

    def end(self) -> None:
        """Stop everything; when this returns, no record is written any more. Blocks until no BPF program runs."""
        if not self.span.end_ns:  # else a second pause would move the end of the span
            self.pause()
        self._side_rings.owner.disable()

    def sleep(self) -> None:
        """Detach the BPF programs until `wake`, if the recording may run for days (`is_steady`). Call after `pause`."""
        if self.options.is_steady:
            self.program.detach()

    def wake(self) -> None:
        """Attach the BPF programs again if `sleep` has detached them; call before `resume`."""
        if self.options.is_steady:
            self.program.attach()

    def drain(self, sink: Sink) -> None:
        """Move the content of all rings to `sink`. If the sink raises an error, the rings keep what it did not take."""
        with self.pressure.draining(lambda: max(self.rings.last_fill, self._side_rings.last_fill)):
            self._side_band.sink = sink
            self._side_band.meanwhile = self.pythons.meanwhile = lambda: self.rings.drain(sink)
            self._side_rings.drain(self._side_band)
            self.rings.drain(sink)
        self.pythons.count_unread()

    def side_band_also_to(self, sink: Sink) -> AbstractContextManager[None]:
        """Return a context manager; within it, drained side-band records are also written to this second sink."""
        return self._side_band.also_to(sink)

    def waiting_records(self) -> int:
        """Return the number of records in all rings."""
        return self.rings.waiting_records() + self._side_rings.waiting_records()

    def cpus_without_ring(self) -> list[int]:
        """Return the CPUs on which a sample found no perf event since the last call, as they have been offline."""
        before, self._failures = self._failures, self.program.maps.output_failures()
        return [cpu for cpu, (new, old) in enumerate(zip(self._failures, before, strict=True)) if new > old]

    def open_cpu(self, cpu: int, sink: Sink) -> list[int]:
        """Record on a CPU that came online, and drain its former rings to `sink`; return descriptors of its new rings,
        readable when they fill. Raises OSError: an event or ring is refused; this CPU is then recorded in part."""
        self._side_band.sink = sink
        fds = [self._side_rings.renew(cpu, self._side_band), self.rings.renew(cpu, sink)]
        for fd in fds:
            perf_event.enable(fd)
        self.program.maps.set_output(cpu, self.rings.owner.fds[cpu])
        self._outputs.reopen(cpu)
        self._failures = self.program.maps.output_failures()
        self._sampling.reopen(cpu, starting=not self.span.end_ns)  # in a pause, `resume` starts them
        return fds

    def lost_by_id(self) -> dict[int, int]:
        """Return event id (one for each event and CPU) → number of records that found a full ring, without zeros."""
        events = (*self._sampling, self.rings.owner, *self._outputs, self._side_rings.owner)
        return dict(lost for event in events for lost in event.lost())

    def oncpu_samples(self) -> int:
        """Return the number of samples of the on-CPU events that went into the rings."""
        return self._sampling.samples(passed=self.program.counters()["oncpu_samples"])

    def counters(self) -> dict[LossCause, Counter]:
        """Return cause → counter: of the BPF program, of data unread in other processes, of the rate limit."""
        counts = self.program.counters()
        counters = {
            losses.CAUSES[name.replace("_", "-")]: Counter(count, counts.get(f"{name}_ns", 0))
            for name, count in counts.items()
            if name != "oncpu_samples" and not name.endswith("_ns")
        }
        counters |= {cause: Counter(count) for cause, count in self.unread.lost.copy().items()}
        rate = self.program.maps.rate()
        return counters | {losses.THRESHOLD_RAISED: Counter(rate["raised"], rate["highest_ns"])}

    def _recorded(self) -> set[int]:
        """Return the pids of recorded processes that live."""
        return set(self.program.last_tasks().tasks["pid"].tolist())

    def _recorded_loops(self) -> Collection[int]:
        """Return the pids of recorded processes that run a Python whose event loops can be read."""
        pids = self.pythons.pids
        if pids - self._loops:
            self._loops = pids & self._recorded()
        return pids & self._loops

    def note_existing(self, records: bytes) -> None:
        """Let the followers of CPython and JVMs see records of mappings that existed at the begin of a file."""
        for follower in self._followers:
            follower.see(records)

    def take_objects(self) -> NDArray[Any]:
        """Return the wait objects that were new since the last call, as rows of `struct offcpu_object`."""
        return self.program.maps.take_objects()

    def run_stats(self) -> dict[str, tuple[int, int]]:
        """Return name → (runs, ns) of each BPF program."""
        return {name: (stat.run_cnt, stat.run_time_ns) for name, stat in self.program.run_stats().items()}

    @property
    def threshold_ns(self) -> int:
        """Length of the shortest wait that becomes a sample now, ns: as asked for, or more if the rate is limited."""
        return max(self.options.threshold_ns, self.program.maps.rate()["threshold_ns"])

    def close(self) -> None:
        """Close all programs, events and rings."""
        self._resources.close()
