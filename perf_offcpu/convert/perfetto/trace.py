# SPDX-License-Identifier: Apache-2.0
"""Write Perfetto's own format, for ui.perfetto.dev and trace_processor: the format for large recordings.

Each thread has a track. A wait is a slice with its callstack and its weight in ns, so that Perfetto sums callstacks
over any part of the trace; the part from wake-up to switch-in lies in it as "run queue". An arrow leads from a mark on
the waker's track to that part. The same times are thread states, from events of Perfetto's generic kernel: asleep,
runnable, running on a CPU. Two counters show the numbers of blocked and runnable threads, in large recordings as means
of short steps. CPU samples are instants with callstacks. Sums of short waits and samples without a time lie in a row on
a track next to their thread's. A critical path (`options.path`) is a track of slices without weights, and so is each
task of an event loop and each kind of goroutines, below a track of the process. Times are in the recording's clock.

`callstack_weight` of all events of category "offcpu" adds up to the profile. Source of the format:
protos/perfetto/trace of https://github.com/google/perfetto."""

import itertools
from collections.abc import Iterator
from functools import partial
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from perf_offcpu.analysis.selection.states import STATES, state_codes
from perf_offcpu.analysis.times.lanes import Lane, task_lanes
from perf_offcpu.analysis.times.timeline import Timeline, timeline_of
from perf_offcpu.analysis.times.wakeups import Wakeups, wakeups_of
from perf_offcpu.callpaths.tree import paths_with_wakers
from perf_offcpu.callpaths.weights import unit_of
from perf_offcpu.convert.encode import protobuf
from perf_offcpu.convert.encode.protobuf import Rows, constant, field, fixed64, from_bytes, joined, numbers
from perf_offcpu.convert.encode.text_columns import blocks, path_texts, running_sums
from perf_offcpu.convert.perfetto import packets
from perf_offcpu.convert.perfetto.packets import SLICE_BEGIN, SLICE_END, events, packet
from perf_offcpu.convert.registry import Options
from perf_offcpu.convert.wait_details import details_of
from perf_offcpu.model.columns import I64, distinct, group, stable_order
from perf_offcpu.model.profile import Profile
from perf_offcpu.model.recording import SampleFlag
from perf_offcpu.text import printable

BLOCK = 1 << 15  # events that are encoded at once
_RUNNABLE, _RUNNING = 2, 3
_TASK_STATES = {"R": _RUNNABLE, "S": 4, "D": 5, "I": 4, "T": 6, "t": 6, "P": 4}
"""Letter → GenericKernelTaskStateEvent.TaskStateEnum; other states are not written."""


def write(profile: Profile, out: BinaryIO, options: Options) -> None:
    """Write all samples of the profile, in blocks of bounded size."""
    unit_of(profile)  # one unit for all events
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
        self.uuid = packets.thread_uuid(self.timeline.track)
        self.arrow = np.full(len(self.samples), -1, np.int64)
        self.arrow[self.wakeups.arrows] = np.arange(len(self.wakeups.arrows))
        self.path, self.tasks = options.path, task_lanes(profile)
        self._intern(packets.Interned())

    def _intern(self, interned: packets.Interned) -> None:
        sets = self.details.sets
        details = [b"".join(interned.annotation(*item) for item in details.items()) for details in sets]
        self.annotations = from_bytes(details)
        names = ("blocked_ns", "runq_ns")
        self.blocked_name, self.runq_name = (interned.iid(packets.ANNOTATION_NAMES, name) for name in names)
        categories = ("offcpu", "runqueue", "wakeup", "cpu")
        self.category = {name: interned.iid(packets.CATEGORIES, name) for name in categories}
        self.run_queue = interned.iid(packets.EVENT_NAMES, "run queue")
        self.wakes = interned.iids(f"wakes {track.comm}-{track.tid}" for track in self.timeline.tracks)
        self._intern_wakers(interned)
        texts_of = partial(_LaneTexts, interned)
        self.path_texts = texts_of(self.path, "critical path", "through") if self.path else None
        self.task_texts = [texts_of(lane, "task", "detail") for lane in self.tasks]
        events = interned.iids(printable(event.name) for event in self.profile.evsels)
        self.event_names = np.append(events, 1)  # the last element is for evsel -1
        self.interned, self.names = interned, interned.event_names

    def _intern_wakers(self, interned: packets.Interned) -> None:
        """Intern wakers' stacks, to annotate waits with them: wake-ups by interrupts have no slice that shows them."""
        first, self.waker_text = group(self.waker_node)
        nodes = self.waker_node[first]
        waker_nodes = nodes[nodes >= 0]
        texts = [interned.annotation("waker stack", stack) for stack in path_texts(self.tree, waker_nodes)]
        self.waker_details = from_bytes([b""] * (len(nodes) - len(waker_nodes)) + texts)

    def parts(self) -> Iterator[bytes]:
        yield packets.FIRST_PACKET
        yield packets.clock_packet(self.profile)
        yield packets.packet(field(12, b"".join(self.interned.parts) + packets.frames(self.tree, self.names)))
        ends = distinct(np.append(self.node, self.waker_node[self.waker_node >= 0]))
        for stacks in packets.callstacks(self.tree, ends, self.names):
            yield packets.packet(field(12, stacks))
        placed = self.timeline.placed
        yield from packets.track_packets(self.profile, self.wakeups.tracks, set(self.timeline.track[~placed].tolist()))
        for rows in blocks(np.flatnonzero(self.timeline.waits), BLOCK):
            yield from self._waits(rows)
        for rows in blocks(np.flatnonzero(self.timeline.moments), BLOCK):
            yield self._weighed(rows, packets.INSTANT, self._time(self.timeline.end_ns[rows]), self.uuid[rows])
        without_place = np.flatnonzero(~placed)
        begins = running_sums(self.timeline.track[without_place], self.samples.period[without_place])
        for indices in blocks(np.arange(len(without_place)), BLOCK):
            rows, begin = without_place[indices], self._time(begins[indices])
            uuid = packets.thread_uuid(self.timeline.track[rows]) + 1
            yield self._weighed(rows, SLICE_BEGIN, begin, uuid)
            yield events(begin + self.samples.period[rows], SLICE_END, uuid)
        yield from state_packets(self.profile, self.timeline, self.wakeups)
        yield from counter_packets(self.timeline, self.wakeups)
        if self.path_texts is not None:
            yield packets.track_packet(packets.PATH_UUID, self.path_texts.lane.title)
            yield from self.path_texts.spans(packets.PATH_UUID)
        yield from self._tasks(packets.process_uuids(self.profile, self.wakeups.tracks))

    def _tasks(self, processes: dict[int, tuple[int, str]]) -> Iterator[bytes]:
        """Yield packets of tasks: a track for each process (pid → uuid, name), below it one for each task, with
        slices."""
        free, parents = itertools.count(max(uuid for uuid, _ in processes.values()) + 1 if processes else 0), {}
        for texts in self.task_texts:
            pid, uuid = texts.lane.pid, next(free)
            if pid not in parents:
                parents[pid], uuid = uuid, next(free)
                yield packets.track_packet(parents[pid], "tasks, as they were read now and then", processes[pid][0])
            yield packets.track_packet(uuid, texts.lane.title, parents[pid])
            yield from texts.spans(uuid)

    def _time(self, since_origin_ns: I64) -> I64:
        return since_origin_ns + self.timeline.origin_ns

    def _in_category(self, name: str, rows: int) -> Rows:
        return constant(field(3, self.category[name]), rows)

    def _weighed(self, rows: I64, kind: int, time_ns: I64, uuid: I64) -> bytes:
        """Return packets of an event of a kind (SLICE_BEGIN, INSTANT) for each sample in `rows`, with its weight,
        callstack and details. `time_ns`, `uuid`: of these events."""
        offcpu = self.profile.is_offcpu()[rows]
        weight, runq = self.samples.period[rows], self.samples.delay_ns()[rows]
        blocked = self.samples.length_ns()[rows] - np.maximum(runq, 0)
        functions = self.names + 1 + self.tree.name[self.node[rows]]
        is_function = offcpu | (kind != packets.INSTANT)
        names = np.where(is_function, functions, self.event_names[self.samples.evsel[rows]])
        category = np.where(offcpu, self.category["offcpu"], self.category["cpu"])
        has_runq = offcpu & (runq >= 0)
        return events(
            time_ns,
            kind,
            uuid,
            numbers(3, category),
            numbers(10, names),
            self.annotations.take(self.details.of[rows]),
            self.waker_details.take(self.waker_text[rows]),
            self._annotation(self.blocked_name, blocked).where(has_runq),
            self._annotation(self.runq_name, np.maximum(runq, 0)).where(has_runq),
            numbers(56, self.node[rows] + 1),
            fixed64(57, weight.astype(np.float64)),
        )

    def _annotation(self, name: int, values: I64) -> Rows:
        """Encode DebugAnnotations with the iid `name` and numbers as values."""
        body = joined(constant(field(1, name), len(values)), numbers(3, np.maximum(values, 0)))
        return protobuf.messages(4, body)

    def _waits(self, rows: I64) -> Iterator[bytes]:
        """Yield slices of waits, with wake-up marks and run-queue slices. Events of one time are read in the order of
        the file: so outer slices begin first."""
        begin, end = self._time(self.timeline.begin_ns[rows]), self._time(self.timeline.end_ns[rows])
        queued, uuid = self._time(self.wakeups.queued_ns[rows]), self.uuid[rows]
        yield self._weighed(rows, SLICE_BEGIN, begin, uuid)
        woken = self.arrow[rows] >= 0
        yield from self._marks(rows[woken])
        late = np.flatnonzero((queued < end) | woken)
        arrows = fixed64(48, (self.arrow[rows[late]] + 1).astype(np.uint64)).where(woken[late])
        category, name = self._in_category("runqueue", len(late)), field(10, self.run_queue)
        yield events(queued[late], SLICE_BEGIN, uuid[late], category, constant(name, len(late)), arrows)
        yield events(end[late], SLICE_END, uuid[late])
        yield events(end, SLICE_END, uuid)

    def _marks(self, rows: I64) -> Iterator[bytes]:
        """Yield short slices on the tracks of the wakers of `rows`, from which the arrows lead."""
        arrow, queued_ns = self.arrow[rows], self._time(self.wakeups.queued_ns[rows])
        uuid = packets.thread_uuid(self.wakeups.waker[rows])
        names = numbers(10, self.wakes[self.timeline.track[rows]])
        flows = fixed64(47, (arrow + 1).astype(np.uint64))
        stack = numbers(56, self.waker_node[rows] + 1).where(self.waker_node[rows] >= 0)
        yield events(queued_ns, SLICE_BEGIN, uuid, self._in_category("wakeup", len(rows)), names, flows, stack)
        yield events(queued_ns + self.wakeups.mark_ns[arrow], SLICE_END, uuid)


class _LaneTexts:
    """A lane (critical path, task) whose texts are interned. `key`: name of the annotation with the details."""

    def __init__(self, interned: packets.Interned, lane: Lane, category: str, key: str) -> None:
        self.lane, self._category = lane, field(3, interned.iid(packets.CATEGORIES, category))
        self._names = interned.iids(lane.names)
        self._details = from_bytes([interned.annotation(key, text) if text else b"" for text in lane.details])

    def spans(self, uuid: int) -> Iterator[bytes]:
        """Yield the lane as slices on track `uuid`. One ends as the next begins: so ends come first in the file."""
        for rows in blocks(np.arange(len(self.lane.name)), BLOCK):
            uuids, category = np.full(len(rows), uuid), constant(self._category, len(rows))
            names, details = numbers(10, self._names[self.lane.name[rows]]), self._details.take(self.lane.detail[rows])
            begins = events(self.lane.begin_ns[rows], SLICE_BEGIN, uuids, category, names, details)
            yield events(self.lane.end_ns[rows], SLICE_END, uuids) + begins


def state_packets(profile: Profile, timeline: Timeline, wakeups: Wakeups) -> Iterator[bytes]:
    """Yield packets of each thread's state from switch-out, from wake-up and from switch-in on. Samples do not have the
    CPU that a thread left: it is taken to be the CPU on which the thread went on after its previous wait."""
    samples = profile.samples
    asleep = np.array([_TASK_STATES.get(state.letter, 0) for state in STATES])[state_codes(samples)]
    waits = np.flatnonzero(timeline.waits & (asleep > 0) & (samples.tid > 0))
    cpu = np.maximum(samples.cpu.astype(np.int64), 0)
    left = _previous(timeline.track[waits], cpu[waits])
    went_on = ~samples.has(SampleFlag.STILL_BLOCKED)[waits] & (samples.cpu[waits] >= 0)
    queued = (wakeups.queued_ns[waits] < timeline.end_ns[waits]) & (asleep[waits] != _RUNNABLE)
    number, tid = len(waits), samples.tid[waits].astype(np.int64)
    for time_ns, state, on_cpu, chosen in (
        (timeline.begin_ns[waits], asleep[waits], left, np.arange(number)),
        (wakeups.queued_ns[waits], np.full(number, _RUNNABLE), left, np.flatnonzero(queued)),
        (timeline.end_ns[waits], np.full(number, _RUNNING), cpu[waits], np.flatnonzero(went_on)),
    ):
        for rows in blocks(chosen, BLOCK):
            yield packets.task_states(time_ns[rows] + timeline.origin_ns, state[rows], tid[rows], on_cpu[rows])


def _previous(track: I64, values: I64) -> I64:
    """Return int64[n]: the value of the previous row of the same track; in the first row of a track its own value."""
    order = stable_order(track)
    before = np.append(order[:1], order[:-1])
    result = values.copy()
    result[order] = np.where(track[before] == track[order], values[before], values[order])
    return result


MOST_CHANGES = 1 << 17
"""Number of waits up to which the counters have each change; of more, means of steps."""
_STEPS = 1 << 16


def counter_packets(timeline: Timeline, wakeups: Wakeups) -> Iterator[bytes]:
    """Yield the tracks and values of the counters of blocked and of runnable threads."""
    waits = timeline.waits
    begin, queued, end = timeline.begin_ns[waits], wakeups.queued_ns[waits], timeline.end_ns[waits]
    for uuid, name, opens, closes in (
        (packets.BLOCKED_UUID, "threads blocked", begin, queued),
        (packets.RUNNABLE_UUID, "threads runnable", queued, end),
    ):
        lasts = opens < closes
        since, until = opens[lasts], closes[lasts]
        means = len(since) > MOST_CHANGES
        step_ns = -(-int(until.max() - since.min()) // _STEPS) if means else 0
        time_ns, value = mean_counts(since, until, step_ns) if means else counts(since, until)
        label = f"{name}, mean of each {step_ns / 1000:.1f} us" if means else name
        yield packet(field(60, field(1, uuid) + field(2, label) + field(8, field(3, 2))))
        for rows in blocks(np.arange(len(time_ns)), BLOCK):
            values = fixed64(44, value[rows]) if means else numbers(30, value[rows].astype(np.int64))
            yield events(time_ns[rows] + timeline.origin_ns, packets.COUNTER, np.full(len(rows), uuid), values)


def counts(since: I64, until: I64) -> tuple[I64, NDArray[np.float64]]:
    """Count open intervals (`since` to `until`): return the times at which any begins or ends, int64[m], and the number
    of intervals open from then on, float64[m]."""
    times = np.concatenate([since, until])
    times <<= 1
    times[len(since) :] |= 1  # the lowest bit says which
    times.sort()
    number = np.cumsum(1 - 2 * (times & 1), dtype=np.float64)
    times >>= 1
    last = np.append(times[1:] != times[:-1], True)[: len(times)]
    return times[last], number[last]


def mean_counts(since: I64, until: I64, step_ns: int) -> tuple[I64, NDArray[np.float64]]:
    """Return int64[m]: the begin of each step of `step_ns`, then the end of the last one; float64[m]: mean number of
    intervals (`since` to `until`) open in each step, then 0. Mean times step, summed, is the intervals' total time."""
    first = int(since.min())
    steps = int(until.max() - first) // step_ns + 1
    open_ns, number = np.zeros(steps), np.zeros(steps, np.int64)
    for times, sign in ((since - first, 1), (until - first, -1)):
        step = times // step_ns
        number += sign * np.bincount(step, minlength=steps)
        open_ns += sign * np.bincount(step, (step + 1) * step_ns - times, steps)
    open_ns += (np.cumsum(number) - number) * step_ns
    return first + step_ns * np.arange(steps + 1), np.append(open_ns / step_ns, 0.0)
