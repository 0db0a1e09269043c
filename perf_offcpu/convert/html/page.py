# SPDX-License-Identifier: Apache-2.0
"""Write a page of a recording in time: one HTML file that needs nothing else, not even a web server.

It shows threads as lanes over time, coloured by wait class; of any selection the flame graph, tables and a
histogram; and of a single wait its stack and its waker's. The page has texts and small tables as JSON (`describe`)
and everything by sample or node as columns, compressed (`packed`); its script sums up what is selected, exactly as
`perf-offcpu report` does for the options that the page names. The scripts are our own: libraries of charts or
timelines keep an object for each span, and a million waits need columns and sums over pixels.

Stacks of sleepers and wakers are nodes of one tree, in preorder. Each key of a table (class, waker, …) has
its labels here and a column of indices; labels are those of `report --sort`, so that a group has the same
name and sum in both. A key that most recordings lack is left out where it has one value only.

Waits, moments and other samples are each sorted by thread and begin, so that a page finds the waits of a
thread in a span by bisection. Begins are stored as small differences to the end of the row before. A weight
is `hi * 10^9 + lo`, and each part is summed for itself: JavaScript's numbers are exact up to 2^53, in ns 104
days, and sums over threads may be longer.

A column is stored as its least value and the differences to it, in as many bytes as the largest difference
needs: first the lowest byte of all values, then the next. Bytes of one significance (a plane) resemble each
other, so they compress well. The page unpacks them with the browser's DecompressionStream."""

import base64
import zlib
from typing import Any, TextIO

import numpy as np
from numpy.typing import NDArray

from perf_offcpu.analysis.causes import causes_of
from perf_offcpu.analysis.classes.classify import Waits, classify
from perf_offcpu.analysis.classes.network import LABELS, network_of
from perf_offcpu.analysis.classes.wait_classes import WaitClass
from perf_offcpu.analysis.holders import holders_of
from perf_offcpu.analysis.times.cpu_waits import CpuWaits
from perf_offcpu.analysis.times.lanes import Lane, task_lanes
from perf_offcpu.analysis.times.timeline import Timeline, Track, comm_of, process_names, timeline_of
from perf_offcpu.analysis.times.wakeups import with_wakers
from perf_offcpu.callpaths.keys import NO_OBJECT, column_of
from perf_offcpu.callpaths.options import PathOptions
from perf_offcpu.callpaths.tree import paths_with_wakers
from perf_offcpu.callpaths.weights import EDGES, title_of, unit_of
from perf_offcpu.convert.html.flamegraph import names_document, preorder, recording_facts, write_page
from perf_offcpu.convert.registry import Options
from perf_offcpu.losses import by_text
from perf_offcpu.model.callchains import depths
from perf_offcpu.model.columns import I64, group, sum_by
from perf_offcpu.model.join import host_of
from perf_offcpu.model.profile import Profile
from perf_offcpu.model.recording import Meta, SampleFlag
from perf_offcpu.text import printable

_KEYS = {
    "class": "Wait class",
    "object": "Object",
    "waker": "Woken by",
    "syscall": "System call",
    "state": "Task state",
    "cgroup": "Control group",
    "event": "Event",
}
"""Keys of `callpaths.keys` with a table in the page, and the titles of their tables."""
_OPTIONAL = {"object", "cgroup", "event"}
FLAGS = {
    SampleFlag.OFFCPU: "wait",
    SampleFlag.PREEMPTED: "preempted",
    SampleFlag.STILL_BLOCKED: "still blocked when the recording ended or paused",
    SampleFlag.BEGAN_BEFORE: "began before the recording",
    SampleFlag.WAKER_INTERRUPT: "ended by an interrupt",
    SampleFlag.UNTIMED: "without a time",
    SampleFlag.AGGREGATED: "a sum of waits",
}

_SCRIPTS = "text flame recording selection paint axis lanes pointer panels tabs search page"
_LEVEL = 6

Columns = dict[str, NDArray[np.integer]]


def write(profile: Profile, out: TextIO, options: Options) -> None:
    """Write a page of all samples of a profile."""
    document, columns = describe(profile, options)
    document["columns"], text = packed(columns)
    scripts = [f"{name}.js" for name in _SCRIPTS.split()]
    write_page(out, "page.html", ("base.css", "page.css"), scripts, document, columns=text)


def describe(profile: Profile, options: Options) -> tuple[dict[str, Any], Columns]:
    """Return the page's JSON document (texts, small tables), and its columns (samples, tree nodes) by name."""
    timeline, waits = timeline_of(profile), classify(profile)
    tracks, waker = with_wakers(profile, timeline)
    tracks += _without_samples(profile, tracks)
    rows = Rows(timeline, len(tracks))
    tree, waker_node = paths_with_wakers(profile, PathOptions(), rooted=True)
    order = preorder(tree)
    number = np.empty(len(order) + 1, np.int64)  # of each node in preorder
    number[order], number[-1] = np.arange(len(order)), -1
    of_sample = {"node": number[tree.of_sample], "waker_node": number[waker_node], "waker_track": waker}
    keys, ranks = _keys(profile, waits)
    document = {
        "title": title_of(profile, options.title),
        "sentences": list(map(printable, options.sentences)),
        "facts": recording_facts(profile),
        "lost": [[str(n), printable(str(cause))] for cause, n in by_text(profile.losses).items() if cause.is_loss],
        "unit": unit_of(profile),
        "moment": profile.other_samples,
        "options": list(map(printable, options.selected)),
        "origin": str(timeline.origin_ns),
        "span": _span(profile, timeline, options.path),
        "pauses": _pauses(profile.meta, timeline),
        "edges": list(map(str, EDGES)),
        "classes": [{"label": wait_class.label, "meaning": wait_class.row.meaning} for wait_class in WaitClass],
        "flags": {name: int(flag) for flag, name in FLAGS.items()},
        "keys": keys,
        "tracks": _tracks(profile, timeline, tracks, options),
        "between": _between(profile, waits, tracks, timeline),
        "path": _lane(options.path, timeline) if options.path else None,
        "tasks": [_lane(lane, timeline) for lane in task_lanes(profile)],
        "firsts": rows.firsts.tolist(),
        "names": names_document(tree),
    }
    nodes: Columns = {"depth": depths(tree.parent)[order], "name": tree.name[order]}
    of_rows: Columns = {name: column[rows.order] for name, column in {**of_sample, **ranks}.items()}
    return document, {**rows.columns(profile, timeline), **of_rows, **nodes}


def _span(profile: Profile, timeline: Timeline, path: Lane | None) -> list[float]:
    """Return begin and end of the page's time axis, ns since the timeline's origin: recording, waits and path."""
    spans = [bounds for bounds in profile.meta.recorded if bounds[0] > 0]
    if path is not None and len(path.begin_ns):
        spans.append((int(path.begin_ns[0]), int(path.end_ns[-1])))
    begin = min([0, *(first - timeline.origin_ns for first, _ in spans)])
    end = max([timeline.duration_ns, *(last - timeline.origin_ns for _, last in spans)])
    return [float(begin), float(end)] if timeline.placed.any() else [0.0, float(max(end - begin, 1))]


def _pauses(meta: Meta, timeline: Timeline) -> list[list[list[float | None]]]:
    """Return, for each host, (begin, end) of each time in which it was not recorded, ns since the timeline's origin.
    None: begin or end of the page, where a recording of several hosts begins before this one or ends after it."""
    pauses: list[list[tuple[int | None, int | None]]] = []
    for host in range(len(meta.hosts) or 1):
        pauses.append([*meta.pauses_of([host])])
        if meta.hosts:
            pauses[-1] = [(None, meta.hosts[host][0][0]), *pauses[-1], (meta.hosts[host][-1][1], None)]
    since = timeline.origin_ns
    return [[[None if time is None else float(time - since) for time in pause] for pause in row] for row in pauses]


def _keys(profile: Profile, waits: Waits) -> tuple[list[dict[str, Any]], dict[str, I64]]:
    """Return the tables' keys with titles and labels, and "key.NAME" → int64[samples]: index into that key's labels."""
    keys, ranks = [], {}
    for key, title in _KEYS.items():
        column, label = column_of(key, profile, waits)
        first, group_of = group(column)
        labels = list(map(label, first.tolist()))
        distinct = {text: row for row, text in enumerate(dict.fromkeys(labels))}
        if key in _OPTIONAL and len(distinct) < 2 and (key != "object" or NO_OBJECT in distinct):
            continue
        keys.append({"key": key, "title": title, "labels": list(distinct)})
        ranks[f"key.{key}"] = np.array([distinct[text] for text in labels], np.int64)[group_of]
    causes = causes_of(profile, waits)
    keys.insert(1, {"key": "function", "title": "Function", "labels": causes.names})
    ranks["key.function"] = causes.function
    network = network_of(profile, waits).cause
    if network.any():
        keys.append({"key": "network", "title": "Network or peer", "labels": [NO_OBJECT, *LABELS[1:]]})
        ranks["key.network"] = network.astype(np.int64)
    held = holders_of(profile).held
    if (held >= 0).any():
        tids, group_of = np.unique(held, return_inverse=True)
        names = [f"{comm_of(profile, tid)} {tid}" if tid >= 0 else "[unknown]" for tid in tids.tolist()]
        keys.insert(3, {"key": "holder", "title": "Held by", "labels": names, "tids": tids.tolist()})
        ranks["key.holder"] = group_of
    return keys, ranks


def _lane(lane: Lane, timeline: Timeline) -> dict[str, Any]:
    """Return a lane (critical path, tasks) as JSON, with times in ns since the timeline's origin."""
    begin, end = lane.begin_ns - timeline.origin_ns, lane.end_ns - timeline.origin_ns
    columns = {"begin": begin, "end": end, "name": lane.name, "detail": lane.detail}
    texts = {"title": lane.title, "pid": lane.pid, "names": lane.names, "kinds": lane.kinds, "details": lane.details}
    return {**texts, **{name: column.tolist() for name, column in columns.items()}}


def _tracks(profile: Profile, timeline: Timeline, tracks: list[Track], options: Options) -> dict[str, Any]:
    """Return columns on the threads: ids, names, idleness, and life, ns since the timeline's origin (None: unknown)."""
    names, tasks = process_names(profile, tracks), profile.tasks
    rows = zip(*(column.tolist() for column in (tasks.pid, tasks.tid, tasks.begin_ns, tasks.end_ns)), strict=True)
    lives: dict[tuple[int, int], list[float | None]] = {}
    for pid, tid, *times in rows:
        is_known = (pid, tid) not in lives  # else one number has several lives
        lives[pid, tid] = [float(time - timeline.origin_ns) if time > 0 and is_known else None for time in times]
    return {
        "pid": [track.pid for track in tracks],
        "tid": [track.tid for track in tracks],
        "host": host_of(np.array([track.tid for track in tracks], np.int64), profile.meta).tolist(),
        "comm": [track.comm for track in tracks],
        "process": [names.get(track.pid, "") for track in tracks],
        "idle": [int((track.pid, track.tid) in options.idle) for track in tracks],
        "life": [lives.get((track.pid, track.tid), [None, None]) for track in tracks],
    }


def _without_samples(profile: Profile, tracks: list[Track]) -> list[Track]:
    """Return tracks for threads that waited for a CPU by their budgets and have no samples, so no track in `tracks`."""
    budget, none = profile.budget, np.empty(0, np.int64)
    rows = np.flatnonzero(budget.preempted_ns + budget.runnable_ns)
    pairs = zip(budget.pid[rows].tolist(), budget.tid[rows].tolist(), strict=True)
    threads = dict.fromkeys(pairs).keys() - {(track.pid, track.tid) for track in tracks}
    return [Track(pid, tid, comm_of(profile, tid), none) for pid, tid in sorted(threads)]


def _between(profile: Profile, waits: Waits, tracks: list[Track], timeline: Timeline) -> list[list[list[int]]]:
    """Return [class, ns] pairs of each track's time outside of single waits: class -1 for running, others for sums of
    waits. A thread without a budget counts as running whenever it did not wait."""
    samples, cpu_waits = profile.samples, CpuWaits(profile, tracks)
    recorded_ns = max(sum(end - begin for begin, end in profile.meta.recorded), timeline.duration_ns)
    waited = sum_by(timeline.track, np.where(profile.is_offcpu(), samples.period, 0), len(tracks))
    running = cpu_waits.running + cpu_waits.queued
    running = np.where(running > 0, cpu_waits.running, np.maximum(recorded_ns - waited, 0))
    rows = np.flatnonzero(profile.is_offcpu() & ~timeline.waits)
    first, group_of = group(timeline.track[rows], waits.wait_class[rows])
    parts: list[dict[int, int]] = [{-1: ns} for ns in running.tolist()]
    for row, ns in zip(rows[first].tolist(), sum_by(group_of, samples.period[rows], len(first)), strict=True):
        parts[timeline.track[row]][int(waits.wait_class[row])] = int(ns)
    for part, ns in zip(parts, cpu_waits.queued.tolist(), strict=True):
        part[WaitClass.RUNQUEUE] = part.get(WaitClass.RUNQUEUE, 0) + ns
    return [[[code, ns] for code, ns in part.items() if ns] for part in parts]


GIGA = 10**9
_UNKNOWN_TIME = -1


class Rows:
    """Order of samples in a page: waits, moments (on-CPU), samples without a place in time; by thread and begin."""

    def __init__(self, timeline: Timeline, tracks: int) -> None:
        kind = np.where(timeline.waits, 0, np.where(timeline.moments, 1, 2))
        self.order: I64 = np.lexsort((timeline.end_ns, timeline.begin_ns, timeline.track, kind))
        """int64[n]: the sample of each row."""
        self._group = (kind * tracks + timeline.track)[self.order]
        edges = np.arange(3)[:, None] * tracks + np.arange(tracks + 1)
        self.firsts: I64 = np.searchsorted(self._group, edges)
        """int64[3, tracks + 1]: the first row of each thread, of waits, moments and the others."""

    def columns(self, profile: Profile, timeline: Timeline) -> Columns:
        """Return columns of times, weights and flags by row; if waits were sampled by length, also their lengths."""
        samples = profile.samples.take(self.order)
        begin, end = timeline.begin_ns[self.order], timeline.end_ns[self.order]
        before = np.append(np.int64(0), end[:-1])[: len(end)]
        same = np.append(False, self._group[1:] == self._group[:-1])[: len(end)]
        hi, lo = np.divmod(samples.period, GIGA)
        without_place = self.firsts[2, 0]
        times = samples.time_ns[without_place:]
        columns = {
            "gap": np.where(same, begin - before, begin),
            "hi": hi,
            "lo": lo,
            "count": samples.count,
            "runq": np.clip(samples.runq_ns, 0, np.maximum(samples.period, 0)),
            "cpu": samples.cpu,
            "flags": samples.flags,
            "lasts": np.where(times >= 0, times - timeline.origin_ns, _UNKNOWN_TIME),
            "timed": (times >= 0).astype(np.uint8),
        }
        if samples.has(SampleFlag.SAMPLED).any():  # their weights are not their lengths
            length = samples.length_ns()
            delay = np.clip(samples.delay_ns(), 0, np.maximum(length, 0))
            columns |= {"length": length, "delay": delay}
        return columns


def packed(columns: Columns) -> tuple[dict[str, dict[str, int]], str]:
    """Compress columns to one base64 text; return (directory, text). Of each column the directory has `at` (offset
    after decompression), `length` (values), `planes` (bytes a value) and `least` (to add to values)."""
    squeeze, parts, offset = zlib.compressobj(_LEVEL), [], 0
    directory = {}
    for name, column in columns.items():
        values = np.asarray(column)
        least = int(values.min()) if len(values) else 0
        planes = _planes(values, least)
        directory[name] = {"at": offset, "length": len(values), "planes": len(planes), "least": least}
        for plane in planes:
            parts.append(squeeze.compress(plane.tobytes()))
            offset += len(plane)
    parts.append(squeeze.flush())
    return directory, base64.b64encode(b"".join(parts)).decode()


def _planes(values: NDArray[np.integer], least: int) -> NDArray[Any]:
    """Return uint8[planes, n]: the bytes of the differences between values and the `least` one, lowest first."""
    differences = values.astype(np.int64).view(np.uint64) - np.uint64(least & (2**64 - 1))
    largest = int(differences.max(initial=np.uint64(0)))
    width = (largest.bit_length() + 7) // 8
    planes: NDArray[Any] = differences.astype("<u8").view(np.uint8).reshape(-1, 8)[:, :width].T
    return planes
