# SPDX-License-Identifier: Apache-2.0
"""Samples without the event counters of their branches, which are newer than perf 6.1.

With bit 19 of attr.branch_sample_type (Linux 6.8) a sample's branch stack is followed by a word for each
branch. A perf that does not know the bit takes these for the fields behind them, and gives up the file.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from perf_offcpu.abi.attr import BranchSampleType, SampleType
from perf_offcpu.abi.records import RecordType
from perf_offcpu.abi.sample import SAMPLE
from perf_offcpu.binary.columnar import read_columns
from perf_offcpu.model.columns import I64
from perf_offcpu.perfdata.events import Events, EventSpec
from perf_offcpu.perfdata.scan import HEADER_SIZE, Chunk
from perf_offcpu.perfdata.write.splice import Cut, Placed, chunk_of, with_words, woven


def has_counters(spec: EventSpec) -> bool:
    """Whether an event's samples have them: a branch stack, and its counters."""
    attr = spec.attr
    return bool(attr.sample_type & SampleType.BRANCH_STACK) and bool(
        attr.branch_sample_type & BranchSampleType.COUNTERS
    )


def without_counters(events: Events) -> Events:
    """The events of what `drop_counters` gives."""
    if not any(map(has_counters, events.specs)):
        return events
    specs = [_without(spec) if has_counters(spec) else spec for spec in events.specs]
    return Events(specs, events.order, are_all=not events.needs_ids)


def _without(spec: EventSpec) -> EventSpec:
    kept = spec.attr.branch_sample_type & ~int(BranchSampleType.COUNTERS)
    return replace(spec, attr=replace(spec.attr, branch_sample_type=kept))


def drop_counters(chunk: Chunk, events: Events) -> Chunk:
    """The chunk with shorter samples; those that are damaged stay as they are.

    Args:
        chunk: aligned to 8 bytes (`perfdata.write.splice.aligned`).
        events: as recorded.
    """
    numbers = [number for number, spec in enumerate(events.specs) if has_counters(spec)]
    rows = np.flatnonzero(chunk.types == RecordType.SAMPLE)
    evsel = events.of_samples(chunk, rows)
    kept = np.ones(len(chunk), np.bool_)
    placed = [_shorter(chunk, rows[evsel == number], events, number) for number in numbers]
    if not any(len(places) for places, _ in placed):
        return chunk
    for places, _ in placed:
        kept[places] = False
    return replace(
        chunk_of(woven(chunk, kept, placed)[0], events.order),
        file_offset=chunk.file_offset,
        origin=chunk.origin,
    )


def _shorter(chunk: Chunk, rows: I64, events: Events, number: int) -> Placed:
    starts, shape = chunk.starts[rows], events.specs[number].shape
    ends = starts + chunk.sizes[rows]
    columns = read_columns(SAMPLE, chunk.data, starts + HEADER_SIZE, ends, events.order, shape)
    counters = columns.arrays["branch_counters"]
    behind = counters.starts + 8 * counters.counts
    ok = columns.ok & (counters.counts > 0)
    none = (np.zeros(int(ok.sum()) + 1, np.int64), np.empty(0, np.uint64))
    records, _ = with_words(chunk, rows[ok], Cut(counters.starts, behind, ends).take(ok), none, events.order)
    return rows[ok], records
