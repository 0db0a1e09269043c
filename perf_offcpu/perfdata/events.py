# SPDX-License-Identifier: Apache-2.0
"""Find the evsel of each record by the ids in the records.

Each evsel has one id per CPU or thread. Samples hold the id at a place that follows from sample_type, other
kernel records hold it in their trailer. The rules are perf's own
(tools/perf/util/evlist.c: evlist__event2evsel, tools/perf/util/evsel.c: __evsel__sample_id_pos).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from perf_offcpu.abi.attr import Attr, AttrFlag, PerfType, SampleType, SoftwareConfig
from perf_offcpu.abi.sample import SampleShape
from perf_offcpu.binary.fields import Order
from perf_offcpu.binary.gather import gather_u64
from perf_offcpu.perfdata.scan import HEADER_SIZE, Chunk

_SOFTWARE_NAMES: dict[int, str] = {config: config.name.lower().replace("_", "-") for config in SoftwareConfig}


@dataclass(frozen=True, slots=True)
class EventSpec:
    """One evsel as a file describes it: attr, name ("" until known) and ids."""

    attr: Attr
    name: str = ""
    ids: tuple[int, ...] = ()

    @property
    def shape(self) -> SampleShape:
        """The shape of its samples."""
        return SampleShape.of(self.attr)

    def named(self) -> EventSpec:
        """Return the evsel with a name derived from the attr if the file has none."""
        name, attr = self.name, self.attr
        if not name and attr.type == PerfType.SOFTWARE:
            name = _SOFTWARE_NAMES.get(attr.config, "unknown-software")
        return replace(self, name=name or f"type-{attr.type}-config-{attr.config:#x}")


class Events:
    """The evsels of a recording, looked up by id.

    Args:
        specs: evsels in file order; elsewhere, an evsel is its row in this list.
        are_all: the recording has no others, so the records of a single one need no ids.
    """

    def __init__(self, specs: list[EventSpec], order: Order, *, are_all: bool = True) -> None:
        self.specs, self.order = specs, order
        self.needs_ids = len(specs) > 1 or (len(specs) == 1 and not are_all)
        # Id 0 stands for the first event, and the first event with an id keeps it.
        ids = np.fromiter(chain([0], *(spec.ids for spec in specs)), np.uint64)
        rows = np.repeat(np.arange(-1, len(specs)), [1, *(len(spec.ids) for spec in specs)]).clip(0)
        self._ids, first, claim = np.unique(ids, return_index=True, return_inverse=True)
        self._rows = rows[first].astype(np.int32)
        self.duplicates = int(((rows != rows[first][claim]) & (ids != 0)).sum())
        """Number of ids that more than one event has."""
        self.first = specs[0].attr if specs else Attr()
        """The attr that decides the layout of trailers, and the place of ids."""
        # Without any ids, samples of one layout are read as the first event's.
        alike = len({spec.shape for spec in specs}) == 1
        self._unknown = np.int32(0 if alike and are_all and len(self._ids) == 1 else -1)

    @property
    def sample_id_all(self) -> bool:
        """True if kernel records other than samples end with a trailer."""
        return bool(self.first.flags & AttrFlag.SAMPLE_ID_ALL)

    def of_samples(self, chunk: Chunk, rows: NDArray[np.int64]) -> NDArray[np.int32]:
        """Return the evsel of each SAMPLE record in `rows`: int32[n]; -1 where its id is unknown."""
        place = sample_id_place(self.first.sample_type) if self.needs_ids else None
        if place is None:
            return np.full(len(rows), 0 if self.specs else -1, np.int32)
        starts = chunk.starts[rows] + HEADER_SIZE + 8 * place
        inside = chunk.sizes[rows] >= HEADER_SIZE + 8 * (place + 1)
        found = self.lookup(gather_u64(chunk.data, np.where(inside, starts, 0), self.order))
        return np.where(inside, found, np.int32(-1)).astype(np.int32)

    def lookup(self, ids: NDArray[np.uint64]) -> NDArray[np.int32]:
        """Return the evsel of each id: int32[n]; -1 unknown. In a file of one event every id is its own."""
        if len(self.specs) == 1 and not self.needs_ids:
            return np.zeros(len(ids), np.int32)
        slot = np.minimum(np.searchsorted(self._ids, ids), len(self._ids) - 1)
        return np.where(self._ids[slot] == ids, self._rows[slot], self._unknown).astype(np.int32)


def sample_id_place(kind: SampleType) -> int | None:
    """Return the u64 word of a sample's payload that holds the event's id; None if samples have no id."""
    if kind & SampleType.IDENTIFIER:
        return 0
    if kind & SampleType.ID:
        before = SampleType.IP | SampleType.TID | SampleType.TIME | SampleType.ADDR
        return (kind & before).bit_count()
    return None
