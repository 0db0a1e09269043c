# SPDX-License-Identifier: Apache-2.0
"""Re-typing in the file: raw `offcpu-time` samples become samples that any perf shows.

A callchain comes in at the place where sample_type CALLCHAIN has it, and pid, tid, period, ip and cgroup
are the payload's. What else the record had (id, CPU, registers, fields that this project does not know)
stays, and so do the places of ids in samples and trailers, on which all events of a file have to agree.

The payload stays, too (`payload_words`), for what perf has no fields for. So that no perf takes the samples
for raw ones, and none prints the payload as text, the event becomes a cpu-clock by type; its name says what
it is.

Sums of perf 6.16 on carry a dummy time, with which perf sorts them behind the end of their threads and then
shows neither comm nor symbols. They get the last moment at which their thread lived, marked as a guess.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from perf_offcpu.abi.attr import SampleType, SoftwareConfig
from perf_offcpu.binary.columnar import Columns
from perf_offcpu.binary.gather import Rows, gather_rows
from perf_offcpu.binary.layout import Order
from perf_offcpu.decode.retype import retype
from perf_offcpu.decode.samples import is_offcpu, model_samples
from perf_offcpu.decode.swapped_ids import repair_ids
from perf_offcpu.inject.payload_words import (
    as_raw_field,
    made_extensions,
    one_after_the_other,
    payloads,
    recorded_extensions,
    with_other_chains,
)
from perf_offcpu.model.callchains import Ragged, offsets_of, spread
from perf_offcpu.model.columns import I8, I32, I64, Bool
from perf_offcpu.model.recording import Samples, Tasks
from perf_offcpu.perfdata.events import EventSpec
from perf_offcpu.perfdata.scan import Chunk
from perf_offcpu.perfdata.write.splice import Cut, Records, with_words
from perf_offcpu.structs import frozen

_NEEDED = SampleType.IP | SampleType.TID | SampleType.TIME | SampleType.PERIOD | SampleType.RAW
_BEHIND_CGROUP = SampleType.DATA_PAGE_SIZE | SampleType.CODE_PAGE_SIZE | SampleType.AUX


def is_raw_offcpu(spec: EventSpec) -> bool:
    """Whether an evsel's samples are raw off-cpu samples that can become ordinary ones."""
    raw = spec.attr.config == SoftwareConfig.BPF_OUTPUT and spec.attr.sample_type & _NEEDED == _NEEDED
    return raw and is_offcpu(spec)


def retyped(spec: EventSpec) -> EventSpec:
    """The evsel of the samples that `Retyper` makes of a raw one's."""
    kind = spec.attr.sample_type | SampleType.CALLCHAIN
    if not kind & _BEHIND_CGROUP:
        kind |= SampleType.CGROUP
    return replace(spec, attr=replace(spec.attr, config=SoftwareConfig.CPU_CLOCK, sample_type=kind))


@frozen
class Lives:
    """What the whole recording tells of its threads.

    Args:
        tasks: all of them.
        end_ns: the last moment of the recording.
    """

    tasks: Tasks
    end_ns: int = 0

    def last_moment(self, tids: I32) -> I64:
        """int64[n]: the last moment at which perf still knows each thread, ns."""
        if not len(self.tasks):
            return np.full(len(tids), self.end_ns, np.int64)
        slot = np.maximum(np.searchsorted(self.tasks.tid, tids, side="right") - 1, 0)
        exited = (self.tasks.tid[slot] == tids) & (self.tasks.end_ns[slot] > 0)
        born, end = self.tasks.begin_ns[slot], self.tasks.end_ns[slot] - 1
        return np.where(exited, np.maximum(born, end), self.end_ns)


class Retyper:
    """Re-types samples of a recording.

    Args:
        lives: its threads.
        order: its byte order.
    """

    def __init__(self, lives: Lives, order: Order) -> None:
        self.lives, self.order = lives, order

    def retype(
        self, chunk: Chunk, rows: I64, columns: Columns, spec: EventSpec, number: int
    ) -> tuple[I64, Records, I64]:
        """Raw samples of one evsel as ordinary ones.

        Args:
            rows: the samples' rows in the chunk; `columns` are their fields.
            spec, number: their evsel, as it was.

        Returns:
            (rows, records, times): those that could be decoded, what stands for them, and when it was, ns.
        """
        samples = model_samples(columns, spec, number, chunk.miscs[rows])
        batch, sound = retype(chunk.data, columns, samples, self.order)
        samples = repair_ids(batch.samples, batch.from_upstream, self.lives.tasks)
        chains = batch.callchains.take(samples.callchain)
        raw = self._raw(chunk, columns, samples, chains, ~batch.from_upstream)
        sound_rows, samples = np.flatnonzero(sound), samples.take(sound)
        samples.time_ns = np.where(samples.time_ns < 0, self.lives.last_moment(samples.tid), samples.time_ns)
        new = retyped(spec)
        added = new.attr.sample_type & ~spec.attr.sample_type & SampleType.CGROUP
        fields = one_after_the_other(_with_counts(chains.take(sound_rows)), raw.take(sound_rows))
        records, fits = with_words(
            chunk,
            rows[sound],
            _payload(columns).take(sound),
            (fields.offsets, fields.values),
            self.order,
            more_words=1 if added else 0,
        )
        samples = samples.take(fits)
        self._write_fields(records, samples, new)
        return rows[sound][fits], records, samples.time_ns

    def _raw(self, chunk: Chunk, columns: Columns, samples: Samples, chains: Ragged, ours: Bool) -> Ragged:
        """The RAW fields of samples; of upstream's only sums have something to say there."""
        nr = np.where(ours, chains.lengths, -1)
        kept = recorded_extensions(chunk.data, columns.arrays["raw"], nr, self.order)
        made = made_extensions(samples, (samples.time_ns < 0) & ~ours, self.order)
        words = payloads(samples, chains, one_after_the_other(kept, made), self.order)
        return as_raw_field(words, self.order)

    def _write_fields(self, records: Records, samples: Samples, new: EventSpec) -> None:
        records.set_header("misc", samples.cpumode, self.order)
        for name in ("ip", "pid", "tid", "period"):
            records.set_field(new.shape, name, getattr(samples, name), self.order)
        records.set_field(new.shape, "time", samples.time_ns, self.order)
        if not new.attr.sample_type & _BEHIND_CGROUP:
            records.words.view(f"{self.order}u8")[records.offsets[1:] - 1] = samples.cgroup

    def set_times(self, records: Records, spec: EventSpec, tids: I32) -> I64:
        """Give sums that are ordinary samples already (perf 5.19 to 6.15) a time; returns it."""
        times = self.lives.last_moment(tids)
        records.set_field(spec.shape, "time", times, self.order)
        return times


def with_payloads_again(chunk: Chunk, columns: Columns, cut: I8, order: Order) -> Records:
    """Re-typed samples that have got other callchains, which their payloads shall tell, too.

    Args:
        chunk: them alone; `columns` are their fields.
        cut: int8[n], see `unwind_records.StackCutter.rewrite`.
    """
    chain, raw = columns.arrays["callchain"], columns.arrays["raw"]
    chains = Ragged(*gather_rows(chunk.data, Rows(chain.starts, chain.counts, 8), order))
    old = Ragged(*gather_rows(chunk.data, Rows(raw.starts, raw.counts // 8, 8), order))
    field = as_raw_field(with_other_chains(old, chains, cut, order), order)
    place = Cut(raw.starts - 4, _aligned(raw.starts + raw.counts), _aligned(columns.ends))
    rows = np.arange(len(chunk.starts))
    records, fits = with_words(chunk, rows, place, (field.offsets, field.values), order)
    assert fits.all(), "two callchains of at most 1024 frames fit where a stack was"
    return records


def _with_counts(chains: Ragged) -> Ragged:
    """The words of CALLCHAIN fields: how many, then these."""
    lengths = chains.lengths
    offsets = offsets_of(lengths + 1)
    words = np.empty(int(offsets[-1]), np.uint64)
    words[offsets[:-1]] = lengths
    words[spread(offsets[:-1] + 1, lengths, chains.offsets)] = chains.values
    return Ragged(offsets, words)


def _payload(columns: Columns) -> Cut:
    """Where the raw data lies, with the callchain that may stand before it, padding included."""
    raw = columns.arrays["raw"]
    begin = raw.starts - 4
    if "callchain" in columns.arrays:
        begin = columns.arrays["callchain"].starts - 8
    return Cut(begin, _aligned(raw.starts + raw.counts), _aligned(columns.ends))


def _aligned(places: I64) -> I64:
    up: I64 = (places + 7) & ~7
    return up
