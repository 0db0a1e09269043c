# SPDX-License-Identifier: Apache-2.0
"""Layout of the raw payload of `offcpu-time` samples: the words of upstream perf, then an extension.

Stock perf from 6.16 on re-types a raw sample of an event with this name by the first words alone:

    u32 pid, tid | u64 offcpu_ns | u64 nr | u64 callchain[nr] | u64 cgroup | extension

Samples of two producers must be distinguished. Upstream's end with the cgroup id, and in its samples of single waits
tid stands before pid (see `decode.retype`). Ours always hold pid (= tgid) first and are marked by the extension's
magic. Rules for other implementers: Documentation/payload-format.md, whose tables are generated from this module."""

import enum
import functools

from perf_offcpu.binary.layout import S32, U16, U32, U64, Field, Layout

PYTHON_EVENT = "offcpu-python"  # its samples have the Python functions of on-CPU samples
EVENT_NAME = "offcpu-time"  # the evsel name that perf >= 6.16 looks for, and that this project gives its events
EXTENSION_MAGIC = int.from_bytes(b"OFCP", "little")
EXTENSION_VERSION = 2  # changes when a field changes its meaning, not when one is added; 1 had another fixed part


class Kind(enum.IntEnum):
    """Kinds of off-cpu samples: which wait or waits one sample stands for."""

    UNKNOWN = 0  # not known
    WAIT = 1  # one wait
    SUM = 2  # the sum of `count` waits, each shorter than the threshold
    STILL_BLOCKED = 3  # a wait that had not ended when the recording, or this file of it, did
    BEGAN_BEFORE = 4  # a wait that began before the recording
    ON_CPU = 5  # no wait, in the event offcpu-python: the Python functions of the thread's on-CPU sample before it


class WaitFlag(enum.IntFlag):
    """Flags of an off-cpu sample: how its wait began or ended, and whether its weight, object or time is a guess."""

    PREEMPTED = 1 << 0  # stayed runnable (preempted, or it yielded): the wait is run-queue delay, or see THROTTLED
    WAKER_INTERRUPT = 1 << 1  # woken from an interrupt: the waker is the task that the interrupt hit, 0 for an idle CPU
    YIELDED = 1 << 2  # with PREEMPTED: the thread gave up its CPU by itself
    BEGAN_BEFORE = 1 << 3  # the wait began before the recording
    THROTTLED = 1 << 4  # with PREEMPTED: the thread's control group had used up its quota of CPU time
    SAMPLED = 1 << 5  # one of many, drawn by length: `offcpu_ns` is its weight, `longest_ns` its length
    DRAWN = 1 << 6  # of a SUM: its part of an exact sum, estimated by the waits that were drawn for their stack
    OF_SEVERAL = 1 << 7  # in poll() or select() of several descriptors: the object is the first that could be read
    UNTIMED = 1 << 15  # the time of the sample is a guess, set by `inject` for sums without a time of their own


class Lost(enum.IntFlag):
    """Parts of the sample that the collector could not take."""

    USER_STACK = 1 << 0  # the user stack could not be taken
    KERNEL_STACK = 1 << 1  # the kernel stack could not be taken
    USER_STACK_CUT = 1 << 2  # the user stack was cut at the frame limit (127)
    KERNEL_STACK_CUT = 1 << 3  # the kernel stack was cut at the frame limit (127)


class ObjectLost(enum.IntFlag):
    """Reasons why the object of the wait, or a part of it, is not known."""

    CLOSED = 1 << 0  # the descriptor was not open any more, or never
    FAULT = 1 << 1  # memory of the kernel or of the program could not be read
    COMPAT = 1 << 2  # a 32-bit program, whose arguments are not read
    FULL = 1 << 3  # the queue of new objects was full
    TAKEN = 1 << 4  # epoll: nothing was ready any more, so that the object is the epoll instance


SYSCALL_NONE = -1
SYSCALL_UNKNOWN = -2
UNKNOWN_U32 = 2**32 - 1
UNKNOWN_U64 = 2**64 - 1
LARGEST_COPY = 32768  # size of the largest copy of a user stack, bytes; MOST_COPIED in bpf/copies.h
REFERENCE_BYTES = 8  # size of the stack copy in a sample that refers, by `caller`, to the copy in another sample

PAYLOAD = Layout(
    "offcpu-time raw payload",
    Field("pid", U32, doc="tgid"),
    Field("tid", U32),
    Field("offcpu_ns", U64, doc="ns from switch-out to switch-in"),
    Field("nr", U64, doc="words of the callchain, markers included"),
    Field("callchain", U64, count="nr", doc="[KERNEL, ips…,] [USER, ips…], leaf first"),
    Field("cgroup", U64, doc="cgroup id, 0 unknown"),
    source="tools/perf/util/bpf_skel/off_cpu.bpf.c: struct offcpu_data; pid first as in PERF_SAMPLE_TID",
)

EXTENSION = Layout(
    "offcpu-time extension",
    Field("magic", U32, doc='"OFCP"'),
    Field("version", U16, doc="2"),
    Field("size", U16, doc="bytes of this fixed part, as its writer knew it"),
    Field("kind", U32, doc="Kind"),
    Field("waker_offset", U16, doc="bytes from `magic` to the waker's callchain"),
    Field("waker_nr", U16, doc="words of the waker's callchain, 0 none"),
    Field("flags", U32, doc="WaitFlag"),
    Field("lost", U32, doc="Lost"),
    Field("state", U32, unknown=UNKNOWN_U32, doc="task state at switch-out, raw (TASK_* bits)"),
    Field(
        "syscall", S32, unknown=SYSCALL_UNKNOWN, doc="number of the system call; + 2^29 in a 32-bit program; -1 none"
    ),
    Field("waker_pid", U32, unknown=UNKNOWN_U32, doc="tgid of the waker"),
    Field("waker_tid", U32, unknown=UNKNOWN_U32, doc="thread id of the waker"),
    Field("wakeup_ns", U64, unknown=UNKNOWN_U64, doc="time of the wake-up"),
    Field("switch_out_ns", U64, unknown=UNKNOWN_U64, doc="begin of the (first) wait"),
    Field("count", U64, unknown=1, doc="number of waits; of SAMPLED ones, of periods in the weight"),
    Field("longest_ns", U64, unknown=UNKNOWN_U64, doc="ns of the longest wait of a sum"),
    Field("runq_ns", U64, unknown=UNKNOWN_U64, doc="ns of run-queue delay in the wait(s)"),
    Field("caller", U64, doc="a hash of the stack, or of sums: of who called"),
    Field("object_id", U64, doc="id of the object waited for, 0 none or unknown"),
    Field("asked_ns", U64, unknown=UNKNOWN_U64, doc="ns after which the system call was to end by itself"),
    Field("holder_tid", U32, unknown=UNKNOWN_U32, doc="thread that held the lock waited for"),
    Field("object_lost", U32, doc="ObjectLost"),
    Field("tcp_offset", U32, doc="bytes from `magic` to the facts about a TCP connection"),
    Field("tcp_nr", U32, doc="u32 words of these facts, 0 none"),
    Field("python_offset", U32, doc="bytes from `magic` to the frames of Python functions"),
    Field("python_nr", U32, doc="u64 words of these, one a frame, 0 none"),
    source="bpf/off_cpu.h: struct offcpu_extension",
)
"""The fixed part of the extension.

A new field (u32 or u64) is a row at the end, a member at the end of the C structure and, if `decode` is to
keep it, a column of the same name in `model.recording.SampleColumns`. `unknown` is what a writer puts where
it has no value, and what a reader takes for fields that an older writer did not know."""

TCP = Layout(
    "offcpu-time TCP facts",
    Field("state", U32, doc="of the connection, as in net/tcp_states.h: 1 established, 2 SYN sent"),
    Field("tick_us", U32, doc="length of a tick of the kernel, us"),
    Field("srtt_us", U32, doc="smoothed round trip, us; the time until the peer acknowledges is in it"),
    Field("min_rtt_us", U32, doc="shortest round trip of the last minutes, us; 4294967295 none"),
    Field("rtt_us", U32, doc="round trip of the last segment that was acknowledged, us"),
    Field("retransmits", U32, doc="timeouts of the segment that the peer has not acknowledged yet"),
    Field("total_retrans", U32, doc="segments retransmitted since the connection began, SYN included"),
    Field("packets_out", U32, doc="segments that the peer has not acknowledged yet"),
    Field("segments_in", U32, doc="segments with data received since the connection began"),
    Field("sent_ticks", U32, doc="ticks since data was sent, retransmitted data included"),
    Field("received_ticks", U32, doc="ticks since data was received"),
    Field("window_ticks", U32, doc="ticks in which the peer's window was full, since the connection began"),
    source="bpf/off_cpu.h: struct offcpu_tcp",
)
"""Facts about the TCP connection that was waited for, when the wait ended or, if it did not, at the end of the
recording: a variable part of the extension. Ticks are counted back from that time."""

CODE_SHIFT = 20
PYTHON_ENTRY = 1 << 19
NO_INDEX = PYTHON_ENTRY - 1
"""A Python frame is a word: id of its code object (`counters.CODE`) << CODE_SHIFT, PYTHON_ENTRY if it is the first one
that a call of the interpreter's C function runs, and the index of its instruction, NO_INDEX if that is larger."""

EXTENSION_SIZE = EXTENSION.size()
WHOLE_EXTENSION = (*EXTENSION.fields, *([Field("padding", U32)] if EXTENSION_SIZE % 8 else []))
"""EXTENSION's fields, and padding to a multiple of 8 bytes, where the variable parts begin."""
EXTENSION_WORDS = -(-EXTENSION_SIZE // 8)  # u64 words of the fixed part with its padding

BLANK_EXTENSION = {field.name: field.unknown for field in EXTENSION.fields} | {
    "magic": EXTENSION_MAGIC,
    "version": EXTENSION_VERSION,
    "size": EXTENSION_SIZE,
}
"""Field name → value of an extension in which nothing is known; writers replace the values that they know."""


@functools.cache
def fixed_part(size: int) -> Layout:
    """Return a layout of the first fields of EXTENSION, as many as fit wholly into a fixed part of `size` bytes."""
    return EXTENSION.prefix(size)
