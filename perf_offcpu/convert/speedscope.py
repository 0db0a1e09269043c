# SPDX-License-Identifier: Apache-2.0
"""Write speedscope's own JSON, for https://www.speedscope.app, which also works offline.

The first profile shows all threads together, with a sample for each distinct stack of a thread; then comes
one profile a thread, the longest waiting first, with its waits in time order. speedscope places a sample
where the weights before it end, so the time between two waits is an empty stack, and all threads begin at the
same moment. Sums of short waits have no place in time: they follow the last wait, below a frame that says so.

The format holds stacks and weights only. Source of the format: src/lib/file-format-spec.ts and the
importer src/lib/file-format.ts of https://github.com/jlfwong/speedscope."""

import json
from collections.abc import Iterator
from typing import TextIO

import numpy as np

from perf_offcpu.analysis.times.timeline import Timeline, Track, timeline_of
from perf_offcpu.callpaths.tree import build_paths
from perf_offcpu.callpaths.weights import title_of, unit_of
from perf_offcpu.convert.encode.text_columns import path_texts
from perf_offcpu.convert.registry import Options
from perf_offcpu.model.columns import I64, distinct, group, sum_by
from perf_offcpu.model.profile import Profile
from perf_offcpu.resources import version

SCHEMA = "https://www.speedscope.app/file-format-schema.json"
ALL_THREADS = "all threads"
NO_PLACE = "[no time: sums of short waits]"
_GAP = -1


def write(profile: Profile, out: TextIO, options: Options) -> None:
    """Write all samples of a profile, thread by thread."""
    _Writer(profile, options).write(out)


class _Writer:
    """Formatter of a profile. Frames are numbered: the names of functions, then threads, then `NO_PLACE`."""

    def __init__(self, profile: Profile, options: Options) -> None:
        self.profile, self.options = profile, options
        self.unit = "nanoseconds" if unit_of(profile) == "ns" else "none"
        self.tree = build_paths(profile, options, rooted=False)
        self.timeline = timeline_of(profile)
        self.no_place = len(self.tree.names) + len(self.timeline.tracks)
        self.node = self.tree.of_sample.astype(np.int64)
        self.weight = profile.samples.period
        used = distinct(self.node[self.node >= 0])
        numbers = list(map(str, range(len(self.tree.names))))
        paths = zip(used.tolist(), path_texts(self.tree, used, numbers, ","), strict=True)
        self._stacks = {-1: "[]"} | {node: f"[{path}]" for node, path in paths}

    def write(self, out: TextIO) -> None:
        profile = self.profile
        head = {
            "$schema": SCHEMA,
            "name": title_of(profile, self.options.title),
            "exporter": f"perf-offcpu@{version()}",
            "activeProfileIndex": 0,
            "shared": {"frames": self._frames()},
        }
        out.write(json.dumps(head, separators=(",", ":"))[:-1] + ',"profiles":[\n')
        out.writelines(self._all_threads())
        weights = sum_by(self.timeline.track, self.weight, len(self.timeline.tracks))
        for row in np.argsort(-weights, kind="stable").tolist():
            out.write(",\n")
            out.writelines(self._thread(self.timeline.tracks[row]))
        out.write("\n]}\n")

    def _frames(self) -> list[dict[str, str]]:
        code = [{"name": name.label} | ({"file": name.dso} if name.dso else {}) for name in self.tree.names]
        return [*code, *({"name": track.label} for track in self.timeline.tracks), {"name": NO_PLACE}]

    def _all_threads(self) -> Iterator[str]:
        first, group_of = group(self.timeline.track, self.node)
        roots = (self.timeline.track[first] + len(self.tree.names)).tolist()
        stacks = list(map(_below, roots, map(self._stacks.__getitem__, self.node[first].tolist())))
        return self._profile(ALL_THREADS, stacks, sum_by(group_of, self.weight, len(first)))

    def _thread(self, track: Track) -> Iterator[str]:
        node, weight = in_time(self.timeline, track, self.node, self.weight)
        stacks = [self._stacks[row] for row in node.tolist()]
        unplaced = track.rows[~self.timeline.placed[track.rows]]
        stacks += [_below(self.no_place, self._stacks[row]) for row in self.node[unplaced].tolist()]
        return self._profile(track.label, stacks, np.concatenate([weight, self.weight[unplaced]]))

    def _profile(self, name: str, stacks: list[str], weights: I64) -> Iterator[str]:
        """Yield the JSON of a profile of type `sampled`; `stacks`: JSON arrays of frame numbers, `weights` of each."""
        numbers = weights.tolist()
        yield json.dumps({"type": "sampled", "name": name, "unit": self.unit, "startValue": 0})[:-1]
        yield f',"endValue":{sum(numbers)},"samples":[{",".join(stacks)}],"weights":[{",".join(map(str, numbers))}]}}'


def in_time(timeline: Timeline, track: Track, node: I64, weight: I64) -> tuple[I64, I64]:
    """Return (nodes, weights) of a thread's samples that have a time, in order of time, with a row of node -1 for each
    gap before, between and after them: up to the begin of the next sample, or the end of the recording. `node`,
    `weight`: of all samples of the profile."""
    rows = track.rows[timeline.placed[track.rows]]
    rows = rows[np.argsort(timeline.begin_ns[rows], kind="stable")]
    begin = np.append(timeline.begin_ns[rows], timeline.duration_ns)
    end = np.append(0, np.maximum.accumulate(timeline.end_ns[rows]))
    gap = np.maximum(begin - end, 0)
    nodes = np.stack([np.full(len(gap), _GAP), np.append(node[rows], _GAP)], axis=1).ravel()[:-1]
    weights = np.stack([gap, np.append(weight[rows], 0)], axis=1).ravel()[:-1]
    kept = (nodes != _GAP) | (weights > 0)
    return nodes[kept], weights[kept]


def _below(root: int, stack: str) -> str:
    """Return a stack, a JSON array of frame numbers, with the frame `root` put first."""
    return f"[{root}{',' if stack != '[]' else ''}{stack[1:]}"
