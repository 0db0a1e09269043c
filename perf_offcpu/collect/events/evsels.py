# SPDX-License-Identifier: Apache-2.0
"""The perf events of a recording: their attrs, and their descriptors on each CPU.

Three kinds of event write into two rings per CPU:

* the *sampling* events (`-e`), on-CPU samples with callchains;
* *offcpu-time*, a bpf-output event: the collector's BPF program sends its samples through it. It owns the
  ring for both, because it is the one event that every recording has;
* the *tracker*, a dummy event that counts nothing: its flags ask for the side-band records (mmap, comm,
  fork, exit, ksymbol, cgroup, ...) without which addresses and thread ids mean nothing. It has a ring of
  its own, so that a flood of samples cannot overwrite these (`side_band`).

All are opened per CPU for all tasks (pid -1), whatever the target: one set of descriptors, nothing to attach to new
threads in time, and nothing to switch in and out at context switches. BPF decides what belongs to the target, for
samples of `-e` by a filter program (`perf_event.set_filter`).

In the file they stand in this order, which is perf's own (tools/perf/builtin-record.c adds off-cpu after the user's
events, and the dummy event last), so that `perf report` opens with what the user asked for. sample_type, read_format
and clock agree as far as perf requires: IDENTIFIER everywhere, the same trailer."""

import errno
import os
import platform
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from perf_offcpu.abi.attr import Attr, AttrFlag, PerfType, ReadFormat, SampleType, SoftwareConfig
from perf_offcpu.abi.machine import MACHINES
from perf_offcpu.collect.events import perf_event
from perf_offcpu.collect.events.parser import SamplingEvent
from perf_offcpu.collect.system.clock import CLOCKID
from perf_offcpu.perfdata.events import EventSpec

SAMPLE_TYPE = (
    SampleType.IDENTIFIER | SampleType.IP | SampleType.TID | SampleType.TIME | SampleType.CPU | SampleType.PERIOD
)
"""Fields of all samples. On-CPU events add CALLCHAIN; offcpu-time adds RAW, and CALLCHAIN for deferred user stacks."""

TRACKER_NAME = "dummy"

_COMMON_FLAGS = AttrFlag.DISABLED | AttrFlag.SAMPLE_ID_ALL | AttrFlag.USE_CLOCKID

_TRACKER_FLAGS = AttrFlag.MMAP | AttrFlag.MMAP2 | AttrFlag.COMM | AttrFlag.COMM_EXEC | AttrFlag.TASK

# Flags that older kernels refuse with EINVAL, newest first: cgroup came with 5.7, ksymbol and bpf_event with 5.1,
# namespaces with 4.12. Build-ids are not asked for: see `side_band`.
_OPTIONAL_TRACKER_FLAGS = (AttrFlag.CGROUP, AttrFlag.KSYMBOL | AttrFlag.BPF_EVENT, AttrFlag.NAMESPACES)


@dataclass(frozen=True, slots=True)
class Support:
    """Parts of attrs that the kernel accepts: read_format of all events, flags of side-band event and on-CPU events."""

    read_format: ReadFormat = ReadFormat.ID | ReadFormat.LOST
    tracker_flags: AttrFlag = AttrFlag(0)
    sampling_flags: AttrFlag = AttrFlag(0)


def basic_attr(kind: int, config: int, support: Support, **changes: Any) -> Attr:
    """Return an attr with the recording's clock and the fields that all samples have; `changes` replace fields."""
    attr = Attr(type=kind, config=config, sample_period=1, sample_type=SAMPLE_TYPE, flags=_COMMON_FLAGS)
    return attr._replace(read_format=support.read_format, clockid=CLOCKID)._replace(**changes)


def offcpu_attr(support: Support, wakeup_bytes: int, stack_bytes: int = 0, deferred_stacks: bool = False) -> Attr:
    """Return the attr of the event through which BPF sends off-cpu samples. `wakeup_bytes`: bytes in its ring at which
    it wakes the recorder. `stack_bytes`: bytes of the user stack that the kernel adds to each sample, with the user
    registers. `deferred_stacks`: let the kernel walk the user stack later; the sample's own callchain is then only
    the cookie of the CALLCHAIN_DEFERRED record, as the kernel's callchain is in the payload."""
    sample_type, flags = SAMPLE_TYPE | SampleType.RAW, _COMMON_FLAGS | AttrFlag.WATERMARK
    if deferred_stacks:
        sample_type |= SampleType.CALLCHAIN
        flags |= AttrFlag.DEFER_CALLCHAIN | AttrFlag.EXCLUDE_CALLCHAIN_KERNEL
    changes = {"sample_type": sample_type, "flags": flags, "wakeup": wakeup_bytes}
    return _with_stack(basic_attr(PerfType.SOFTWARE, SoftwareConfig.BPF_OUTPUT, support, **changes), stack_bytes)


def _with_stack(attr: Attr, stack_bytes: int) -> Attr:
    """Return the attr with user registers and `stack_bytes` of the user stack in its samples; 0: unchanged."""
    if not stack_bytes:
        return attr
    return attr._replace(
        sample_type=attr.sample_type | SampleType.REGS_USER | SampleType.STACK_USER,
        sample_regs_user=MACHINES[platform.machine()].registers.sample_mask,
        sample_stack_user=stack_bytes,
    )


def tracker_attr(support: Support, wakeup_bytes: int = 0, data_maps: bool = False) -> Attr:
    """Return the attr of the tracker, which asks for side-band records alone. `wakeup_bytes`: bytes in its ring at
    which it wakes the recorder. `data_maps`: also ask for mappings without code, which perf's unwinder reads."""
    flags = _COMMON_FLAGS | _TRACKER_FLAGS | support.tracker_flags | AttrFlag.WATERMARK
    flags |= AttrFlag.MMAP_DATA if data_maps else AttrFlag(0)
    return basic_attr(PerfType.SOFTWARE, SoftwareConfig.DUMMY, support, flags=flags, wakeup=wakeup_bytes)


def sampling_attr(
    event: SamplingEvent,
    support: Support,
    frequency_hz: int,
    period: int = 0,
    kernel_stacks: bool = True,
    all_cgroups: bool = False,
    stack_bytes: int = 0,
) -> Attr:
    """Return the attr of an on-CPU event with callchains: a sample every `period` events or, if 0, at `frequency_hz`;
    `period=` and `freq=` of the event prevail, except a tracepoint's default period of 1. `all_cgroups`: samples have
    the cgroup. `stack_bytes`: size of user stacks in samples (callchains are then of the kernel only), or 0."""
    if event.frequency_hz or (event.period and not (event.is_tracepoint and period)):
        frequency_hz, period = event.frequency_hz, event.period
    flags = _COMMON_FLAGS | event.flags | support.sampling_flags
    flags |= AttrFlag(0) if period else AttrFlag.FREQ
    flags |= AttrFlag(0) if kernel_stacks else AttrFlag.EXCLUDE_CALLCHAIN_KERNEL
    flags |= AttrFlag.EXCLUDE_CALLCHAIN_USER if stack_bytes else AttrFlag(0)
    if event.type == PerfType.SOFTWARE:
        flags |= AttrFlag.EXCLUDE_IDLE  # hardware counters stand still when idle, and some refuse the flag
    sample_type = SAMPLE_TYPE | SampleType.CALLCHAIN
    sample_type |= SampleType.RAW if event.is_tracepoint else SampleType(0)
    sample_type |= SampleType.CGROUP if all_cgroups else SampleType(0)
    changes = {"sample_period": period or frequency_hz, "sample_type": sample_type, "flags": flags}
    attr = basic_attr(event.type, event.config, support, config1=event.config1, config2=event.config2, **changes)
    return _with_stack(attr, stack_bytes)


class CpuEvent:
    """Open one event on each of `cpus`, for one thread (`tid`) or all tasks (-1), and hold the descriptors. Raises
    CapabilityError, RecordingError: the kernel refuses it; ProcessLookupError: the thread has ended.

    `name`: of the event in the file. `fds`: CPU → descriptor. `ids`: kernel's ids of all descriptors that were ever
    opened: an event gets a new id on a CPU that came online again."""

    def __init__(self, name: str, attr: Attr, cpus: Iterable[int], tid: int = -1) -> None:
        self.name, self.attr, self._tid = name, attr, tid
        self.fds: dict[int, int] = {}
        self.ids: list[int] = []
        self._former: list[int] = []
        try:
            for cpu in cpus:
                self.reopen(cpu)
        except OSError as problem:
            self.close()
            if problem.errno == errno.ESRCH:
                raise
            raise perf_event.refusal(problem, name, attr, tid) from None

    def reopen(self, cpu: int) -> int:
        """Open the event on a CPU, for the first time or after it came online again; return the descriptor. A former
        descriptor stays open, so that `counted` and `lost` include it. Raises OSError: the kernel refuses the event."""
        if cpu in self.fds:
            self._former.append(self.fds.pop(cpu))
        self.fds[cpu] = perf_event.open_event(self.attr, cpu, self._tid)
        self.ids.append(perf_event.event_id(self.fds[cpu]))
        return self.fds[cpu]

    @property
    def spec(self) -> EventSpec:
        """Attr, name and all ids of the event, as the file describes it."""
        return EventSpec(self.attr, self.name, tuple(self.ids))

    def enable(self) -> None:
        """Enable the event on all CPUs."""
        for fd in self.fds.values():
            perf_event.enable(fd)

    def disable(self) -> None:
        """Disable the event on all CPUs."""
        for fd in self.fds.values():
            perf_event.disable(fd)

    def counted(self) -> int:
        """Return the number of occurrences that the event has counted on all CPUs, including former descriptors."""
        return sum(int.from_bytes(os.read(fd, 64)[:8], sys.byteorder) for fd in self._all_fds())

    def lost(self) -> Iterator[tuple[int, int]]:
        """Yield (id, number of records that found the ring full) for each descriptor that lost any; nothing before
        Linux 6.0, where only LOST records in the data count them."""
        if not self.attr.read_format & ReadFormat.LOST:
            return
        for fd in self._all_fds():
            _count, event_id, lost = memoryview(os.read(fd, 24)).cast("Q")  # read_format is ID | LOST
            if lost:
                yield event_id, lost

    def _all_fds(self) -> list[int]:
        return [*self.fds.values(), *self._former]

    def close(self) -> None:
        """Close all descriptors of the event."""
        for fd in self._all_fds():
            os.close(fd)
        self.fds.clear()
        self._former.clear()


def with_deferral(support: Support, cpu: int) -> Support | None:
    """Return `support` with the flags for deferred callchains (Linux 7.0): on-CPU events ask for them, the tracker
    takes their records. Return None if the kernel refuses them on `cpu`."""
    deferring = replace(
        support,
        tracker_flags=support.tracker_flags | AttrFlag.DEFER_OUTPUT,
        sampling_flags=support.sampling_flags | AttrFlag.DEFER_CALLCHAIN,
    )
    clock = SamplingEvent("cpu-clock", PerfType.SOFTWARE, 0)
    waits = offcpu_attr(deferring, 0, deferred_stacks=True)
    attrs = (tracker_attr(deferring), sampling_attr(clock, deferring, 1), waits)
    return deferring if all(perf_event.can_open(attr, cpu) for attr in attrs) else None


def probe_support(cpu: int) -> Support:
    """Return the `Support` with most features with which the tracker (side-band event) can be opened on `cpu`, or least
    if the kernel refuses all with EINVAL. Raises CapabilityError, RecordingError: it refuses for another reason."""
    flags = sum(_OPTIONAL_TRACKER_FLAGS, AttrFlag(0))
    formats = (ReadFormat.ID | ReadFormat.LOST, ReadFormat.ID)  # LOST came with 6.0
    attempts = [Support(read_format, flags) for read_format in formats]
    for newest in _OPTIONAL_TRACKER_FLAGS:
        flags &= ~newest
        attempts.append(Support(ReadFormat.ID, flags))
    return next(filter(lambda support: _is_accepted(support, cpu), attempts), attempts[-1])


def _is_accepted(support: Support, cpu: int) -> bool:
    attr = tracker_attr(support)
    try:
        os.close(perf_event.open_event(attr, cpu))
    except OSError as problem:
        if problem.errno == errno.EINVAL:
            return False
        raise perf_event.refusal(problem, TRACKER_NAME, attr) from None
    return True
