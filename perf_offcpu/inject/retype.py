# SPDX-License-Identifier: Apache-2.0
"""Stage: raw `offcpu-time` samples become samples that any perf shows.

They get a callchain, and pid, tid, period, ip and cgroup of the payload. The payload stays (`payload_words`),
for what perf has no fields for. So that no perf takes the samples for raw ones, and none prints the payload
as text, the event becomes a cpu-clock by type; its name says what it is.

Sums of perf 6.16 on carry a dummy time, with which perf sorts them after the end of their threads and then
shows neither comm nor symbols. They get the last moment at which their thread lived, marked as a guess.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from perf_offcpu.abi.attr import SampleType, SoftwareConfig
from perf_offcpu.decode.retype import retype
from perf_offcpu.decode.samples import is_offcpu
from perf_offcpu.decode.swapped_ids import repair_ids
from perf_offcpu.inject.payload_words import made_extensions, recorded_extensions
from perf_offcpu.inject.samples import SampleBatch
from perf_offcpu.losses import Losses
from perf_offcpu.model.callchains import Ragged
from perf_offcpu.model.columns import I32, I64
from perf_offcpu.model.recording import Tasks
from perf_offcpu.perfdata.events import EventSpec

_NEEDED = SampleType.IP | SampleType.TID | SampleType.TIME | SampleType.PERIOD | SampleType.RAW


def is_raw_offcpu(spec: EventSpec) -> bool:
    """Return whether an evsel's samples are raw off-cpu samples that can become ordinary ones."""
    raw = spec.attr.config == SoftwareConfig.BPF_OUTPUT and spec.attr.sample_type & _NEEDED == _NEEDED
    return raw and is_offcpu(spec)


def retyped(spec: EventSpec) -> EventSpec:
    """Return the evsel of re-typed samples of a raw one."""
    kind = spec.attr.sample_type | SampleType.CALLCHAIN | SampleType.CGROUP
    return replace(spec, attr=replace(spec.attr, config=SoftwareConfig.CPU_CLOCK, sample_type=kind))


class Retyper:
    """Re-types samples of a recording.

    Args:
        tasks: its threads.
        end_ns: its last moment.
        counters: where damaged payloads are counted.

    Attributes:
        done: samples that were re-typed so far.
    """

    def __init__(self, tasks: Tasks, end_ns: int, counters: Losses) -> None:
        self.tasks, self.end_ns, self.counters = tasks, end_ns, counters
        self.done = 0

    def __call__(self, batch: SampleBatch) -> SampleBatch:
        """Re-type a batch of raw samples; other off-cpu samples only get a time if they have none."""
        if not is_offcpu(batch.spec):
            return batch
        if is_raw_offcpu(batch.spec):
            batch = self._retyped(batch)
        samples = batch.samples
        untimed = samples.time_ns < 0
        if untimed.any():
            samples.time_ns = np.where(untimed, self._last_moment(samples.tid), samples.time_ns)
            batch.columns.scalars["time"] = samples.time_ns.view(np.uint64)
        return batch

    def _retyped(self, batch: SampleBatch) -> SampleBatch:
        data, columns = batch.chunk.data, batch.columns
        found, valid = retype(data, columns, batch.samples, batch.order, self.counters)
        samples = repair_ids(found.samples, found.from_upstream, self.tasks)
        chains = found.callchains.take(samples.callchain)
        # Of upstream's samples only sums have something to say in an extension.
        sums = found.from_upstream & (samples.time_ns < 0)
        nr = np.where(found.from_upstream, -1, chains.lengths)
        extensions = recorded_extensions(data, columns.arrays["raw"], nr, batch.order)
        if sums.any():
            no_wakers = Ragged(np.zeros(int(sums.sum()) + 1, np.int64))
            made = made_extensions(samples.take(sums), no_wakers, batch.order)
            row = np.arange(len(samples))
            row[sums] = len(samples) + np.arange(len(made))
            extensions = Ragged.concat([extensions, made]).take(row)
        scalars = columns.scalars | {
            "ip": samples.ip,
            "pid": samples.pid.view(np.uint32),
            "tid": samples.tid.view(np.uint32),
            "period": samples.period.view(np.uint64),
            "cgroup": samples.cgroup,
        }
        batch = replace(
            batch,
            miscs=samples.cpumode.astype(np.uint16),
            columns=replace(columns, scalars=scalars),
            samples=samples,
            chains=chains,
            extensions=extensions,
        ).take(valid)
        self.done += len(batch)
        return batch

    def _last_moment(self, tids: I32) -> I64:
        """Return int64[n]: the last moment at which perf still knows each thread, ns."""
        tasks = self.tasks
        if not len(tasks):
            return np.full(len(tids), self.end_ns, np.int64)
        slot = np.maximum(np.searchsorted(tasks.tid, tids, side="right") - 1, 0)
        exited = (tasks.tid[slot] == tids) & (tasks.end_ns[slot] > 0)
        return np.where(exited, np.maximum(tasks.begin_ns[slot], tasks.end_ns[slot] - 1), self.end_ns)
