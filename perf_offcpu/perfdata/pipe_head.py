# SPDX-License-Identifier: Apache-2.0
"""Read the header of the pipe form, which arrives as records before the records that it describes.

HEADER_ATTR holds an event and its ids, EVENT_UPDATE its name, HEADER_FEATURE the body of a feature,
HEADER_BUILD_ID an entry of the feature BUILD_ID, HEADER_TRACING_DATA the formats of tracepoints.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from perf_offcpu import losses
from perf_offcpu.abi.attr import ATTR_SIZE_MAX, unpack_attr
from perf_offcpu.abi.features import FEATURE_BITS, Feature
from perf_offcpu.abi.records import EVENT_UPDATE_NAME, RECORD_LAYOUTS, RecordType
from perf_offcpu.binary.fields import Order
from perf_offcpu.errors import LayoutError
from perf_offcpu.losses import Losses
from perf_offcpu.perfdata.events import Events, EventSpec
from perf_offcpu.perfdata.features import MAX_EVENTS, Features
from perf_offcpu.perfdata.scan import HEADER_SIZE, Chunk

MAX_PIPE_IDS = 1 << 22
"""Most event ids that are kept of a pipe: those of 4000 events on 1000 CPUs."""

MAX_BUILD_IDS = 16 << 20
"""Most bytes of build-ids that are kept of a pipe: those of some 200 000 files."""

R = RecordType
_TYPES = np.array([R.HEADER_ATTR, R.HEADER_BUILD_ID, R.HEADER_FEATURE, R.EVENT_UPDATE], np.uint32)


class PipeHead:
    """Collects events and features from header records.

    Args:
        features: extended by those of the records.
        specs: evsels in the header of a file whose recorder was killed before it wrote their names; it may
            have written them as records, too.

    Attributes:
        events: the evsels so far; replaced, not changed, when one is added or named.
    """

    def __init__(self, features: Features, order: Order, counters: Losses, specs: Sequence[EventSpec] = ()) -> None:
        self.features, self.order, self.counters = features, order, counters
        self._specs: list[EventSpec] = list(specs)
        self.events = Events(list(specs), order)
        self._row_of_id: dict[int, int] = {}
        for row, spec in enumerate(specs):
            self._add_ids(spec.ids, row)
        self._build_ids = bytearray()

    def take(self, chunk: Chunk) -> None:
        """Read the header records of a chunk."""
        rows = np.flatnonzero(np.isin(chunk.types, _TYPES)).tolist()
        before, build_ids_before = list(self._specs), len(self._build_ids)
        for row in rows:
            try:
                self._take(int(chunk.types[row]), bytes(chunk.record(row)))
            except LayoutError:
                self.counters.add(losses.BAD_RECORD)
        if self._specs != before:
            self.events = Events(list(self._specs), self.order)
        if len(self._build_ids) > build_ids_before:
            self.features.bodies[Feature.BUILD_ID] = bytes(self._build_ids)

    def _take(self, kind: int, record: bytes) -> None:
        if kind == RecordType.HEADER_ATTR:
            self._take_attr(record)
            return
        if kind == RecordType.HEADER_BUILD_ID:
            # An entry of the feature except for its type, which is 0 there.
            if len(self._build_ids) < MAX_BUILD_IDS:
                self._build_ids += bytes(4) + record[4:]
            return
        values = RECORD_LAYOUTS[kind].unpack(record, self.order, start=HEADER_SIZE)
        if kind == RecordType.HEADER_FEATURE:
            self._take_feature(values)
        elif values["kind"] == EVENT_UPDATE_NAME:
            row = self._row_of_id.get(values["id"])
            if row is not None:
                name = values["data"].split(b"\0", 1)[0].decode("utf-8", "surrogateescape")
                self._specs[row] = replace(self._specs[row], name=name)

    def _take_attr(self, record: bytes) -> None:
        attr = unpack_attr(record[HEADER_SIZE:], self.order)
        ids = record[HEADER_SIZE + min(attr.size, len(record)) :]
        whole = np.frombuffer(ids, f"{self.order}u8", len(ids) // 8).tolist()
        if len(self._specs) >= MAX_EVENTS or len(self._row_of_id) + len(whole) > MAX_PIPE_IDS:
            self.counters.add(losses.BAD_ATTRS)
            return
        self._add_ids(whole, len(self._specs))
        kept = attr._replace(size=min(attr.size, ATTR_SIZE_MAX))
        self._specs.append(EventSpec(kept, ids=tuple(whole)).named())

    def _add_ids(self, ids: Iterable[int], row: int) -> None:
        for event_id in ids:
            self._row_of_id.setdefault(event_id, row)

    def _take_feature(self, values: dict[str, Any]) -> None:
        if values["data"] and values["feat_id"] < FEATURE_BITS:
            self.features.bodies[values["feat_id"]] = values["data"]
        if values["feat_id"] == Feature.EVENT_DESC:
            self._specs = self.features.named(self._specs)
            for row, spec in enumerate(self._specs):
                self._add_ids(spec.ids, row)
