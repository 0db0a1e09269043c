# SPDX-License-Identifier: Apache-2.0
"""The Recording: what the kernel said, in columns. Raw addresses, no names of functions yet.

Stages (`decode.retype`, `decode.deferred`, unwinding) are functions from Recording to Recording;
`symbolize.symbolize` turns it into a `model.profile.Profile`. Samples are sorted by (time, place in the
file); the same input always gives the same columns.
"""

from __future__ import annotations

import enum
from dataclasses import field, replace
from typing import Any

from perf_offcpu.abi.attr import Attr
from perf_offcpu.losses import LossCause
from perf_offcpu.model.callchains import Ragged
from perf_offcpu.model.columns import I32, I64, U8, U32, U64, Table, check_tables, column
from perf_offcpu.model.snapshots import Snapshots
from perf_offcpu.model.strings import Strings
from perf_offcpu.structs import frozen, mutable


class SampleFlag(enum.IntFlag):
    """Column `flags` of Samples."""

    OFFCPU = 1 << 0  # off-cpu time; without it: an ordinary sample
    AGGREGATED = 1 << 1  # a sum of waits
    UNTIMED = 1 << 2  # no real time (upstream's sums): not for timelines
    PREEMPTED = 1 << 3
    TRUNCATED = 1 << 4  # the callchain was cut
    NO_USER_STACK = 1 << 5  # lost: could not be taken
    NO_KERNEL_STACK = 1 << 6
    STILL_BLOCKED = 1 << 7
    BEGAN_BEFORE = 1 << 8
    UNMERGED = 1 << 9  # the deferred part of the callchain never came
    REPAIRED_IDS = 1 << 10  # pid and tid had been swapped by the recorder
    WAKER_INTERRUPT = 1 << 11  # woken from an interrupt: the waker is only the task that it interrupted
    STACK_EXHAUSTED = 1 << 12  # unwinding ended where the copy of the stack ends (TRUNCATED, too)
    NO_CFI = 1 << 13  # unwinding ended in code that says nothing of its frames (TRUNCATED, too)
    OUTSIDE_MAPS = 1 << 14  # unwinding led to no code (TRUNCATED, too)
    YIELDED = 1 << 15  # with PREEMPTED: gave up its CPU by itself


@mutable
class SampleColumns(Table):
    """What a sample has before and after its addresses are named: the columns of Samples and ProfileSamples.

    Off-cpu fields hold their sentinel on ordinary samples.
    """

    time_ns: I64 = column(
        "i8", unit="ns", sentinel=-1, domain="time", doc="sample time; for off-cpu the end of the (last) wait"
    )
    period: I64 = column("i8", doc="weight, in the unit of its event (ns for off-cpu and cpu-clock)")
    evsel: I32 = column("i4", sentinel=-1, domain="evsels", doc="row in evsels")
    pid: I32 = column("i4", sentinel=-1, domain="task", doc="tgid")
    tid: I32 = column("i4", sentinel=-1, domain="task", doc="thread id")
    cpu: I32 = column("i4", sentinel=-1, domain="cpu", doc="CPU number")
    comm: U32 = column("u4", domain="comm", doc="string: comm of the thread at that time")
    flags: U32 = column("u4", doc="SampleFlag")
    state: I32 = column("i4", sentinel=-1, doc="raw task state at switch-out (TASK_* bits)")
    wakeup_ns: I64 = column("i8", unit="ns", sentinel=-1, domain="time", doc="when the sleeper was woken")
    runq_ns: I64 = column("i8", unit="ns", sentinel=-1, doc="run-queue delay within period")
    switch_out_ns: I64 = column("i8", unit="ns", sentinel=-1, domain="time", doc="begin of the (first) wait")
    longest_ns: I64 = column("i8", unit="ns", sentinel=-1, doc="longest wait of a sum")
    waker_pid: I32 = column("i4", sentinel=-1, domain="task", doc="tgid of the waker")
    waker_tid: I32 = column("i4", sentinel=-1, domain="task", doc="thread id of the waker")
    syscall: I32 = column("i4", sentinel=-2, doc="system call waited in; -1 none, -2 unknown")
    count: I64 = column("i8", sentinel=1, doc="number of waits (1 for ordinary samples)")
    cgroup: U64 = column("u8", domain="cgroup", doc="cgroup id, 0 unknown")


@mutable
class Samples(SampleColumns):
    """One row a sample, with raw addresses."""

    space: I32 = column(
        "i4", sentinel=-1, domain="spaces", doc="row in spaces: the address space of user addresses"
    )
    ip: U64 = column("u8", doc="instruction pointer as sampled; 0 unknown")
    cpumode: U8 = column("u1", doc="abi.records.CpuMode of ip")
    callchain: I32 = column("i4", sentinel=-1, domain="callchains", doc="row in callchains")
    waker_callchain: I32 = column(
        "i4", sentinel=-1, domain="callchains", doc="row in callchains: where the waker was; -1 none"
    )
    snapshot: I32 = column(
        "i4", sentinel=-1, domain="snapshots", doc="row in snapshots: the user stack, to be unwound"
    )


@mutable
class Maps(Table):
    """Executable mappings by address space, sorted by (space, start), not overlapping within a space."""

    space: I32 = column("i4", domain="spaces", doc="row in spaces; -1 the kernel's")
    start: U64 = column("u8", doc="first address")
    end: U64 = column("u8", doc="address behind the last")
    pgoff: U64 = column(
        "u8", unit="bytes", doc="offset in the file; for the kernel map, address of its symbol"
    )
    dso: I32 = column("i4", domain="dsos", doc="row in dsos")


@mutable
class Spaces(Table):
    """Address spaces: one from each exec or fork of a process to the next, anew when maps are replaced."""

    pid: I32 = column("i4", domain="task", doc="tgid")
    begin_ns: I64 = column("i8", unit="ns", domain="since", doc="valid from; 0 since before the recording")
    previous: I32 = column(
        "i4", sentinel=-1, domain="spaces", doc="row: the image that this one replaced by execve(); -1 none"
    )


@mutable
class Dsos(Table):
    """Mapped objects: what a recording knows of a file."""

    path: U32 = column("u4", domain="strings", doc="string: path or pseudo name as recorded")
    build_id: U32 = column("u4", domain="strings", doc='string: build-id in hex, "" unknown')
    cpumode: U8 = column("u1", doc="abi.records.CpuMode of its code")


@mutable
class Comms(Table):
    """Names of threads over time, sorted by (tid, begin)."""

    tid: I32 = column("i4", domain="task", doc="thread id")
    pid: I32 = column("i4", sentinel=-1, domain="task", doc="tgid")
    begin_ns: I64 = column("i8", unit="ns", domain="since", doc="valid from; 0 since before the recording")
    comm: U32 = column("u4", domain="comm", doc="string")


@mutable
class Tasks(Table):
    """Lives of threads, sorted by (tid, begin); a tid that is reused has several."""

    tid: I32 = column("i4", domain="task", doc="thread id")
    pid: I32 = column("i4", domain="task", doc="tgid")
    begin_ns: I64 = column("i8", unit="ns", domain="since", doc="birth; 0 before the recording")
    end_ns: I64 = column("i8", unit="ns", sentinel=-1, domain="time", doc="exit; -1 not seen")


@mutable
class Budget(Table):
    """What each thread did with its life inside the recording, sorted by (tid, begin).

    wall = end_ns - begin_ns = running + runnable + the blocked columns + what is not known.
    """

    tid: I32 = column("i4", domain="task", doc="thread id")
    pid: I32 = column("i4", domain="task", doc="tgid")
    begin_ns: I64 = column("i8", unit="ns", domain="time", doc="birth, or begin of the recording")
    end_ns: I64 = column("i8", unit="ns", domain="time", doc="exit, or end of the recording")
    running_ns: I64 = column("i8", unit="ns", doc="on a CPU")
    runnable_ns: I64 = column("i8", unit="ns", doc="waiting for a CPU after a wake-up or birth")
    preempted_ns: I64 = column("i8", unit="ns", doc="waiting for a CPU after preemption or yielding")
    interruptible_ns: I64 = column("i8", unit="ns", doc="blocked, S")
    uninterruptible_ns: I64 = column("i8", unit="ns", doc="blocked, D")
    idle_ns: I64 = column("i8", unit="ns", doc="blocked, I (uninterruptible, no load)")
    stopped_ns: I64 = column("i8", unit="ns", doc="stopped or traced, T and t")
    other_ns: I64 = column("i8", unit="ns", doc="off the CPU in any other state")
    switches: I64 = column("i8", doc="times that it left a CPU")


@mutable
class DeferredChains(Table):
    """User callchains sent when their thread returned to user space, sorted by (time, place in the file)."""

    time_ns: I64 = column("i8", unit="ns", sentinel=-1, domain="time", doc="when it was walked")
    pid: I32 = column("i4", sentinel=-1, domain="task", doc="tgid")
    tid: I32 = column("i4", sentinel=-1, domain="task", doc="thread id")
    cookie: U64 = column("u8", doc="names the samples it completes; 0: all earlier ones of its thread")
    callchain: I32 = column(
        "i4", sentinel=-1, domain="callchains", doc="row in callchains: addresses, leaf first, no marker"
    )
    comm: U32 = column("u4", domain="comm", doc="string: comm of the thread at that time")
    space: I32 = column(
        "i4", sentinel=-1, domain="spaces", doc="row in spaces: the address space of the addresses"
    )


@mutable
class KernelSymbols(Table):
    """Symbols that the recording itself names (KSYMBOL: BPF programs, trampolines)."""

    start: U64 = column("u8", doc="first address")
    end: U64 = column("u8", doc="address behind the last")
    name: U32 = column("u4", domain="strings", doc="string")


@frozen
class Evsel:
    """One event of the recording."""

    name: str
    attr: Attr
    unit: str = ""
    """Unit of periods: "ns" where the event counts time, else "" (occurrences)."""


@mutable
class Meta:
    """What the header says of the machine and the run; "" or 0 where unknown."""

    hostname: str = ""
    os_release: str = ""
    arch: str = ""
    version: str = ""
    cmdline: tuple[str, ...] = ()
    cpu_desc: str = ""
    nr_cpus: int = 0
    clockid: int = -1
    """Clock of all times; -1 is perf's own (scheduler) clock."""
    wall_clock_ns: int = 0
    """CLOCK_REALTIME at the moment `wall_clock_at_ns` of the recording's clock; 0 unknown."""
    wall_clock_at_ns: int = 0
    begin_ns: int = 0
    """Waits that ended from here on were recorded; 0 unknown."""
    end_ns: int = 0
    threshold_ns: int = -1
    """Waits from here on are samples of their own, shorter ones were summed; -1 unknown."""
    first_ns: int = -1
    """Time of the first timed sample or record; -1 none."""
    last_ns: int = -1
    kernel_build_id: str = ""
    source: str = ""
    """The file, as the user named it."""


@mutable
class Recording:
    """A whole recording. Tables refer to each other by row; texts are rows of `strings`."""

    samples: Samples = field(default_factory=Samples)
    callchains: Ragged = field(default_factory=Ragged)
    snapshots: Snapshots = field(default_factory=Snapshots)
    """Empty unless asked for (`decode.load`), and once they are unwound."""
    evsels: list[Evsel] = field(default_factory=list)
    strings: Strings = field(default_factory=Strings)
    spaces: Spaces = field(default_factory=Spaces)
    maps: Maps = field(default_factory=Maps)
    dsos: Dsos = field(default_factory=Dsos)
    comms: Comms = field(default_factory=Comms)
    tasks: Tasks = field(default_factory=Tasks)
    budget: Budget = field(default_factory=Budget)
    """Empty if the recording does not hold it."""
    kernel_symbols: KernelSymbols = field(default_factory=KernelSymbols)
    deferred: DeferredChains = field(default_factory=DeferredChains)
    """Empty once they are merged."""
    cgroups: dict[int, str] = field(default_factory=dict)
    losses: dict[LossCause, int] = field(default_factory=dict)
    """Cause → how many; only causes that happened. Shown by every report."""
    meta: Meta = field(default_factory=Meta)

    def replaced(self, **changes: Any) -> Recording:
        """The same recording with some tables replaced."""
        return replace(self, **changes)

    def check(self) -> None:
        """Raise AssertionError unless every table is well-formed and every row id leads somewhere."""
        check_tables(self)
        self.callchains.check()
        self.snapshots.check()
        timed = self.samples.time_ns[self.samples.time_ns >= 0]
        assert bool((timed[1:] >= timed[:-1]).all()), "samples are not in time order"
