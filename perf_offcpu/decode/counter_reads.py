# SPDX-License-Identifier: Apache-2.0
"""Split samples that hold counters (PERF_SAMPLE_READ) into one sample for each counter that has moved.

With `perf record -e '{cycles,instructions}:S'` only the group's leader samples, and each sample holds the
counts of all members so far. As perf does (tools/perf/util/session.c: deliver_sample_group(),
deliver_sample_value()), each member gets a sample instead, with the difference to its last count as period,
and none where nothing was counted.

Where events are inherited, as perf asks for since 6.12, each thread has counts of its own, all under the
same id (tools/lib/perf/evsel.c: perf_evsel__attr_has_per_thread_sample_period()).
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from perf_offcpu import losses
from perf_offcpu.abi.attr import AttrFlag, ReadFormat, SampleType
from perf_offcpu.binary.columnar import Columns
from perf_offcpu.binary.gather import Rows, gather_rows
from perf_offcpu.decode.batch import Batch
from perf_offcpu.losses import Losses
from perf_offcpu.model.columns import I64, U64
from perf_offcpu.model.growing import GrowingArray
from perf_offcpu.perfdata.events import Events, EventSpec


def has_reads(spec: EventSpec) -> bool:
    """Return whether an event's samples hold counts with the ids of their events."""
    attr = spec.attr
    return bool(attr.sample_type & SampleType.READ) and bool(attr.read_format & ReadFormat.ID)


class _Counts(NamedTuple):
    """n counts."""

    rows: I64  # int64[n], the samples that hold them
    # ids, values: uint64[n]
    ids: U64
    values: U64
    tids: I64  # int64[n], the threads that they are of; 0 where a count is of all


class CounterReads:
    """Gathers the counts in samples, chunk by chunk, then splits the samples."""

    def __init__(self) -> None:
        self._reads: dict[int, tuple[GrowingArray, GrowingArray, GrowingArray]] = {}
        """By event: counts in each sample, ids and values of the counts, in file order."""

    def add(
        self, data: NDArray[np.uint8], columns: Columns, chosen: I64, events: Events, number: int
    ) -> None:
        """Gather the counts in samples of event `number` for which `has_reads` holds.

        Args:
            chosen: int64[n], the samples that are sound.
        """
        if number not in self._reads:
            self._reads[number] = GrowingArray("i8"), GrowingArray("u8"), GrowingArray("u8")
        lengths, ids, values = self._reads[number]
        read_format = events.specs[number].attr.read_format
        if not read_format & ReadFormat.GROUP:
            lengths.append(np.ones(len(chosen), np.int64))
            ids.append(columns.scalars["read_id"][chosen])
            values.append(columns.scalars["read_value"][chosen])
            return
        group = columns.arrays["read_group"]
        rows = Rows(group.starts[chosen], group.counts[chosen], group.width)
        offsets, words = gather_rows(data, rows, events.order)
        width = 3 if read_format & ReadFormat.LOST else 2  # value, id, perhaps lost
        lengths.append(np.diff(offsets) // width)
        ids.append(words[1::width])
        values.append(words[::width])

    def split(self, batch: Batch, events: Events, counters: Losses) -> Batch:
        """Return the batch with a sample for each count that moved in place of each sample with counts.

        Args:
            batch: all samples of the recording, in file order.
            counters: unknown ids and counts that fell are counted here.
        """
        if not self._reads:
            return batch
        samples = batch.samples
        counts = self._counts(batch, events)
        evsel, period = events.lookup(counts.ids), _differences(counts)
        counters.add(losses.UNKNOWN_ID, int((evsel < 0).sum()))
        counters.add(losses.BACKWARDS, int((period < 0).sum()))
        moved = (period > 0) & (evsel >= 0)
        others = np.flatnonzero(~np.isin(samples.evsel, list(self._reads)))
        rows = np.concatenate([others, counts.rows[moved]])
        order = np.argsort(rows, kind="stable")
        rows = rows[order]
        delivered = samples.take(rows)
        delivered.evsel = np.concatenate([samples.evsel[others], evsel[moved]])[order].astype(np.int32)
        delivered.period = np.concatenate([samples.period[others], period[moved]])[order]
        return replace(batch, samples=delivered, from_upstream=batch.from_upstream[rows])

    def _counts(self, batch: Batch, events: Events) -> _Counts:
        """Return all counts by the time of their samples."""
        samples, parts = batch.samples, []
        for number, (lengths, ids, values) in self._reads.items():
            rows = np.repeat(np.flatnonzero(samples.evsel == number), lengths.release())
            attr = events.specs[number].attr
            by_thread = bool(attr.sample_type & SampleType.TID) and bool(attr.flags & AttrFlag.INHERIT)
            tids = samples.tid[rows].astype(np.int64) * by_thread
            parts.append(_Counts(rows, ids.release(), values.release(), tids))
        whole = [np.concatenate(columns) for columns in zip(*parts, strict=True)]
        order = np.lexsort((whole[0], samples.time_ns[whole[0]]))
        return _Counts(*(column[order] for column in whole))


def _differences(counts: _Counts) -> I64:
    """Return int64[n]: how much each counter moved since it was read last, or in all at its first read."""
    order = np.lexsort((counts.tids, counts.ids))
    values, ids, tids = counts.values[order].astype(np.int64), counts.ids[order], counts.tids[order]
    before = np.append(np.int64(0), values[:-1])
    before[np.append(True, (ids[1:] != ids[:-1]) | (tids[1:] != tids[:-1]))[: len(ids)]] = 0
    differences = np.empty(len(order), np.int64)
    differences[order] = values - before[: len(values)]
    return differences
