# SPDX-License-Identifier: Apache-2.0
"""The raw payload of `offcpu-time` samples: upstream perf's words first, then this project's extension.

Stock perf from 6.16 on re-types a raw sample of an event with this name by the first words alone:

    u32 pid, tid | u64 offcpu_ns | u64 nr | u64 callchain[nr] | u64 cgroup | extension

Two producers must be told apart. Upstream's samples end with the cgroup id, and those that it sends
directly carry tid and pid in the other order (see `decode.retype`). Ours always hold pid (= tgid) first and
are marked by the extension's magic. Layout and rules for other producers: Documentation/payload-format.md.
"""

from __future__ import annotations

import enum

from perf_offcpu.binary.layout import S32, U16, U32, U64, Field, Layout

EVENT_NAME = "offcpu-time"
"""The evsel name that perf >= 6.16 looks for, and that this project gives its events."""

EXTENSION_MAGIC = int.from_bytes(b"OFCP", "little")
EXTENSION_VERSION = 1


class Kind(enum.IntEnum):
    """What one off-cpu sample stands for."""

    UNKNOWN = 0
    WAIT = 1
    SUM = 2
    STILL_BLOCKED = 3
    BEGAN_BEFORE = 4


class WaitFlag(enum.IntFlag):
    """How the wait began and ended."""

    PREEMPTED = 1 << 0
    WAKER_INTERRUPT = 1 << 1
    YIELDED = 1 << 2
    BEGAN_BEFORE = 1 << 3
    UNTIMED = 1 << 15
    """The time of the sample is a guess: nobody knows when it was. Set by `inject`."""


class Lost(enum.IntFlag):
    """What the collector could not take for this sample."""

    USER_STACK = 1 << 0
    KERNEL_STACK = 1 << 1
    USER_STACK_CUT = 1 << 2
    KERNEL_STACK_CUT = 1 << 3


STATE_UNKNOWN = 2**32 - 1
SYSCALL_NONE = -1
SYSCALL_UNKNOWN = -2
RUNQ_UNKNOWN = LONGEST_UNKNOWN = 2**64 - 1

PAYLOAD = Layout(
    "offcpu-time raw payload",
    source="tools/perf/util/bpf_skel/off_cpu.bpf.c: struct offcpu_data; pid first as in PERF_SAMPLE_TID",
    fields=(
        Field("pid", U32, doc="tgid"),
        Field("tid", U32),
        Field("offcpu_ns", U64, doc="ns from switch-out to switch-in"),
        Field("nr", U64, doc="words of the callchain, markers included"),
        Field("callchain", U64, count="nr", doc="[KERNEL, ips…,] [USER, ips…], leaf first"),
        Field("cgroup", U64, doc="cgroup id, 0 unknown"),
    ),
)

EXTENSION = Layout(
    "offcpu-time extension",
    fields=(
        Field("magic", U32, doc='"OFCP"'),
        Field("version", U16),
        Field("nwords", U16, doc="u64 words of the extension, this one included"),
        Field("kind", U16, doc="Kind"),
        Field("flags", U16, doc="WaitFlag"),
        Field("lost", U32, doc="Lost"),
        Field("prev_state", U32, doc="task state at switch-out, raw; 2^32-1 unknown"),
        Field("syscall", S32, doc="number of the system call waited in; -1 none, -2 unknown"),
        Field("wakeup_ns", U64, doc="ns, CLOCK_MONOTONIC; 0 unknown"),
        Field("waker_pid", U32, doc="0 unknown"),
        Field("waker_tid", U32, doc="0 unknown"),
        Field("count", U64, doc="number of waits"),
        Field("switch_out_ns", U64, doc="ns, CLOCK_MONOTONIC: begin of the (first) wait"),
        Field("longest_ns", U64, doc="ns: the longest wait of a sum; 2^64-1 unknown"),
        Field("runq_ns", U64, doc="ns of run-queue delay in the wait(s); 2^64-1 unknown"),
        Field("waker_nr", U64, doc="words of the waker's callchain, which follows; 0 none"),
    ),
)

EXTENSION_WORDS = EXTENSION.size() // 8

CALLER = Field("caller", U64, doc="of a sum, behind the waker's callchain: who called; 0 not known")
"""Sums of one caller have one number. One sum of each has a copy of the user stack (REGS_USER, STACK_USER),
and stands in the file before all others of its caller."""
