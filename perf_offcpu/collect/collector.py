# SPDX-License-Identifier: Apache-2.0
"""The kernel side of one recording, wired together: BPF program, perf events, rings.

Making it costs the most (the BPF program is compiled) and changes nothing yet; then it is switched on in
two steps, because what already runs must be looked at in between:

    collector = Collector(options, say)
    collector.track()       # side-band records of everybody flow into the rings
    ...                     # scan /proc
    collector.begin()       # waits and samples of the target flow, too
    ...                     # collector.drain(sink)
    collector.end()         # nothing flows any more; counters and sums are final

Everything here lives in file descriptors: when the recorder goes, however it goes, the kernel takes it all
away.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from types import TracebackType
from typing import Self

from perf_offcpu import losses
from perf_offcpu.abi.attr import AttrFlag, PerfType
from perf_offcpu.abi.offcpu import EVENT_NAME
from perf_offcpu.collect.bpf.config import OffCpuConfig, Targets
from perf_offcpu.collect.bpf.program import OffCpuProgram
from perf_offcpu.collect.events import perf_event
from perf_offcpu.collect.events.evsels import (
    TRACKER_NAME,
    CpuEvent,
    Rate,
    Support,
    offcpu_attr,
    open_sampling,
    probe_support,
    sampling_attr,
    tracker_attr,
    with_deferral,
)
from perf_offcpu.collect.events.parser import SamplingEvent
from perf_offcpu.collect.kernel_totals.losses import Counter, Span, counters_event
from perf_offcpu.collect.kernel_totals.totals import Kept
from perf_offcpu.collect.options import RecordOptions
from perf_offcpu.collect.rings.rings import Sink, default_ring_bytes, open_rings
from perf_offcpu.collect.rings.side_band import MappedBuildIds, SideBand
from perf_offcpu.collect.system.clock import now_ns
from perf_offcpu.collect.system.cpus import online_cpus
from perf_offcpu.collect.targets import TargetKind
from perf_offcpu.losses import LossCause
from perf_offcpu.perfdata.events import EventSpec

SIDE_RING_BYTES = 512 << 10
"""Of side-band records, per CPU: room for some thousand execs between two looks."""

_BPF_TARGETS = {
    TargetKind.SYSTEM: Targets.ALL,
    TargetKind.PROCESSES: Targets.PIDS,
    TargetKind.THREADS: Targets.TIDS,
    TargetKind.TASKS: Targets.TASKS,
    TargetKind.COMMAND: Targets.COMMAND,
}


class Collector:
    """Programs, events and rings of one recording.

    Args:
        options: what is recorded.
        say: is told what is not quite as asked for.

    Raises:
        CapabilityError: the machine or the user lacks something.
        RecordingError: the kernel refuses a part.
    """

    def __init__(self, options: RecordOptions, say: Callable[[str], None]) -> None:
        self.options = options
        self.span = Span(0, 0, options.threshold_ns)
        with contextlib.ExitStack() as stack:
            cpus = online_cpus()
            support = self._support(cpus[0], say)
            defers = bool(support.sampling_flags & AttrFlag.DEFER_CALLCHAIN)
            self.program = stack.enter_context(OffCpuProgram(_bpf_config(options, defers)))
            wait_bytes = self._wait_bytes(say)
            deferred = defers and self.program.ends_at_exit
            self.rings = open_rings(
                EVENT_NAME,
                lambda wakeup: offcpu_attr(support, wakeup, wait_bytes, deferred),
                cpus,
                options.ring_bytes or default_ring_bytes(len(cpus), wait_bytes > 0),
                say,
            )
            stack.callback(self.rings.close)
            self._side_rings = open_rings(
                TRACKER_NAME,
                lambda wakeup: tracker_attr(support, wakeup, data_maps=options.stack_bytes > 0),
                cpus,
                self.rings.data_bytes if options.deferred_stacks else SIDE_RING_BYTES,
                lambda text: None,  # of no concern to the user, who did not ask for a size
            )
            stack.callback(self._side_rings.close)
            self.build_ids = MappedBuildIds()
            self._side_band = SideBand(self.build_ids)
            chosen = options.target.cpus or cpus
            self._sampling = [
                stack.enter_context(contextlib.closing(self._open_sampling(event, support, chosen, say)))
                for event in options.events
            ]
            stack.callback(self.program.close)  # before the events that it writes to
            self._counters_event = counters_event(support)
            self.kept = Kept(self.program, self.rings.owner.spec, self._counters_event)
            self._failures = self.program.output_failures()
            self._wire()
            self._resources = stack.pop_all()

    def _wait_bytes(self, say: Callable[[str], None]) -> int:
        """How many bytes of user stacks samples of waits have."""
        if self.options.stack_bytes and not self.program.ends_at_exit:
            say(
                "stacks of waits are walked along frame pointers: no sched_exit_tp in this kernel, no kprobes"
            )
            return 0
        return self.options.stack_bytes

    def _support(self, cpu: int, say: Callable[[str], None]) -> Support:
        support = probe_support(cpu)
        if not self.options.deferred_stacks:
            return support
        deferring = with_deferral(support, cpu)
        if deferring is None:
            say("this kernel does not defer user callchains (Linux 7.0 and newer do): they are taken at once")
        return deferring or support

    def _open_sampling(
        self, event: SamplingEvent, support: Support, cpus: tuple[int, ...], say: Callable[[str], None]
    ) -> CpuEvent:
        options = self.options
        rate = Rate(options.frequency_hz, options.period)
        attr = sampling_attr(
            event, support, rate, options.kernel_stacks, options.all_cgroups, options.stack_bytes
        )

        def fallback(other: SamplingEvent) -> CpuEvent:
            say(f"event {event.name}: no hardware counter for it on this machine, using {other.name} instead")
            return self._open_sampling(other, support, cpus, say)

        return open_sampling(event, attr, cpus, fallback)

    def _wire(self) -> None:
        """Lead all events into the rings and all filters to the events."""
        for event in self._sampling:
            event.redirect(self.rings.owner)
        for event in self._filtered:
            event.filter_by(self.program.filter_fd)
        for cpu, fd in self.rings.owner.fds.items():
            self.program.set_output(cpu, fd)
        self.program.attach()

    @property
    def _filtered(self) -> list[CpuEvent]:
        """Sampling events but tracepoints: a program there would filter for all who record it, not for us."""
        return [event for event in self._sampling if event.attr.type != PerfType.TRACEPOINT]

    @property
    def events(self) -> list[EventSpec]:
        """The events as the file describes them, in its order."""
        return [event.spec for event in self._cpu_events()] + [self._counters_event]

    @property
    def counters_event(self) -> EventSpec:
        """The event of the counters' sample."""
        return self._counters_event

    def cpus_without_ring(self) -> list[int]:
        """CPUs on which samples of waits found no event since the last call: they were offline meanwhile."""
        before, self._failures = self._failures, self.program.output_failures()
        return [cpu for cpu, (new, old) in enumerate(zip(self._failures, before, strict=True)) if new > old]

    def revive(self, cpu: int, sink: Sink) -> list[int]:
        """Record on a CPU that came online, or came back: the kernel has taken all events off it.

        Returns:
            Descriptors that become readable when its rings have filled to some degree.

        Raises:
            OSError: the kernel refuses something; what works, works.
        """
        self._side_band.sink = sink
        fds = [self._side_rings.renew(cpu, self._side_band), self.rings.renew(cpu, sink)]
        for event in (self._side_rings.owner, self.rings.owner):
            perf_event.enable(event.fds[cpu])
        self.program.set_output(cpu, self.rings.owner.fds[cpu])
        self._failures = self.program.output_failures()
        if self.options.target.cpus and cpu not in self.options.target.cpus:
            return fds
        for event in self._sampling:
            fd = event.reopen(cpu)
            event.redirect_on(cpu, self.rings.owner)
            if event in self._filtered:
                perf_event.set_filter(fd, self.program.filter_fd)
            perf_event.enable(fd)
        return fds

    def _cpu_events(self) -> list[CpuEvent]:
        return [*self._sampling, self.rings.owner, self._side_rings.owner]

    def track(self) -> None:
        """From here on births, deaths, names and maps of everybody go into the rings."""
        self._side_rings.owner.enable()

    def begin(self, command_pid: int | None) -> None:
        """From here on waits and samples of the target go into the rings.

        Args:
            command_pid: the process that will become the command, if that is the target.
        """
        self.rings.owner.enable()
        self._add_targets()
        if command_pid is not None:
            self.program.arm_command(command_pid)
        self.span = Span(now_ns(), 0, self.options.threshold_ns)
        self.program.enable()
        for event in self._sampling:
            event.enable()

    def _add_targets(self) -> None:
        target = self.options.target
        named = {
            "process": target.processes,
            "thread": target.threads,
            "user": target.users,
            "cpu": target.cpus,
        }
        for kind, ids in named.items():
            for one in ids:
                self.program.add_target(one, kind)
        for comm in target.comms:
            self.program.add_comm(comm)
        for group in target.groups:
            self.program.add_group(group.id)

    def end(self) -> None:
        """Stop everything; when this returns, no record is written any more."""
        for event in self._sampling:
            event.disable()
        self.program.disable()
        self.span = Span(self.span.begin_ns, now_ns(), self.options.threshold_ns)
        self._side_rings.owner.disable()
        self.rings.owner.disable()

    def drain(self, sink: Sink) -> None:
        """Move everything that waits in any ring to `sink`; errors as of the sink, with nothing lost."""
        self._side_band.sink = sink
        self._side_rings.drain(self._side_band)
        self.rings.drain(sink)

    @property
    def fill(self) -> float:
        """How full the fullest ring was when they were emptied last, 0 to 1."""
        return max(self.rings.last_fill, self._side_rings.last_fill)

    def waiting_records(self) -> int:
        """How many records wait in all rings."""
        return self.rings.waiting_records() + self._side_rings.waiting_records()

    @property
    def ring_fds(self) -> list[int]:
        """Descriptors that become readable when a ring has filled to some degree."""
        return [fd for rings in (self.rings, self._side_rings) for fd in rings.owner.fds.values()]

    def lost_by_id(self) -> dict[int, int]:
        """How many records found a ring full, by the ids of events."""
        return dict(one for event in self._cpu_events() for one in event.lost())

    def lost(self) -> int:
        """How many records found a ring full."""
        return sum(self.lost_by_id().values())

    def oncpu_samples(self) -> int:
        """How many samples of the on-CPU events went into the file."""
        lost = sum(lost for event in self._sampling for _, lost in event.lost())
        unfiltered = [event for event in self._sampling if event not in self._filtered]
        counted = sum(event.counted() // event.attr.sample_period for event in unfiltered)
        return self.program.counters()["oncpu_samples"] + counted - lost

    def counters(self) -> dict[LossCause, Counter]:
        """Return the counters of waits: those of the BPF program and of the rate limit."""
        counts = self.program.counters()
        for name in ("oncpu_samples", "oncpu_samples_ns"):
            del counts[name]
        found = {
            losses.CAUSES[name.replace("_", "-")]: Counter(count, counts.get(f"{name}_ns", 0))
            for name, count in counts.items()
            if not name.endswith("_ns")
        }
        rate = self.program.rate()
        return found | {losses.THRESHOLD_RAISED: Counter(rate["raised"], rate["highest_ns"])}

    @property
    def threshold_ns(self) -> int:
        """From how many ns on a wait is a sample now: as asked for, or what the limited rate makes of it."""
        return max(self.options.threshold_ns, self.program.rate()["threshold_ns"])

    def run_stats(self) -> dict[str, tuple[int, int]]:
        """(runs, ns) of each BPF program; 0 unless sysctl kernel.bpf_stats_enabled is 1."""
        stats = self.program.run_stats()
        return {name: (one.runs, one.run_time_ns) for name, one in stats.items()}

    def close(self) -> None:
        """Give everything back to the kernel."""
        self._resources.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def _bpf_config(options: RecordOptions, deferred_stacks: bool) -> OffCpuConfig:
    target = options.target
    entries = sum(map(len, (target.ids, target.users, target.cpus, target.groups, target.comms)))
    return OffCpuConfig(
        targets=_BPF_TARGETS[target.kind],
        by_cpu=bool(target.cpus),
        by_user=bool(target.users),
        by_comm=bool(target.comms),
        by_group=target.groups[0].controller if target.groups else None,
        threshold_ns=options.threshold_ns,
        kernel_stacks=options.kernel_stacks,
        sum_callers=options.stack_bytes > 0,
        short_waits=options.short_waits,
        min_block_ns=options.min_block_ns,
        max_rate=options.max_rate,
        states=options.states,
        kernel_threads=options.kernel_threads,
        deferred_stacks=deferred_stacks,
        in_sleeper=options.stack_bytes > 0,
        wakers=options.wakers,
        waker_stacks=options.waker_stacks,
        budget=options.budget,
        cgroups=True,
        target_entries=max(1024, entries),
    )
