# SPDX-License-Identifier: Apache-2.0
"""The Profile: named frames, a stack tree, and one row a sample. `symbolize.symbolizer` makes it from a Recording;
converters and reports take nothing else, so none of them can be handed unsymbolized data by mistake. A sample's weight
is its `period`: an integer until printed."""

from dataclasses import field, replace
from enum import IntFlag
from typing import NamedTuple, Self

import numpy as np

from perf_offcpu.abi.counters import TASK_EVENT
from perf_offcpu.abi.records import CpuMode
from perf_offcpu.losses import LossCause
from perf_offcpu.model.columns import I32, I64, U8, U16, U32, U64, Bool, Strings, Table, column, tables_of
from perf_offcpu.model.lookup import rows_at
from perf_offcpu.model.recording import Budget, Comms, EventLoop, Evsel, Meta, SampleColumns, SampleFlag, Tasks
from perf_offcpu.structs import mutable


class ProgramRule(NamedTuple):
    """Rule on the waits in functions of a program: the class that they get, and whether they are for the next piece of
    work; see Documentation/wait-classes.md. `frames` to `syscall` are regular expressions for whole names, separated by
    blanks; "" matches all. Code without a name is `[FILE]`."""

    program: str  # the program or library, for people
    meaning: str  # what is waited for, for people
    frames: str = ""  # functions, one of which is in the stack
    callers: str = ""  # functions, one of which called the function that `frames` matches
    comm: str = ""  # names of threads
    syscall: str = ""
    # labels of classes: the rule is for waits to which the general rules gave one of these classes; "": all
    # classes but runqueue, throttled, stopped and fault
    waits: str = ""
    wait_class: str = ""  # label of the class that the wait gets; "": it keeps the class of the general rules
    for_work: bool | None = None  # True: the thread waits for its next piece of work; None: the rule does not say
    condition: str = ""  # "unended": True of a lock or condition whose waits no thread ended (a timer); else False.
    # "brought": False of waits for items that only threads that wait there put back; "workers": False of a main thread;
    # else True


TASK_READING = "task reading"
_KERNEL_DSOS = ("[kernel.kallsyms]", "[kernel]", "[guest.kernel.kallsyms]")


class Frames(Table):
    """Code locations with their names, in no meaningful order."""

    symbol: U32 = column("u4", 'string: function name, demangled; "" unknown', domain="strings")
    dso: U32 = column("u4", 'string: path or pseudo name; "" unknown', domain="strings")
    address: U64 = column("u8", "dso-relative virtual address (kernel: absolute); 0 unknown")
    offset: U64 = column("u8", "from the symbol's start; 0 if no symbol, and if it is_called", unit="bytes")
    is_called: Bool = column("?", "the symbol is the function that was called; its code led to this place")
    file: U32 = column("u4", 'string: source file; "" unknown', domain="strings")
    line: I32 = column("i4", "source line; 0 unknown", sentinel=0)
    inline_depth: I32 = column("i4", "0 the function itself, 1 inlined into it, …", sentinel=0)
    cpumode: U8 = column("u1", "abi.records.CpuMode of the code")
    ip: U64 = column("u8", "address as recorded, in its process; 0 unless asked for (keep_ips)")

    def is_kernel(self) -> Bool:
        """Return bool[n]: True for frames of kernel code, the host's or a guest's."""
        kernel: Bool = (self.cpumode == CpuMode.KERNEL) | (self.cpumode == CpuMode.GUEST_KERNEL)
        return kernel


class Stacks(Table):
    """Stack tree (`model.callchains`): a row is a node, with its frame and the node of its caller; `parent[s] < s`."""

    parent: I32 = column("i4", "row in stacks; -1 a root", sentinel=-1, domain="stacks")
    frame: I32 = column("i4", "row in frames", domain="frames")


class ProfileSamples(SampleColumns):
    """Samples of a profile, a row each, sorted as in the Recording."""

    stack: I32 = column("i4", "row in stacks: the leaf; -1 no stack", sentinel=-1, domain="stacks")
    waker_stack: I32 = column("i4", "row in stacks: where the waker was", sentinel=-1, domain="stacks")
    object: I32 = column("i4", "row in objects: what was waited for", sentinel=-1, domain="objects")


class ObjectFact(IntFlag):
    """Facts about a lock or semaphore, from the recorded waits for it (`symbolize.wait_objects.lock_facts`)."""

    SEVERAL = 1  # several threads waited for it
    BY_PEERS = 2  # threads that waited for it, too, ended waits
    BY_OTHERS = 4  # threads that never waited for it ended waits
    BY_STRANGERS = 8  # threads of processes that are not recorded ended waits
    SHARED = 16  # processes share it: threads may hold it that never wait for it in the recording
    THREAD = 32  # the word in which the kernel clears the id of a thread that exits: pthread_join()
    MUTEX = 64  # its waiters expect in the futex word the value of a contended mutex, of glibc and others
    RWLOCK = 128  # its waiters expect in the futex word the value of a contended pthread_rwlock_t
    CIRCLE = 256  # one thread waits for it, whose signals end, in turn, waits of the threads that signal it


class Objects(Table):
    """Locks, files, sockets and other objects that threads waited for."""

    kind: U16 = column("u2", "abi.wait_objects.ObjectKind")
    name: U32 = column("u4", "string: as it is shown to people; equal names are one object", domain="strings")
    stable: U32 = column("u4", "string: name without what differs from run to run: addresses, ids", domain="strings")
    protocol: U32 = column("u4", "string: of a socket, such as tcp", domain="strings")
    local: U32 = column("u4", "string: address of this end of a connection: 10.0.0.7:80", domain="strings")
    remote: U32 = column("u4", "string: address of its other end", domain="strings")
    shared: Bool = column("?", "of a futex: in memory that processes share")
    connected: Bool = column("?", "a pipe, a socket that has another end, or one of UDP that waits for answers")
    inward: Bool = column("?", "the other end is a client, or in the same process, or not known")
    facts: U16 = column("u2", "ObjectFact: of a futex or semaphore")
    pid: I32 = column("i4", "of a futex: tgid of the process it is in", sentinel=-1, domain="task")
    address: U64 = column("u8", "of a futex; 0 none")
    peer_pid: I32 = column("i4", "tgid of the process at the other end", sentinel=-1, domain="task")


@mutable
class Profile:
    """Symbolized recording: the input of all converters and reports."""

    samples: ProfileSamples = field(default_factory=ProfileSamples)
    stacks: Stacks = field(default_factory=Stacks)
    frames: Frames = field(default_factory=Frames)
    strings: Strings = field(default_factory=Strings)
    evsels: list[Evsel] = field(default_factory=list)
    comms: Comms = field(default_factory=Comms)
    tasks: Tasks = field(default_factory=Tasks)
    budget: Budget = field(default_factory=Budget)
    objects: Objects = field(default_factory=Objects)
    loops: tuple[EventLoop, ...] = ()
    cgroups: dict[int, str] = field(default_factory=dict)
    build_ids: dict[int, str] = field(default_factory=dict)  # dso (string) → hex build-id that never changed
    losses: dict[LossCause, int] = field(default_factory=dict)
    rules: tuple[ProgramRule, ...] = ()  # rules of the user on waits of programs, which precede the built-in ones
    meta: Meta = field(default_factory=Meta)

    def build_id(self, dso: int) -> str:
        """Return the build-id in hex of a dso, a row in strings; "" if unknown."""
        build_id = self.build_ids.get(dso, "")
        return build_id or (self.meta.kernel_build_id if self.strings[dso] in _KERNEL_DSOS else "")

    def comms_at(self, tid: I32, time_ns: I64) -> I64:
        """Return int64[n]: row in strings of the comm of thread tid[i] at time_ns[i] (-1: its last comm); 0 unknown."""
        rows = rows_at(self.comms.tid, self.comms.begin_ns, tid, time_ns)
        return np.append(self.comms.comm, 0).astype(np.int64)[rows]

    def is_offcpu(self) -> Bool:
        """Return bool[samples]: True for waits and sums of waits."""
        return self.samples.has(SampleFlag.OFFCPU)

    @property
    def other_samples(self) -> str:
        """Return the name of samples that are no waits: "CPU sample", or "task reading" in a profile of `--by task`."""
        are_tasks = bool(self.evsels) and all(event.name == TASK_EVENT for event in self.evsels)
        return TASK_READING if are_tasks else "CPU sample"

    def is_still_blocked(self) -> Bool:
        """Return bool[samples]: True for waits that were not over at the end of the recording (at a pause: False)."""
        return self.samples.has(SampleFlag.STILL_BLOCKED) & ~self.samples.has(SampleFlag.AT_PAUSE)

    def select(self, rows: Bool | I64) -> Self:
        """Return the profile with the samples that a mask or row numbers select; itself if a mask keeps all."""
        if rows.dtype == np.bool_ and rows.all():
            return self
        return replace(self, samples=self.samples.take(rows))

    def check(self) -> None:
        """Raise AssertionError unless every table is well-formed and every row id leads somewhere."""
        for table in tables_of(self).values():
            table.check(self)
        assert bool((self.stacks.parent < np.arange(len(self.stacks))).all()), "a parent comes after its child"
