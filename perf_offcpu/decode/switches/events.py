# SPDX-License-Identifier: Apache-2.0
"""Decode context switches of a recording to a table, of which `switches.intervals` makes waits.

    perf record -e sched:sched_switch [-e sched:sched_waking] -g -a       tracepoints: raw data of samples
    perf record --switch-events -e context-switches -c 1 -g [COMMAND]     SWITCH records and samples

A tracepoint's sample is taken in the thread that goes out or that wakes another: ids and callchain are that
thread's. The offsets of the fields in its raw data, and the states that the bits of prev_state mean, are in
the recording (`perfdata.tracing_data`)."""

import enum
import re
from collections.abc import Sequence

import numpy as np

from perf_offcpu import losses
from perf_offcpu.abi.attr import AttrFlag, PerfType, SoftwareConfig
from perf_offcpu.abi.features import Feature
from perf_offcpu.abi.records import Misc, RecordType
from perf_offcpu.binary.columnar import Columns, Rows, gather
from perf_offcpu.binary.layout import Order
from perf_offcpu.losses import Losses
from perf_offcpu.model.columns import I32, I64, U8, U64, Bool, Table, column
from perf_offcpu.model.recording import Samples
from perf_offcpu.perfdata.events import NO_TIME, Events, EventSpec, read_trailers
from perf_offcpu.perfdata.features import Features
from perf_offcpu.perfdata.scan import Chunk
from perf_offcpu.perfdata.tracing_data import TracepointFormat, tracepoint_formats


class SwitchKind(enum.IntEnum):
    """Kinds of rows of Switches: values of the column `kind`."""

    STACK = 0  # a sample of the event context-switches: the stack of the OUT that follows
    SWITCH = 1  # sched_switch: `tid` goes out, `next_tid` comes in
    OUT = 2  # SWITCH record: `tid` goes out
    WAKING = 3  # sched_waking: `tid` is being woken
    WAKEUP = 4  # sched_wakeup: `tid` is on a run queue now
    NEW = 5  # sched_wakeup_new: `tid` is on a run queue for the first time
    IN = 6  # SWITCH record: `tid` comes in
    LOST = 7  # LOST record: the ring of this CPU had been full


class Switches(Table):
    """Holds switches and wake-ups, one a row in any order; `callchain` is a row of the callchains of the `Batch`."""

    kind: U8 = column("u1", doc="SwitchKind")
    time_ns: I64 = column("i8", unit="ns", sentinel=-1, doc="when; rows without a time are not used")
    cpu: I32 = column("i4", sentinel=-1, doc="CPU number")
    tid: I32 = column("i4", sentinel=-1, doc="the thread concerned; 0 idle")
    next_tid: I32 = column("i4", sentinel=-1, doc="of SWITCH: the thread that comes in")
    state: I32 = column("i4", sentinel=-1, doc="of SWITCH: state of `tid`, raw (TASK_* bits)")
    preempted: U8 = column("u1", doc="of SWITCH, OUT: 1 if `tid` stayed runnable")
    pid: I32 = column("i4", sentinel=-1, doc="tgid of `current`")
    current: I32 = column("i4", sentinel=-1, doc="the thread that ran: of WAKING and WAKEUP the waker, 0 an interrupt")
    callchain: I32 = column("i4", "row in callchains: where it ran", sentinel=-1, domain="callchains")
    ip: U64 = column("u8", doc="instruction pointer as sampled; 0 unknown")
    cpumode: U8 = column("u1", doc="abi.records.CpuMode of ip")
    cgroup: U64 = column("u8", doc="cgroup id, 0 unknown")


SWITCH_RECORDS = frozenset({RecordType.SWITCH, RecordType.SWITCH_CPU_WIDE})

_TRACEPOINTS = {
    "sched_switch": SwitchKind.SWITCH,
    "sched_waking": SwitchKind.WAKING,
    "sched_wakeup": SwitchKind.WAKEUP,
    "sched_wakeup_new": SwitchKind.NEW,
}

_OF_SAMPLES = "time_ns cpu tid pid callchain ip cpumode cgroup".split()  # columns of Switches that samples have, too
_IN_INTERRUPT = 0x08 | 0x10  # TRACE_FLAG_HARDIRQ, TRACE_FLAG_SOFTIRQ of common_flags (include/linux/trace_events.h)
_PRINT_FLAG = re.compile(r'\{ ?(0x[0-9a-fA-F]{1,8}|0|[1-9][0-9]{0,8}), ?"(\w)" ?\}')
_STATES = {"S": 0x1, "D": 0x2, "T": 0x4, "t": 0x8, "X": 0x10, "Z": 0x20, "P": 0x40, "I": 0x402}
_STATES |= {"x": 0x80, "K": 0x100, "W": 0x200, "N": 0x400}  # up to 4.13, which shows every bit by itself
"""TASK_* bits (include/linux/sched.h) by the letter that the kernel prints for each state."""
_FLAGS_SINCE_4_14 = [(str(1 << bit), letter) for bit, letter in enumerate("SDTtXZPI")]
"""(bit of prev_state in decimal, letter of the state), as _PRINT_FLAG finds them: for formats without `print fmt`."""


def may_hold_switches(events: Events) -> bool:
    """Return True if a recording of these events may hold switches; a cheap test before decoding."""
    attrs = (spec.attr for spec in events.specs)
    return any(attr.type == PerfType.TRACEPOINT or attr.flags & AttrFlag.CONTEXT_SWITCH for attr in attrs)


def _kind_of(spec: EventSpec) -> tuple[int, int]:
    return int(spec.attr.type), int(spec.attr.config)


class SwitchDecoder:
    """Finds context switches in a recording, chunk by chunk; tracepoints that cannot be read are counted. In a pipe,
    the formats of tracepoints come into `features` with the first records."""

    def __init__(self, features: Features, counters: Losses) -> None:
        self.features, self.counters = features, counters
        self._formats, self._body = dict[int, TracepointFormat](), b""
        self._specs: Sequence[EventSpec] = ()
        self._count, self._has_switch_records = 0, False
        self._first: dict[tuple[int, int], int] = {}

    def of_samples(
        self, data: U8, columns: Columns, ok: Bool, samples: Samples, events: Events, number: int
    ) -> Switches:
        """Return the switches in n samples (fields `columns`) of evsel `number` where `ok` (bool[n]): none if its event
        is no switch or wake-up, or an earlier evsel has the same event."""
        self._read_kinds(events.specs)
        kind, config = _kind_of(events.specs[number])
        is_switch = (kind, config) == (PerfType.SOFTWARE, SoftwareConfig.CONTEXT_SWITCHES)
        if is_switch and self._has_switch_records:
            # taken of the thread that goes out, just before its SWITCH record
            return _rows(samples, SwitchKind.STACK).take(ok & (samples.time_ns > 0))
        tracepoint = self._format(config) if kind == PerfType.TRACEPOINT else None
        is_repeated = self._first[kind, config] != number  # each switch counts once
        if tracepoint is None or "raw" not in columns.arrays or is_repeated:
            return Switches()
        return self._of_tracepoint(tracepoint, _Raw(data, columns.arrays["raw"], ok, tracepoint, events.order), samples)

    def _read_kinds(self, specs: Sequence[EventSpec]) -> None:
        """Note the first evsel of each (type, config), and if there are SWITCH records; skip `specs` read before."""
        if specs is self._specs and len(specs) == self._count:
            return
        self._specs, self._count = specs, len(specs)
        self._first = {_kind_of(spec): row for row, spec in reversed(list(enumerate(specs)))}
        self._has_switch_records = any(spec.attr.flags & AttrFlag.CONTEXT_SWITCH for spec in specs)

    def _format(self, config: int) -> TracepointFormat | None:
        body = self.features.bodies.get(Feature.TRACING_DATA, b"")
        if body is not self._body:
            self._body, self._formats = body, tracepoint_formats(body, self.counters)
        tracepoint = self._formats.get(config)
        is_known = tracepoint is not None and tracepoint.system == "sched" and tracepoint.name in _TRACEPOINTS
        return tracepoint if is_known else None

    def _of_tracepoint(self, tracepoint: TracepointFormat, raw: "_Raw", samples: Samples) -> Switches:
        kind = _TRACEPOINTS[tracepoint.name]
        switches = _rows(samples, kind)
        if kind == SwitchKind.SWITCH:
            switches.tid, switches.next_tid = (raw.field(name).astype(np.int32) for name in ("prev_pid", "next_pid"))
            switches.state, switches.preempted = _states(raw.field("prev_state"), tracepoint.print_fmt)
        else:
            switches.tid = raw.field("pid").astype(np.int32)
            # An interrupt as waker is 0: it has nothing to do with the interrupted thread.
            from_thread = (raw.field("common_flags") & _IN_INTERRUPT == 0).astype(np.int32)
            switches.current, switches.pid = from_thread * switches.current, from_thread * switches.pid
        self.counters.add(losses.BAD_TRACEPOINT, int((raw.was_ok & ~raw.ok).sum()))
        return switches.take(raw.ok & (switches.time_ns > 0))

    def of_records(self, chunk: Chunk, events: Events) -> Switches:
        """Return the switches in SWITCH records of a chunk, and a row of kind LOST for each LOST record."""
        rows = np.flatnonzero(np.isin(chunk.types, [*SWITCH_RECORDS, RecordType.LOST]))
        if not len(rows):
            return Switches()
        trailers = read_trailers(chunk, rows, events)
        misc, lost = chunk.miscs[rows], chunk.types[rows] == RecordType.LOST
        out = misc & np.uint16(Misc.SWITCH_OUT) != 0
        timed = (trailers.time > 0) & (trailers.time < NO_TIME)
        switches = Switches.filled(
            len(rows),
            kind=np.select([lost, out], [SwitchKind.LOST, SwitchKind.OUT], SwitchKind.IN),
            time_ns=np.where(timed, trailers.time, np.uint64(0)),
            cpu=trailers.cpu,
            tid=trailers.tid,
            preempted=out & (misc & np.uint16(Misc.SWITCH_OUT_PREEMPT) != 0),
            pid=trailers.pid,
            current=trailers.tid,
        )
        return switches.take(timed)


class _Raw:
    """Reads fields from the raw data of n samples of one tracepoint, by its format."""

    def __init__(self, data: U8, raw: Rows, ok: Bool, tracepoint: TracepointFormat, order: Order) -> None:
        self.data, self.raw, self.tracepoint, self.order = data, raw, tracepoint, order
        self.was_ok, self.ok = ok, ok.copy()

    def field(self, name: str) -> I64:
        """Return int64[n]: field `name`; without meaning where a sample lacks it, whose `ok` becomes False."""
        place = self.tracepoint.fields.get(name)
        if place is None or place.type is None:
            self.ok[:] = False
            return np.zeros(len(self.ok), np.int64)
        self.ok &= self.raw.counts >= place.offset + place.size
        starts = np.where(self.ok, self.raw.starts + place.offset, 0)
        values: I64 = gather(self.data, starts, place.type, self.order).astype(np.int64)
        return values


def _rows(samples: Samples, kind: SwitchKind) -> Switches:
    return Switches.filled(
        len(samples),
        kind=np.full(len(samples), kind),
        current=samples.tid,
        **{name: getattr(samples, name) for name in _OF_SAMPLES},
    )


def _states(prev_state: I64, print_fmt: str) -> tuple[I32, U8]:
    """Return (TASK_* bits, preempted) of the field prev_state of sched_switch. Since 4.14 that is not the kernel's own
    mask but made for the tracepoint (include/trace/events/sched.h: __trace_sched_switch_state()). The bit above all
    states: the kernel itself was preempted. Without a state it was runnable: on its way to user space, or yielding."""
    flags = _PRINT_FLAG.findall(print_fmt) or _FLAGS_SINCE_4_14
    bits = {int(number, 0): _STATES.get(letter, 0) for number, letter in flags}
    in_kernel = prev_state & (2 * max(bits)) != 0
    state = np.zeros(len(prev_state), np.int32)
    for bit, task_bits in bits.items():
        state |= np.where(prev_state & bit != 0, np.int32(task_bits), np.int32(0))
    state[in_kernel] = 0
    return state, (state == 0).astype(np.uint8)
