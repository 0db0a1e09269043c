# SPDX-License-Identifier: Apache-2.0
"""Write Trace Event JSON, for ui.perfetto.dev, chrome://tracing and speedscope.

Each thread is a track. A wait is a slice, named after its innermost function, from switch-out to switch-in; the part
from wake-up to switch-in lies in it as a slice of its own, "run queue". Who woke whom is a flow arrow from a short
slice on the waker's track to the wait. CPU samples are instants. Thread states are in Perfetto's native format only:
`ph:"T"` is one to Perfetto and a step of an asynchronous event to chrome://tracing, which warns of each.

Sums of short waits and samples without a time have a weight but no place in time: they stand in a process of their own,
one after the other. So the durations of all slices of category "offcpu" add up to the profile.

A critical path (`options.path`) is a process of its own with one track, its slices side by side. Tasks of event loops
and goroutines are further tracks of their process, category "task", whose numbers are no threads.

`ts` and `dur` are microseconds with three decimals, since the first wait's begin: readers multiply by 1000 in
doubles, which is exact that way. Readers also add the two, and two ends at one moment could then come in the
wrong order: so "run queue" ends a tenth of a nanosecond before its wait, a wake-up at the very end of a wait
is as much earlier, and there is a microsecond between two sums. `args` hold no numbers that differ from wait
to wait, because speedscope takes them for a part of the name. There is no `displayTimeUnit`: "ns" makes some
readers take `ts` for nanoseconds. Source: Google's "Trace Event Format", and what reads it:
src/trace_processor/importers/json of https://github.com/google/perfetto."""

import json
from collections.abc import Iterable, Iterator
from typing import TextIO

import numpy as np

from perf_offcpu.analysis.times.lanes import Lane, task_lanes
from perf_offcpu.analysis.times.timeline import process_names, timeline_of, with_origin
from perf_offcpu.analysis.times.wakeups import wakeups_of
from perf_offcpu.callpaths.tree import paths_with_wakers
from perf_offcpu.callpaths.weights import title_of, unit_of
from perf_offcpu.convert.encode import text_columns
from perf_offcpu.convert.encode.text_columns import blocks, joined, microseconds, picked
from perf_offcpu.convert.registry import Options
from perf_offcpu.convert.wait_details import details_of
from perf_offcpu.model.columns import I64, distinct
from perf_offcpu.model.profile import Profile
from perf_offcpu.resources import version
from perf_offcpu.text import printable

SUMS_PID = 2**22 + 1  # the process of samples without a place; no real process can have this number (PID_MAX_LIMIT)
PATH_PID = 2**22  # the process of a critical path; no real process can have this number either
SUMS_NAME = "no time: sums of short waits"
FIRST_TASK_TID = 2**23
_BETWEEN_SUMS_NS = 1_000


def write(profile: Profile, out: TextIO, options: Options) -> None:
    """Write all samples of the profile as one JSON object, in blocks of bounded size."""
    unit = unit_of(profile)
    writer = _Writer(profile, options)
    facts = {"producer": f"perf-offcpu {version()}", "title": title_of(profile), "weights": unit or "events"}
    facts["origin_ns"] = str(writer.timeline.origin_ns)
    out.write(f'{{"otherData":{json.dumps(facts)},"traceEvents":[')
    separator = "\n"
    for events in filter(None, writer.events()):
        out.write(separator)
        out.write(",\n".join(events))
        separator = ",\n"
    out.write("\n]}\n")


class _Writer:
    """Formatter of the trace events of a profile as JSON texts, a block of samples at a time."""

    def __init__(self, profile: Profile, options: Options) -> None:
        self.profile, self.samples, self.path = profile, profile.samples, options.path
        self.timeline, self.tasks = timeline_of(profile), task_lanes(profile)
        for lane in [*self.tasks, *filter(None, [self.path])]:
            self.timeline = with_origin(self.timeline, min([self.timeline.origin_ns, *lane.begin_ns[:1].tolist()]))
        self.track, self.wakeups = self.timeline.track, wakeups_of(profile, self.timeline)
        self.details = details_of(profile, self.wakeups)
        self.tree, self.waker_node = paths_with_wakers(profile, options)
        self.node = self.tree.of_sample.astype(np.int64)
        self.labels = [json.dumps(name.label) for name in self.tree.names]
        self.stacks = self._stacks(self.node)
        wakers = self._stacks(self.waker_node[self.waker_node >= 0])
        self.waker_stacks = {-1: ""} | {node: f'"waker stack":{text},' for node, text in wakers.items()}
        self.ids = [f',"pid":{track.pid},"tid":{track.tid},"ts":' for track in self.wakeups.tracks]
        self.known = [
            "".join(f"{json.dumps(name)}:{json.dumps(text)}," for name, text in details.items())
            for details in self.details.sets
        ]
        self.arrow = np.full(len(self.samples), -1, np.int64)
        self.arrow[self.wakeups.arrows] = np.arange(len(self.wakeups.arrows))

    def _stacks(self, nodes: I64) -> dict[int, str]:
        """Return node → its stack, root first, as a JSON string."""
        used = distinct(nodes)
        return dict(zip(used.tolist(), map(json.dumps, text_columns.path_texts(self.tree, used)), strict=True))

    def events(self) -> Iterator[list[str]]:
        """Yield all trace events as JSON texts, in lists of bounded size."""
        yield self._metadata()
        for rows in blocks(np.flatnonzero(self.timeline.waits)):
            yield from self._waits(rows)
        for rows in blocks(np.flatnonzero(self.timeline.moments)):
            yield self._moments(rows)
        yield from self._sums(np.flatnonzero(~self.timeline.placed))
        if self.path is not None:
            yield [_named("process_name", PATH_PID, PATH_PID, self.path.title)]
            yield from self._spans(self.path, PATH_PID, PATH_PID, "critical path", "through")
        for tid, lane in enumerate(self.tasks, FIRST_TASK_TID):
            yield [_named("thread_name", lane.pid, tid, lane.title)]
            yield from self._spans(lane, lane.pid, tid, "task", "detail")

    def _metadata(self) -> list[str]:
        tracks, without_place = self.timeline.tracks, ~self.timeline.placed
        names = process_names(self.profile, self.wakeups.tracks)
        events = [_named("process_name", pid, pid, name) for pid, name in names.items()]
        events += [_named("thread_name", track.pid, track.tid, track.comm) for track in self.wakeups.tracks]
        if without_place.any():
            events.append(_named("process_name", SUMS_PID, SUMS_PID, SUMS_NAME))
            rows = distinct(self.track[without_place]).tolist()
            events += [_named("thread_name", SUMS_PID, SUMS_PID + 1 + row, tracks[row].label) for row in rows]
        return events

    def _args(self, rows: I64) -> list[str]:
        """Return the end of each sample's event: the content of `args`, and two closing braces."""
        details = picked(self.known, self.details.of[rows])
        wakers = picked(self.waker_stacks, self.waker_node[rows])
        return joined(details, wakers, '"stack":', picked(self.stacks, self.node[rows]), "}}")

    def _weighed(self, category: str | list[str], rows: I64, when: tuple[Iterable[str], ...]) -> list[str]:
        """Return a slice for each sample, named after its innermost function; `when`: texts of pid, tid, ts, dur."""
        names = picked(self.labels, self.tree.name[self.node[rows]].astype(np.int64))
        return joined('{"ph":"X","cat":"', category, '","name":', names, *when, ',"args":{', self._args(rows))

    def _waits(self, rows: I64) -> Iterator[list[str]]:
        """Yield slices of waits, their wake-up arrows, and run-queue slices. Readers take events of one time in the
        order of the file: so an arrow comes after the wait in which it ends, and before the run queue within it."""
        times = (self.timeline.begin_ns, self.wakeups.queued_ns, self.timeline.end_ns)
        begin, queued, end = (time_ns[rows] for time_ns in times)
        yield self._weighed("offcpu", rows, self._when(self.track[rows], begin, end))
        yield from self._arrows(rows[self.arrow[rows] >= 0])
        late = queued < end
        inner = joined(microseconds((end - queued)[late] - 1), "9")
        when = (picked(self.ids, self.track[rows[late]]), microseconds(queued[late]), ',"dur":', inner)
        yield joined('{"ph":"X","cat":"runqueue","name":"run queue"', *when, "}")

    def _when(self, tracks: I64, begin_ns: I64, end_ns: I64) -> tuple[Iterable[str], ...]:
        """Return columns of JSON texts, which joined are the members pid, tid, ts and dur of an event of each track."""
        return picked(self.ids, tracks), microseconds(begin_ns), ',"dur":', microseconds(end_ns - begin_ns)

    def _arrows(self, rows: I64) -> Iterator[list[str]]:
        """Yield short slices on the wakers' tracks, then the begins and then the ends of wake-up arrows."""
        arrow, queued_ns, waker = self.arrow[rows], self.wakeups.queued_ns[rows], self.wakeups.waker[rows]
        labels = [json.dumps(f"wakes {track.comm}-{track.tid}") for track in self.timeline.tracks]
        at_end = (queued_ns == self.timeline.end_ns[rows]) & (queued_ns > self.timeline.begin_ns[rows])
        times = joined(microseconds(queued_ns - at_end), picked(["", "9"], at_end.astype(np.int64)))
        when = (picked(self.ids, waker), times, ',"dur":', microseconds(self.wakeups.mark_ns[arrow]))
        head = '{"ph":"X","cat":"wakeup","name":'
        yield joined(head, picked(labels, self.track[rows]), *when, "}")
        numbers = list(map(str, (arrow + 1).tolist()))
        flow = '","cat":"wakeup","name":"wake-up","id":'
        yield joined(f'{{"ph":"s{flow}', numbers, picked(self.ids, waker), times, "}")
        yield joined(f'{{"ph":"f","bp":"e{flow}', numbers, picked(self.ids, self.track[rows]), times, "}")

    def _moments(self, rows: I64) -> list[str]:
        events = [json.dumps(printable(event.name)) for event in self.profile.evsels]
        return joined(
            '{"ph":"i","s":"t","cat":"cpu","name":',
            picked(events, self.samples.evsel[rows].astype(np.int64)),
            picked(self.ids, self.track[rows]),
            microseconds(self.timeline.begin_ns[rows]),
            ',"args":{"weight":',
            map(str, self.samples.period[rows].tolist()),
            ",",
            self._args(rows),
        )

    def _spans(self, lane: Lane, pid: int, tid: int, category: str, detail: str) -> Iterator[list[str]]:
        names, details = (list(map(json.dumps, texts)) for texts in (lane.names, lane.details))
        for rows in blocks(np.arange(len(lane.name))):
            yield joined(
                f'{{"ph":"X","cat":"{category}","pid":{pid},"tid":{tid},"name":',
                picked(names, lane.name[rows]),
                ',"ts":',
                microseconds(lane.begin_ns[rows] - self.timeline.origin_ns),
                ',"dur":',
                microseconds(lane.end_ns[rows] - lane.begin_ns[rows]),
                f',"args":{{"{detail}":',
                picked(details, lane.detail[rows]),
                "}}",
            )

    def _sums(self, without_place: I64) -> Iterator[list[str]]:
        """Yield slices of samples without a place in time (sums), one after the other on a track for each thread."""
        weight, room = self.samples.period, np.zeros(len(self.samples), np.int64)
        room[without_place] = weight[without_place] + _BETWEEN_SUMS_NS
        begins = text_columns.running_sums(self.track, room)
        tids = range(SUMS_PID + 1, SUMS_PID + 1 + len(self.timeline.tracks))
        ids = [f',"pid":{SUMS_PID},"tid":{tid},"ts":' for tid in tids]
        category = np.where(self.profile.is_offcpu(), "offcpu", "cpu")
        for rows in blocks(without_place):
            when = (picked(ids, self.track[rows]), microseconds(begins[rows]), ',"dur":', microseconds(weight[rows]))
            yield self._weighed(category[rows].tolist(), rows, when)


def _named(kind: str, pid: int, tid: int, name: str) -> str:
    """Return the metadata event that names a process or thread (`kind`: process_name, thread_name)."""
    return f'{{"ph":"M","name":"{kind}","pid":{pid},"tid":{tid},"args":{{"name":{json.dumps(name)}}}}}'
