# SPDX-License-Identifier: Apache-2.0
"""Options of a recording. `commands.record.options` makes them from a command line."""

from dataclasses import dataclass, fields

from perf_offcpu.collect.bpf.config import OffCpuConfig, WaitOptions
from perf_offcpu.collect.control import ControlFds
from perf_offcpu.collect.events.parser import DEFAULT_EVENT, SamplingEvent, parse_events
from perf_offcpu.collect.rotation import Rotation
from perf_offcpu.collect.targets import Target

DEFAULT_FREQUENCY_HZ = 99
DEFAULT_OUTPUT = "perf.data"
STANDARD_OUTPUT = "-"


@dataclass(frozen=True, slots=True)
class RecordOptions(WaitOptions):
    """Options of one recording.

    Args:
        target: tasks whose waits and samples are recorded.
        command: the command to start, () for none.
        argv: the recorder's own command line, for the file.
        output: the file as the user named it; "-" is standard output, in pipe form.
        rotation: when the recording goes on in a new file; None for never.
        compression_level: of zstd, 0 for plain records.
        events: on-CPU events to sample; () for off-CPU time alone.
        frequency_hz: samples a second and CPU of each on-CPU event.
        period: events for each sample, instead of a frequency; 0 for the frequency.
        deferred_stacks: the user part of callchains is walked when the task returns to user mode, where the kernel can.
        all_cgroups: on-CPU samples hold the control group; off-CPU samples always do.
        stack_bytes: bytes of the user stack in samples, to be unwound when they are read; 0 for user callchains along
            frame pointers.
        ring_bytes: size of each CPU's ring buffer, a power of two of pages; 0 for the default.
        realtime_priority: SCHED_FIFO priority of the recorder; 0 for none.
        asks_jvms: JVMs are asked for the names of their compiled code.
        pystack: directory of pystack, which reads the Python functions of threads that are still blocked at the end; ""
            for none.
        duration_s: seconds after which the recording ends; None for no limit.
        until_exit: pid of a process at whose exit the recording ends; 0 for none.
        unprivileged: record own processes without BPF, as an ordinary user can.
        control: descriptors for commands that pause the recording or change it; None for none.
    """

    target: Target
    command: tuple[str, ...] = ()
    argv: tuple[str, ...] = ()
    output: str = DEFAULT_OUTPUT
    rotation: Rotation | None = None
    compression_level: int = 0
    events: tuple[SamplingEvent, ...] = parse_events([DEFAULT_EVENT])
    frequency_hz: int = DEFAULT_FREQUENCY_HZ
    period: int = 0
    deferred_stacks: bool = False
    all_cgroups: bool = False
    stack_bytes: int = 0
    ring_bytes: int = 0
    realtime_priority: int = 0
    asks_jvms: bool = True
    pystack: str = ""
    duration_s: float | None = None
    until_exit: int = 0
    unprivileged: bool = False
    control: ControlFds | None = None

    @property
    def is_steady(self) -> bool:
        """True for recordings of the whole machine in several files, which run for days."""
        return self.target.is_system and self.rotation is not None and not self.command


def bpf_config(options: RecordOptions, deferred_stacks: bool) -> OffCpuConfig:
    """Return the configuration of the BPF program. `deferred_stacks`: True if asked for, and the kernel can."""
    target = options.target
    entries = sum(map(len, (target.ids, target.users, target.cpus, target.groups, target.comms)))
    return OffCpuConfig(
        **{field.name: getattr(options, field.name) for field in fields(WaitOptions)},
        targets=target.kind,
        by_cpu=bool(target.cpus),
        by_user=bool(target.users),
        by_comm=bool(target.comms),
        by_group=target.groups[0].controller if target.groups else None,
        copy_bytes=options.stack_bytes,
        deferred_stacks=deferred_stacks,
        in_sleeper=options.stack_bytes > 0,
        target_entries=max(1024, entries),
    )
