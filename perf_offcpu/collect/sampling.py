# SPDX-License-Identifier: Apache-2.0
"""Events that write into the rings of waits: the on-CPU events of `-e`, the Python functions of their samples, and
offcpu-time events for other sizes of user stack copies. The perf core copies as much of the user stack as an event asks
for, so BPF sends samples of waits through an event for each size. All sizes have one sample layout, because a sample
states the size of its copy; in the file they are one event with more ids. bpf/copies.h chooses the size."""

import contextlib
from collections.abc import Callable, Iterable, Iterator

from perf_offcpu.abi.attr import AttrFlag, PerfType, SampleType
from perf_offcpu.abi.offcpu import LARGEST_COPY, PYTHON_EVENT, REFERENCE_BYTES
from perf_offcpu.collect.events import perf_event
from perf_offcpu.collect.events.evsels import SAMPLE_TYPE, CpuEvent, Support, sampling_attr
from perf_offcpu.collect.events.parser import SamplingEvent
from perf_offcpu.collect.options import RecordOptions
from perf_offcpu.errors import CapabilityError
from perf_offcpu.text import Say


class SharingEvents:
    """Events that write into the rings of `owner`, an event that is open on all CPUs; enabled and closed together."""

    def __init__(self, owner: CpuEvent) -> None:
        self._owner = owner
        self._events: list[CpuEvent] = []

    def __iter__(self) -> Iterator[CpuEvent]:
        return iter(self._events)

    def _take(self, events: Iterable[CpuEvent]) -> None:
        """Add events, which the iterator opens, and redirect each to the owner's rings; close all if one fails."""
        with contextlib.ExitStack() as stack:
            stack.callback(self.close)
            for event in events:
                self._events.append(event)
                for cpu in event.fds:
                    self._redirect(event, cpu)
            stack.pop_all()

    def _redirect(self, event: CpuEvent, cpu: int) -> None:
        perf_event.redirect(event.fds[cpu], self._owner.fds[cpu])

    def enable(self) -> None:
        """Enable all events on all their CPUs."""
        for event in self:
            event.enable()

    def disable(self) -> None:
        """Disable all events on all their CPUs."""
        for event in self:
            event.disable()

    def reopen(self, cpu: int, starting: bool = True) -> None:
        """Open the events on a CPU that came online; enable them if `starting`. Raises OSError."""
        for event in self:
            fd = event.reopen(cpu)
            self._redirect(event, cpu)
            if starting:
                perf_event.enable(fd)

    def close(self) -> None:
        """Close the descriptors of all events."""
        for event in self:
            event.close()


class SamplingEvents(SharingEvents):
    """Open the on-CPU events of a recording (`-e`) on the CPUs of its target. Raises CapabilityError, RecordingError:
    the kernel refuses an event. `options`: the events, their rate and their stacks. `filter_fd`: the BPF program that
    lets only samples of the target pass. `say`: is called with a message if an event is replaced by its `fallback`."""

    def __init__(self, options: RecordOptions, support: Support, owner: CpuEvent, filter_fd: int, say: Say) -> None:
        super().__init__(owner)
        self._options, self._support, self._filter_fd, self._say = options, support, filter_fd, say
        self._take(self._open(event, options.target.cpus or tuple(owner.fds)) for event in options.events)

    def _open(self, event: SamplingEvent, cpus: tuple[int, ...]) -> CpuEvent:
        """Open an event on these CPUs, for `:P` with the highest precise_ip that the kernel accepts; open its
        `fallback` instead if there is no hardware counter for it."""
        options = self._options
        stacks = options.kernel_stacks, options.all_cgroups, options.stack_bytes
        attr = sampling_attr(event, self._support, options.frequency_hz, options.period, *stacks)
        for precise in (3, 2, 1) if event.most_precise else ():
            with contextlib.suppress(CapabilityError):
                flags = attr.flags | AttrFlag(precise * AttrFlag.PRECISE_IP_1)
                return CpuEvent(event.name, attr._replace(flags=flags), cpus)
        try:
            return CpuEvent(event.name, attr, cpus)
        except CapabilityError:
            substitute = event.fallback()
            if substitute is None:
                raise
        missing = f"event {event.name}: no hardware counter for it on this machine"
        self._say(f"{missing}, using {substitute.name} instead")
        return self._open(substitute, cpus)

    def _redirect(self, event: CpuEvent, cpu: int) -> None:
        super()._redirect(event, cpu)
        if _is_filtered(event):
            perf_event.set_filter(event.fds[cpu], self._filter_fd)

    def reopen(self, cpu: int, starting: bool = True) -> None:
        """Open the events on a CPU that came online, unless the target is limited to other CPUs."""
        if not self._options.target.cpus or cpu in self._options.target.cpus:
            super().reopen(cpu, starting)

    def samples(self, passed: int) -> int:
        """Return the number of samples written so far. `passed`: number of samples that the filter program accepted."""
        lost = sum(lost for event in self for _, lost in event.lost())
        unfiltered = [event for event in self if not _is_filtered(event)]
        return passed + sum(event.counted() // event.attr.sample_period for event in unfiltered) - lost


def _is_filtered(event: CpuEvent) -> bool:
    """Return True if a BPF program filters the event; False for a tracepoint, where it would filter for all
    recorders."""
    return event.attr.type != PerfType.TRACEPOINT


def copy_sizes(stack_bytes: int) -> dict[str, int]:
    """Return name of a BPF map of events → bytes of user stack that its events copy, for all sizes except
    `stack_bytes`, which the map `events` has."""
    return {
        "events_bare": REFERENCE_BYTES,
        "events_quarter": max(REFERENCE_BYTES, stack_bytes // 32 * 8),
        "events_double": min(2 * stack_bytes, LARGEST_COPY),
        "events_fourfold": min(4 * stack_bytes, LARGEST_COPY),
    }


class OutputEvents(SharingEvents):
    """Open an event for each size of user stack copies (`copy_sizes`), if the owner copies stacks; and, if `python`,
    the event with the Python functions of on-CPU samples. `set_output`: is called with CPU, descriptor and BPF map."""

    def __init__(self, owner: CpuEvent, set_output: Callable[[int, int, str], None], python: bool) -> None:
        super().__init__(owner)
        self._set_output, attr = set_output, owner.attr
        sizes = copy_sizes(attr.sample_stack_user) if attr.sample_stack_user else {}
        plain = attr._replace(sample_type=SAMPLE_TYPE | SampleType.RAW, sample_regs_user=0, sample_stack_user=0)
        outputs = [(name, owner.name, attr._replace(sample_stack_user=size)) for name, size in sizes.items()]
        outputs += [("events_python", PYTHON_EVENT, plain)] if python else []
        self._maps = [name for name, _, _ in outputs]
        self._take(CpuEvent(name, attr, owner.fds) for _, name, attr in outputs)

    def _redirect(self, event: CpuEvent, cpu: int) -> None:
        super()._redirect(event, cpu)
        self._set_output(cpu, event.fds[cpu], self._maps[self._events.index(event)])
