# SPDX-License-Identifier: Apache-2.0
"""The samples of a chunk on their way from one file to another: which stay, and what stands for the others.

Samples of an unknown event, and those whose content does not fit their event, are left out: for one of them
perf gives up the whole file.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from perf_offcpu import losses
from perf_offcpu.abi.records import RecordType
from perf_offcpu.abi.sample import SAMPLE
from perf_offcpu.binary.columnar import Columns, read_columns
from perf_offcpu.binary.layout import Order
from perf_offcpu.decode.samples import is_offcpu
from perf_offcpu.inject.complete_records import Completer
from perf_offcpu.inject.retype_records import Retyper, is_raw_offcpu, retyped, with_payloads_again
from perf_offcpu.inject.unwind_records import StackCutter, has_stacks, without_stacks
from perf_offcpu.losses import Losses
from perf_offcpu.model.columns import I32, I64, Bool
from perf_offcpu.perfdata.events import Events, EventSpec
from perf_offcpu.perfdata.scan import HEADER_SIZE, Chunk
from perf_offcpu.perfdata.trailers import NO_TIME, record_times
from perf_offcpu.perfdata.write.splice import Placed, Records, chunk_of

_ABSURD = np.uint64(2**63)


class SampleRewriter:
    """Rewrites the samples of a recording, chunk by chunk.

    Args:
        events: its evsels.
        retyper: re-types off-cpu samples; None leaves them as they are.
        completer: puts deferred callchains into their samples; None leaves them as they are.
        counters: where samples that are left out are counted.
        cutter: rewrites samples with copies of user stacks; None leaves them as they are.
    """

    def __init__(
        self,
        events: Events,
        retyper: Retyper | None,
        completer: Completer | None,
        counters: Losses,
        cutter: StackCutter | None = None,
    ) -> None:
        self.events, self.retyper, self.completer, self.counters = events, retyper, completer, counters
        self.cutter = cutter
        self.retyped = 0
        """Samples that were re-typed so far."""

    def rewrite(self, chunk: Chunk, kept: Bool) -> list[Placed]:
        """What stands for samples of a chunk.

        Args:
            kept: bool[len(chunk)], which records stay; samples that do not are taken out here.
        """
        rows = np.flatnonzero(chunk.types == RecordType.SAMPLE)
        evsel = self.events.of_samples(chunk, rows)
        kept[rows[evsel < 0]] = False
        self.counters.add(losses.UNKNOWN_ID, int((evsel < 0).sum()))
        return [
            placed
            for number in np.unique(evsel[evsel >= 0]).tolist()
            for placed in self._of_evsel(chunk, rows[evsel == number], number, kept)
        ]

    def _of_evsel(self, chunk: Chunk, rows: I64, number: int, kept: Bool) -> Iterator[Placed]:
        spec = self.events.specs[number]
        columns = sound_columns(chunk, rows, spec, self.events.order, self.counters)
        kept[rows[~columns.ok]] = False
        if self.retyper and is_offcpu(spec) and "time" in columns.scalars:
            untimed = columns.scalars["time"] >= NO_TIME  # `TimedSums` puts them where they belong
            columns.ok &= ~untimed
            kept[rows[untimed]] = False
        if self.retyper and is_raw_offcpu(spec):
            yield self._retyped(self.retyper, chunk, rows, columns, number, kept)
        elif self.cutter and has_stacks(spec):
            yield self._cut(self.cutter, chunk, rows[columns.ok], spec, kept)
        elif self.completer and "callchain" in columns.arrays:
            done, records = self.completer.complete(chunk, rows, columns)
            kept[done] = False
            yield done, records

    def _retyped(
        self, retyper: Retyper, chunk: Chunk, rows: I64, columns: Columns, number: int, kept: Bool
    ) -> Placed:
        kept[rows] = False
        done, records, _ = retyper.retype(chunk, rows, columns, self.events.specs[number], number)
        self.counters.add(losses.BAD_SAMPLE, int(columns.ok.sum()) - len(done))
        self.retyped += len(done)
        return done, self._completed(self.without_stacks(records, number), number)

    def _completed(self, records: Records, number: int) -> Records:
        """Re-typed samples of one evsel with the deferred user callchains that they wait for."""
        if self.completer is None or not len(records):
            return records
        rows = np.arange(len(records))
        chunk = chunk_of(records, self.events.order)
        spec = retyped(self.events.specs[number])
        cut = self.cutter is not None and not self.cutter.keep
        columns = self._columns(chunk, rows, without_stacks(spec) if cut else spec)
        if "callchain" not in columns.arrays:
            return records
        done, completed = self.completer.complete(chunk, rows, columns)
        rest = np.setdiff1d(rows, done)
        order = np.argsort(np.concatenate([rest, done]), kind="stable")
        return Records.concat([records.take(rest), completed]).take(order)

    def without_stacks(self, records: Records, number: int) -> Records:
        """Re-typed samples of one evsel, rewritten if they have copies of user stacks."""
        spec = retyped(self.events.specs[number])
        if self.cutter is None or not has_stacks(spec) or not len(records):
            return records
        rows = np.arange(len(records))
        records, cut = self.cutter.rewrite(chunk_of(records, self.events.order), rows, spec, self._columns)
        if self.cutter.keep:
            return records
        chunk = chunk_of(records, self.events.order)
        return with_payloads_again(
            chunk, self._columns(chunk, rows, without_stacks(spec)), cut, self.events.order
        )

    def _cut(self, cutter: StackCutter, chunk: Chunk, rows: I64, spec: EventSpec, kept: Bool) -> Placed:
        if cutter.keep and cutter.unwinder is None:
            return rows[:0], Records()
        kept[rows] = False
        return rows, cutter.rewrite(chunk, rows, spec, self._columns)[0]

    def _columns(self, chunk: Chunk, rows: I64, spec: EventSpec) -> Columns:
        return sound_columns(chunk, rows, spec, self.events.order, self.counters)


def sound_columns(chunk: Chunk, rows: I64, spec: EventSpec, order: Order, counters: Losses) -> Columns:
    """The fields of samples of one evsel; those that are damaged are not `ok`, and are counted."""
    starts = chunk.starts[rows]
    ends = starts + chunk.sizes[rows]
    columns = read_columns(SAMPLE, chunk.data, starts + HEADER_SIZE, ends, order, spec.shape)
    if "period" in columns.scalars:
        columns.ok &= columns.scalars["period"] < _ABSURD
    counters.add(losses.BAD_SAMPLE, int((~columns.ok).sum()))
    return columns


class TimedSums:
    """Sums of off-cpu time that had no time of their own, ready to be put where their new time lies.

    Args:
        untimed: the samples as they were.
        rewriter: what is done to them.
        added: samples that are new, and their times: put where those lie, like the sums.
    """

    def __init__(
        self, untimed: Records, rewriter: SampleRewriter, added: tuple[Records, I64] | None = None
    ) -> None:
        self.events = rewriter.events
        parts = list(_timed(untimed, rewriter)) if rewriter.retyper else []
        parts += [added] if added else []
        times = np.concatenate([np.empty(0, np.int64), *(times for _, times in parts)])
        order = np.argsort(times, kind="stable")
        self._times = times[order]
        self._records = Records.concat([records for records, _ in parts]).take(order)
        self._done, self._highest = 0, 0

    def span(self, first_ns: int, last_ns: int) -> tuple[int, int]:
        """The times of the first and last sample, these and others together; -1 if there are none."""
        times = [*self._times[:1].tolist(), *self._times[-1:].tolist(), first_ns, last_ns]
        known = [time for time in times if time >= 0]
        return min(known, default=-1), max(known, default=-1)

    def due(self, chunk: Chunk) -> Placed:
        """Those that have to stand before a FINISHED_ROUND of this chunk.

        At such a record perf gives out all that is not later than the highest time before the last one. So a
        sum stands before the first one with a time before it that is not lower than its own.
        """
        if self._done == len(self._times):
            return np.empty(0, np.int64), Records()
        rounds = np.flatnonzero(chunk.types == RecordType.FINISHED_ROUND)
        highest = np.maximum.accumulate(np.maximum(record_times(chunk, self.events), self._highest))
        self._highest = int(highest[-1])
        upto = np.maximum(np.searchsorted(self._times, highest[rounds], side="right"), self._done)
        last = int(upto[-1]) if len(rounds) else self._done
        due = np.arange(self._done, last)
        self._done = last
        return rounds[np.searchsorted(upto, due, side="right")], self._records.take(due)

    def rest(self) -> Records:
        """Those that no FINISHED_ROUND followed."""
        return self._records.take(slice(self._done, None))


def _timed(untimed: Records, rewriter: SampleRewriter) -> Iterator[tuple[Records, I64]]:
    """(records, times) of the sums of each evsel."""
    retyper, events = rewriter.retyper, rewriter.events
    assert retyper is not None
    chunk = chunk_of(untimed, events.order)
    rows = np.arange(len(untimed))
    evsel = events.of_samples(chunk, rows)
    for number in np.unique(evsel[evsel >= 0]).tolist():
        mine, spec = rows[evsel == number], events.specs[number]
        columns = sound_columns(chunk, mine, spec, events.order, rewriter.counters)
        if is_raw_offcpu(spec):
            _, records, times = retyper.retype(chunk, mine, columns, spec, number)
            records = rewriter.without_stacks(records, number)
            rewriter.retyped += len(times)
        else:
            mine, tids = mine[columns.ok], _tids(columns)[columns.ok]
            records = untimed.take(mine)
            times = retyper.set_times(records, spec, tids)
        yield records, times


def _tids(columns: Columns) -> I32:
    tids = columns.scalars.get("tid")
    return np.full(len(columns.ok), -1, np.int32) if tids is None else tids.view(np.int32)
