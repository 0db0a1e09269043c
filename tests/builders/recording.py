# SPDX-License-Identifier: Apache-2.0
"""Small recordings made by hand: a few events, and records one by one."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from perf_offcpu.abi.attr import Attr, AttrFlag, PerfType, SampleType, SoftwareConfig
from perf_offcpu.abi.features import Feature
from perf_offcpu.abi.offcpu import PAYLOAD
from perf_offcpu.abi.records import RECORD_LAYOUTS, RecordType
from perf_offcpu.abi.sample import SAMPLE, TRAILER, SampleShape
from perf_offcpu.binary.layout import Order
from perf_offcpu.perfdata.events import EventSpec
from perf_offcpu.perfdata.features import event_desc_body, feature_body, text_body
from perf_offcpu.perfdata.write.writer import FileWriter, frame_record, pack_record

S = SampleType
BASE = S.IDENTIFIER | S.IP | S.TID | S.TIME | S.CPU | S.PERIOD
TRACKING = AttrFlag.SAMPLE_ID_ALL | AttrFlag.MMAP | AttrFlag.MMAP2 | AttrFlag.COMM | AttrFlag.TASK
KERNEL = 2**64 - 128
USER = 2**64 - 512
USER_DEFERRED = 2**64 - 640
DUMMY_TIME = 0xFFFFFFFF << 32


def event(
    name: str, ids: tuple[int, ...], sample_type: SampleType, *, flags: AttrFlag = TRACKING, **attr: Any
) -> EventSpec:
    """A software event: `bpf-output` if it is off-cpu time, else `cpu-clock`."""
    raw = name == "offcpu-time"
    config = SoftwareConfig.BPF_OUTPUT if raw else SoftwareConfig.CPU_CLOCK
    given = {"type": PerfType.SOFTWARE, "config": config, "sample_period": 1} | attr
    return EventSpec(Attr(sample_type=sample_type, flags=flags, **given), name, ids)


def sample(spec: EventSpec, misc: int = 2, order: Order = "<", **values: Any) -> bytes:
    """A sample; fields that are not given are 0 or empty, its id is the event's first."""
    first = spec.ids[0] if spec.ids else 0
    full: dict[str, Any] = {"identifier": first, "id": first}
    for field in SAMPLE.active(SampleShape.of(spec.attr)):
        full.setdefault(field.name, 0 if field.count is None else [] if field.name != "raw" else b"")
    counts = {name: value for name, value in full.items() if not name.endswith(("_nr", "_size"))}
    return frame_record(RecordType.SAMPLE, misc, SAMPLE.pack(counts | values, order, spec.shape), order)


def raw_wait(pid: int, tid: int, ns: int, chain: list[int], cgroup: int = 0) -> bytes:
    """Upstream's payload as its user space writes sums: in the right order, with 4 bytes of padding."""
    return PAYLOAD.pack({"pid": pid, "tid": tid, "offcpu_ns": ns, "callchain": chain, "cgroup": cgroup}) + bytes(4)


def side(spec: EventSpec, kind: RecordType, misc: int = 0, *, time: int = 0, **values: Any) -> bytes:
    """Another kernel record, with the trailer of an event; its pid, tid and time are the record's."""
    event_id = spec.ids[0] if spec.ids else 0
    told = {"pid": 0, "tid": 0, "time": time, "id": event_id, "identifier": event_id}
    told |= {name: 0 for name in ("cpu", "cpu_res", "stream_id")}
    if any(field.name == "time" for field in RECORD_LAYOUTS[kind].fields):
        values["time"] = time
    trailer = TRAILER.pack(told | values, shape=spec.attr.sample_type)
    return pack_record(kind, misc, values, trailer if spec.attr.flags & AttrFlag.SAMPLE_ID_ALL else b"")


def comm(spec: EventSpec, pid: int, tid: int, name: str, time: int = 0) -> bytes:
    return side(spec, RecordType.COMM, time=time, pid=pid, tid=tid, comm=name.encode())


def task(spec: EventSpec, kind: RecordType, pid: int, tid: int, time: int) -> bytes:
    return side(spec, kind, time=time, pid=pid, tid=tid, ppid=1, ptid=1)


def round_end() -> bytes:
    return frame_record(RecordType.FINISHED_ROUND, 0, b"")


FEATURES: dict[int, bytes] = {
    Feature.HOSTNAME: text_body("here"),
    Feature.ARCH: text_body("x86_64"),
    Feature.NRCPUS: feature_body(Feature.NRCPUS, available=4, online=4),
}


def write(
    path: Path, events: list[EventSpec], records: Iterable[bytes], features: Mapping[int, bytes] | None = None
) -> Path:
    """A file of these events and records, in this order; `features` are added to names, host and CPUs."""
    with path.open("w+b") as file:
        writer = FileWriter(file.fileno(), events, str(path))
        for record in records:
            writer.append(record)
        writer.finish(FEATURES | {Feature.EVENT_DESC: event_desc_body(events)} | dict(features or {}))
    return path
