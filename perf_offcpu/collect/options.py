# SPDX-License-Identifier: Apache-2.0
"""Options of a recording. `commands.record.options` makes them from a command line."""

from dataclasses import dataclass, fields

from perf_offcpu.collect.bpf.config import OffCpuConfig, WaitOptions
from perf_offcpu.collect.control import ControlFds
from perf_offcpu.collect.events.parser import DEFAULT_EVENT, SamplingEvent, parse_events
from perf_offcpu.collect.targets import Target
from perf_offcpu.errors import UsageError
from perf_offcpu.units import SIZES, TIMES, size_bytes, time_ns

DEFAULT_FREQUENCY_HZ = 99
DEFAULT_OUTPUT = "perf.data"
STANDARD_OUTPUT = "-"
_GOROUTINE_RATE_HZ = 10


@dataclass(frozen=True, slots=True)
class Rotation:
    """Limits of size and age of a file, beyond which a new one begins (`--switch-output`); SIGUSR2 always begins one.
    Source: tools/perf/builtin-record.c: switch_output_setup()."""

    size_bytes: int = 0  # size at which a file ends, 0 for no limit
    seconds: float = 0  # age at which a file ends, 0 for no limit
    max_files: int = 0  # number of files to keep, the newest; 0 for all

    def is_due(self, size_bytes: int, seconds: float) -> bool:
        """Return True if a file of this size and age (s) has reached one of the limits."""
        return 0 < self.size_bytes <= size_bytes or 0 < self.seconds <= seconds


def parse_rotation(text: str, max_files: int = 0) -> Rotation:
    """Parse `signal`, a size such as 100M, or a time such as 30s. Raises UsageError: the text is none of these."""
    if text == "signal":
        return Rotation(max_files=max_files)
    seconds = (time_ns(text) or 0) / 1e9  # first: m is a minute, M a megabyte
    size = 0 if seconds else size_bytes(text, unit=0)
    if not seconds and not size:
        raise UsageError(
            f"--switch-output {text}: not a size ({SIZES}), a length of time ({TIMES}) or signal; before a "
            "command write --switch-output=signal"
        )
    return Rotation(size or 0, seconds, max_files)


@dataclass(frozen=True, slots=True)
class RecordOptions(WaitOptions):
    """Options of one recording."""

    target: Target  # tasks whose waits and samples are recorded
    command: tuple[str, ...] = ()  # the command to start, () for none
    argv: tuple[str, ...] = ()  # the recorder's own command line, for the file
    output: str = DEFAULT_OUTPUT  # the file as the user named it; "-" is standard output, in pipe form
    rotation: Rotation | None = None  # when the recording goes on in a new file; None for never
    compression_level: int = 0  # of zstd, 0 for plain records
    events: tuple[SamplingEvent, ...] = parse_events([DEFAULT_EVENT])
    """On-CPU events to sample; () for off-CPU time alone."""
    frequency_hz: int = DEFAULT_FREQUENCY_HZ  # samples a second and CPU of each on-CPU event
    period: int = 0  # events for each sample, instead of a frequency; 0 for the frequency
    deferred_stacks: bool = False
    """The user part of callchains is walked when the task returns to user mode, where the kernel can."""
    all_cgroups: bool = False  # on-CPU samples hold the control group; off-CPU samples always do
    stack_bytes: int = 0
    """Bytes of the user stack in samples, unwound when they are read; 0 for callchains along frame pointers."""
    ring_bytes: int = 0  # size of each CPU's ring buffer, a power of two of pages; 0 for the default
    realtime_priority: int = 0  # SCHED_FIFO priority of the recorder; 0 for none
    asks_jvms: bool = True  # JVMs are asked for the names of their compiled code
    goroutines: bool | None = None  # read where goroutines of Go programs wait; None: not of the whole machine
    task_rate_hz: int = 0  # readings a second of the tasks of event loops; 0 for none
    duration_s: float | None = None  # seconds after which the recording ends; None for no limit
    until_exit: int = 0  # pid of a process at whose exit the recording ends; 0 for none
    unprivileged: bool = False  # record own processes without BPF, as an ordinary user can
    control: ControlFds | None = None  # descriptors for commands that pause the recording or change it; None for none

    @property
    def goroutine_rate_hz(self) -> int:
        """Rate at which goroutines are read, in Hz; 0 if they are not read."""
        asked = not self.target.is_system if self.goroutines is None else self.goroutines
        return _GOROUTINE_RATE_HZ if asked else 0

    @property
    def is_steady(self) -> bool:
        """True for recordings of the whole machine with rotation and without a command: they may run for days."""
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
