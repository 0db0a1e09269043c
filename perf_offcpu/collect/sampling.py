# SPDX-License-Identifier: Apache-2.0
"""Open the on-CPU events of `-e`, let them write into the rings of waits, and count their samples."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from perf_offcpu.abi.attr import AttrFlag, PerfType
from perf_offcpu.collect.events import perf_event
from perf_offcpu.collect.events.evsels import CpuEvent, Support, sampling_attr
from perf_offcpu.collect.events.parser import SamplingEvent
from perf_offcpu.collect.options import RecordOptions
from perf_offcpu.errors import CapabilityError


class SamplingEvents:
    """The on-CPU events of a recording, open on the CPUs of its target.

    Args:
        options: the events, their rate and their stacks.
        support: capabilities of the kernel's perf events.
        owner: the event that owns the rings, on all CPUs.
        filter_fd: the BPF program that lets only samples of the target pass.
        say: is called with a sentence if an event stands in for another.

    Raises:
        CapabilityError, RecordingError: the kernel refuses an event.
    """

    def __init__(
        self,
        options: RecordOptions,
        support: Support,
        owner: CpuEvent,
        filter_fd: int,
        say: Callable[[str], None],
    ) -> None:
        self._options, self._support, self._owner, self._say = options, support, owner, say
        self._filter_fd, self._events = filter_fd, list[CpuEvent]()
        try:
            for event in options.events:
                self._events.append(self._open(event, options.target.cpus or tuple(owner.fds)))
            for opened in self:
                for cpu in opened.fds:
                    self._wire(opened, cpu)
        except BaseException:
            self.close()
            raise

    def _open(self, event: SamplingEvent, cpus: tuple[int, ...]) -> CpuEvent:
        """Open an event, or the one that perf takes where the hardware does not count it."""
        options = self._options
        rate = options.frequency_hz, options.period
        attr = sampling_attr(
            event, self._support, *rate, options.kernel_stacks, options.all_cgroups, options.stack_bytes
        )
        for precise in (3, 2, 1) if event.most_precise else ():
            with contextlib.suppress(CapabilityError):
                flags = attr.flags | AttrFlag(precise * AttrFlag.PRECISE_IP_1)
                return CpuEvent(event.name, attr._replace(flags=flags), cpus)
        try:
            return CpuEvent(event.name, attr, cpus)
        except CapabilityError:
            other = event.fallback()
            if other is None:
                raise
        missing = f"event {event.name}: no hardware counter for it on this machine"
        self._say(f"{missing}, using {other.name} instead")
        return self._open(other, cpus)

    def _wire(self, event: CpuEvent, cpu: int) -> None:
        perf_event.redirect(event.fds[cpu], self._owner.fds[cpu])
        if _is_filtered(event):
            perf_event.set_filter(event.fds[cpu], self._filter_fd)

    def __iter__(self) -> Iterator[CpuEvent]:
        return iter(self._events)

    def enable(self) -> None:
        """Start all events."""
        for event in self:
            event.enable()

    def disable(self) -> None:
        """Stop all events."""
        for event in self:
            event.disable()

    def reopen(self, cpu: int, starting: bool) -> None:
        """Open the events on a CPU that came online, if it is of the target, and start them if asked to.

        Raises:
            OSError: the kernel refuses one.
        """
        if self._options.target.cpus and cpu not in self._options.target.cpus:
            return
        for event in self:
            fd = event.reopen(cpu)
            self._wire(event, cpu)
            if starting:
                perf_event.enable(fd)

    def samples(self, passed: int) -> int:
        """Return the number of samples in the rings.

        Args:
            passed: the number of samples that the filter program let pass.
        """
        lost = sum(lost for event in self for _, lost in event.lost())
        unfiltered = [event for event in self if not _is_filtered(event)]
        return passed + sum(event.counted() // event.attr.sample_period for event in unfiltered) - lost

    def close(self) -> None:
        """Give the events back to the kernel."""
        for event in self:
            event.close()


def _is_filtered(event: CpuEvent) -> bool:
    """Return whether a BPF program may filter the event: on a tracepoint it would for all recorders."""
    return event.attr.type != PerfType.TRACEPOINT
