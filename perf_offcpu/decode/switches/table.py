# SPDX-License-Identifier: Apache-2.0
"""The table of context switches, which `switches.events` fills and `switches.intervals` turns into waits."""

from __future__ import annotations

import enum

from perf_offcpu.model.columns import I32, I64, U8, U64, Table, column


class SwitchKind(enum.IntEnum):
    """Column `kind` of Switches."""

    STACK = 0  # a sample of the event context-switches: the stack of the OUT that follows
    SWITCH = 1  # sched_switch: `tid` goes out, `next_tid` comes in
    OUT = 2  # SWITCH record: `tid` goes out
    WAKING = 3  # sched_waking: `tid` is being woken
    WAKEUP = 4  # sched_wakeup: `tid` is on a run queue now
    NEW = 5  # sched_wakeup_new: `tid` is on a run queue for the first time
    IN = 6  # SWITCH record: `tid` comes in
    LOST = 7  # LOST record: the ring of this CPU had been full


class Switches(Table):
    """Actions of the scheduler, in any order; the callchains are in the `Batch`."""

    kind: U8 = column("u1", doc="SwitchKind")
    time_ns: I64 = column("i8", unit="ns", sentinel=-1, doc="when; rows without a time are not used")
    cpu: I32 = column("i4", sentinel=-1, doc="CPU number")
    tid: I32 = column("i4", sentinel=-1, doc="the thread concerned; 0 idle")
    next_tid: I32 = column("i4", sentinel=-1, doc="of SWITCH: the thread that comes in")
    state: I32 = column("i4", sentinel=-1, doc="of SWITCH: state of `tid`, raw (TASK_* bits)")
    preempted: U8 = column("u1", doc="of SWITCH, OUT: 1 if `tid` stayed runnable")
    pid: I32 = column("i4", sentinel=-1, doc="tgid of `current`")
    current: I32 = column(
        "i4", sentinel=-1, doc="the thread that ran: of WAKING and WAKEUP the waker, 0 an interrupt"
    )
    callchain: I32 = column("i4", "row in callchains: where it ran", sentinel=-1, domain="callchains")
    ip: U64 = column("u8", doc="instruction pointer as sampled; 0 unknown")
    cpumode: U8 = column("u1", doc="abi.records.CpuMode of ip")
    cgroup: U64 = column("u8", doc="cgroup id, 0 unknown")
