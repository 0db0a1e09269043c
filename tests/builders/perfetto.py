# SPDX-License-Identifier: Apache-2.0
"""Perfetto's native traces, read with its published messages."""

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

from builders.converted import converted_bytes
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace

from perf_offcpu.model.profile import Profile

BEGIN, END, INSTANT, COUNTER = 1, 2, 3, 4


@dataclass
class Slice:
    """A slice or instant as trace_processor would see it."""

    track: str
    category: str
    name: str
    begin: int
    end: int
    stack: str
    weight: float | None
    details: dict[str, Any]
    depth: int = 0


@dataclass
class Read:
    """A trace as trace_processor would see it."""

    slices: list[Slice] = field(default_factory=list)
    flows: list[tuple[str, str, int]] = field(default_factory=list)
    states: list[tuple[int, int, int, int]] = field(default_factory=list)
    counters: dict[str, list[tuple[int, int]]] = field(default_factory=lambda: defaultdict(list))
    clocks: dict[int, int] = field(default_factory=dict)

    @property
    def weight(self) -> float:
        return sum(one.weight or 0 for one in self.slices)


class Tables:
    """Interned data by iid."""

    def __init__(self) -> None:
        self.tables: dict[str, dict[int, Any]] = defaultdict(dict)

    def add(self, data: Any) -> None:
        for descriptor, entries in data.ListFields():
            for entry in entries:
                assert entry.iid and entry.iid not in self.tables[descriptor.name]
                self.tables[descriptor.name][entry.iid] = entry

    def text(self, table: str, iid: int) -> str:
        entry = self.tables[table][iid]
        return str(entry.name) if hasattr(entry, "name") else str(entry.str.decode())

    def stack(self, iid: int) -> str:
        frames = [self.tables["frames"][frame] for frame in self.tables["callstacks"][iid].frame_ids]
        assert all(frame.mapping_id in self.tables["mappings"] for frame in frames)
        return ";".join(self.text("function_names", frame.function_name_id) for frame in frames)


def read(profile: Profile, **options: Any) -> Read:
    """Read what `convert --perfetto` writes, by the rules of trace_processor."""
    trace = Trace.FromString(converted_bytes("perfetto", profile, **options))
    found, tables, tracks = Read(), Tables(), {}
    assert trace.packet[0].sequence_flags == 1
    assert trace.packet[0].trace_packet_defaults.timestamp_clock_id == 3
    timed = []
    for packet in trace.packet:
        assert packet.trusted_packet_sequence_id == 1
        if packet.HasField("interned_data"):
            tables.add(packet.interned_data)
        elif packet.HasField("track_descriptor"):
            one = packet.track_descriptor
            tracks[one.uuid] = one.name or one.thread.thread_name or one.process.process_name
        elif packet.HasField("clock_snapshot"):
            assert packet.clock_snapshot.primary_trace_clock == 3
            found.clocks = {clock.clock_id: clock.timestamp for clock in packet.clock_snapshot.clocks}
        elif packet.HasField("generic_kernel_task_state_event"):
            state = packet.generic_kernel_task_state_event
            found.states.append((state.tid, packet.timestamp, state.state, state.cpu))
        elif packet.HasField("track_event"):
            timed.append((packet.timestamp, packet.track_event))
    play(sorted(timed, key=lambda item: item[0]), tracks, tables, found)
    return found


def play(timed: list[tuple[int, Any]], tracks: dict[int, str], tables: Tables, trace: Read) -> None:
    """Events by time, those of one time in the order of the file, as trace_processor sorts them."""
    open_: dict[int, list[Slice]] = defaultdict(list)
    flows: dict[int, Slice] = {}
    for ns, event in timed:
        assert event.track_uuid in tracks
        if event.type == COUNTER:
            trace.counters[tracks[event.track_uuid]].append((ns, event.counter_value or event.double_counter_value))
            continue
        if event.type == END:
            open_[event.track_uuid].pop().end = ns
            continue
        details = {
            tables.text("debug_annotation_names", one.name_iid): one.uint_value
            if one.HasField("uint_value")
            else tables.text("debug_annotation_string_values", one.string_value_iid)
            for one in event.debug_annotations
        }
        one = Slice(
            tracks[event.track_uuid], tables.text("event_categories", event.category_iids[0]),
            tables.text("event_names", event.name_iid), ns, ns,
            tables.stack(event.callstack_iid) if event.callstack_iid else "",
            event.callstack_weight if event.HasField("callstack_weight") else None, details,
            len(open_[event.track_uuid]),
        )  # fmt: skip
        trace.slices.append(one)
        if event.type == BEGIN:
            open_[event.track_uuid].append(one)
        for flow in event.flow_ids:
            flows[flow] = one
        for flow in event.terminating_flow_ids:
            trace.flows.append((flows.pop(flow).name, one.track, ns))
    assert not any(open_.values()) and not flows
