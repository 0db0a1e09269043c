# SPDX-License-Identifier: Apache-2.0
"""Perfetto traces, read with Perfetto's published messages."""

from __future__ import annotations

import io
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Any

import pytest
from builders.large import large_profile
from builders.profile import Code, ProfileBuilder, kernel
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace

from perf_offcpu.convert.registry import FORMATS
from perf_offcpu.model.profile import Profile
from perf_offcpu.model.recording import SampleFlag

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


def read(profile: Profile) -> Read:
    out = io.BytesIO()
    FORMATS["perfetto"].write(profile, out)
    trace = Trace.FromString(out.getvalue())
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


def play(timed: list[tuple[int, Any]], tracks: dict[int, str], tables: Tables, found: Read) -> None:
    """Events by time, those of one time in the order of the file, as trace_processor sorts them."""
    open_: dict[int, list[Slice]] = defaultdict(list)
    flows: dict[int, Slice] = {}
    for at, event in timed:
        assert event.track_uuid in tracks
        if event.type == COUNTER:
            found.counters[tracks[event.track_uuid]].append((at, event.counter_value))
            continue
        if event.type == END:
            open_[event.track_uuid].pop().end = at
            continue
        details = {
            tables.text("debug_annotation_names", one.name_iid): one.uint_value
            if one.HasField("uint_value")
            else tables.text("debug_annotation_string_values", one.string_value_iid)
            for one in event.debug_annotations
        }
        one = Slice(
            tracks[event.track_uuid], tables.text("event_categories", event.category_iids[0]),
            tables.text("event_names", event.name_iid), at, at,
            tables.stack(event.callstack_iid) if event.callstack_iid else "",
            event.callstack_weight if event.HasField("callstack_weight") else None, details,
            len(open_[event.track_uuid]),
        )  # fmt: skip
        found.slices.append(one)
        if event.type == BEGIN:
            open_[event.track_uuid].append(one)
        for flow in event.flow_ids:
            flows[flow] = one
        for flow in event.terminating_flow_ids:
            found.flows.append((flows.pop(flow).name, one.track, at))
    assert not any(open_.values()) and not flows


@pytest.fixture
def found() -> Read:
    builder = ProfileBuilder(
        meta={
            "wall_clock_ns": 1_700_000_000_000_000_000,
            "wall_clock_at_ns": 4_000_000,
            "first_ns": 4_500_000,
        }
    )
    builder.sample("main", ["main", kernel("futex")], 1_000_001, time_ns=5_000_001, state=1, cpu=1)
    columns: dict[str, Any] = {"waker_tid": 100, "waker_pid": 100, "wakeup_ns": 5_019_000, "runq_ns": 1_000}
    builder.sample(
        "wk", ["main", Code("f", "/lib/x.so")], 9_000, time_ns=5_020_000, tid=102, state=2, cpu=0, **columns
    )
    builder.sample(
        "wk", ["main"], 400, time_ns=5_030_000, tid=102, cpu=1, flags=SampleFlag.PREEMPTED, runq_ns=400
    )
    builder.sample("wk", ["main"], 77, time_ns=5_031_000, tid=102, flags=SampleFlag.AGGREGATED, count=9)
    builder.sample("wk", ["main", "run"], 11, time_ns=5_032_000, tid=102, event="cpu-clock")
    return read(builder.build())


def test_waits_and_their_run_queue(found: Read) -> None:
    shown = [
        (one.track, one.category, one.name, one.begin, one.end, one.depth, one.weight) for one in found.slices
    ]
    sums = "sums of short waits: no time"
    assert shown == [
        ("main", "offcpu", "futex", 4_000_000, 5_000_001, 0, 1_000_001),
        (sums, "offcpu", "main", 4_000_000, 4_000_077, 0, 77),
        ("wk", "offcpu", "f", 5_011_000, 5_020_000, 0, 9_000),
        ("main", "wakeup", "wakes wk-102", 5_019_000, 5_020_000, 0, None),
        ("wk", "runqueue", "run queue", 5_019_000, 5_020_000, 1, None),
        ("wk", "offcpu", "main", 5_029_600, 5_030_000, 0, 400),
        ("wk", "runqueue", "run queue", 5_029_600, 5_030_000, 1, None),
        ("wk", "cpu", "cpu-clock", 5_032_000, 5_032_000, 0, 11),
    ]
    assert found.flows == [("wakes wk-102", "wk", 5_019_000)]


def test_stacks_details_and_clocks(found: Read) -> None:
    wait = next(one for one in found.slices if one.name == "f")
    assert wait.stack == "main;f"
    assert wait.details == {
        "state": "uninterruptible sleep",
        "woken by": "main (pid 100, tid 100)",
        "blocked_ns": 8_000,
        "runq_ns": 1_000,
    }
    assert found.clocks == {3: 4_000_000, 1: 1_700_000_000_000_000_000}


def test_thread_states_and_counters(found: Read) -> None:
    sleep, deep, runnable, running = 4, 5, 2, 3
    assert sorted(found.states, key=lambda state: state[1]) == [
        (100, 4_000_000, sleep, 1), (100, 5_000_001, running, 1), (102, 5_011_000, deep, 0),
        (102, 5_019_000, runnable, 0), (102, 5_020_000, running, 0), (102, 5_029_600, runnable, 0),
        (102, 5_030_000, running, 1),
    ]  # fmt: skip
    assert found.counters["threads blocked"] == [
        (4_000_000, 1), (5_000_001, 0), (5_011_000, 1), (5_019_000, 0),
    ]  # fmt: skip
    assert [value for _, value in found.counters["threads runnable"]] == [1, 0, 1, 0]


def test_large_totals_are_exact_and_slices_nest() -> None:
    profile = large_profile(20_000, 1_000)
    found = read(profile)
    assert found.weight == sum(profile.samples.period.tolist())
    depths = Counter(one.depth for one in found.slices if one.category == "offcpu")
    assert len(found.flows) > 10_000 and sum(depths.values()) == 20_000
    assert sum(one.end - one.begin for one in found.slices if one.category == "offcpu") == found.weight
    queued = sum(one.end - one.begin for one in found.slices if one.category == "runqueue")
    assert queued == sum(profile.samples.runq_ns.tolist())
    assert found.counters["threads blocked"][-1][1] == 0


def test_nothing_to_show_is_a_trace() -> None:
    assert read(ProfileBuilder().build()).slices == []
