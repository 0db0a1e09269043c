# SPDX-License-Identifier: Apache-2.0
"""Rewrite the samples of a recording: read columns, change them stage by stage, write them again.

The stages (`retype`, `deferred`, `stacks`) use decode's functions on the same columns. Samples that no stage
changes stay in the chunk as they are. Samples of an unknown event, and those whose content does not fit their
event, are left out: for one of them perf gives up the whole file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from perf_offcpu import losses
from perf_offcpu.abi.records import RecordType
from perf_offcpu.abi.sample import SAMPLE, SampleShape
from perf_offcpu.binary.columnar import Columns, read_columns
from perf_offcpu.binary.gather import Rows, gather_rows
from perf_offcpu.binary.layout import Order
from perf_offcpu.decode.deferred import MARKER_WORDS, pending_chains
from perf_offcpu.decode.samples import is_offcpu, model_samples
from perf_offcpu.decode.stacks.user_parts import first_words, kernel_parts
from perf_offcpu.inject.payload_words import payloads
from perf_offcpu.losses import Losses
from perf_offcpu.model.callchains import Ragged
from perf_offcpu.model.columns import I32, I64, U8, Bool
from perf_offcpu.model.recording import Samples
from perf_offcpu.perfdata.events import Events, EventSpec
from perf_offcpu.perfdata.scan import HEADER_SIZE, Chunk
from perf_offcpu.perfdata.trailers import NO_TIME, sample_times
from perf_offcpu.perfdata.write.columns import Column, Pieces, sample_records, sample_sizes
from perf_offcpu.perfdata.write.weave import chunk_of_samples, woven
from perf_offcpu.perfdata.write.writer import RECORD_SIZE_MAX
from perf_offcpu.structs import mutable


@mutable
class SampleBatch:
    """n samples of one event.

    Args:
        chunk: where they were recorded.
        rows: int64[n], their rows in it.
        spec: their event as recorded.
        miscs: of their headers.
        columns: the fields that will be written; arrays lie in the chunk.
        samples: their rows in the model.
        chains: their callchains; None where the event has none.
        extensions: what their payloads hold after the cgroup id; None leaves RAW as it is.
    """

    chunk: Chunk
    rows: I64
    spec: EventSpec
    miscs: NDArray[np.uint16]
    columns: Columns
    samples: Samples
    chains: Ragged | None = None
    extensions: Ragged | None = None

    def __len__(self) -> int:
        return len(self.rows)

    def take(self, chosen: Bool) -> SampleBatch:
        """Return some of the samples."""
        if chosen.all():
            return self
        rows = np.flatnonzero(chosen)
        return replace(
            self,
            rows=self.rows[rows],
            miscs=self.miscs[rows],
            columns=self.columns.take(rows),
            samples=self.samples.take(rows),
            chains=None if self.chains is None else self.chains.take(rows),
            extensions=None if self.extensions is None else self.extensions.take(rows),
        )


Stage = Callable[[SampleBatch], SampleBatch]


class SampleRewriter:
    """Rewrites samples, chunk by chunk.

    Args:
        events: the recording's events.
        written: the same events as they are written; samples get their layouts.
        stages: what is done to samples, in order.
        merges: whether a stage completes callchains that wait for a deferred user part.
        counters: where samples that are left out are counted.

    Attributes:
        copied: records that stayed as they were, so far.
    """

    def __init__(
        self,
        events: Events,
        written: Sequence[EventSpec],
        stages: Sequence[Stage],
        merges: bool,
        counters: Losses,
    ) -> None:
        self.events, self.stages, self.merges, self.counters = events, stages, merges, counters
        self.shapes = [spec.shape for spec in written]
        self.copied = 0

    def rewrite(self, chunk: Chunk, left_out: I64) -> Chunk:
        """Return the records of a chunk, with samples as they are written.

        Args:
            left_out: rows of samples that go elsewhere.
        """
        kept = np.ones(len(chunk), np.bool_)
        kept[left_out] = False
        placed = []
        for number, rows in self._by_event(chunk, kept):
            batch = self._read(chunk, rows, number)
            changed = self._changes(batch, number)
            kept[rows] = False
            kept[batch.rows[~changed]] = True
            if changed.any():
                batch, samples = self._written(batch.take(changed), number)
                placed.append((batch.rows, samples))
        self.copied += int(kept.sum())
        rows = np.flatnonzero(kept)
        own = chunk if len(rows) == len(chunk) else chunk.take(rows)
        return woven([(rows, own), *placed]) if placed else own

    def rewrite_all(self, chunk: Chunk) -> Iterator[tuple[SampleBatch, Chunk]]:
        """Yield the samples of a chunk event by event, all of them written again."""
        for number, rows in self._by_event(chunk, np.ones(len(chunk), np.bool_)):
            yield self._written(self._read(chunk, rows, number), number)

    def _by_event(self, chunk: Chunk, kept: Bool) -> Iterator[tuple[int, I64]]:
        """Yield (event, rows) of the samples among `kept`; those of unknown events are taken out of it."""
        rows = np.flatnonzero((chunk.types == RecordType.SAMPLE) & kept)
        evsel = self.events.of_samples(chunk, rows)
        kept[rows[evsel < 0]] = False
        self.counters.add(losses.UNKNOWN_ID, int((evsel < 0).sum()))
        for number in np.flatnonzero(np.bincount(evsel[evsel >= 0])).tolist():
            yield number, rows[evsel == number]

    def _read(self, chunk: Chunk, rows: I64, number: int) -> SampleBatch:
        """Return the samples of one event that fit it; others are counted."""
        spec, starts = self.events.specs[number], chunk.starts[rows]
        ends = starts + chunk.sizes[rows]
        columns = read_columns(SAMPLE, chunk.data, starts + HEADER_SIZE, ends, self.events.order, spec.shape)
        miscs = chunk.miscs[rows]
        samples = model_samples(columns, spec, number, miscs)
        valid = columns.ok & (samples.period >= 0)
        self.counters.add(losses.BAD_SAMPLE, int((~valid).sum()))
        return SampleBatch(chunk, rows, spec, miscs, columns, samples).take(valid)

    def _changes(self, batch: SampleBatch, number: int) -> Bool:
        """Return bool[n]: which samples are not written as they were recorded."""
        if self.shapes[number] != batch.spec.shape:
            return np.ones(len(batch), np.bool_)
        if "callchain" not in batch.columns.arrays or not self.merges:
            return np.zeros(len(batch), np.bool_)
        chains = batch.columns.arrays["callchain"]
        skipped = np.maximum(chains.counts - MARKER_WORDS, 0)
        ends = Rows(chains.starts + 8 * skipped, chains.counts - skipped, 8)
        return pending_chains(Ragged(*gather_rows(batch.chunk.data, ends, self.events.order))).is_pending

    def _written(self, batch: SampleBatch, number: int) -> tuple[SampleBatch, Chunk]:
        """Return samples after all stages, and their records."""
        if "callchain" in batch.columns.arrays:
            chains = batch.columns.arrays["callchain"]
            batch = replace(batch, chains=Ragged(*gather_rows(batch.chunk.data, chains, self.events.order)))
        for stage in self.stages:
            batch = stage(batch)
        return encoded(batch, self.shapes[number], self.events.order, self.counters)


def encoded(
    batch: SampleBatch, shape: SampleShape, order: Order, counters: Losses
) -> tuple[SampleBatch, Chunk]:
    """Write samples from their columns.

    A sample that would be larger than a record can be (user stacks of 64 KB) goes without the user part of
    its callchain; one that is still too large is left out. Both are counted.

    Returns:
        (batch, records): the samples that could be written, and their records in the same order.
    """
    fields = _fields(batch, order)
    too_large = sample_sizes(shape, fields, len(batch)) > RECORD_SIZE_MAX
    if too_large.any() and batch.chains is not None:
        counters.add(losses.UNMERGED, int(too_large.sum()))
        kept = np.where(too_large, kernel_parts(batch.chains), batch.chains.lengths)
        batch = replace(batch, chains=first_words(batch.chains, kept))
        fields = _fields(batch, order)
        too_large = sample_sizes(shape, fields, len(batch)) > RECORD_SIZE_MAX
    if too_large.any():
        counters.add(losses.BAD_SAMPLE, int(too_large.sum()))
        batch = batch.take(~too_large)
        fields = _fields(batch, order)
    return batch, chunk_of_samples(
        *sample_records(shape, batch.miscs, fields, len(batch), order), batch.miscs
    )


def _fields(batch: SampleBatch, order: Order) -> dict[str, Column]:
    """Return the columns of `SAMPLE`, by name, with the batch's callchains and payloads."""
    fields: dict[str, Column] = dict(batch.columns.scalars)
    for name, rows in batch.columns.arrays.items():
        fields[name] = Pieces(batch.chunk.data, rows.starts, rows.counts * rows.width)
    if batch.chains is not None:
        fields["callchain"] = (batch.chains.offsets, batch.chains.values)
        fields["callchain_nr"] = batch.chains.lengths
    if batch.extensions is not None and batch.chains is not None:
        fields |= raw_fields(payloads(batch.samples, batch.chains, batch.extensions, order))
    return fields


def raw_fields(payload: tuple[I64, U8]) -> dict[str, Column]:
    """Return the columns of RAW data from whole words; 4 zeros follow, so that its size, too, is aligned."""
    return {"raw": payload, "raw_size": np.diff(payload[0]) + 4}


def untimed_waits(chunk: Chunk, events: Events) -> I64:
    """Return the rows of off-cpu samples that have a dummy time: sums, which get a time (`timed_sums`)."""
    rows = np.flatnonzero(chunk.types == RecordType.SAMPLE)
    evsel = events.of_samples(chunk, rows)
    dummy = sample_times(chunk, rows, evsel, events) >= NO_TIME
    found: I64 = rows[dummy & _offcpu_of(evsel, events.specs)]
    return found


def _offcpu_of(evsel: I32, specs: Sequence[EventSpec]) -> Bool:
    """Return bool[n]: whether each sample (its evsel, -1 unknown) is off-cpu time."""
    known = np.array([is_offcpu(spec) for spec in specs] + [False])
    chosen: Bool = known[evsel]
    return chosen
