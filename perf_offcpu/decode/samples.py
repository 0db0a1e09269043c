# SPDX-License-Identifier: Apache-2.0
"""Decode SAMPLE records to columns of the model, evsel by evsel, a whole chunk at a time.

u64 values of the file are checked once on their way to int64: a time of 2^63 or more is no time (upstream
writes such dummies), a period of 2^63 or more is damage.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from perf_offcpu import losses
from perf_offcpu.abi import offcpu as abi
from perf_offcpu.abi.attr import AttrFlag, PerfType, SoftwareConfig
from perf_offcpu.abi.records import Misc, RecordType
from perf_offcpu.abi.sample import SAMPLE
from perf_offcpu.binary.columnar import Columns, read_columns
from perf_offcpu.binary.fields import Order
from perf_offcpu.binary.gather import gather_bytes, gather_rows
from perf_offcpu.decode.account import CollectorAccount, is_counters
from perf_offcpu.decode.batch import Batch, in_table
from perf_offcpu.decode.retype import retype
from perf_offcpu.decode.stacks.snapshot_store import SnapshotStore, callers_of, with_callers
from perf_offcpu.decode.switches.events import SwitchDecoder
from perf_offcpu.losses import Losses
from perf_offcpu.model.callchains import Ragged
from perf_offcpu.model.chain_table import ChainTable
from perf_offcpu.model.columns import I64, U64
from perf_offcpu.model.recording import SampleFlag, Samples
from perf_offcpu.perfdata.events import Events, EventSpec
from perf_offcpu.perfdata.scan import HEADER_SIZE, Chunk

_OFFCPU_CONFIGS = (SoftwareConfig.BPF_OUTPUT, SoftwareConfig.CPU_CLOCK)


def is_offcpu(spec: EventSpec) -> bool:
    """Return whether an evsel's samples are off-cpu time.

    By perf's rule that is a bpf-output event of that name; or a cpu-clock one, which `inject` makes of it.
    """
    is_software = spec.attr.type == PerfType.SOFTWARE
    return spec.name == abi.EVENT_NAME and is_software and spec.attr.config in _OFFCPU_CONFIGS


def samples_by_event(chunk: Chunk, events: Events, counters: Losses) -> Iterator[tuple[int, I64]]:
    """Yield (evsel, rows) of the samples of a chunk; samples of unknown events are counted."""
    rows = np.flatnonzero(chunk.types == RecordType.SAMPLE)
    evsel = events.of_samples(chunk, rows)
    counters.add(losses.UNKNOWN_ID, int((evsel < 0).sum()))
    for number in np.flatnonzero(np.bincount(evsel[evsel >= 0])).tolist():
        yield number, rows[evsel == number]


def sample_columns(chunk: Chunk, rows: I64, spec: EventSpec, order: Order) -> Columns:
    """Read the fields of samples of one evsel."""
    starts = chunk.starts[rows]
    ends = starts + chunk.sizes[rows]
    return read_columns(SAMPLE, chunk.data, starts + HEADER_SIZE, ends, order, spec.shape)


class SampleDecoder:
    """Decodes the samples of a recording, chunk by chunk.

    Args:
        counters: where samples that cannot be decoded are counted.
        account: gets the samples with the collector's own counters, which are no samples of the machine.
        switches: finds context switches in samples; None leaves them.
        snapshots: gets copies of user stacks; None leaves them.
        chains: gets callchains, and samples refer to its rows; None if each batch has its own.
    """

    def __init__(
        self,
        events: Events,
        counters: Losses,
        account: CollectorAccount,
        switches: SwitchDecoder | None = None,
        snapshots: SnapshotStore | None = None,
        chains: ChainTable | None = None,
    ) -> None:
        self.events, self.counters, self.account = events, counters, account
        self.switches, self.snapshots, self.chains = switches, snapshots, chains

    def decode_parts(self, chunk: Chunk) -> tuple[list[I64], list[Batch]]:
        """Return the rows of samples of a chunk, evsel by evsel, and the samples."""
        places: list[I64] = []
        parts: list[Batch] = []
        for number, rows in samples_by_event(chunk, self.events, self.counters):
            place, part = self._decode_evsel(chunk, rows, number)
            places.append(place)
            # Callchains of one evsel have few lengths: now they are found fastest.
            parts.append(part if self.chains is None else in_table(part, self.chains))
        return places, parts

    def decode_account(self, chunk: Chunk) -> None:
        """Read the collector's own counters only."""
        for number, rows in samples_by_event(chunk, self.events, Losses()):
            if is_counters(self.events.specs[number]):
                self._decode_evsel(chunk, rows, number)

    def _decode_evsel(self, chunk: Chunk, rows: I64, number: int) -> tuple[I64, Batch]:
        spec, order = self.events.specs[number], self.events.order
        columns = sample_columns(chunk, rows, spec, order)
        if is_counters(spec):
            return self._take_account(chunk, columns)
        samples = model_samples(columns, spec, number, chunk.miscs[rows])
        columns.ok &= samples.period >= 0
        self.counters.add(losses.BAD_SAMPLE, int((~columns.ok).sum()))
        ok = columns.ok
        own = columns.arrays.get("callchain")
        chains = None if own is None else Ragged(*gather_rows(chunk.data, own, order))
        if is_offcpu(spec) and "raw" in columns.arrays:
            batch, ok = retype(chunk.data, columns, samples, order, self.counters)
            if spec.attr.config == SoftwareConfig.CPU_CLOCK:
                _keep_injected(batch, samples, chains)
        else:
            batch = Batch(samples, Ragged(), np.zeros(len(rows), np.bool_))
            if chains is not None:
                batch.callchains, samples.callchain = chains, np.arange(len(rows), dtype=np.int32)
        if self.switches is not None:
            batch.switches = self.switches.of_samples(chunk.data, columns, ok, batch.samples, self.events, number)
        if self.snapshots is not None:
            mask = spec.attr.sample_regs_user
            snapshot = self.snapshots.add(chunk, columns, mask, ok, order)
            if is_offcpu(spec):
                callers = np.where(ok, callers_of(chunk.data, columns, order), np.uint64(0))
                snapshot = with_callers(snapshot, callers, self.snapshots.callers)
            batch.samples.snapshot = snapshot
        if not ok.all():
            batch.samples, batch.from_upstream = batch.samples.take(ok), batch.from_upstream[ok]
        return rows[ok], batch

    def _take_account(self, chunk: Chunk, columns: Columns) -> tuple[I64, Batch]:
        if "raw" in columns.arrays:
            offsets, data = gather_bytes(chunk.data, columns.arrays["raw"])
            pieces = (data[low:high].tobytes() for low, high in pairwise(offsets.tolist()))
            self.account.take(pieces, self.events.order, self.counters)
        return np.empty(0, np.int64), Batch()


def _keep_injected(batch: Batch, samples: Samples, chains: Ragged | None) -> None:
    """Take over what `inject` wrote into the fields of samples that it re-typed.

    The sample was not in BPF but where the sleeper was, and its callchain may have been unwound since.
    """
    batch.samples.ip, batch.samples.cpumode = samples.ip, samples.cpumode
    if chains is not None:
        wakers = np.arange(len(samples), len(batch.callchains))
        batch.callchains = Ragged.concat([chains, batch.callchains.take(wakers)])


def ranks(places: list[I64]) -> list[I64]:
    """Convert row numbers, of which no two are the same, to dense ranks."""
    if len(places) < 2:
        return [np.arange(len(place)) for place in places]
    rank = np.zeros(max(int(place[-1]) if len(place) else 0 for place in places) + 1, np.int64)
    for place in places:
        rank[place] = 1
    rank = np.cumsum(rank) - 1
    return [rank[place] for place in places]


def model_samples(columns: Columns, spec: EventSpec, number: int, miscs: NDArray[np.uint16]) -> Samples:
    """Return the model's rows of n samples of one evsel, without callchains; damaged periods are -1.

    Args:
        number: the evsel's row.
        miscs: of the records' headers.
    """
    scalars = columns.scalars
    rows = len(columns.ok)
    time_ns, untimed = _times(scalars.get("time"), rows)
    # perf 5.19 to 6.15, and re-typed files: an ordinary sample whose period is the time off cpu.
    all_flags = SampleFlag.OFFCPU if is_offcpu(spec) else SampleFlag(0)
    flags = np.full(rows, all_flags, np.uint32)
    if untimed.any():
        flags[untimed] |= np.uint32(SampleFlag.UNTIMED | (SampleFlag.AGGREGATED if all_flags else 0))
    # 2^32 - 1, the kernel's "none", becomes -1.
    ids = {name: scalars[name].view(np.int32) for name in ("pid", "tid", "cpu") if name in scalars}
    if "period" in scalars:
        period = np.maximum(scalars["period"].astype(np.int64), -1)
    else:
        fixed = 1 if spec.attr.flags & AttrFlag.FREQ else spec.attr.sample_period
        period = np.full(rows, min(fixed, 2**62), np.int64)
    return Samples.sparse(
        rows,
        time_ns=time_ns,
        evsel=number,
        **ids,
        ip=scalars.get("ip"),
        period=period,
        cpumode=miscs & np.uint16(Misc.CPUMODE_MASK),
        cgroup=scalars.get("cgroup"),
        flags=flags,
    )


def _times(values: U64 | None, rows: int) -> tuple[I64, NDArray[np.bool_]]:
    """Return (time_ns, untimed): dummies of 2^63 or more are no time."""
    if values is None:
        return np.full(rows, -1, np.int64), np.zeros(rows, np.bool_)
    times = values.astype(np.int64)
    dummy = times < 0
    times[dummy] = -1
    return times, dummy
