# SPDX-License-Identifier: Apache-2.0
"""The Recording: the kernel's records as columns, with raw addresses, before symbolization. Stages (`decode.retype`,
`decode.deferred`, unwinding) are functions from Recording to Recording; `symbolize.symbolizer` makes a
`model.profile.Profile` of it. Samples are sorted by (time, place in the file)."""

import enum
from collections.abc import Iterable
from dataclasses import field, replace
from functools import partial
from typing import Any, NamedTuple, Self

import numpy as np

from perf_offcpu.abi.attr import Attr
from perf_offcpu.losses import LossCause
from perf_offcpu.model.callchains import Ragged, Snapshots
from perf_offcpu.model.columns import I32, I64, U8, U16, U32, U64, Bool, Strings, Table, column, tables_of
from perf_offcpu.model.coverage import Sampling, gaps, united
from perf_offcpu.structs import frozen, mutable


class SampleFlag(enum.IntFlag):
    """Bits of the column `flags` of samples."""

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
    THROTTLED = 1 << 16  # with PREEMPTED: waited for its control group's quota of CPU time
    SAMPLED = 1 << 17  # drawn by length: period is a weight, longest_ns the length, count an estimate
    AT_PAUSE = 1 << 18  # with STILL_BLOCKED: when a pause began, or its thread is in a later recording
    DRAWN = 1 << 19  # with AGGREGATED: a part of an exact sum, estimated by the waits drawn for their stack
    ON_CPU_NAMES = 1 << 21  # no wait: Python functions, moved to the on-CPU sample of that time
    OF_SEVERAL = 1 << 20  # in poll() or select() of several descriptors: the object is the first that could be read


SUM_FLAGS = SampleFlag.AGGREGATED | SampleFlag.UNTIMED  # flags of samples that are no single waits with a place in time
_row = partial(column, "i4", sentinel=-1)
_text = partial(column, "u4", domain="strings")
_comm = partial(column, "u4", domain="comm")
_time = partial(column, "i8", unit="ns", sentinel=-1, domain="time")
_since = partial(column, "i8", unit="ns", domain="since")
_spent = partial(column, "i8", unit="ns")
_tcp = partial(column, "u4")
_task = partial(column, "i4", sentinel=-1, domain="task")


class SampleColumns(Table):
    """Columns that Samples and ProfileSamples share; columns about waits hold sentinels where a sample is no wait."""

    time_ns: I64 = _time("sample time; for off-cpu the end of the (last) wait")
    period: I64 = column("i8", "weight, in the unit of its event (ns for off-cpu and cpu-clock)")
    evsel: I32 = _row("row in evsels", domain="evsels")
    pid: I32 = _task("tgid")
    tid: I32 = _task("thread id")
    cpu: I32 = _row("CPU number", domain="cpu")
    comm: U32 = _comm("string: comm of the thread at that time")
    flags: U32 = column("u4", "SampleFlag")
    state: I32 = _row("raw task state at switch-out (TASK_* bits)")
    wakeup_ns: I64 = _time("time of the wake-up")
    runq_ns: I64 = _spent("run-queue delay within period", sentinel=-1)
    switch_out_ns: I64 = _time("begin of the (first) wait")
    longest_ns: I64 = _spent("longest wait of a sum", sentinel=-1)
    waker_pid: I32 = _task("tgid of the waker")
    waker_tid: I32 = _task("thread id of the waker")
    syscall: I32 = column("i4", "system call waited in; -1 none, -2 unknown", sentinel=-2)
    count: I64 = column("i8", "number of waits (1 for ordinary samples)", sentinel=1)
    cgroup: U64 = column("u8", "cgroup id, 0 unknown", domain="cgroup")
    asked_ns: I64 = _spent("time after which the system call was to end by itself", sentinel=-1)
    holder_tid: I32 = _task("thread that held the lock at the begin; if still blocked, at the end")

    tcp_state: U32 = _tcp("state of the TCP connection waited for; 0 no facts about one")
    tcp_tick_us: U32 = _tcp("length of a tick, us")
    tcp_srtt_us: U32 = _tcp("smoothed round trip, us")
    tcp_min_rtt_us: U32 = _tcp("shortest round trip, us")
    tcp_rtt_us: U32 = _tcp("round trip of the last segment acknowledged, us")
    tcp_retransmits: U32 = _tcp("timeouts of the segment not acknowledged yet")
    tcp_total_retrans: U32 = _tcp("segments retransmitted since the connection began")
    tcp_packets_out: U32 = _tcp("segments not acknowledged yet")
    tcp_segments_in: U32 = _tcp("segments with data received since the connection began")
    tcp_sent_ticks: U32 = _tcp("ticks from the last data sent to the end of the wait")
    tcp_received_ticks: U32 = _tcp("ticks from the last data received to the end of the wait")
    tcp_window_ticks: U32 = _tcp("ticks in which the peer's window was full, since the connection began")

    def length_ns(self) -> I64:
        """Return int64[n], ns: the length of each wait, of a sum the total: `longest_ns` if SAMPLED, else `period`."""
        sampled = self.has(SampleFlag.SAMPLED) & (self.longest_ns >= 0)
        return np.where(sampled, self.longest_ns, self.period) if sampled.any() else self.period

    def delay_ns(self) -> I64:
        """Return int64[n]: the run-queue delay within `length_ns()` in ns (`runq_ns`: within `period`); -1 unknown."""
        length = self.length_ns()
        if length is self.period:
            return self.runq_ns
        part = np.rint(self.runq_ns * (length / np.maximum(self.period, 1))).astype(np.int64)
        return np.where(self.runq_ns > 0, part, self.runq_ns)

    def has(self, flags: SampleFlag) -> Bool:
        """Return bool[n]: True for samples with any of these flags."""
        is_set: Bool = (self.flags & np.uint32(flags)) != 0
        return is_set


class Samples(SampleColumns):
    """Samples of a recording, a row each, with raw addresses."""

    space: I32 = _row("row in spaces: the address space of user addresses", domain="spaces")
    ip: U64 = column("u8", "instruction pointer as sampled; 0 unknown")
    cpumode: U8 = column("u1", "abi.records.CpuMode of ip")
    callchain: I32 = _row("row in callchains", domain="callchains")
    waker_callchain: I32 = _row("row in callchains: where the waker was", domain="callchains")
    python: I32 = _row("row in places: where it was in Python", domain="places")
    snapshot: I32 = _row("row in snapshots: the user stack, to be unwound", domain="snapshots")
    object_id: U64 = column("u8", "id of the object waited for, of a row in objects; 0 none", domain="object_ids")


class Maps(Table):
    """Executable mappings by address space, sorted by (space, start), not overlapping within a space."""

    space: I32 = column("i4", "row in spaces; -1 the kernel's", domain="spaces")
    start: U64 = column("u8", "first address")
    end: U64 = column("u8", "address after the last")
    pgoff: U64 = column("u8", "offset in the file; for the kernel map, address of its symbol", unit="bytes")
    dso: I32 = column("i4", "row in dsos", domain="dsos")


class Spaces(Table):
    """Address spaces: a process has one from each exec or fork to the next; a new one if maps are replaced."""

    pid: I32 = _task("tgid")
    begin_ns: I64 = _since("valid from; 0 since before the recording")
    previous: I32 = _row("row: the image that this one replaced by execve()", domain="spaces")


class Dsos(Table):
    """Mapped files of a recording and their build-ids."""

    path: U32 = _text("string: path or pseudo name as recorded")
    build_id: U32 = _text('string: build-id in hex, "" unknown')
    cpumode: U8 = column("u1", "abi.records.CpuMode of its code")


class Comms(Table):
    """Names of threads over time, sorted by (tid, begin)."""

    tid: I32 = _task("thread id")
    pid: I32 = _task("tgid")
    begin_ns: I64 = _since("valid from; 0 since before the recording")
    comm: U32 = _comm("string")


class Tasks(Table):
    """Births and exits of threads, sorted by (tid, begin); a tid that is reused has several rows."""

    tid: I32 = _task("thread id")
    pid: I32 = _task("tgid")
    begin_ns: I64 = _since("birth; 0 before the recording")
    end_ns: I64 = _time("exit; -1 not seen")
    parent: I32 = _task("tgid of the parent; -1 not known, and for threads")


class Budget(Table):
    """Time of each thread inside the recording, by state; sorted by (tid, begin).

    wall = end_ns - begin_ns = running + runnable + the blocked columns + unknown."""

    tid: I32 = _task("thread id")
    pid: I32 = _task("tgid")
    begin_ns: I64 = _time("birth, or begin of the recording")
    end_ns: I64 = _time("exit, or end of the recording")
    running_ns: I64 = _spent("on a CPU")
    runnable_ns: I64 = _spent("waiting for a CPU after a wake-up or birth")
    preempted_ns: I64 = _spent("waiting for a CPU after preemption or yielding")
    throttled_ns: I64 = _spent("waiting for the control group's quota of CPU time")
    interruptible_ns: I64 = _spent("blocked, S")
    uninterruptible_ns: I64 = _spent("blocked, D")
    idle_ns: I64 = _spent("blocked, I (uninterruptible, no load)")
    stopped_ns: I64 = _spent("stopped or traced, T and t")
    other_ns: I64 = _spent("off the CPU in any other state")
    switches: I64 = column("i8", "times that it left a CPU")
    own_pid: I32 = column("i4", "tgid in the pid namespace of the thread itself; -1 unknown", sentinel=-1)
    own_tid: I32 = column("i4", "thread id there; -1 unknown", sentinel=-1)


class PythonPlaces(Table):
    """Places in Python functions (function, file, line), each with the place that called it."""

    caller: I32 = _row("row in places", domain="places")
    is_first: Bool = column("?", "the first function that a call of the interpreter's C function runs")
    name: U32 = _text('string: function; "" unknown')
    file: U32 = _text("string: source file")
    line: I32 = column("i4", "source line", sentinel=0)


class WaitObjects(Table):
    """Objects that threads waited for, sorted by id: see `abi.wait_objects`."""

    id: U64 = column("u8", "as in samples; unique", domain="object_ids")
    kind: U16 = column("u2", "abi.wait_objects.ObjectKind")
    pid: I32 = _task("tgid of the first sleeper; of a futex, the process it is in")
    device: U32 = column("u4", "of the file system: major * 2^20 + minor; 0 unknown")
    inode: U64 = column("u8", "of the file, pipe or socket; 0 none")
    number: I32 = _row("child waited for, number of descriptors, id of a System V object, value expected in a futex")
    operation: U16 = column("u2", "of futex(2), as the first waiter of a futex called it; LockRole of a kernel lock")
    address: U64 = column("u8", "of the futex; 0 none")
    peer_inode: U64 = column("u8", "of the Unix socket at the other end; 0 unknown")
    peer_pid: I32 = _task("tgid of the process at the other end")
    protocol: U32 = _text("string: of a socket, such as tcp")
    local: U32 = _text("string: own address of a socket")
    remote: U32 = _text("string: address of its other end")
    name: U32 = _text('string: path or leaf name of a file; "" unknown')
    place: U32 = _text("string: memory that a futex is in")
    peer_comm: U32 = _comm("string: comm of the process at the other end")


class DeferredChains(Table):
    """User callchains sent when their thread returned to user space, sorted by (time, place in the file)."""

    time_ns: I64 = _time("when it was walked")
    pid: I32 = _task("tgid")
    tid: I32 = _task("thread id")
    cookie: U64 = column("u8", "names the samples it completes; 0: all earlier ones of its thread")
    callchain: I32 = _row("row in callchains: addresses, leaf first, no marker", domain="callchains")
    comm: U32 = _comm("string: comm of the thread at that time")
    space: I32 = _row("row in spaces: the address space of the addresses", domain="spaces")


class KernelSymbols(Table):
    """Symbols that the recording itself names (KSYMBOL: BPF programs, trampolines)."""

    start: U64 = column("u8", "first address")
    end: U64 = column("u8", "address after the last")
    name: U32 = _text("string")


@frozen
class Evsel:
    """Event of a recording: name, attr, unit of its periods."""

    name: str
    attr: Attr
    unit: str = ""  # unit of periods: "ns" where the event counts time, else "" (occurrences)


Spans = tuple[tuple[int, int], ...]  # (begin, end) of times, ns


@mutable
class Meta:
    """Facts about machine and run, from the header; "" or 0 where unknown."""

    hostname: str = ""
    os_release: str = ""
    arch: str = ""
    version: str = ""
    cmdline: tuple[str, ...] = ()
    cpu_desc: str = ""
    nr_cpus: int = 0
    clockid: int = -1  # clock of all times; -1 is perf's own (scheduler) clock
    wall_clock_ns: int = 0  # CLOCK_REALTIME at `wall_clock_at_ns` of the recording's clock; 0 unknown
    wall_clock_at_ns: int = 0
    begin_ns: int = 0  # waits that ended from here on were recorded; 0 unknown
    end_ns: int = 0
    sampling: Sampling = Sampling()  # of waits
    threshold_ns: int = -1  # shorter waits were summed, longer ones are samples; -1 unknown
    first_ns: int = -1  # time of the first timed sample or record; -1 none
    last_ns: int = -1
    kernel_build_id: str = ""
    source: str = ""  # the file, as the user named it
    unprivileged: bool = False  # recorded by an ordinary user, without BPF
    # (begin, end) of each span that was recorded, ascending, if there are pauses or if recordings were joined
    parts: Spans = ()
    hosts: tuple[Spans, ...] = ()  # the recorded spans of each host, if recordings of several hosts were joined

    @property
    def recorded(self) -> Spans:
        """Return (begin, end) of each span in which any host was recorded."""
        return self.parts or ((self.begin_ns or self.first_ns, self.end_ns or self.last_ns),)

    @property
    def pauses(self) -> Spans:
        """Return (begin, end) of each span in which no host was recorded: a pause, or a gap between recordings."""
        return tuple(gaps(self.parts))

    def pauses_of(self, hosts: Iterable[int]) -> Spans:
        """Return (begin, end) of each span in which no host of `hosts`, indices in `self.hosts`, was recorded."""
        if not self.hosts:
            return self.pauses
        return tuple(gaps(united(span for host in hosts for span in self.hosts[host])))

    @property
    def paused_ns(self) -> int:
        """Return the ns of `pauses` between the first and the last timed sample or record, a part of `duration_ns`."""
        spans = ((max(begin, self.first_ns), min(end, self.last_ns)) for begin, end in self.pauses)
        return sum(max(end - begin, 0) for begin, end in spans)

    @property
    def duration_ns(self) -> int:
        """Return the ns from the first to the last timed sample or record; 0 unknown."""
        return max(self.last_ns - self.first_ns, 0) if self.first_ns >= 0 else 0


class LoopTask(NamedTuple):
    """Task of an event loop, as read. Addresses are those of Python objects in its process."""

    address: int
    name: str
    awaits: str  # type of what it awaits, "running", or "" if it is ready to run
    awaited: int  # address of the lock, queue, task or future that it waits for
    awaited_by: frozenset[int]  # tasks that await it
    inside: frozenset[int]  # objects whose `async with` it is in
    frames: tuple[tuple[str, str, int], ...]  # function, file and line of its coroutines, leaf first


class EventLoop(NamedTuple):
    """One reading of the asyncio tasks in a blocked thread; no tasks if the thread ran, or if they could not be read.
    `switch_out_ns`: begin of the thread's wait; 0 if it ran again before its tasks were read, or not known."""

    pid: int
    tid: int
    switch_out_ns: int
    read_ns: int
    weight_ns: int  # time for which the reading stands; 0 for the last one, at the end
    tasks: tuple[LoopTask, ...]


@mutable
class Recording:
    """Decoded recording as columns. Tables refer to each other by row, and to texts by rows of `strings`."""

    samples: Samples = field(default_factory=Samples)
    callchains: Ragged = field(default_factory=Ragged)
    snapshots: Snapshots = field(default_factory=Snapshots)  # empty if not wanted, or unwound
    evsels: list[Evsel] = field(default_factory=list)
    strings: Strings = field(default_factory=Strings)
    spaces: Spaces = field(default_factory=Spaces)
    maps: Maps = field(default_factory=Maps)
    dsos: Dsos = field(default_factory=Dsos)
    comms: Comms = field(default_factory=Comms)
    tasks: Tasks = field(default_factory=Tasks)
    budget: Budget = field(default_factory=Budget)  # empty if the recording does not hold it
    loops: tuple[EventLoop, ...] = ()
    places: PythonPlaces = field(default_factory=PythonPlaces)
    objects: WaitObjects = field(default_factory=WaitObjects)
    kernel_symbols: KernelSymbols = field(default_factory=KernelSymbols)
    deferred: DeferredChains = field(default_factory=DeferredChains)  # empty once they are merged
    cgroups: dict[int, str] = field(default_factory=dict)
    perf_maps: dict[int, bytes] = field(default_factory=dict)  # pid → map of code that the process generated
    paths: dict[str, list[str]] = field(default_factory=dict)  # build-id → paths that the header has for it
    losses: dict[LossCause, int] = field(default_factory=dict)  # → number, never 0
    meta: Meta = field(default_factory=Meta)

    def replaced(self, **changes: Any) -> Self:
        """Return the recording with the given fields replaced."""
        return replace(self, **changes)

    def check(self) -> None:
        """Raise AssertionError unless every table is well-formed and every row id leads somewhere."""
        for table in tables_of(self).values():
            table.check(self)
        self.callchains.check()
        self.snapshots.check()
        timed = self.samples.time_ns[self.samples.time_ns >= 0]
        assert bool((timed[1:] >= timed[:-1]).all()), "samples are not in time order"
