# SPDX-License-Identifier: Apache-2.0
"""The head of a merged recording: events with the ids of all, and what still holds of the features."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from perf_offcpu.abi.attr import ATTR_SIZE_PERF_6_1, Attr, AttrFlag, PerfType, SampleType
from perf_offcpu.abi.features import Feature
from perf_offcpu.errors import UsageError
from perf_offcpu.merge.merge_facts import SCHED_CLOCK, Facts
from perf_offcpu.merge.merge_plan import CLOCK_REALTIME, Plan, Shift
from perf_offcpu.perfdata.events import EventSpec
from perf_offcpu.perfdata.features import BuildId
from perf_offcpu.perfdata.write.features import (
    build_id_body,
    cmdline_body,
    event_desc_body,
    feature_body,
    text_body,
)

_OF_ONE_MACHINE = (
    Feature.OSRELEASE,
    Feature.VERSION,
    Feature.ARCH,
    Feature.CPUDESC,
    Feature.CPUID,
    Feature.TOTAL_MEM,
    Feature.CPU_TOPOLOGY,
    Feature.NUMA_TOPOLOGY,
    Feature.PMU_MAPPINGS,
    Feature.CACHE,
    Feature.MEM_TOPOLOGY,
    Feature.CPU_PMU_CAPS,
    Feature.PMU_CAPS,
    Feature.HYBRID_TOPOLOGY,
    Feature.CLOCKID,
)
"""Features that are taken from the first recording. Of several machines, those that tell of CPUs are not."""

_OF_CPUS = (Feature.CPU_TOPOLOGY, Feature.NUMA_TOPOLOGY, Feature.CACHE, Feature.MEM_TOPOLOGY)

_UNITED_FLAGS = AttrFlag.BUILD_ID | AttrFlag.DEFER_CALLCHAIN | AttrFlag.DEFER_OUTPUT
_MADE_UP_ID = 1 << 47
"""Ids of events that had none begin here: the kernel counts from 1."""


def merged_events(inputs: Sequence[Facts], plan: Plan) -> tuple[list[EventSpec], list[list[EventSpec]]]:
    """(events of the result, for each recording its events as they are there, with its own ids alone)."""
    _check_tracepoints(inputs, plan)
    united: dict[tuple[object, ...], EventSpec] = {}
    own: list[list[EventSpec]] = []
    clockid = plan.clockid
    for facts, shift in zip(inputs, plan.shifts, strict=True):
        own.append([])
        known: set[int] = {0}
        for row, spec in enumerate(facts.events.specs):
            ids = tuple(one for one in dict.fromkeys(spec.ids) if one not in known)
            known.update(ids)
            event = replace(spec.named(), attr=_attr(spec.attr, clockid), ids=_ids(ids, row, shift))
            own[-1].append(event)
            key = _layout_of(event)
            before = united.get(key, replace(event, ids=()))
            flags = before.attr.flags | event.attr.flags & _UNITED_FLAGS
            united[key] = replace(
                before, attr=replace(before.attr, flags=flags), ids=(*before.ids, *event.ids)
            )
    return list(united.values()), own


def _attr(attr: Attr, clockid: int) -> Attr:
    flags = attr.flags | AttrFlag.SAMPLE_ID_ALL
    if clockid != SCHED_CLOCK:
        flags |= AttrFlag.USE_CLOCKID
    return replace(
        attr,
        size=ATTR_SIZE_PERF_6_1,
        config3=0,
        config4=0,
        sample_type=attr.sample_type | SampleType.IDENTIFIER,
        flags=flags,
        clockid=max(clockid, 0),
    )


def _ids(ids: tuple[int, ...], row: int, shift: Shift) -> tuple[int, ...]:
    moved = tuple((one + shift.ids) % 2**64 for one in ids)
    return moved or (shift.ids + _MADE_UP_ID + row,)


def _layout_of(event: EventSpec) -> tuple[object, ...]:
    """Events that agree in this are one event."""
    attr = event.attr
    period = 0 if attr.sample_type & SampleType.PERIOD else (attr.sample_period, attr.flags & AttrFlag.FREQ)
    return (event.name, attr.type, attr.config, attr.config1, attr.config2, event.shape, period)


def _check_tracepoints(inputs: Sequence[Facts], plan: Plan) -> None:
    traced = [
        {spec.attr.config for spec in facts.events.specs if spec.attr.type == PerfType.TRACEPOINT}
        for facts in inputs
    ]
    if len({shift.machine for shift, configs in zip(plan.shifts, traced, strict=True) if configs}) > 1:
        raise UsageError("tracepoints of several machines cannot be merged: their fields hold process ids")
    if not any(configs >= set().union(*traced) for configs in traced):
        raise UsageError("recordings of different tracepoints cannot be merged: none has the formats of all")


def merged_features(
    inputs: Sequence[Facts], plan: Plan, events: Sequence[EventSpec], argv: Sequence[str]
) -> dict[int, bytes]:
    """Bit → body of the features of the result."""
    first, order = inputs[0], inputs[0].order
    several = len(plan.machines) > 1
    taken = [bit for bit in _OF_ONE_MACHINE if not (several and bit in _OF_CPUS)]
    bodies: dict[int, bytes] = {
        bit: first.features.bodies[bit] for bit in taken if bit in first.features.bodies
    }
    hosts = dict.fromkeys(facts.hostname for facts in inputs if facts.hostname)
    bodies[Feature.HOSTNAME] = text_body(",".join(hosts), order)
    bodies[Feature.CMDLINE] = cmdline_body(argv, order)
    bodies[Feature.EVENT_DESC] = event_desc_body(events, order)
    cpus = sum(max(inputs[row].cpus for row in rows) for rows in plan.machines)
    if cpus:
        bodies[Feature.NRCPUS] = feature_body(Feature.NRCPUS, order, available=cpus, online=cpus)
    if any(event.attr.sample_type & SampleType.BRANCH_STACK for event in events):
        bodies[Feature.BRANCH_STACK] = b""
    if build_ids := _build_ids(inputs, plan):
        bodies[Feature.BUILD_ID] = build_id_body(build_ids, order)
    return bodies | _formats(inputs) | _times(inputs, plan)


def _build_ids(inputs: Sequence[Facts], plan: Plan) -> list[BuildId]:
    """Of each file once. Where hosts disagree on a path, its maps carry the build-ids themselves."""
    found: dict[tuple[int, bytes], BuildId] = {}
    for facts, shift in zip(inputs, plan.shifts, strict=True):
        names = shift.kernel.names if shift.kernel else {}
        for entry in facts.features.build_ids():
            name = names.get(entry.filename, entry.filename)
            if shift.kernel and entry.filename.startswith(b"[kernel.kallsyms]"):
                continue
            if name:
                found.setdefault((entry.cpumode, name), replace(entry, filename=name))
    return list(found.values())


def _formats(inputs: Sequence[Facts]) -> dict[int, bytes]:
    """TRACING_DATA of the recording that has most tracepoints: it has those of all others."""

    def tracepoints(facts: Facts) -> int:
        return len([spec for spec in facts.events.specs if spec.attr.type == PerfType.TRACEPOINT])

    body = max(inputs, key=tracepoints).features.bodies.get(Feature.TRACING_DATA)
    return {Feature.TRACING_DATA: body} if body else {}


def _times(inputs: Sequence[Facts], plan: Plan) -> dict[int, bytes]:
    order, first = inputs[0].order, inputs[0]
    spans = [
        (facts.begin_ns + shift.time_ns, facts.end_ns + shift.time_ns)
        for facts, shift in zip(inputs, plan.shifts, strict=True)
        if facts.end_ns
    ]
    bodies: dict[int, bytes] = {}
    if spans:
        begin, end = min(one[0] for one in spans), max(one[1] for one in spans)
        bodies[Feature.SAMPLE_TIME] = feature_body(Feature.SAMPLE_TIME, order, first=begin, last=end)
        if any(shift.time_ns for shift in plan.shifts) and plan.clockid == CLOCK_REALTIME:
            bodies[Feature.CLOCK_DATA] = feature_body(
                Feature.CLOCK_DATA,
                order,
                version=1,
                clockid=CLOCK_REALTIME,
                wall_clock=begin,
                clockid_time=begin,
            )
            return bodies
    told = first.features.bodies.get(Feature.CLOCK_DATA)
    return bodies | ({Feature.CLOCK_DATA: told} if told else {})
