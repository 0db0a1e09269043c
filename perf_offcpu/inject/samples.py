# SPDX-License-Identifier: Apache-2.0
"""Rewrite the samples of a recording: read columns, change them stage by stage, write them again. Samples that no stage
(`stages`) changes stay in the chunk as they are. Samples of an unknown event, and those whose content does not fit
their event, are left out: for one of them perf gives up the whole file.

What the ordinary fields of a re-typed sample cannot say (state, waker, number of waits of a sum, …) stays in its raw
data: the payload of Documentation/payload-format.md with pid and tid in the right order. Sums that upstream perf wrote
without a time, and waits that follow from context switches, get an extension, too."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perf_offcpu import losses
from perf_offcpu.abi import offcpu as abi
from perf_offcpu.abi.records import RecordType
from perf_offcpu.binary.columnar import Columns, Rows, gather_rows
from perf_offcpu.binary.layout import U64, Field, Layout, Order
from perf_offcpu.decode.deferred import MARKER_WORDS, pending_chains, without_user_parts
from perf_offcpu.decode.retype import COLUMNS, FLAGS_OF_KIND, FLAGS_OF_LOST, FLAGS_OF_WAIT
from perf_offcpu.decode.samples import is_offcpu, model_samples, sample_columns, samples_by_event
from perf_offcpu.losses import Losses
from perf_offcpu.model.callchains import Ragged
from perf_offcpu.model.columns import I64, Bool
from perf_offcpu.model.recording import Samples
from perf_offcpu.perfdata.events import NO_TIME, Events, EventSpec, sample_times
from perf_offcpu.perfdata.scan import Chunk
from perf_offcpu.perfdata.write.columns import Column, Pieces, merged_records, pack_columns, sample_chunk, sample_sizes
from perf_offcpu.perfdata.write.writer import RECORD_SIZE_MAX
from perf_offcpu.structs import mutable


@mutable
class Rewritten:
    """Counts of the changes to a recording."""

    losses: Losses = field(default_factory=Losses)  # losses in the recording, and records left out
    retyped: int = 0  # off-cpu samples that were re-typed
    waits: int = 0  # samples that were added, for waits between context switches
    completed: int = 0  # samples that got their deferred user callchain
    unwound: int = 0  # samples whose copy of the user stack became their user callchain
    copied: int = 0  # records copied unchanged


@mutable
class SampleBatch:
    """n samples of one evsel: as recorded, and as they will be written."""

    chunk: Chunk  # the chunk that the samples are from
    order: Order  # byte order of the chunk
    rows: I64  # int64[n]: rows of the samples in the chunk
    spec: EventSpec  # the evsel as recorded
    miscs: NDArray[np.uint16]  # uint16[n]: `misc` of the record headers
    columns: Columns  # fields to write; arrays are in the chunk
    samples: Samples  # the same samples as columns of the model
    chains: Ragged | None = None  # callchains; None if the event has none
    extensions: Ragged | None = None  # words of the payloads after the cgroup id; None: RAW is copied

    def __len__(self) -> int:
        return len(self.rows)

    def take(self, chosen: Bool) -> "SampleBatch":
        """Return the samples where `chosen` (bool[n]) is True."""
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

    def fields(self) -> dict[str, Column]:
        """Return field of `abi.sample.SAMPLE` → column to write, with callchains and payloads."""
        fields: dict[str, Column] = dict(self.columns.scalars)
        for name, rows in self.columns.arrays.items():
            fields[name] = Pieces(self.chunk.data, rows.starts, rows.counts * rows.width)
        if self.chains is not None:
            fields["callchain"] = (self.chains.offsets, self.chains.values)
            fields["callchain_nr"] = self.chains.lengths
            if self.extensions is not None:
                fields |= payloads(self.samples, self.chains, self.extensions, self.order)
        return fields


def model_fields(samples: Samples) -> dict[str, NDArray[Any]]:
    """Convert samples of the model to field of SAMPLE → column: the inverse of `decode.samples.model_samples`."""
    return {
        "ip": samples.ip,
        "pid": samples.pid.view(np.uint32),
        "tid": samples.tid.view(np.uint32),
        "time": samples.time_ns.view(np.uint64),
        "cpu": samples.cpu.view(np.uint32),
        "period": samples.period.view(np.uint64),
        "cgroup": samples.cgroup,
    }


Stage = Callable[[SampleBatch], SampleBatch]


class SampleRewriter:
    """Rewriter of the samples of chunks: takes them through `stages` and writes them in the layouts of the `written`
    events. `merges`: one of the stages is `complete_batch`; `done`: counts copied records and samples left out."""

    def __init__(
        self, events: Events, written: Sequence[EventSpec], stages: Sequence[Stage], merges: bool, done: Rewritten
    ) -> None:
        self.events, self.stages, self.merges, self.done = events, stages, merges, done
        self.shapes = [spec.shape for spec in written]

    def rewrite(self, chunk: Chunk, with_untimed: bool) -> Chunk:
        """Return a chunk with its samples rewritten; sums with a dummy time are left out unless `with_untimed`."""
        kept = chunk.types != RecordType.SAMPLE
        placed = []
        for number, rows in samples_by_event(chunk, self.events, self.done.losses):
            if not with_untimed:
                rows = rows[~is_untimed(chunk, rows, self.events, number)]  # noqa: PLW2901
            batch = self._read(chunk, rows, number)
            changed = self._changes(batch, number)
            kept[batch.rows[~changed]] = True
            if changed.any():
                batch, samples = self._written(batch.take(changed), number)
                placed.append((batch.rows, samples))
        self.done.copied += int(kept.sum())
        rows = np.flatnonzero(kept)
        own = chunk if len(rows) == len(chunk) else chunk.take(rows)
        return merged_records([(rows, own), *placed]) if placed else own

    def rewrite_all(self, chunk: Chunk) -> Iterator[tuple[I64, Chunk]]:
        """Rewrite all samples of a chunk; yield (times, int64[n] ns; n records) for each evsel."""
        for number, rows in samples_by_event(chunk, self.events, self.done.losses):
            batch, samples = self._written(self._read(chunk, rows, number), number)
            yield batch.samples.time_ns, samples

    def _read(self, chunk: Chunk, rows: I64, number: int) -> SampleBatch:
        """Return the samples in `rows`, of evsel `number`, that fit their layout; count others as BAD_SAMPLE."""
        spec, miscs = self.events.specs[number], chunk.miscs[rows]
        columns = sample_columns(chunk, rows, spec, self.events.order)
        samples = model_samples(columns, spec, number, miscs)
        valid = columns.ok & (samples.period >= 0)
        self.done.losses.add(losses.BAD_SAMPLE, int((~valid).sum()))
        return SampleBatch(chunk, self.events.order, rows, spec, miscs, columns, samples).take(valid)

    def _changes(self, batch: SampleBatch, number: int) -> Bool:
        """Return bool[n]: True if a sample of evsel `number` cannot be copied: its layout or its callchain changes."""
        if self.shapes[number] != batch.spec.shape:
            return np.ones(len(batch), np.bool_)
        if "callchain" not in batch.columns.arrays or not self.merges:
            return np.zeros(len(batch), np.bool_)
        chains = batch.columns.arrays["callchain"]
        skipped = np.maximum(chains.counts - MARKER_WORDS, 0)
        ends = Rows(chains.starts + 8 * skipped, chains.counts - skipped, 8)
        return pending_chains(Ragged(*gather_rows(batch.chunk.data, ends, batch.order))).is_pending

    def _written(self, batch: SampleBatch, number: int) -> tuple[SampleBatch, Chunk]:
        """Take samples through all stages; return those that could be written, and their records. A sample too large
        for a record (user stacks of 64 KB) loses the user part of its callchain, or is left out; both are counted."""
        shape = self.shapes[number]
        if "callchain" in batch.columns.arrays:
            own = batch.columns.arrays["callchain"]
            batch = replace(batch, chains=Ragged(*gather_rows(batch.chunk.data, own, batch.order)))
        for stage in self.stages:
            batch = stage(batch)
        fields = batch.fields()
        too_large = sample_sizes(shape, fields, len(batch)) > RECORD_SIZE_MAX
        if too_large.any():
            if batch.chains is not None:
                self.done.losses.add(losses.UNMERGED, int(too_large.sum()))
                batch = replace(batch, chains=without_user_parts(batch.chains, too_large))
                too_large = sample_sizes(shape, batch.fields(), len(batch)) > RECORD_SIZE_MAX
            self.done.losses.add(losses.BAD_SAMPLE, int(too_large.sum()))
            batch = batch.take(~too_large)
            fields = batch.fields()
        return batch, sample_chunk(shape, batch.miscs, fields, len(batch), batch.order)


def is_untimed(chunk: Chunk, rows: I64, events: Events, number: int) -> Bool:
    """Return bool[n]: True if a sample in `rows`, of evsel `number`, is a sum of off-cpu time with a dummy time."""
    if not is_offcpu(events.specs[number]):
        return np.zeros(len(rows), np.bool_)
    times = sample_times(chunk, rows, np.full(len(rows), number, np.int32), events)
    untimed: Bool = times >= NO_TIME
    return untimed


_FIXED = abi.PAYLOAD.offset("callchain") // 8

_PAYLOAD = Layout(abi.PAYLOAD.name, *abi.PAYLOAD.fields, Field("extension", U64, count="words"))
_EXTENSION = Layout(abi.EXTENSION.name, *abi.WHOLE_EXTENSION, Field("waker_chain", U64, count="waker_nr"))


def payloads(samples: Samples, chains: Ragged, extensions: Ragged, order: Order) -> dict[str, Any]:
    """Encode the payloads of n samples, with their callchains and extensions, as columns of the field RAW. Payloads are
    whole words; 4 more zero bytes make raw_size and raw whole words, too."""
    columns: dict[str, Column] = {
        "pid": samples.pid.view(np.uint32),
        "tid": samples.tid.view(np.uint32),
        "offcpu_ns": samples.period,
        "callchain": (chains.offsets, chains.values),
        "cgroup": samples.cgroup,
        "extension": (extensions.offsets, extensions.values),
    }
    payload = pack_columns(_PAYLOAD, columns, len(samples), order)
    return {"raw": payload, "raw_size": np.diff(payload[0]) + 4}


def with_walk_ends(extensions: Ragged, rows: I64, is_cut: Bool, order: Order) -> Ragged:
    """Return payload extensions in which USER_STACK_CUT is set for `rows` (int64[m], samples with unwound stacks) where
    `is_cut` (bool[m]) is True, and cleared where it is False."""
    noted = extensions.lengths[rows] > _LOST_WORD
    words_at = extensions.offsets[rows[noted]] + _LOST_WORD
    words = extensions.values.copy()
    words[words_at] &= ~(np.uint64(abi.Lost.USER_STACK | abi.Lost.USER_STACK_CUT) << _LOST_SHIFT[order])
    words[words_at[is_cut[noted]]] |= np.uint64(abi.Lost.USER_STACK_CUT) << _LOST_SHIFT[order]
    return Ragged(extensions.offsets, words)


_LOST_WORD, _LOST_BYTE = divmod(abi.EXTENSION.offset("lost"), 8)
_LOST_SHIFT = {"<": np.uint64(8 * _LOST_BYTE), ">": np.uint64(32 - 8 * _LOST_BYTE)}


def recorded_extensions(data: NDArray[np.uint8], raw: Rows, nr: I64, order: Order) -> Ragged:
    """Read the extensions of n payloads `raw`: the words after callchain and cgroup id. `nr`: int64[n], number of words
    of the callchain; -1: the payload has no extension."""
    begin = 8 * (_FIXED + nr + 1)
    counts = np.where(nr >= 0, np.maximum(raw.counts - begin, 0) // 8, 0)
    return Ragged(*gather_rows(data, Rows(raw.starts + np.where(nr >= 0, begin, 0), counts, 8), order))


def made_extensions(samples: Samples, wakers: Ragged, order: Order) -> Ragged:
    """Encode payload extensions of n samples, with their wakers' callchains, in the form that `decode.retype` reads."""
    kinds = [samples.has(flag) for _, flag in FLAGS_OF_KIND]
    columns: dict[str, Column] = {
        **abi.BLANK_EXTENSION,
        **{name: getattr(samples, name) for name in COLUMNS},
        "kind": np.select(kinds, [kind for kind, _ in FLAGS_OF_KIND], abi.Kind.WAIT),
        "waker_offset": np.where(wakers.lengths > 0, 8 * abi.EXTENSION_WORDS, 0),
        "flags": _bits(samples, FLAGS_OF_WAIT),
        "lost": _bits(samples, _LOST),
        "padding": 0,
        "waker_nr": wakers.lengths,
        "waker_chain": (wakers.offsets, wakers.values),
    }
    offsets, data = pack_columns(_EXTENSION, columns, len(samples), order)
    return Ragged(offsets // 8, data.view(f"{order}u8").astype(np.uint64))


_LOST = [(lost, flag) for lost, flag in FLAGS_OF_LOST if lost is not abi.Lost.KERNEL_STACK_CUT]
"""(bit of the payload, SampleFlag); the flag TRUNCATED, which stands for several bits, is written as USER_STACK_CUT."""


def _bits(samples: Samples, pairs: Iterable[tuple[int, int]]) -> NDArray[np.uint32]:
    """Convert flags of samples to payload bits, uint32[n], by `pairs` of (bit, SampleFlag)."""
    bits = np.zeros(len(samples), np.uint32)
    for bit, flag in pairs:
        bits |= np.where(samples.flags & np.uint32(flag), np.uint32(bit), np.uint32(0))
    return bits
