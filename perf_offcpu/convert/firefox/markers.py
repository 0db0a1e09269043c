# SPDX-License-Identifier: Apache-2.0
"""Write the markers of a Firefox profile: an interval for each wait, an instant for each wake-up.

Source of the format: src/types/markers.ts and docs-developer/markers.md of
https://github.com/firefox-devtools/profiler.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from perf_offcpu.analysis.timeline import Timeline
from perf_offcpu.analysis.wait_details import details_of
from perf_offcpu.analysis.wakeups import Wakeups
from perf_offcpu.convert.encode.text_columns import joined, path_texts, picked, plain_labels
from perf_offcpu.convert.firefox.json_tables import array_items
from perf_offcpu.convert.firefox.shared import CATEGORIES, SharedTables
from perf_offcpu.model.columns import I64, distinct
from perf_offcpu.model.profile import Profile

_INSTANT, _INTERVAL = 0, 1
_KEYS = {"woken by": "waker"}
"""Detail → its key in the schema, where it differs."""
_MS_DIGITS = 6
_BLOCK = 1 << 14


def _field(key: str, label: str, format_: str = "unique-string") -> dict[str, str]:
    return {"key": key, "label": label, "format": format_}


SCHEMA: list[dict[str, Any]] = [
    {
        "name": "Wait",
        "description": "Off-CPU time, from switch-out to switch-in.",
        "tooltipLabel": "waits for: {marker.name}",
        "chartLabel": "{marker.data.function}",
        "tableLabel": "{marker.data.function}",
        "display": ["marker-chart", "marker-table", "timeline-overview"],
        "fields": [
            _field("function", "Function"),
            _field("syscall", "System call"),
            _field("state", "State"),
            _field("waker", "Woken by"),
            _field("runq", "Run-queue delay", "duration"),
            _field("wakerstack", "Waker's stack"),
            _field("cgroup", "Control group"),
            _field("note", "Note"),
        ],
        "isStackBased": True,
    },
    {
        "name": "Wake-up",
        "description": "This thread woke another.",
        "tooltipLabel": "wakes {marker.data.sleeper}",
        "chartLabel": "{marker.data.sleeper}",
        "tableLabel": "{marker.data.sleeper}",
        "display": ["marker-chart", "marker-table"],
        "fields": [_field("sleeper", "Wakes")],
    },
]


NO_MARKERS = '{"data":[],"name":[],"startTime":[],"endTime":[],"phase":[],"category":[],"length":0}'


class Markers:
    """The markers of all threads. Their strings are numbered by the constructor."""

    def __init__(self, profile: Profile, tables: SharedTables, timeline: Timeline, wakeups: Wakeups) -> None:
        self.timeline, self.wakeups, self.ends = timeline, wakeups, tables.ends
        self.details = details_of(profile, wakeups, tables.ends.waits)
        row = tables.strings.row
        self.names = np.array([row(one["name"]) for one in CATEGORIES], np.int64)
        self.wakes = row("wakes")
        self.sets = [self._members(one, row) for one in self.details.sets]
        self.functions = tables.label_of(self.ends.node)
        self.sleepers = [str(row(track.label)) for track in timeline.tracks]
        nodes = distinct(self.ends.waker_node[self.ends.waker_node >= 0])
        stacks = zip(nodes.tolist(), path_texts(tables.tree, nodes, plain_labels(tables.tree)), strict=True)
        self.waker_text = {-1: ""} | {node: f',"wakerstack":{row(text)}' for node, text in stacks}
        self.runq_ns = np.where(timeline.waits, timeline.end_ns - wakeups.queued_ns, 0)
        arrows = wakeups.arrows
        arrows = arrows[np.lexsort((wakeups.queued_ns[arrows], wakeups.waker[arrows]))]
        bounds = np.searchsorted(wakeups.waker[arrows], np.arange(1, len(wakeups.tracks)))
        self.woken = np.split(arrows, bounds)

    @staticmethod
    def _members(details: dict[str, str], row: Callable[[str], int]) -> str:
        known = {_KEYS.get(name, name): row(text) for name, text in details.items() if name != "class"}
        return "".join(f',"{name}":{text}' for name, text in known.items())

    def table(self, track: int, waits: I64) -> Iterator[str]:
        """Write the markers of a thread as JSON: of its waits in time order, then of the wake-ups it caused.

        Args:
            track: row in `Wakeups.tracks`.
            waits: int64[k], its samples.
        """
        woken = self.woken[track]
        yield '{"data":['
        separator = ""
        for rows, texts in ((waits, self._waits), (woken, self._woken)):
            for begin in range(0, len(rows), _BLOCK):
                yield separator + ",".join(texts(rows[begin : begin + _BLOCK]))
                separator = ","
        at = self.wakeups.queued_ns[woken]
        category = np.append(self.ends.category[waits], np.zeros(len(woken), np.int64))
        names = np.append(self.names[self.ends.category[waits]], np.full(len(woken), self.wakes))
        columns = {
            "name": array_items(names),
            "startTime": array_items(np.append(self.timeline.begin_ns[waits], at), _MS_DIGITS),
            "endTime": array_items(np.append(self.timeline.end_ns[waits], at), _MS_DIGITS),
            "phase": array_items(np.repeat([_INTERVAL, _INSTANT], [len(waits), len(woken)])),
            "category": array_items(category),
        }
        for name, items in columns.items():
            yield f'],"{name}":['
            yield from items
        yield f'],"length":{len(waits) + len(woken)}}}'

    def _waits(self, rows: I64) -> list[str]:
        runq = self.runq_ns[rows]
        return joined(
            '{"type":"Wait","function":',
            map(str, self.functions[rows].tolist()),
            picked(self.sets, self.details.of[rows]),
            [f',"runq":{_ms(one)}' if one else "" for one in runq.tolist()],
            picked(self.waker_text, self.ends.waker_node[rows]),
            ',"cause":{"stack":',
            map(str, self.ends.stack[rows].tolist()),
            "}}",
        )

    def _woken(self, rows: I64) -> list[str]:
        stacks = self.ends.waker_stack[rows].tolist()
        return joined(
            '{"type":"Wake-up","sleeper":',
            picked(self.sleepers, self.timeline.track[rows]),
            [f',"cause":{{"stack":{one}}}}}' if one >= 0 else "}" for one in stacks],
        )


def _ms(ns: int) -> str:
    return f"{ns // 1_000_000}.{ns % 1_000_000:06}"
