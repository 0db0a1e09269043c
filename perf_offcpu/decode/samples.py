# SPDX-License-Identifier: Apache-2.0
"""Decode SAMPLE records to columns of the model, evsel by evsel, a whole chunk at a time. u64 values of the file are
checked once on their way to int64: a time of 2^63 or more is none (upstream writes such), such a period is damage."""

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from perf_offcpu import losses
from perf_offcpu.abi import offcpu as abi
from perf_offcpu.abi.attr import AttrFlag, PerfType, SoftwareConfig
from perf_offcpu.abi.records import Misc, RecordType
from perf_offcpu.abi.sample import SAMPLE
from perf_offcpu.binary.columnar import Columns, gather_bytes, gather_rows, read_columns
from perf_offcpu.binary.layout import Order
from perf_offcpu.decode.account import CollectorAccount, is_counters
from perf_offcpu.decode.batch import Batch, in_table
from perf_offcpu.decode.retype import retype
from perf_offcpu.decode.snapshot_store import SnapshotStore, callers_of, with_callers
from perf_offcpu.decode.switches.events import SwitchDecoder
from perf_offcpu.losses import Losses
from perf_offcpu.model.callchains import Ragged
from perf_offcpu.model.chain_table import ChainTable
from perf_offcpu.model.columns import I64, Bool
from perf_offcpu.model.recording import SampleFlag, Samples
from perf_offcpu.perfdata.events import Events, EventSpec
from perf_offcpu.perfdata.scan import HEADER_SIZE, Chunk
from perf_offcpu.structs import mutable

_OFFCPU_CONFIGS = (SoftwareConfig.BPF_OUTPUT, SoftwareConfig.CPU_CLOCK)


def is_offcpu(spec: EventSpec) -> bool:
    """Return True if an evsel's samples are off-cpu time: by perf's rule, if it is a bpf-output event named
    `offcpu-time`; or if it is a cpu-clock event of this name, which `inject` makes of the bpf-output event."""
    is_software = spec.attr.type == PerfType.SOFTWARE
    return spec.name == abi.EVENT_NAME and is_software and spec.attr.config in _OFFCPU_CONFIGS


def is_python(spec: EventSpec) -> bool:
    """Return True if an evsel's samples hold the Python functions of on-CPU samples (`offcpu-python`)."""
    return spec.name == abi.PYTHON_EVENT and spec.attr.config == SoftwareConfig.BPF_OUTPUT


def samples_by_event(chunk: Chunk, events: Events, counters: Losses) -> Iterator[tuple[int, I64]]:
    """Yield (evsel, int64[n]: chunk rows of its samples) for each evsel with samples; count those of unknown events."""
    rows = np.flatnonzero(chunk.types == RecordType.SAMPLE)
    evsel = events.of_samples(chunk, rows)
    counters.add(losses.UNKNOWN_ID, int((evsel < 0).sum()))
    for number in np.flatnonzero(np.bincount(evsel[evsel >= 0])).tolist():
        yield number, rows[evsel == number]


def sample_columns(chunk: Chunk, rows: I64, spec: EventSpec, order: Order) -> Columns:
    """Read the fields of SAMPLE records of one evsel (`rows` of the chunk) as columns of n values each."""
    starts = chunk.starts[rows]
    return read_columns(SAMPLE, chunk.data, starts + HEADER_SIZE, starts + chunk.sizes[rows], order, spec.shape)


@mutable
class SampleDecoder:
    """Decodes the samples of a recording, chunk by chunk."""

    counters: Losses  # where samples that cannot be decoded are counted
    account: CollectorAccount  # gets the samples with the collector's own counters
    chains: ChainTable  # gets all callchains; `callchain` of the samples are its rows
    switches: SwitchDecoder | None = None  # finds context switches, until there is an off-cpu event
    snapshots: SnapshotStore | None = None  # gets copies of user stacks

    def decode(self, chunk: Chunk, events: Events) -> tuple[list[I64], list[Batch]]:
        """Decode a chunk's samples; add those of `offcpu-counters` and `offcpu-task` to `account`. Returns (rows,
        batches), an entry for each other evsel with samples: chunk rows of its sound samples (int64[n], ascending), and
        their Batch. While switches are decoded, a last entry without rows has the SWITCH records."""
        switches = None if any(map(is_offcpu, events.specs)) else self.switches
        rows_of_parts, parts = list[I64](), list[Batch]()
        for number, rows in samples_by_event(chunk, events, self.counters):
            columns = sample_columns(chunk, rows, events.specs[number], events.order)
            if is_counters(events.specs[number]):
                _take_account(chunk, columns, self.account, events.order, self.counters)
                continue
            sound, part = self._of_evsel(chunk, rows, columns, events, number)
            if switches is not None:
                part.switches = switches.of_samples(chunk.data, columns, sound, part.samples, events, number)
            if not sound.all():
                part.samples, part.from_upstream = part.samples.take(sound), part.from_upstream[sound]
            rows_of_parts.append(rows[sound])
            # Callchains of one evsel have few lengths: now they are found fastest.
            parts.append(in_table(part, self.chains))
        if switches is not None:
            rows_of_parts.append(np.empty(0, np.int64))
            parts.append(Batch(switches=switches.of_records(chunk, events)))
        return rows_of_parts, parts

    def _of_evsel(self, chunk: Chunk, rows: I64, columns: Columns, events: Events, number: int) -> tuple[Bool, Batch]:
        """Decode n samples (`rows` of the chunk, their fields `columns`) of evsel `number`. Returns (bool[n]: False for
        a damaged sample; batch of all n samples, in this order)."""
        spec, order = events.specs[number], events.order
        samples = model_samples(columns, spec, number, chunk.miscs[rows])
        columns.ok &= samples.period >= 0
        self.counters.add(losses.BAD_SAMPLE, int((~columns.ok).sum()))
        ok = columns.ok
        own = columns.arrays.get("callchain")
        chains = None if own is None else Ragged(*gather_rows(chunk.data, own, order))
        if (is_offcpu(spec) or is_python(spec)) and "raw" in columns.arrays:
            batch, ok = retype(chunk.data, columns, samples, order, self.counters)
            if spec.attr.config == SoftwareConfig.CPU_CLOCK:
                # `inject` has re-typed it: the sample was not in BPF but where the sleeper was, and its callchain
                # may have been unwound since.
                batch.samples.ip, batch.samples.cpumode = samples.ip, samples.cpumode
                if chains is not None:
                    wakers = batch.callchains.take(np.arange(len(samples), len(batch.callchains)))  # and Python
                    batch.callchains = Ragged.concat([chains, wakers])
        else:
            batch = Batch(samples, Ragged(), np.zeros(len(rows), np.bool_))
            if chains is not None:
                batch.callchains, samples.callchain = chains, np.arange(len(rows), dtype=np.int32)
        if self.snapshots is not None:
            snapshot = self.snapshots.add(chunk, columns, spec.attr.sample_regs_user, ok, order)
            if is_offcpu(spec):
                callers = np.where(ok, callers_of(chunk.data, columns, order), np.uint64(0))
                snapshot = with_callers(snapshot, callers, self.snapshots.callers)
            batch.samples.snapshot = snapshot
        return ok, batch


def read_account(chunk: Chunk, events: Events, account: CollectorAccount) -> None:
    """Add the `offcpu-counters` and `offcpu-task` samples of a chunk to `account`, no others; damage is not counted."""
    for number, rows in samples_by_event(chunk, events, Losses()):
        if is_counters(events.specs[number]):
            columns = sample_columns(chunk, rows, events.specs[number], events.order)
            _take_account(chunk, columns, account, events.order, Losses())


def _take_account(chunk: Chunk, columns: Columns, account: CollectorAccount, order: Order, counters: Losses) -> None:
    if "raw" in columns.arrays:
        offsets, data = gather_bytes(chunk.data, columns.arrays["raw"])
        account.take((data[low:high].tobytes() for low, high in pairwise(offsets.tolist())), order, counters)


def model_samples(columns: Columns, spec: EventSpec, number: int, miscs: NDArray[np.uint16]) -> Samples:
    """Convert fields of n SAMPLE records of evsel `number` to Samples, without callchains; damaged periods are -1."""
    scalars, rows = columns.scalars, len(columns.ok)
    time_ns = scalars["time"].astype(np.int64) if "time" in scalars else np.full(rows, -1, np.int64)
    untimed = (time_ns < 0) & ("time" in scalars)
    time_ns[untimed] = -1
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
