# SPDX-License-Identifier: Apache-2.0
"""Write the losses of a recording into its file: counters of the perf core and of the BPF program. The kernel counts
records that found a ring full for each event and CPU; they become LOST_SAMPLES records, as perf writes them. The
counters of the BPF program, with begin and end of the recording, become the sample of `abi.counters`."""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass

import numpy as np

from perf_offcpu.abi.attr import PerfType, SampleType, SoftwareConfig
from perf_offcpu.abi.counters import COUNTERS, EVENT_ID, EVENT_NAME, MAGIC, TASK_EVENT, TASK_EVENT_ID, TASKS, VERSION
from perf_offcpu.abi.records import CpuMode, RecordType
from perf_offcpu.abi.sample import TRAILER, CallchainContext
from perf_offcpu.collect.events.evsels import SAMPLE_TYPE, Support, basic_attr
from perf_offcpu.collect.events.perf_event import NATIVE
from perf_offcpu.losses import LossCause
from perf_offcpu.perfdata.events import EventSpec
from perf_offcpu.perfdata.write.columns import Column, pack_samples
from perf_offcpu.perfdata.write.writer import pack_record

Reading = tuple[bytes, Sequence[int]]
"""(Payload of `abi.counters.TASKS`: tasks of a process; their stack as code addresses, leaf first, () if unknown)."""


@dataclass(frozen=True, slots=True)
class Counter:
    """A number of events, and the off-cpu time in ns that they concern in all, 0 if unknown."""

    events: int
    ns: int = 0


@dataclass(frozen=True, slots=True)
class Span:
    """Begin and end of a recording in ns of its clock (end 0: still recording), and its threshold in ns."""

    begin_ns: int
    end_ns: int
    threshold_ns: int


def lost_records(lost: Mapping[int, int]) -> Iterator[bytes]:
    """Yield a LOST_SAMPLES record per entry of `lost`: id of an event on a CPU → records that found a full ring."""
    zeros = {field.name: 0 for field in TRAILER.active(SAMPLE_TYPE)}
    for event_id, count in lost.items():
        if count:
            trailer = TRAILER.pack(zeros | {"identifier": event_id}, NATIVE, SAMPLE_TYPE)
            yield pack_record(RecordType.LOST_SAMPLES, 0, {"lost": count}, trailer, NATIVE)


def counters_event(support: Support) -> EventSpec:
    """Return the event `offcpu-counters` of the recorder's own samples; in the file it follows the kernel's events."""
    sample_type = SAMPLE_TYPE | SampleType.RAW
    attr = basic_attr(PerfType.SOFTWARE, SoftwareConfig.BPF_OUTPUT, support, sample_type=sample_type)
    return EventSpec(attr, EVENT_NAME, (EVENT_ID,))


def task_event(support: Support) -> EventSpec:
    """Return the event `offcpu-task`, whose samples hold the recorder's readings of event-loop tasks and goroutines."""
    sample_type = SAMPLE_TYPE | SampleType.CALLCHAIN | SampleType.RAW
    attr = basic_attr(PerfType.SOFTWARE, SoftwareConfig.BPF_OUTPUT, support, sample_type=sample_type)
    return EventSpec(attr, TASK_EVENT, (TASK_EVENT_ID,))


def counters_sample(event: EventSpec, span: Span, counters: Mapping[LossCause, Counter]) -> bytes:
    """Return the sample record that holds all counters and the span; its time is the end of the span."""
    rows = [{"events": count.events, "ns": count.ns, "name": cause.name.encode()} for cause, count in counters.items()]
    values = {"magic": MAGIC, "version": VERSION, "nr": len(rows), "counters": rows} | asdict(span)
    return account_sample(event, COUNTERS.pack(values, NATIVE), span.end_ns)


def task_sample(event: EventSpec, reading: Reading) -> bytes:
    """Return a sample record of `event` (`offcpu-task`) that holds a reading: payload as raw data, stack, weight."""
    payload, addresses = reading
    code = [address for address in addresses if address < 2**47]  # a program may hold contexts of callchains there, too
    values, chain = TASKS.unpack(payload, NATIVE), np.array([CallchainContext.USER, *code], np.uint64)
    own: dict[str, Column] = {"pid": values["pid"], "tid": values["tid"], "ip": chain[1:2].sum()}
    own |= {"callchain": (np.array([0, len(chain)]), chain), "period": min(values["weight_ns"] * values["nr"], 2**62)}
    return account_sample(event, payload, values["read_ns"], **own)


def account_sample(event: EventSpec, payload: bytes, time_ns: int, **own: Column) -> bytes:
    """Return a sample record of `event` with `payload` as raw data. `own`: columns that replace the defaults: id, time,
    the recorder's pid and tid, zeros."""
    raw = payload + bytes(4)  # as the kernel pads: size field and data end on 8 bytes
    columns: dict[str, Column] = dict.fromkeys(("ip", "cpu", "cpu_res", "period"), 0)
    columns |= {"identifier": event.ids[0], "pid": os.getpid(), "tid": os.getpid(), "time": time_ns, **own}
    columns["raw"] = np.array([0, len(raw)]), np.frombuffer(raw, np.uint8)
    return pack_samples(event.shape, int(CpuMode.USER), columns, 1, NATIVE)
