# SPDX-License-Identifier: Apache-2.0
"""Insert samples by their time: sums that had no time of their own, and waits that are added.

perf sorts as it reads: at each FINISHED_ROUND it delivers all that is not later than the highest time before
the last one, and warns of earlier records that follow. So a sum goes before the first FINISHED_ROUND with a
time before it that is not lower than its own.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from perf_offcpu.abi.records import RecordType
from perf_offcpu.model.columns import I64
from perf_offcpu.perfdata.events import Events
from perf_offcpu.perfdata.scan import Chunk
from perf_offcpu.perfdata.trailers import record_times
from perf_offcpu.perfdata.write.weave import woven


class TimedSamples:
    """Samples with their times, inserted chunk by chunk where these lie.

    Args:
        parts: (times int64[n] ns, samples) each.
        events: of the recording that they are inserted into.
    """

    def __init__(self, parts: Iterable[tuple[I64, Chunk]], events: Events) -> None:
        self.events, whole = events, [part for part in parts if len(part[0])]
        self._times = np.sort(np.concatenate([np.empty(0, np.int64), *(times for times, _ in whole)]))
        self._samples = woven(whole) if whole else None
        self._done = self._highest = 0

    def span(self, first_ns: int, last_ns: int) -> tuple[int, int]:
        """Return the times of the first and last sample, of these and others together; -1 without any."""
        times = [*self._times[:1].tolist(), *self._times[-1:].tolist(), first_ns, last_ns]
        known = [time for time in times if time >= 0]
        return min(known, default=-1), max(known, default=-1)

    def inserted(self, chunk: Chunk) -> Chunk:
        """Return the chunk with the samples that have to stand before one of its FINISHED_ROUNDs."""
        if self._samples is None or self._done == len(self._times):
            return chunk
        rounds = np.flatnonzero(chunk.types == RecordType.FINISHED_ROUND)
        highest = np.maximum.accumulate(np.maximum(record_times(chunk, self.events), self._highest))
        self._highest = int(highest[-1])
        upto = np.maximum(np.searchsorted(self._times, highest[rounds], side="right"), self._done)
        due = np.arange(self._done, int(upto[-1]) if len(rounds) else self._done)
        if not len(due):
            return chunk
        self._done += len(due)
        places = rounds[np.searchsorted(upto, due, side="right")]
        return woven([(places, self._samples.take(due)), (np.arange(len(chunk)), chunk)])

    def rest(self) -> list[Chunk]:
        """Return the samples that no FINISHED_ROUND followed."""
        return [self._samples.take(slice(self._done, None))] if self._samples is not None else []
