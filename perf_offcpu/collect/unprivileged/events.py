# SPDX-License-Identifier: Apache-2.0
"""The perf events that an ordinary user may open: of own threads, on each CPU, inherited by threads and children. The
tracker, a dummy event, asks for SWITCH records, which have the exact times at which a thread leaves and gets a CPU, and
for side-band records. The on-CPU events write into its rings. If kernel.perf_event_paranoid is 2 or more, samples have
user frames only; else each switch is a sample with the kernel's callchain."""

import contextlib
from collections.abc import Iterable, Iterator
from typing import Final

from perf_offcpu.abi.attr import Attr, AttrFlag, PerfType, ReadFormat, SampleType, SoftwareConfig
from perf_offcpu.abi.offcpu import EVENT_NAME
from perf_offcpu.abi.sample import SampleShape
from perf_offcpu.collect.events import evsels, perf_event
from perf_offcpu.collect.events.parser import SamplingEvent
from perf_offcpu.collect.options import RecordOptions
from perf_offcpu.collect.rings.rings import Rings
from perf_offcpu.collect.sampling import SharingEvents
from perf_offcpu.collect.system.cpus import online_cpus
from perf_offcpu.perfdata.events import EventSpec
from perf_offcpu.text import Say

RING_BYTES: Final = 512 << 10  # the default limit of kernel.perf_event_mlock_kb for ordinary users
_WAITS_ID: Final = int.from_bytes(b"offcpu-t", "big")  # id of the event of waits; the kernel counts from 1
_SWITCHES: Final = "context-switches, with callchains"  # unlike the name of any event that -e asks for
_USER_ONLY: Final = AttrFlag.EXCLUDE_KERNEL | AttrFlag.EXCLUDE_HV


class TaskEvents(SharingEvents):
    """Open the events of some threads, disabled. Raises CapabilityError, RecordingError: the kernel refuses them.

    Args:
        tids: the threads; threads and children that they start are recorded, too.
        on_exec: events enable themselves at the next exec of the thread.
        say: is called with a message if rings become smaller than wanted.

    Attributes:
        rings: the rings of all records.
        support: parts of attrs that the kernel accepts.
        waits: the event of the samples of waits, which the recorder writes itself.
        switch_ids: ids of the event of context switches, whose samples have kernel callchains, one at each switch; none
            if the user may not see the kernel. They are no part of the file.
        switch_shape: shape of the samples of that event.
    """

    def __init__(self, options: RecordOptions, tids: Iterable[int], on_exec: bool, say: Say) -> None:
        first, *others = tids
        cpus = online_cpus()
        self._flags = AttrFlag.INHERIT | (AttrFlag.ENABLE_ON_EXEC if on_exec else AttrFlag(0))
        self._probe(first, cpus[0])
        with contextlib.ExitStack() as stack:
            self.rings = Rings(evsels.TRACKER_NAME, self._tracker, cpus, options.ring_bytes or RING_BYTES, say, first)
            stack.callback(self.rings.close)
            super().__init__(self.rings.owner)
            attrs = [(event.name, self._sampling(event, options)) for event in options.events]
            self._names = [*(name for name, _ in attrs), evsels.TRACKER_NAME]
            switches = self._switches()
            self.switch_shape = SampleShape.of(switches)
            if options.kernel_stacks and not self._exclude:
                attrs.append((_SWITCHES, switches))
            tracker = evsels.TRACKER_NAME, self.rings.owner.attr
            wanted = [(attr, first) for attr in attrs] + [(attr, tid) for tid in others for attr in (*attrs, tracker)]
            self._take(event for (name, attr), tid in wanted for event in _opened(name, attr, cpus, tid))
            self.switch_ids = [number for event in self if event.name == _SWITCHES for number in event.ids]
            waits = evsels.offcpu_attr(self.support, 0, options.stack_bytes)
            self.waits = EventSpec(waits, EVENT_NAME, (_WAITS_ID,))
            stack.pop_all()

    def _probe(self, tid: int, cpu: int) -> None:
        """Set `_exclude` (flags if the user may not see the kernel) and `support` by opening the side-band event."""
        self._exclude, self.support = AttrFlag(0), evsels.Support()
        if not self._accepts(tid, cpu):
            self._exclude = _USER_ONLY
        if not self._accepts(tid, cpu):  # before Linux 6.0
            self.support = evsels.Support(ReadFormat.ID)
        evsels.CpuEvent(evsels.TRACKER_NAME, self._tracker(0), [cpu], tid).close()  # with the error, if it is refused

    def _accepts(self, tid: int, cpu: int) -> bool:
        return perf_event.can_open(self._tracker(0), cpu, tid)

    def _tracker(self, wakeup_bytes: int) -> Attr:
        attr = evsels.tracker_attr(self.support, wakeup_bytes, data_maps=True)
        return attr._replace(flags=attr.flags | self._flags | self._exclude | AttrFlag.CONTEXT_SWITCH)

    def _sampling(self, event: SamplingEvent, options: RecordOptions) -> Attr:
        kernel_stacks = options.kernel_stacks and not self._exclude
        rate = options.frequency_hz, options.period
        attr = evsels.sampling_attr(event, self.support, *rate, kernel_stacks, stack_bytes=options.stack_bytes)
        return attr._replace(flags=attr.flags | self._flags | self._exclude)

    def _switches(self) -> Attr:
        flags = self._flags | AttrFlag.EXCLUDE_CALLCHAIN_USER
        attr = evsels.basic_attr(PerfType.SOFTWARE, SoftwareConfig.CONTEXT_SWITCHES, self.support)
        return attr._replace(sample_type=attr.sample_type | SampleType.CALLCHAIN, flags=attr.flags | flags)

    @property
    def _all(self) -> list[evsels.CpuEvent]:
        return [*self, self.rings.owner]

    @property
    def specs(self) -> list[EventSpec]:
        """The kernel's events as the file describes them: on-CPU events, then the event of side-band records."""
        alike = [[event for event in self._all if event.name == name] for name in self._names]
        return [
            EventSpec(events[-1].attr, events[-1].name, tuple(number for event in events for number in event.ids))
            for events in alike
        ]

    def enable(self) -> None:
        """Enable all events."""
        for event in self._all:
            event.enable()

    def disable(self) -> None:
        """Disable all events, also in threads that inherited them."""
        for event in self._all:
            event.disable()

    def lost(self) -> dict[int, int]:
        """Return event id → number of records that found a full ring, without zeros."""
        return dict(lost for event in self._all for lost in event.lost())


def _opened(name: str, attr: Attr, cpus: Iterable[int], tid: int) -> Iterator[evsels.CpuEvent]:
    with contextlib.suppress(ProcessLookupError):  # the thread has ended
        yield evsels.CpuEvent(name, attr, cpus, tid)
