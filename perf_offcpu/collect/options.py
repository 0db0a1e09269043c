# SPDX-License-Identifier: Apache-2.0
"""Options of a recording. `commands.record.options` makes them from a command line."""

from __future__ import annotations

from dataclasses import dataclass

from perf_offcpu.collect.bpf.config import OffCpuConfig
from perf_offcpu.collect.events.parser import DEFAULT_EVENT, SamplingEvent, parse_events
from perf_offcpu.collect.rotation import Rotation
from perf_offcpu.collect.states import DEFAULT_STATES, ShortWaits
from perf_offcpu.collect.targets import Target

DEFAULT_THRESHOLD_NS = 1_000_000
DEFAULT_FREQUENCY_HZ = 99
DEFAULT_OUTPUT = "perf.data"
STANDARD_OUTPUT = "-"


@dataclass(frozen=True, slots=True)
class RecordOptions:
    """Options of one recording.

    Args:
        target: tasks whose waits and samples are recorded.
        command: the command to start, () for none.
        argv: the recorder's own command line, for the file.
        output: the file as the user named it; "-" is standard output, in pipe form.
        rotation: when the recording goes on in a new file; None for never.
        compression_level: of zstd, 0 for plain records.
        threshold_ns: shortest wait that becomes a sample; shorter ones are summed.
        events: on-CPU events to sample; () for off-CPU time alone.
        frequency_hz: samples a second and CPU of each on-CPU event.
        period: events for each sample, instead of a frequency; 0 for the frequency.
        kernel_stacks: callchains have a kernel part.
        deferred_stacks: their user part is walked when the task returns to user mode, where the kernel can.
        all_cgroups: on-CPU samples hold the control group; off-CPU samples always do.
        stack_bytes: bytes of the user stack in samples, to be unwound when they are read; 0 for user
            callchains along frame pointers.
        short_waits: what to do with waits under the threshold.
        min_block_ns: shorter waits are left out, and counted.
        max_rate: off-cpu samples a second above which the threshold rises by itself; 0 for any number.
        states: letters of the states that count as a wait (`collect.states`).
        kernel_threads: kernel threads are recorded.
        wakers: wake-ups are noted.
        waker_stacks: stacks of wakers are taken.
        budget: all time of each thread is accounted for.
        ring_bytes: size of each CPU's ring buffer, a power of two of pages; 0 for the default.
        realtime_priority: SCHED_FIFO priority of the recorder; 0 for none.
        duration_s: seconds after which the recording ends; None for no limit.
    """

    target: Target
    command: tuple[str, ...] = ()
    argv: tuple[str, ...] = ()
    output: str = DEFAULT_OUTPUT
    rotation: Rotation | None = None
    compression_level: int = 0
    threshold_ns: int = DEFAULT_THRESHOLD_NS
    events: tuple[SamplingEvent, ...] = parse_events([DEFAULT_EVENT])
    frequency_hz: int = DEFAULT_FREQUENCY_HZ
    period: int = 0
    kernel_stacks: bool = True
    deferred_stacks: bool = False
    all_cgroups: bool = False
    stack_bytes: int = 0
    short_waits: ShortWaits = ShortWaits.STACKS
    min_block_ns: int = 0
    max_rate: int = 0
    states: str = DEFAULT_STATES
    kernel_threads: bool = False
    wakers: bool = True
    waker_stacks: bool = False
    budget: bool = True
    ring_bytes: int = 0
    realtime_priority: int = 0
    duration_s: float | None = None


def bpf_config(options: RecordOptions, deferred_stacks: bool) -> OffCpuConfig:
    """Return the configuration of the BPF program.

    Args:
        deferred_stacks: the kernel can walk user callchains later.
    """
    target = options.target
    entries = sum(map(len, (target.ids, target.users, target.cpus, target.groups, target.comms)))
    return OffCpuConfig(
        targets=target.kind,
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
