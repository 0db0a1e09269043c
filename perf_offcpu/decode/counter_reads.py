# SPDX-License-Identifier: Apache-2.0
"""Samples that bring counters along (PERF_SAMPLE_READ): one sample for each counter that has moved.

With `perf record -e '{cycles,instructions}:S'` only the group's leader samples, and each sample holds what
all members have counted so far. perf gives out one sample for each member instead, with the difference to
the member's last count as period, and none where nothing was counted (tools/perf/util/session.c:
deliver_sample_group(), deliver_sample_value()). So do we.

Where events are inherited, as perf asks for since 6.12, each thread has counts of its own, all under the
same id (tools/lib/perf/evsel.c: perf_evsel__attr_has_per_thread_sample_period()).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from perf_offcpu.abi.attr import AttrFlag, ReadFormat, SampleType
from perf_offcpu.model.columns import I64, U64
from perf_offcpu.model.recording import Recording
from perf_offcpu.model.sample_fields import EventFields, SampleFields
from perf_offcpu.perfdata import losses
from perf_offcpu.perfdata.events import Events, EventSpec
from perf_offcpu.perfdata.losses import Losses

READ_FIELDS = ("read_value", "read_id", "read_group")
BACKWARDS = "counts that were lower than before, left out"


def has_reads(spec: EventSpec) -> bool:
    """Whether an event's samples say whose counts they hold."""
    attr = spec.attr
    return bool(attr.sample_type & SampleType.READ) and bool(attr.read_format & ReadFormat.ID)


def is_by_thread(spec: EventSpec) -> bool:
    """Whether the counts that samples of an event bring along are those of their threads."""
    attr = spec.attr
    return bool(attr.sample_type & SampleType.TID) and bool(attr.flags & AttrFlag.INHERIT)


class _Counts(NamedTuple):
    """Counts, in the order of the samples: int64[n] rows of samples, uint64[n] ids and counts; and int64[n]
    the threads that they are of, 0 where a count is of all."""

    rows: I64
    ids: U64
    values: U64
    tids: I64


def deliver_counts(recording: Recording, fields: SampleFields, events: Events) -> Recording:
    """The recording with samples of members in place of those of leaders.

    Args:
        recording: samples by time; fields: `READ_FIELDS` of its events for which `has_reads` holds.
    """
    reading = [
        number for number, spec in enumerate(events.specs) if has_reads(spec) and number in fields.events
    ]
    if not reading:
        return recording
    counts = _counts(recording, fields, events, reading)
    evsel, period = events.lookup(counts.ids), _differences(counts)
    lost = Losses(recording.losses)
    lost.add(losses.UNKNOWN_ID, int((evsel < 0).sum()))
    lost.add(BACKWARDS, int((period < 0).sum()))
    moved = (period > 0) & (evsel >= 0)
    samples = recording.samples
    others = np.flatnonzero(~np.isin(samples.evsel, reading) | (samples.field_row < 0))
    rows = np.concatenate([others, counts.rows[moved]])
    order = np.argsort(rows, kind="stable")
    delivered = samples.take(rows[order])
    delivered.evsel = np.concatenate([samples.evsel[others], evsel[moved]])[order].astype(np.int32)
    delivered.field_row[delivered.evsel != samples.evsel[rows[order]]] = -1  # those are the leader's
    delivered.period = np.concatenate([samples.period[others], period[moved]])[order]
    return recording.replaced(samples=delivered, losses=dict(lost))


def _counts(recording: Recording, fields: SampleFields, events: Events, reading: list[int]) -> _Counts:
    samples = recording.samples
    parts = []
    for number in reading:
        mine = np.flatnonzero((samples.evsel == number) & (samples.field_row >= 0))
        per_row, ids, values = _of_event(fields.events[number], events.specs[number])
        offsets = np.append(0, np.cumsum(per_row))
        chosen = samples.field_row[mine]
        lengths = per_row[chosen]
        within = np.arange(int(lengths.sum())) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        at = np.repeat(offsets[chosen], lengths) + within
        repeated = np.repeat(mine, lengths)
        tids = samples.tid[repeated].astype(np.int64) * is_by_thread(events.specs[number])
        parts.append(_Counts(repeated, ids[at], values[at], tids))
    rows, ids, values, tids = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    order = np.argsort(rows, kind="stable")
    return _Counts(rows[order].astype(np.int64), ids[order], values[order], tids[order])


def _of_event(one: EventFields, spec: EventSpec) -> tuple[I64, U64, U64]:
    """(counts of each sample, ids, values) of the samples of one event, in the order of its table."""
    if not spec.attr.read_format & ReadFormat.GROUP:
        values = one.scalars["read_value"]
        return np.ones(len(values), np.int64), one.scalars["read_id"], values
    group = one.arrays["read_group"]
    width = 3 if spec.attr.read_format & ReadFormat.LOST else 2  # value, id, perhaps lost
    return np.diff(group.offsets) // width, group.values[1::width], group.values[::width]


def _differences(counts: _Counts) -> I64:
    """int64[n]: how much each counter has moved since it was read last, or in all if it is read first."""
    order = np.lexsort((counts.tids, counts.ids))
    values, ids, tids = counts.values[order].astype(np.int64), counts.ids[order], counts.tids[order]
    before = np.append(np.int64(0), values[:-1])
    before[np.append(True, (ids[1:] != ids[:-1]) | (tids[1:] != tids[:-1]))[: len(ids)]] = 0
    differences = np.empty(len(order), np.int64)
    differences[order] = values - before[: len(values)]
    return differences
