# SPDX-License-Identifier: Apache-2.0
"""What a user can ask of a recording. `commands.record.options` makes these values of a command line."""

from __future__ import annotations

from dataclasses import dataclass

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
    """Choices for one recording.

    Args:
        target: whose waits and samples are recorded.
        command: the command to start, () for none.
        argv: the recorder's own command line, for the file.
        output: the file as the user named it; "-" is standard output, in pipe form.
        rotation: when the recording goes on in a new file; None: never.
        compression_level: of zstd, 0 for plain records.
        threshold_ns: waits from here on become samples of their own, shorter ones are summed; 0: none are.
        events: on-CPU events to sample; () for off-CPU time alone.
        frequency_hz: samples a second and CPU of each on-CPU event.
        period: instead of a frequency, one sample every so many events; 0 for the frequency.
        kernel_stacks: whether callchains have their kernel part.
        deferred_stacks: whether their user part is walked when the task returns to user mode, where the
            kernel can do that.
        all_cgroups: whether on-CPU samples hold the control group; off-CPU samples always do.
        stack_bytes: bytes of the user stack that samples bring along, to be unwound when they are read; 0:
            none, user callchains are walked along frame pointers.
        short_waits: what becomes of waits under the threshold.
        min_block_ns: waits shorter than that are left out, and counted.
        max_rate: off-cpu samples a second from which on the threshold rises by itself; 0 for any number.
        states: letters of the states that count as a wait (`collect.states`).
        kernel_threads: whether kernel threads are recorded.
        wakers: whether wake-ups are noted.
        waker_stacks: whether the stacks of wakers are taken.
        budget: whether all time of every thread is accounted for.
        ring_bytes: size of each CPU's ring buffer, a power of two of pages; 0 for the default.
        realtime_priority: SCHED_FIFO priority of the recorder; 0 for none.
        duration_s: end after so many seconds; None for no limit.
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
