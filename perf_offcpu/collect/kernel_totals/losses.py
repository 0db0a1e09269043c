# SPDX-License-Identifier: Apache-2.0
"""What a recording could not take, told in the file: by the perf core's counters and by BPF's.

Records that found a ring full are counted by the kernel for each event and CPU; they become LOST_SAMPLES
records, as perf writes them. What the BPF program counted goes, with the limits of the recording, into the
sample of `abi.counters`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from perf_offcpu.abi.attr import Attr, AttrFlag, PerfType, SampleType, SoftwareConfig
from perf_offcpu.abi.counters import COUNTERS, EVENT_ID, EVENT_NAME, MAGIC, VERSION
from perf_offcpu.abi.records import RecordType
from perf_offcpu.collect.events.evsels import SAMPLE_TYPE, Support
from perf_offcpu.collect.events.perf_event import NATIVE
from perf_offcpu.collect.existing.records import trailer
from perf_offcpu.collect.kernel_totals.budgets import account_sample
from perf_offcpu.collect.system.clock import CLOCKID
from perf_offcpu.losses import LossCause
from perf_offcpu.perfdata.events import EventSpec
from perf_offcpu.perfdata.write.writer import pack_record


@dataclass(frozen=True, slots=True)
class Counter:
    """How often something happened, and the off-cpu time concerned (0 where it is not known)."""

    events: int
    ns: int = 0


@dataclass(frozen=True, slots=True)
class Span:
    """When waits were recorded and how: ns of the recording's clock, and the threshold."""

    begin_ns: int
    end_ns: int
    threshold_ns: int


def lost_records(lost: Mapping[int, int]) -> Iterator[bytes]:
    """One LOST_SAMPLES record for each event and CPU, by its id, that lost records to a full ring."""
    for event_id, count in lost.items():
        if count:
            values = {"lost": count}
            yield pack_record(RecordType.LOST_SAMPLES, 0, values, trailer(identifier=event_id), NATIVE)


def counters_event(support: Support) -> EventSpec:
    """The event of the counters' sample, to stand in the file behind those that the kernel knows."""
    attr = Attr(
        type=PerfType.SOFTWARE,
        config=SoftwareConfig.BPF_OUTPUT,
        sample_period=1,
        sample_type=SAMPLE_TYPE | SampleType.RAW,
        read_format=support.read_format,
        flags=AttrFlag.SAMPLE_ID_ALL | AttrFlag.USE_CLOCKID | AttrFlag.DISABLED,
        clockid=CLOCKID,
    )
    return EventSpec(attr, EVENT_NAME, (EVENT_ID,))


def counters_sample(
    event: EventSpec, span: Span, counters: Mapping[LossCause, Counter], recorder_pid: int
) -> bytes:
    """The sample that carries all counters, at the end of the recorded span.

    Args:
        recorder_pid: the process that perf shall show it for.
    """
    rows = [
        {"events": counter.events, "ns": counter.ns, "name": cause.name.encode()}
        for cause, counter in counters.items()
    ]
    values = {
        "magic": MAGIC,
        "version": VERSION,
        "nr": len(rows),
        "begin_ns": span.begin_ns,
        "end_ns": span.end_ns,
        "threshold_ns": span.threshold_ns,
        "counters": rows,
    }
    return account_sample(event, COUNTERS.pack(values, NATIVE), span.end_ns, recorder_pid)
