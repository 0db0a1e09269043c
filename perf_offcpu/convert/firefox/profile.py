# SPDX-License-Identifier: Apache-2.0
"""Write the Firefox Profiler's own ("processed") format, for https://profiler.firefox.com, which reads files
in the browser and does not upload them.

Each thread has a track. A wait is a sample at its begin, with its stack and its length as weight ("tracing-ms"), and a
marker from its begin to its end, named after its class; the time until the next wait is a sample without stack and
weight. A wake-up is a marker on the waker's track, with the waker's stack. CPU samples are in a thread of their own
next to the thread's, and so are samples that have a weight but no place in time (sums of short waits, samples without a
time), so that no call tree mixes them. A critical path is a thread of markers.

Times and weights are milliseconds with six decimals: nanoseconds, exactly. All weights add up to the
profile's. Source of the format: src/types/profile.ts and docs-developer/CHANGELOG-formats.md of
https://github.com/firefox-devtools/profiler, version 70; newer profilers upgrade it."""

import json
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any, NamedTuple, TextIO

import numpy as np

from perf_offcpu.analysis.times.lanes import Lane
from perf_offcpu.analysis.times.timeline import Timeline, Track, process_names, timeline_of, with_origin
from perf_offcpu.analysis.times.wakeups import Wakeups, wakeups_of
from perf_offcpu.callpaths.weights import title_of, unit_of
from perf_offcpu.convert.encode.text_columns import array_items, blocks, joined, path_texts, picked, running_sums
from perf_offcpu.convert.firefox.shared import CATEGORIES, MARKERS, THREAD, SharedTables, StringArray
from perf_offcpu.convert.registry import Options
from perf_offcpu.convert.wait_details import details_of
from perf_offcpu.model.columns import I64, distinct, sum_by
from perf_offcpu.model.profile import Profile
from perf_offcpu.resources import version
from perf_offcpu.text import printable

PROCESSED_VERSION, GECKO_VERSION = 70, 36
ON_CPU, NO_PLACE = "CPU samples", "no time: sums of short waits"
_TID_SUFFIX = {"": "", ON_CPU: "-cpu", NO_PLACE: "-sums"}  # each thread of the file must have an id of its own
_MS_DIGITS = 6
_VISIBLE = 20
_INSTANT, _INTERVAL = 0, 1
_KEYS = {"woken by": "waker", "held by": "holder"}  # detail → its key in the schema, where it differs


NO_MARKERS = '{"data":[],"name":[],"startTime":[],"endTime":[],"phase":[],"category":[],"length":0}'


def write(profile: Profile, out: TextIO, options: Options) -> None:
    """Write all samples of the profile, thread by thread."""
    out.writelines(_Writer(profile, options).parts())


class _Thread(NamedTuple):
    """Thread of the file: the samples of one kind (waits, on-CPU, without time) of a thread of the recording."""

    track: int  # index of the track
    kind: str  # "" for waits, ON_CPU or NO_PLACE
    rows: I64  # rows of the samples, by time
    begin_ns: I64  # of these rows, since `Timeline.origin_ns`
    end_ns: I64


class _Writer:
    def __init__(self, profile: Profile, options: Options) -> None:
        self.profile, self.samples = profile, profile.samples
        self.decimals = _MS_DIGITS if unit_of(profile) == "ns" else 0
        self.timeline, path = timeline_of(profile), options.path
        if path is not None:
            self.timeline = with_origin(self.timeline, min(self.timeline.origin_ns, int(path.begin_ns[0])))
        self.wakeups = wakeups_of(profile, self.timeline)
        self.tables = SharedTables(profile, options)
        self.markers = _Markers(profile, self.tables, self.timeline, self.wakeups)
        self.processes = process_names(profile, self.wakeups.tracks)
        self.threads = list(self._threads())
        self.path = _PathThread(path, self.tables.strings, self.timeline.origin_ns) if path is not None else None

    def _threads(self) -> Iterator[_Thread]:
        timeline, begin = self.timeline, self.timeline.begin_ns
        sums = running_sums(timeline.track, np.where(timeline.placed, 0, self.samples.period))
        for index, track in enumerate(self.wakeups.tracks):
            in_time = track.rows[np.argsort(begin[track.rows], kind="stable")]
            waits, moments = in_time[timeline.waits[in_time]], in_time[timeline.moments[in_time]]
            unplaced = track.rows[~timeline.placed[track.rows]]
            yield _Thread(index, "", waits, begin[waits], timeline.end_ns[waits])
            if len(moments):
                yield _Thread(index, ON_CPU, moments, begin[moments], begin[moments])
            if len(unplaced):
                yield _Thread(index, NO_PLACE, unplaced, sums[unplaced], sums[unplaced] + self.samples.period[unplaced])

    def parts(self) -> Iterator[str]:
        yield '{"meta":' + json.dumps(self._meta(), separators=(",", ":"))
        yield ',\n"libs":' + self.tables.libs()
        yield ',\n"threads":['
        for index, thread in enumerate(self.threads):
            yield ",\n" if index else "\n"
            yield from self._thread(thread)
        if self.path is not None:
            yield ",\n"
            yield from self.path.parts()
        yield '],\n"shared":'
        yield from self.tables.shared()
        yield "}\n"

    def _meta(self) -> dict[str, Any]:
        meta, origin = self.profile.meta, self.timeline.origin_ns
        wall_ns = meta.wall_clock_ns - meta.wall_clock_at_ns + origin if meta.wall_clock_ns else 0
        weights = sum_by(self.timeline.track, self.samples.period, len(self.timeline.tracks))
        heaviest = np.argsort(-weights, kind="stable").tolist()[:_VISIBLE]
        visible = [[row for row, thread in enumerate(self.threads) if thread.track == track] for track in heaviest]
        of_path = [] if self.path is None else [len(self.threads)]
        facts = {
            "startTimeAsClockMonotonicNanosecondsSinceBoot": origin,
            "CPUName": printable(meta.cpu_desc),
            "logicalCPUs": meta.nr_cpus,
            "oscpu": printable(f"Linux {meta.os_release} {meta.arch}".strip()) if meta.os_release else "",
            "arguments": printable(" ".join(meta.cmdline)),
        }
        return {
            "interval": 0.000001,
            "startTime": wall_ns / 1e6,
            "processType": 0,
            "categories": CATEGORIES,
            "product": title_of(self.profile),
            "importedFrom": f"perf-offcpu {version()}",
            "stackwalk": 1,
            "version": GECKO_VERSION,
            "preprocessedProfileVersion": PROCESSED_VERSION,
            "symbolicated": True,
            "symbolicationNotSupported": True,
            "usesOnlyOneStackType": True,
            "sourceCodeIsNotOnSearchfox": True,
            "keepProfileThreadOrder": True,
            "markerSchema": MARKERS[:-1] if self.path is None else MARKERS,
            "initialVisibleThreads": sorted(chain.from_iterable(visible)) + of_path,
            "initialSelectedThreads": visible[0][:1] if visible else [],
        } | {name: value for name, value in facts.items() if value}

    def _thread(self, thread: _Thread) -> Iterator[str]:
        track = self.wakeups.tracks[thread.track]
        yield json.dumps(self._head(track, thread.kind), separators=(",", ":"))[:-1]
        yield ',"samples":'
        yield from self._samples(thread)
        yield ',"markers":'
        yield from [NO_MARKERS] if thread.kind else self.markers.table(thread.track, thread.rows)
        yield "}"

    def _head(self, track: Track, kind: str) -> dict[str, Any]:
        return THREAD | {
            "showMarkersInTimeline": not kind,
            "name": f"{track.comm} ({kind})" if kind else track.comm,
            "isMainThread": track.tid == track.pid and not kind,
            "processName": self.processes[track.pid],
            "pid": str(track.pid),
            "tid": f"{track.tid}{_TID_SUFFIX[kind]}" if kind else track.tid,
        }

    def _samples(self, thread: _Thread) -> Iterator[str]:
        """Yield the JSON of a thread's samples; after each wait one without stack, unless the next begins at once."""
        rows, begin, end = thread.rows, thread.begin_ns, thread.end_ns
        times = np.stack([begin, end], axis=1).ravel()
        gap = np.append(end[:-1] < begin[1:], True)[: len(rows)] & (thread.kind == "")
        kept = np.stack([np.ones(len(rows), np.bool_), gap], axis=1).ravel()
        nothing = np.zeros(len(rows), np.int64)
        stacks = np.stack([self.tables.stack[rows], nothing - 1], axis=1).ravel()[kept]
        weights = np.stack([self.samples.period[rows], nothing], axis=1).ravel()[kept]
        yield '{"time":['
        yield from array_items(times[kept], _MS_DIGITS)
        yield '],"stack":['
        yield from array_items(stacks, null=stacks < 0)
        yield '],"weight":['
        yield from array_items(weights, self.decimals)
        kind = "tracing-ms" if self.decimals else "samples"
        yield f'],"weightType":"{kind}","length":{len(stacks)}}}'


class _Markers:
    """Formatter of the markers of all threads, waits and wake-ups. The constructor adds their strings to `tables`."""

    def __init__(self, profile: Profile, tables: SharedTables, timeline: Timeline, wakeups: Wakeups) -> None:
        self.timeline, self.wakeups, self.tables = timeline, wakeups, tables
        self.details = details_of(profile, wakeups, tables.waits)
        row = tables.strings.row
        self.names = np.array([row(category["name"]) for category in CATEGORIES], np.int64)
        self.wakes = row("wakes")
        self.sets = [self._members(details, row) for details in self.details.sets]
        self.functions = tables.label_of(self.tables.node)
        self.sleepers = [str(row(track.label)) for track in timeline.tracks]
        nodes = distinct(self.tables.waker_node[self.tables.waker_node >= 0])
        stacks = zip(nodes.tolist(), path_texts(tables.tree, nodes), strict=True)
        self.waker_text = {-1: ""} | {node: f',"wakerstack":{row(text)}' for node, text in stacks}
        self.runq_ns = np.where(timeline.waits, timeline.end_ns - wakeups.queued_ns, 0)
        arrows = wakeups.arrows
        arrows = arrows[np.lexsort((wakeups.queued_ns[arrows], wakeups.waker[arrows]))]
        bounds = np.searchsorted(wakeups.waker[arrows], np.arange(1, len(wakeups.tracks)))
        self.woken = np.split(arrows, bounds)

    @staticmethod
    def _members(details: dict[str, str], row: Callable[[str], int]) -> str:
        member = {_KEYS.get(name, name): row(text) for name, text in details.items() if name != "class"}
        return "".join(f',"{name}":{text}' for name, text in member.items())

    def table(self, track: int, waits: I64) -> Iterator[str]:
        """Yield the JSON of a track's markers: of `waits` (rows of its waits, by time), then of its wake-ups."""
        woken, tables, timeline = self.woken[track], self.tables, self.timeline
        yield '{"data":['
        separator = ""
        for rows, texts in ((waits, self._waits), (woken, self._woken)):
            for block in blocks(rows):
                yield separator + ",".join(texts(block))
                separator = ","
        queued_ns, category = self.wakeups.queued_ns[woken], tables.category[waits]
        yield from _columns(
            np.append(self.names[category], np.full(len(woken), self.wakes)),
            np.append(timeline.begin_ns[waits], queued_ns),
            np.append(timeline.end_ns[waits], queued_ns),
            np.repeat([_INTERVAL, _INSTANT], [len(waits), len(woken)]),
            np.append(category, np.zeros(len(woken), np.int64)),
        )

    def _waits(self, rows: I64) -> list[str]:
        runq = self.runq_ns[rows]
        return joined(
            '{"type":"Wait","function":',
            map(str, self.functions[rows].tolist()),
            picked(self.sets, self.details.of[rows]),
            [f',"runq":{_ms(ns)}' if ns else "" for ns in runq.tolist()],
            picked(self.waker_text, self.tables.waker_node[rows]),
            ',"cause":{"stack":',
            map(str, self.tables.stack[rows].tolist()),
            "}}",
        )

    def _woken(self, rows: I64) -> list[str]:
        stacks = self.tables.waker_stack[rows].tolist()
        return joined(
            '{"type":"Wake-up","sleeper":',
            picked(self.sleepers, self.timeline.track[rows]),
            [f',"cause":{{"stack":{stack}}}}}' if stack >= 0 else "}" for stack in stacks],
        )


def _ms(ns: int) -> str:
    return f"{ns // 1_000_000}.{ns % 1_000_000:06}"


def _columns(names: I64, begin_ns: I64, end_ns: I64, phase: I64, category: I64) -> Iterator[str]:
    """Yield the rest of the JSON of a table of n markers, after the items of `data`: the other columns, int64[n].
    `names`: numbers of strings; `phase`: _INTERVAL or _INSTANT."""
    columns = {
        "name": array_items(names),
        "startTime": array_items(begin_ns, _MS_DIGITS),
        "endTime": array_items(end_ns, _MS_DIGITS),
        "phase": array_items(phase),
        "category": array_items(category),
    }
    for name, items in columns.items():
        yield f'],"{name}":['
        yield from items
    yield f'],"length":{len(names)}}}'


class _PathThread:
    """Formatter of a critical path as a thread whose markers are the segments. The constructor adds to `strings`."""

    def __init__(self, path: Lane, strings: StringArray, origin_ns: int) -> None:
        self._path, self._names = path, strings.rows(path.names)
        self._chains = list(map(str, strings.rows(path.details).tolist()))
        self._begin_ns, self._end_ns = path.begin_ns - origin_ns, path.end_ns - origin_ns

    def parts(self) -> Iterator[str]:
        title, rows = self._path.title, np.arange(len(self._path.name))
        names = {"name": title, "isMainThread": False, "processName": title, "pid": "path", "tid": "path"}
        yield json.dumps(THREAD | {"showMarkersInTimeline": True} | names, separators=(",", ":"))[:-1]
        yield ',"samples":{"time":['
        yield from array_items(self._begin_ns[:1], _MS_DIGITS)
        yield '],"stack":[null],"weight":[0],"weightType":"tracing-ms","length":1},"markers":{"data":['
        for block in blocks(rows):
            chains = picked(self._chains, self._path.detail[block])
            yield ("," if block[0] else "") + ",".join(joined('{"type":"Critical path","through":', chains, "}"))
        names_of_rows, phase = self._names[self._path.name], np.full(len(rows), _INTERVAL)
        yield from _columns(names_of_rows, self._begin_ns, self._end_ns, phase, np.zeros(len(rows), np.int64))
        yield "}"
