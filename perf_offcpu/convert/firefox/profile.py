# SPDX-License-Identifier: Apache-2.0
"""Write the Firefox Profiler's own ("processed") format, for https://profiler.firefox.com, which reads files
in the browser and does not upload them.

Each thread has a track. A wait is a sample at its begin, with its stack and its length as weight
("tracing-ms"), and a marker from its begin to its end, named after its class; the time until the next wait is
a sample without stack and weight. A wake-up is a marker on the waker's track, with the waker's stack. CPU
samples are in a thread of their own next to the thread's, and so are samples that have a weight but no place
in time (sums of short waits, samples without a time), so that no call tree mixes them.

Times and weights are milliseconds with six decimals: nanoseconds, exactly. All weights add up to the
profile's. Source of the format: src/types/profile.ts and docs-developer/CHANGELOG-formats.md of
https://github.com/firefox-devtools/profiler, version 70; newer profilers upgrade it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import chain
from typing import Any, TextIO

import numpy as np

from perf_offcpu.analysis.group import sum_by
from perf_offcpu.analysis.timeline import Track, process_names, timeline_of
from perf_offcpu.analysis.wakeups import wakeups_of
from perf_offcpu.callpaths.weights import title_of, unit_of
from perf_offcpu.convert.encode.text_columns import running_sums
from perf_offcpu.convert.firefox.json_tables import array_items
from perf_offcpu.convert.firefox.markers import NO_MARKERS, SCHEMA, Markers
from perf_offcpu.convert.firefox.shared import CATEGORIES, SharedTables
from perf_offcpu.convert.options import Options
from perf_offcpu.model.columns import I64
from perf_offcpu.model.profile import Profile
from perf_offcpu.resources import version
from perf_offcpu.structs import frozen
from perf_offcpu.text import printable

PROCESSED_VERSION, GECKO_VERSION = 70, 36
ON_CPU, NO_PLACE = "CPU samples", "no time: sums of short waits"
_TID_SUFFIX = {"": "", ON_CPU: "-cpu", NO_PLACE: "-sums"}
"""Each thread of the file must have an id of its own."""
_MS_DIGITS = 6
_VISIBLE = 20


def write(profile: Profile, out: TextIO, options: Options) -> None:
    """Write all samples of the profile, thread by thread.

    Raises:
        UsageError: the events have different units.
    """
    out.writelines(_Writer(profile, options).parts())


@frozen
class _Thread:
    """A thread of the file: some samples of a track.

    Args:
        kind: "" for its waits, ON_CPU or NO_PLACE.
        rows: int64[k], samples in time order.
        begin_ns, end_ns: int64[k], since the origin.
    """

    track: int
    kind: str
    rows: I64
    begin_ns: I64
    end_ns: I64


class _Writer:
    def __init__(self, profile: Profile, options: Options) -> None:
        self.profile, self.samples = profile, profile.samples
        self.decimals = _MS_DIGITS if unit_of(profile) == "ns" else 0
        self.timeline = timeline_of(profile)
        self.wakeups = wakeups_of(profile, self.timeline)
        self.tables = SharedTables(profile, options)
        self.stack = self.tables.ends.stack
        self.markers = Markers(profile, self.tables, self.timeline, self.wakeups)
        self.processes = process_names(profile, self.wakeups.tracks)
        self.threads = list(self._threads())

    def _threads(self) -> Iterator[_Thread]:
        timeline, begin = self.timeline, self.timeline.begin_ns
        sums = running_sums(timeline.track, np.where(timeline.placed, 0, self.samples.period))
        for at, track in enumerate(self.wakeups.tracks):
            in_time = track.rows[np.argsort(begin[track.rows], kind="stable")]
            waits, moments = in_time[timeline.waits[in_time]], in_time[timeline.moments[in_time]]
            rest = track.rows[~timeline.placed[track.rows]]
            yield _Thread(at, "", waits, begin[waits], timeline.end_ns[waits])
            if len(moments):
                yield _Thread(at, ON_CPU, moments, begin[moments], begin[moments])
            if len(rest):
                yield _Thread(at, NO_PLACE, rest, sums[rest], sums[rest] + self.samples.period[rest])

    def parts(self) -> Iterator[str]:
        """Return the whole file, in parts."""
        yield '{"meta":' + json.dumps(self._meta(), separators=(",", ":"))
        yield ',\n"libs":' + self.tables.libs()
        yield ',\n"threads":['
        for at, thread in enumerate(self.threads):
            yield ",\n" if at else "\n"
            yield from self._thread(thread)
        yield '],\n"shared":'
        yield from self.tables.shared()
        yield "}\n"

    def _meta(self) -> dict[str, Any]:
        meta, origin = self.profile.meta, self.timeline.origin_ns
        wall_ns = meta.wall_clock_ns - meta.wall_clock_at_ns + origin if meta.wall_clock_ns else 0
        weights = sum_by(self.timeline.track, self.samples.period, len(self.timeline.tracks))
        heaviest = np.argsort(-weights, kind="stable").tolist()[:_VISIBLE]
        visible = [[at for at, one in enumerate(self.threads) if one.track == track] for track in heaviest]
        known = {
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
            "markerSchema": SCHEMA,
            "initialVisibleThreads": sorted(chain.from_iterable(visible)),
            "initialSelectedThreads": visible[0][:1] if visible else [],
        } | {name: value for name, value in known.items() if value}

    def _thread(self, thread: _Thread) -> Iterator[str]:
        track = self.wakeups.tracks[thread.track]
        yield json.dumps(self._head(track, thread.kind), separators=(",", ":"))[:-1]
        yield ',"samples":'
        yield from self._samples(thread)
        yield ',"markers":'
        yield from [NO_MARKERS] if thread.kind else self.markers.table(thread.track, thread.rows)
        yield "}"

    def _head(self, track: Track, kind: str) -> dict[str, Any]:
        return {
            "processType": "default",
            "processStartupTime": 0,
            "processShutdownTime": None,
            "registerTime": 0,
            "unregisterTime": None,
            "pausedRanges": [],
            "showMarkersInTimeline": not kind,
            "name": f"{track.comm} ({kind})" if kind else track.comm,
            "isMainThread": track.tid == track.pid and not kind,
            "processName": self.processes[track.pid],
            "pid": str(track.pid),
            "tid": f"{track.tid}{_TID_SUFFIX[kind]}" if kind else track.tid,
        }

    def _samples(self, thread: _Thread) -> Iterator[str]:
        """Write the samples, with an empty one after each wait that the next does not follow at once."""
        rows, begin, end = thread.rows, thread.begin_ns, thread.end_ns
        times = np.stack([begin, end], axis=1).ravel()
        gap = np.append(end[:-1] < begin[1:], True)[: len(rows)] & (thread.kind == "")
        kept = np.stack([np.ones(len(rows), np.bool_), gap], axis=1).ravel()
        nothing = np.zeros(len(rows), np.int64)
        stacks = np.stack([self.stack[rows], nothing - 1], axis=1).ravel()[kept]
        weights = np.stack([self.samples.period[rows], nothing], axis=1).ravel()[kept]
        yield '{"time":['
        yield from array_items(times[kept], _MS_DIGITS)
        yield '],"stack":['
        yield from array_items(stacks, null=stacks < 0)
        yield '],"weight":['
        yield from array_items(weights, self.decimals)
        kind = "tracing-ms" if self.decimals else "samples"
        yield f'],"weightType":"{kind}","length":{len(stacks)}}}'
