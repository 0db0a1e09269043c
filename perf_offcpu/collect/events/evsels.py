# SPDX-License-Identifier: Apache-2.0
"""The perf events of a recording: which, with which attr, opened on every CPU.

Three kinds of event write into two rings per CPU:

* the *sampling* events (`-e`), on-CPU samples with callchains;
* *offcpu-time*, a bpf-output event: the collector's BPF program sends its samples through it. It owns the
  ring for both, because it is the one event that every recording has;
* the *tracker*, a dummy event that counts nothing: its flags ask for the side-band records (mmap, comm,
  fork, exit, ksymbol, cgroup, ...) without which addresses and thread ids mean nothing. It has a ring of
  its own, for a flood of samples must not wash these away (`side_band`).

All are opened per CPU for every task (pid -1), whatever the target: one set of descriptors, nothing to be
attached to new threads in time, and nothing to be switched in and out at context switches. What belongs to
the target is decided in BPF, for samples of `-e` by a filter program (`perf_event.set_filter`).

In the file they stand in this order, which is perf's own (tools/perf/builtin-record.c adds off-cpu after
the user's events, and the dummy event last), so that `perf report` opens with what the user asked for.
sample_type, read_format and clock agree as far as perf requires: IDENTIFIER everywhere, the same trailer.
"""

from __future__ import annotations

import errno
import os
import platform
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

from perf_offcpu.abi.attr import Attr, AttrFlag, PerfType, ReadFormat, SampleType, SoftwareConfig
from perf_offcpu.abi.cfi import MACHINE_OF_ARCH, REGISTERS
from perf_offcpu.collect.events import perf_event
from perf_offcpu.collect.events.parser import SamplingEvent
from perf_offcpu.collect.system.clock import CLOCKID
from perf_offcpu.errors import CapabilityError
from perf_offcpu.perfdata.events import EventSpec

SAMPLE_TYPE = (
    SampleType.IDENTIFIER
    | SampleType.IP
    | SampleType.TID
    | SampleType.TIME
    | SampleType.CPU
    | SampleType.PERIOD
)
"""What samples of every event carry; sampling adds CALLCHAIN, off-cpu adds RAW, and
CALLCHAIN for user stacks that are deferred."""

TRACKER_NAME = "dummy"

_COMMON_FLAGS = AttrFlag.DISABLED | AttrFlag.SAMPLE_ID_ALL | AttrFlag.USE_CLOCKID

_TRACKER_FLAGS = AttrFlag.MMAP | AttrFlag.MMAP2 | AttrFlag.COMM | AttrFlag.COMM_EXEC | AttrFlag.TASK

# What older kernels refuse with EINVAL, newest first: cgroup came with 5.7, ksymbol and bpf_event with 5.1,
# namespaces with 4.12. Build-ids are not asked for: see `side_band`.
_OPTIONAL_TRACKER_FLAGS = (
    AttrFlag.CGROUP,
    AttrFlag.KSYMBOL | AttrFlag.BPF_EVENT,
    AttrFlag.NAMESPACES,
)


@dataclass(frozen=True, slots=True)
class Support:
    """What the running kernel's perf events can do."""

    read_format: ReadFormat = ReadFormat.ID | ReadFormat.LOST
    tracker_flags: AttrFlag = AttrFlag(0)
    sampling_flags: AttrFlag = AttrFlag(0)


@dataclass(frozen=True, slots=True)
class Rate:
    """How often an event is sampled: every `period` events or, if that is 0, at a frequency."""

    frequency_hz: int
    period: int = 0


def offcpu_attr(
    support: Support, wakeup_bytes: int, stack_bytes: int = 0, deferred_stacks: bool = False
) -> Attr:
    """The event through which BPF sends off-cpu samples; its ring wakes the recorder at so many bytes.

    Args:
        stack_bytes: how much of the user stack the kernel adds to each sample, with the user registers.
        deferred_stacks: whether the kernel walks the user stack later; the sample's own callchain is only the
            cookie then, as the kernel part is in the payload.
    """
    deferral = AttrFlag.DEFER_CALLCHAIN | AttrFlag.EXCLUDE_CALLCHAIN_KERNEL
    attr = Attr(
        type=PerfType.SOFTWARE,
        config=SoftwareConfig.BPF_OUTPUT,
        sample_period=1,
        sample_type=SAMPLE_TYPE
        | SampleType.RAW
        | (SampleType.CALLCHAIN if deferred_stacks else SampleType(0)),
        read_format=support.read_format,
        flags=_COMMON_FLAGS | AttrFlag.WATERMARK | (deferral if deferred_stacks else AttrFlag(0)),
        wakeup=wakeup_bytes,
        clockid=CLOCKID,
    )
    return _with_stack(attr, stack_bytes)


def _with_stack(attr: Attr, stack_bytes: int) -> Attr:
    """The event with user registers and so many bytes of the user stack in its samples."""
    if not stack_bytes:
        return attr
    return replace(
        attr,
        sample_type=attr.sample_type | SampleType.REGS_USER | SampleType.STACK_USER,
        sample_regs_user=REGISTERS[MACHINE_OF_ARCH[platform.machine()]].sample_mask,
        sample_stack_user=stack_bytes,
    )


def tracker_attr(support: Support, wakeup_bytes: int = 0, data_maps: bool = False) -> Attr:
    """The event that only asks for side-band records; its ring wakes the recorder at so many bytes.

    Args:
        data_maps: of mappings without code, too: perf's own unwinder reads call frame information there.
    """
    flags = AttrFlag.WATERMARK | (AttrFlag.MMAP_DATA if data_maps else AttrFlag(0))
    return Attr(
        type=PerfType.SOFTWARE,
        config=SoftwareConfig.DUMMY,
        sample_period=1,
        sample_type=SAMPLE_TYPE,
        read_format=support.read_format,
        flags=_COMMON_FLAGS | _TRACKER_FLAGS | support.tracker_flags | flags,
        wakeup=wakeup_bytes,
        clockid=CLOCKID,
    )


def sampling_attr(
    event: SamplingEvent,
    support: Support,
    rate: Rate,
    kernel_stacks: bool = True,
    all_cgroups: bool = False,
    stack_bytes: int = 0,
) -> Attr:
    """An on-CPU event with callchains; what the event itself says of its rate goes before `rate`.

    With `stack_bytes` of the user stack its callchains have the kernel's part only, as perf does it: the
    user's part is unwound from the stack, by this project and by perf itself.
    """
    if event.frequency_hz or (event.period and not (event.is_tracepoint and rate.period)):
        rate = Rate(event.frequency_hz, event.period)
    flags = _COMMON_FLAGS | event.flags | support.sampling_flags
    flags |= AttrFlag(0) if rate.period else AttrFlag.FREQ
    flags |= AttrFlag(0) if kernel_stacks else AttrFlag.EXCLUDE_CALLCHAIN_KERNEL
    flags |= AttrFlag.EXCLUDE_CALLCHAIN_USER if stack_bytes else AttrFlag(0)
    if event.type == PerfType.SOFTWARE:
        flags |= AttrFlag.EXCLUDE_IDLE  # hardware counters stand still when idle, and some refuse the flag
    sample_type = SAMPLE_TYPE | SampleType.CALLCHAIN
    sample_type |= SampleType.RAW if event.is_tracepoint else SampleType(0)
    sample_type |= SampleType.CGROUP if all_cgroups else SampleType(0)
    attr = Attr(
        type=event.type,
        config=event.config,
        config1=event.config1,
        config2=event.config2,
        sample_period=rate.period or rate.frequency_hz,
        sample_type=sample_type,
        read_format=support.read_format,
        flags=flags,
        clockid=CLOCKID,
    )
    return _with_stack(attr, stack_bytes)


def open_sampling(
    event: SamplingEvent, attr: Attr, cpus: Iterable[int], fallback: Callable[[SamplingEvent], CpuEvent]
) -> CpuEvent:
    """Open a sampling event, `:P` ones as precise as the machine can.

    Args:
        fallback: opens another event in its place, where the hardware does not count it and perf has one.

    Raises:
        CapabilityError, RecordingError: the kernel refuses it.
    """
    cpus = tuple(cpus)
    for precise in (3, 2, 1, 0) if event.most_precise else (0,):
        try:
            flags = attr.flags | AttrFlag(precise * AttrFlag.PRECISE_IP_1)
            return CpuEvent(event.name, replace(attr, flags=flags), cpus)
        except CapabilityError:
            other = event.fallback()
            if precise:
                continue
            if other is None:
                raise
            return fallback(other)
    raise AssertionError("the last attempt returns or raises")


class CpuEvent:
    """One event, open on each CPU.

    Args:
        name: as the file will show it.
        attr: what to open.
        cpus: where.

    Raises:
        CapabilityError, RecordingError: the kernel refuses it.
    """

    def __init__(self, name: str, attr: Attr, cpus: Iterable[int]) -> None:
        self.name, self.attr = name, attr
        self.fds: dict[int, int] = {}
        self.ids: list[int] = []
        """Of all that was ever opened: a CPU that returns has an id anew."""
        self._former: list[int] = []
        try:
            for cpu in cpus:
                self._open(cpu)
        except OSError as problem:
            self.close()
            raise perf_event.refusal(problem, name, attr) from None

    def _open(self, cpu: int) -> None:
        self.fds[cpu] = perf_event.open_event(self.attr, cpu)
        self.ids.append(perf_event.event_id(self.fds[cpu]))

    def reopen(self, cpu: int) -> int:
        """Open it on a CPU that came online; gives the descriptor. What was counted there still counts.

        Raises:
            OSError: the kernel refuses it.
        """
        former = self.fds.pop(cpu, None)
        if former is not None:
            self._former.append(former)
        self._open(cpu)
        return self.fds[cpu]

    @property
    def spec(self) -> EventSpec:
        """The event as a file describes it."""
        return EventSpec(self.attr, self.name, tuple(self.ids))

    def redirect(self, ring_owner: CpuEvent) -> None:
        """Write into the rings of another event."""
        for cpu in self.fds:
            self.redirect_on(cpu, ring_owner)

    def redirect_on(self, cpu: int, ring_owner: CpuEvent) -> None:
        """The same on one CPU."""
        perf_event.redirect(self.fds[cpu], ring_owner.fds[cpu])

    def filter_by(self, program_fd: int) -> None:
        """Let a BPF program decide which samples are written."""
        for fd in self.fds.values():
            perf_event.set_filter(fd, program_fd)

    def enable(self) -> None:
        """Start on every CPU."""
        for fd in self.fds.values():
            perf_event.enable(fd)

    def disable(self) -> None:
        """Stop on every CPU."""
        for fd in self.fds.values():
            perf_event.disable(fd)

    def counted(self) -> int:
        """How often the event happened, over all CPUs."""
        return sum(int.from_bytes(os.read(fd, 64)[:8], sys.byteorder) for fd in self._every_fd())

    def lost(self) -> Iterator[tuple[int, int]]:
        """(id, records lost for want of room in the ring) of each CPU that lost any.

        Kernels before 6.0 do not count by event; there the LOST records in the data tell the sum alone.
        """
        if not self.attr.read_format & ReadFormat.LOST:
            return
        for fd in self._every_fd():
            _, event_id, lost = perf_event.read_counts(fd)
            if lost:
                yield event_id, lost

    def _every_fd(self) -> list[int]:
        return [*self.fds.values(), *self._former]

    def close(self) -> None:
        """Give the event back to the kernel."""
        while self._former:
            perf_event.close_event(self._former.pop())
        while self.fds:
            perf_event.close_event(self.fds.popitem()[1])


def with_deferral(support: Support, cpu: int) -> Support | None:
    """The same with user callchains walked when their task returns to user mode; None if the kernel cannot.

    The sampling events ask for it, and the tracker takes the records (Linux 7.0 and newer).
    """
    deferring = replace(
        support,
        tracker_flags=support.tracker_flags | AttrFlag.DEFER_OUTPUT,
        sampling_flags=support.sampling_flags | AttrFlag.DEFER_CALLCHAIN,
    )
    clock = SamplingEvent("cpu-clock", PerfType.SOFTWARE, 0)
    waits = offcpu_attr(deferring, 0, deferred_stacks=True)
    for attr in (tracker_attr(deferring), sampling_attr(clock, deferring, Rate(1)), waits):
        try:
            perf_event.close_event(perf_event.open_event(attr, cpu))
        except OSError:
            return None
    return deferring


def probe_support(cpu: int) -> Support:
    """Find out by trying, on one CPU, what the kernel's perf events can do.

    Raises:
        CapabilityError, RecordingError: not even the oldest form may be opened.
    """
    flags = sum(_OPTIONAL_TRACKER_FLAGS, AttrFlag(0))
    formats = (ReadFormat.ID | ReadFormat.LOST, ReadFormat.ID)  # LOST came with 6.0
    attempts = [Support(read_format, flags) for read_format in formats]
    for newest in _OPTIONAL_TRACKER_FLAGS:
        flags &= ~newest
        attempts.append(Support(ReadFormat.ID, flags))
    return next(filter(lambda support: _opens(support, cpu), attempts), attempts[-1])


def _opens(support: Support, cpu: int) -> bool:
    attr = tracker_attr(support)
    try:
        perf_event.close_event(perf_event.open_event(attr, cpu))
    except OSError as problem:
        if problem.errno == errno.EINVAL:
            return False
        raise perf_event.refusal(problem, TRACKER_NAME, attr) from None
    return True
