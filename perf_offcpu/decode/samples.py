# SPDX-License-Identifier: Apache-2.0
"""SAMPLE records to columns of the model, evsel by evsel, a whole chunk at a time.

u64 values of the file are checked once on their way to int64: a time of 2^63 and more is no time (upstream
writes such dummies), a period of 2^63 and more is damage.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from perf_offcpu import losses
from perf_offcpu.abi import offcpu as abi
from perf_offcpu.abi.attr import AttrFlag, PerfType, SoftwareConfig
from perf_offcpu.abi.records import Misc, RecordType
from perf_offcpu.abi.sample import SAMPLE
from perf_offcpu.binary.columnar import Columns, read_columns
from perf_offcpu.binary.gather import Rows, gather_bytes, gather_rows
from perf_offcpu.binary.layout import Order
from perf_offcpu.decode.account import CollectorAccount, is_counters
from perf_offcpu.decode.batch import Batch, in_table, interleave
from perf_offcpu.decode.counter_reads import CounterReads, has_reads
from perf_offcpu.decode.retype import retype
from perf_offcpu.decode.stacks.callers import sum_callers, with_callers
from perf_offcpu.decode.stacks.gather import SnapshotStore
from perf_offcpu.decode.switches.events import SwitchDecoder
from perf_offcpu.losses import Losses
from perf_offcpu.model.callchains import Ragged
from perf_offcpu.model.chain_table import ChainTable
from perf_offcpu.model.columns import I32, I64, U64
from perf_offcpu.model.recording import SampleFlag, Samples
from perf_offcpu.perfdata.events import Events, EventSpec
from perf_offcpu.perfdata.scan import HEADER_SIZE, Chunk

_OFFCPU_CONFIGS = (SoftwareConfig.BPF_OUTPUT, SoftwareConfig.CPU_CLOCK)


def is_offcpu(spec: EventSpec) -> bool:
    """Whether an evsel's samples are off-cpu time, by perf's rule: bpf-output of that name.

    Or cpu-clock of that name: what inject makes of it (`inject.retype_records`).
    """
    return (
        spec.name == abi.EVENT_NAME
        and spec.attr.type == PerfType.SOFTWARE
        and spec.attr.config in _OFFCPU_CONFIGS
    )


class SampleDecoder:
    """Decodes the samples of a recording, chunk by chunk.

    Args:
        events: the recording's evsels.
        counters: where samples that cannot be decoded are counted.
        account: takes up what the collector says of itself; such samples are none of the machine's.
        retype_offcpu: turn raw off-cpu samples into off-cpu samples; else leave them as recorded.
        switches: takes up what samples tell of context switches; None if nobody wants to know.
        snapshots: takes up copies of user stacks; None if nobody unwinds them.
        reads: gathers counters that samples bring along; None if they are not to be split.
        chains: takes up callchains, and gives the rows of samples in it; None if each batch has its own.
    """

    def __init__(
        self,
        events: Events,
        counters: Losses,
        account: CollectorAccount,
        retype_offcpu: bool = True,
        switches: SwitchDecoder | None = None,
        snapshots: SnapshotStore | None = None,
        reads: CounterReads | None = None,
        chains: ChainTable | None = None,
    ) -> None:
        self.events, self.counters, self.account = events, counters, account
        self.reads, self.chains = reads, chains
        self.retype_offcpu, self.switches, self.snapshots = retype_offcpu, switches, snapshots

    def decode(self, chunk: Chunk) -> tuple[I64, Batch]:
        """The samples of a chunk, in file order, and which row of the chunk each of them is."""
        places, parts = self.decode_parts(chunk)
        if len(parts) < 2:
            return (places[0], parts[0]) if parts else (np.empty(0, np.int64), Batch())
        return np.sort(np.concatenate(places)), interleave(parts, ranks(places))

    def decode_parts(self, chunk: Chunk) -> tuple[list[I64], list[Batch]]:
        """The samples of a chunk event by event, and which rows of the chunk they are."""
        rows = np.flatnonzero(chunk.types == RecordType.SAMPLE)
        evsel = self.events.of_samples(chunk, rows)
        self.counters.add(losses.UNKNOWN_ID, int((evsel < 0).sum()))
        places: list[I64] = []
        parts: list[Batch] = []
        for number in np.flatnonzero(np.bincount(evsel[evsel >= 0])).tolist():
            place, part = self._decode_evsel(chunk, rows[evsel == number], number)
            places.append(place)
            # Here they are of one event, and of few lengths: that is when they are found fastest.
            parts.append(part if self.chains is None else in_table(part, self.chains))
        return places, parts

    def decode_account(self, chunk: Chunk) -> None:
        """Take up only what the collector says of itself."""
        rows = np.flatnonzero(chunk.types == RecordType.SAMPLE)
        evsel = self.events.of_samples(chunk, rows)
        for number, spec in enumerate(self.events.specs):
            if is_counters(spec):
                self._decode_evsel(chunk, rows[evsel == number], number)

    def _decode_evsel(self, chunk: Chunk, rows: I64, number: int) -> tuple[I64, Batch]:
        spec = self.events.specs[number]
        starts = chunk.starts[rows]
        ends = starts + chunk.sizes[rows]
        columns = read_columns(SAMPLE, chunk.data, starts + HEADER_SIZE, ends, self.events.order, spec.shape)
        if is_counters(spec):
            return self._take_account(chunk, columns)
        samples = model_samples(columns, spec, number, chunk.miscs[rows])
        batch = Batch(samples, Ragged(), np.zeros(len(rows), np.bool_))
        columns.ok &= samples.period >= 0
        self.counters.add(losses.BAD_SAMPLE, int((~columns.ok).sum()))
        ok = columns.ok
        if self.retype_offcpu and is_offcpu(spec) and "raw" in columns.arrays:
            batch, ok = retype(chunk.data, columns, samples, self.events.order, self.counters)
            if spec.attr.config == SoftwareConfig.CPU_CLOCK:  # inject's: not BPF's, but the sleeper's place
                batch.samples.ip, batch.samples.cpumode = samples.ip, samples.cpumode
                if "callchain" in columns.arrays:  # may have been unwound since the payload was sent
                    chains = _chains(chunk.data, columns.arrays["callchain"], self.events.order)
                    wakers = np.arange(len(rows), len(batch.callchains))
                    batch.callchains = Ragged.concat([chains, batch.callchains.take(wakers)])
        elif "callchain" in columns.arrays:
            batch.callchains = _chains(chunk.data, columns.arrays["callchain"], self.events.order)
            batch.samples.callchain = np.arange(len(rows), dtype=np.int32)
        if self.switches is not None:
            batch.switches = self.switches.of_samples(
                chunk.data, columns, ok, batch.samples, self.events, number
            )
        if self.snapshots is not None:
            mask = spec.attr.sample_regs_user
            snapshot = self.snapshots.add(chunk, columns, mask, ok, self.events.order)
            if is_offcpu(spec):
                callers = np.where(ok, sum_callers(chunk.data, columns, self.events.order), np.uint64(0))
                snapshot = with_callers(snapshot, callers, self.snapshots.callers, self.counters)
            batch.samples.snapshot = snapshot
        if self.reads is not None and has_reads(spec):
            self.reads.add(chunk.data, columns, np.flatnonzero(ok), self.events, number)
        if not ok.all():
            batch.samples, batch.from_upstream = batch.samples.take(ok), batch.from_upstream[ok]
        return rows[ok], batch

    def _take_account(self, chunk: Chunk, columns: Columns) -> tuple[I64, Batch]:
        if "raw" in columns.arrays:
            offsets, data = gather_bytes(chunk.data, columns.arrays["raw"])
            pieces = (data[low:high].tobytes() for low, high in pairwise(offsets.tolist()))
            self.account.take(pieces, self.events.order, self.counters)
        return np.empty(0, np.int64), Batch()


def _chains(data: NDArray[np.uint8], rows: Rows, order: Order) -> Ragged:
    return Ragged(*gather_rows(data, rows, order))


def ranks(places: list[I64]) -> list[I64]:
    """The same with the place that each has among all of them; no two are the same."""
    if len(places) < 2:
        return [np.arange(len(place)) for place in places]
    rank = np.zeros(max(int(place[-1]) if len(place) else 0 for place in places) + 1, np.int64)
    for place in places:
        rank[place] = 1
    rank = np.cumsum(rank) - 1
    return [rank[place] for place in places]


def model_samples(columns: Columns, spec: EventSpec, number: int, miscs: NDArray[np.uint16]) -> Samples:
    """The model's rows of n samples of one evsel (`number`), without callchains; a period of -1 is damage."""
    scalars = columns.scalars
    rows = len(columns.ok)
    time_ns, untimed = _times(scalars.get("time"), rows)
    # perf 5.19 to 6.15, and re-typed files: an ordinary sample whose period is the time off cpu.
    all_flags = SampleFlag.OFFCPU if is_offcpu(spec) else SampleFlag(0)
    flags = np.full(rows, all_flags, np.uint32)
    if untimed.any():
        flags[untimed] |= np.uint32(SampleFlag.UNTIMED | (SampleFlag.AGGREGATED if all_flags else 0))
    return Samples.sparse(
        rows,
        time_ns=time_ns,
        evsel=number,
        pid=_ids(scalars, "pid"),
        tid=_ids(scalars, "tid"),
        cpu=_ids(scalars, "cpu"),
        ip=scalars.get("ip"),
        period=_periods(scalars.get("period"), spec, rows),
        cpumode=miscs & np.uint16(Misc.CPUMODE_MASK),
        cgroup=scalars.get("cgroup"),
        flags=flags,
    )


def _ids(scalars: dict[str, NDArray[np.uint32]], name: str) -> I32 | None:
    """u32 ids as int32: 2^32 - 1, the kernel's "none", becomes -1."""
    values = scalars.get(name)
    return None if values is None else values.view(np.int32)


def _times(values: U64 | None, rows: int) -> tuple[I64, NDArray[np.bool_]]:
    """(time_ns, untimed): dummies of 2^63 and more are no time at all."""
    if values is None:
        return np.full(rows, -1, np.int64), np.zeros(rows, np.bool_)
    times = values.astype(np.int64)
    dummy = times < 0
    times[dummy] = -1
    return times, dummy


def _periods(values: U64 | None, spec: EventSpec, rows: int) -> I64:
    """int64[n]; -1 where the file holds 2^63 or more."""
    if values is None:
        fixed = 1 if spec.attr.flags & AttrFlag.FREQ else spec.attr.sample_period
        return np.full(rows, min(fixed, 2**62), np.int64)
    return np.maximum(values.astype(np.int64), -1)
