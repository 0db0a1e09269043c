# SPDX-License-Identifier: Apache-2.0
"""Perfetto's own format, for ui.perfetto.dev and trace_processor: the one for large recordings.

Each thread has a track. A wait is a slice with its callstack and its weight in ns, so that Perfetto sums
callstacks over any part of the trace; the part from wake-up to switch-in lies in it as "run queue". An arrow
leads from a mark on the waker's track to that part. The same times are thread states, from events of
Perfetto's generic kernel: asleep, runnable, running on a CPU. Two counters say how many threads are blocked
and runnable. CPU samples are instants with callstacks. Sums of short waits and samples without a time lie one
after the other on a track of their own beside their thread's. Times are those of the recording's clock.

`callstack_weight` of all events of category "offcpu" adds up to the profile. Source of the format:
protos/perfetto/trace of https://github.com/google/perfetto.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import BinaryIO

import numpy as np

from perf_offcpu.analysis.intervals import timeline_of
from perf_offcpu.analysis.options import Options
from perf_offcpu.analysis.wait_details import details_of
from perf_offcpu.analysis.wakeups import wakeups_of
from perf_offcpu.callpaths.waker_paths import paths_with_wakers
from perf_offcpu.callpaths.weights import unit_of
from perf_offcpu.convert.encode.protobuf import (
    Rows,
    constant,
    field,
    fixed64,
    from_bytes,
    joined,
    messages,
    numbers,
)
from perf_offcpu.convert.encode.text_columns import blocks, path_texts, plain_labels, running_sums
from perf_offcpu.convert.perfetto.interned import Interned, callstacks, frames
from perf_offcpu.convert.perfetto.packets import (
    INSTANT,
    SLICE_BEGIN,
    SLICE_END,
    clock_packet,
    events,
    first_packet,
    packet,
    sums_uuid,
    thread_uuid,
    track_packets,
)
from perf_offcpu.convert.perfetto.scheduler import BLOCK, counter_packets, state_packets
from perf_offcpu.model.columns import I64
from perf_offcpu.model.profile import Profile
from perf_offcpu.text import printable


def write(profile: Profile, out: BinaryIO, options: Options) -> None:
    """Write all samples of the profile, in blocks of bounded size.

    Raises:
        UsageError: its events have different units.
    """
    unit_of(profile)
    for part in _Writer(profile, options).parts():
        out.write(part)


class _Writer:
    def __init__(self, profile: Profile, options: Options) -> None:
        self.profile, self.samples = profile, profile.samples
        self.timeline = timeline_of(profile)
        self.wakeups = wakeups_of(profile, self.timeline)
        self.details = details_of(profile, self.wakeups)
        self.tree, self.waker_node = paths_with_wakers(profile, options)
        self.node = self.tree.of_sample.astype(np.int64)
        self.uuid = thread_uuid(0) + 2 * self.timeline.track
        self.arrow = np.full(len(self.samples), -1, np.int64)
        self.arrow[self.wakeups.arrows] = np.arange(len(self.wakeups.arrows))
        self._intern()

    def _intern(self) -> None:
        interned = Interned()
        details = [
            b"".join(field(4, interned.annotation(*item)) for item in one.items())
            for one in self.details.sets
        ]
        self.annotations = from_bytes(details)
        self.blocked_name = interned.annotation_name("blocked_ns")
        self.runq_name = interned.annotation_name("runq_ns")
        self.category = {name: interned.category(name) for name in ("offcpu", "runqueue", "wakeup", "cpu")}
        self.run_queue = interned.event_name("run queue")
        labels = (f"wakes {track.comm}-{track.tid}" for track in self.timeline.tracks)
        self.wakes = np.array([interned.event_name(label) for label in labels], np.int64)
        self._intern_wakers(interned)
        names = (printable(event.name) for event in self.profile.evsels)
        self.event_names = np.array([interned.event_name(name) for name in names], np.int64)
        self.interned, self.names = interned, interned.event_names

    def _intern_wakers(self, interned: Interned) -> None:
        """The stacks of wakers as details of the waits: wake-ups by interrupts have no mark to show them."""
        nodes, self.waker_text = np.unique(self.waker_node, return_inverse=True)
        there = nodes[nodes >= 0]
        stacks = path_texts(self.tree, there, plain_labels(self.tree))
        texts = [field(4, interned.annotation("waker stack", stack)) for stack in stacks]
        self.waker_details = from_bytes([b""] * (len(nodes) - len(there)) + texts)

    def parts(self) -> Iterator[bytes]:
        """The whole trace."""
        yield first_packet()
        yield clock_packet(self.profile)
        yield packet(field(12, b"".join(self.interned.parts) + frames(self.tree, self.names)))
        for stacks in callstacks(self.tree, self._ends(), self.names):
            yield packet(field(12, stacks))
        without_place = set(self.timeline.track[~self.timeline.placed].tolist())
        yield from track_packets(self.profile, self.wakeups.tracks, without_place)
        for rows in blocks(self.timeline.waits, BLOCK):
            yield from self._waits(rows)
        for rows in blocks(self.timeline.moments, BLOCK):
            yield self._weighed(rows, INSTANT, self._time(self.timeline.end_ns[rows]), self.uuid[rows])
        for rows in blocks(~self.timeline.placed, BLOCK):
            yield from self._sums(rows)
        yield from state_packets(self.profile, self.timeline, self.wakeups)
        yield from counter_packets(self.timeline, self.wakeups)

    def _ends(self) -> I64:
        """The nodes that have a callstack."""
        return np.unique(np.append(self.node, self.waker_node[self.waker_node >= 0]))

    def _time(self, since_origin_ns: I64) -> I64:
        return since_origin_ns + self.timeline.origin_ns

    def _kind(self, category: str, rows: int) -> Rows:
        return constant(field(3, self.category[category]), rows)

    def _weighed(self, rows: I64, kind: int, time_ns: I64, uuid: I64) -> bytes:
        """Events that carry the weight, the callstack and the details of samples."""
        offcpu = self.profile.is_offcpu()[rows]
        weight, runq = self.samples.period[rows], self.samples.runq_ns[rows]
        names = np.where(
            offcpu | (kind != INSTANT),
            self.names + 1 + self.tree.name[self.node[rows]],
            self._event_name(rows),
        )
        category = np.where(offcpu, self.category["offcpu"], self.category["cpu"])
        told = offcpu & (runq >= 0)
        return events(
            time_ns,
            kind,
            uuid,
            numbers(3, category),
            numbers(10, names),
            self.annotations.take(self.details.of[rows]),
            self.waker_details.take(self.waker_text[rows]),
            self._annotation(self.blocked_name, weight - np.maximum(runq, 0)).where(told),
            self._annotation(self.runq_name, np.maximum(runq, 0)).where(told),
            numbers(56, self.node[rows] + 1),
            fixed64(57, weight.astype(np.float64)),
        )

    def _event_name(self, rows: I64) -> I64:
        evsel = self.samples.evsel[rows]
        names: I64 = (
            self.event_names[np.maximum(evsel, 0)] if len(self.event_names) else np.ones(len(rows), np.int64)
        )
        return names

    def _annotation(self, name: int, values: I64) -> Rows:
        body = joined(constant(field(1, name), len(values)), numbers(3, np.maximum(values, 0)))
        return messages(4, body)

    def _waits(self, rows: I64) -> Iterator[bytes]:
        """Events of one time are read in the order of the file: outer slices begin first and end last."""
        begin, queued, end = (
            self.timeline.begin_ns[rows],
            self.wakeups.queued_ns[rows],
            self.timeline.end_ns[rows],
        )
        uuid = self.uuid[rows]
        yield self._weighed(rows, SLICE_BEGIN, self._time(begin), uuid)
        woken = self.arrow[rows] >= 0
        yield from self._marks(rows[woken])
        late = np.flatnonzero((queued < end) | woken)
        arrows = fixed64(48, (self.arrow[rows[late]] + 1).astype(np.uint64)).where(woken[late])
        name = constant(field(10, self.run_queue), len(late))
        yield events(
            self._time(queued[late]), SLICE_BEGIN, uuid[late], self._kind("runqueue", len(late)), name, arrows
        )
        yield events(self._time(end[late]), SLICE_END, uuid[late])
        yield events(self._time(end), SLICE_END, uuid)

    def _marks(self, rows: I64) -> Iterator[bytes]:
        arrow, at = self.arrow[rows], self._time(self.wakeups.queued_ns[rows])
        uuid = thread_uuid(0) + 2 * self.wakeups.waker[rows]
        names = numbers(10, self.wakes[self.timeline.track[rows]])
        flows = fixed64(47, (arrow + 1).astype(np.uint64))
        stack = numbers(56, self.waker_node[rows] + 1).where(self.waker_node[rows] >= 0)
        yield events(at, SLICE_BEGIN, uuid, self._kind("wakeup", len(rows)), names, flows, stack)
        yield events(at + self.wakeups.mark_ns[arrow], SLICE_END, uuid)

    def _sums(self, rows: I64) -> Iterator[bytes]:
        weight = np.where(self.timeline.placed, 0, self.samples.period)
        begin = self._time(running_sums(self.timeline.track, weight)[rows])
        uuid = sums_uuid(0) + 2 * self.timeline.track[rows]
        yield self._weighed(rows, SLICE_BEGIN, begin, uuid)
        yield events(begin + weight[rows], SLICE_END, uuid)
