# SPDX-License-Identifier: Apache-2.0
"""Write a critical path as a thread of a Firefox profile: its segments are markers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np

from perf_offcpu.causality.path_rows import PathTrack
from perf_offcpu.convert.encode.text_columns import joined, picked
from perf_offcpu.convert.firefox.json_tables import StringArray, array_items
from perf_offcpu.convert.firefox.shared import THREAD
from perf_offcpu.model.columns import I64

SCHEMA: dict[str, Any] = {
    "name": "Critical path",
    "description": "What the thread did, or waited for in the end.",
    "tooltipLabel": "{marker.name}",
    "chartLabel": "{marker.name}",
    "tableLabel": "{marker.name}",
    "display": ["marker-chart", "marker-table", "timeline-overview"],
    "fields": [{"key": "through", "label": "Through", "format": "unique-string"}],
}
_MS_DIGITS = 6
_INTERVAL = 1
_BLOCK = 1 << 14


class PathThread:
    """The thread of a critical path. Its strings are numbered by the constructor."""

    def __init__(self, path: PathTrack, strings: StringArray, origin_ns: int) -> None:
        self._path, self._origin = path, origin_ns
        self._names = strings.rows(path.names)
        self._chains = list(map(str, strings.rows(path.chains).tolist()))

    def parts(self) -> Iterator[str]:
        """Return the JSON of the thread, in parts."""
        path = self._path
        head = THREAD | {
            "showMarkersInTimeline": True,
            "name": path.title,
            "isMainThread": False,
            "processName": path.title,
            "pid": "path",
            "tid": "path",
        }
        yield json.dumps(head, separators=(",", ":"))[:-1]
        yield ',"samples":{"time":['
        yield from array_items(self._since(path.begin_ns[:1]), _MS_DIGITS)
        yield '],"stack":[null],"weight":[0],"weightType":"tracing-ms","length":1},"markers":{"data":['
        for begin in range(0, len(path.chain), _BLOCK):
            chains = picked(self._chains, path.chain[begin : begin + _BLOCK])
            texts = joined('{"type":"Critical path","through":', chains, "}")
            yield ("," if begin else "") + ",".join(texts)
        number = len(path.name)
        columns = {
            "name": array_items(self._names[path.name]),
            "startTime": array_items(self._since(path.begin_ns), _MS_DIGITS),
            "endTime": array_items(self._since(path.end_ns), _MS_DIGITS),
            "phase": array_items(np.full(number, _INTERVAL)),
            "category": array_items(np.zeros(number, np.int64)),
        }
        for name, items in columns.items():
            yield f'],"{name}":['
            yield from items
        yield f'],"length":{number}}}}}'

    def _since(self, time_ns: I64) -> I64:
        return time_ns - self._origin
