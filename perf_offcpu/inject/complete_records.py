# SPDX-License-Identifier: Apache-2.0
"""Completing samples in the file: a deferred user callchain goes into the sample that it belongs to.

The matching is that of `decode.deferred`; here the record itself is rewritten. A marker USER and the user
addresses take the place of the deferred marker and the cookie. Samples whose part never came lose both, and
keep their kernel part.
"""

from __future__ import annotations

import numpy as np

from perf_offcpu import losses
from perf_offcpu.binary.columnar import Columns
from perf_offcpu.binary.gather import Rows, gather_rows
from perf_offcpu.binary.layout import Order
from perf_offcpu.decode.deferred import DeferredIndex, complete, wanting_of
from perf_offcpu.losses import Losses
from perf_offcpu.model.callchains import Ragged
from perf_offcpu.model.columns import I32, I64, U64, Bool
from perf_offcpu.model.recording import DeferredChains
from perf_offcpu.perfdata.scan import Chunk
from perf_offcpu.perfdata.trailers import NO_TIME
from perf_offcpu.perfdata.write.splice import Cut, Records, with_callchains

_MARKS = 2
"""Words at the end of a callchain that say whether, and for what, it waits."""


class Completer:
    """Completes samples of a recording.

    Args:
        deferred: its deferred records; `callchain` is a row of `chains`.
        order: its byte order.
        counters: where samples whose part never came are counted.
    """

    def __init__(self, deferred: DeferredChains, chains: Ragged, order: Order, counters: Losses) -> None:
        self.deferred, self.chains, self.order, self.counters = deferred, chains, order, counters
        self.index = DeferredIndex(deferred)
        self.completed = 0
        """Samples that got their user part so far."""

    def complete(self, chunk: Chunk, rows: I64, columns: Columns) -> tuple[I64, Records]:
        """Complete samples of one evsel.

        Args:
            rows: the samples' rows in the chunk; `columns` are their fields, a callchain among them.

        Returns:
            (rows, records): the samples that waited for something, and what stands for them.
        """
        found = columns.arrays["callchain"]
        skipped = np.maximum(found.counts - _MARKS, 0)
        ends = Rows(found.starts + 8 * skipped, found.counts - skipped, 8)
        wanting = wanting_of(Ragged(*gather_rows(chunk.data, ends, self.order)))
        waiting = np.flatnonzero(wanting.is_deferred & columns.ok)
        if not len(waiting):
            return rows[:0], Records()
        own = Rows(found.starts[waiting], found.counts[waiting], 8)
        heads = Ragged(*gather_rows(chunk.data, own, self.order))
        kept = (skipped + wanting.kept)[waiting]
        match = self._match(columns, waiting, wanting.cookie[waiting])
        self.completed += int((match >= 0).sum())
        self.counters.add(losses.UNMERGED, int((match < 0).sum()))
        tail = np.append(self.deferred.callchain, np.int32(-1))[match].astype(np.int64)
        records, fits = self._rewritten(chunk, rows[waiting], own, complete(heads, kept, self.chains, tail))
        if fits.all():
            return rows[waiting], records
        # Too large for a record with the user part (user stacks of 64 KB): it goes without.
        alone = complete(heads, kept, self.chains, np.full(len(waiting), -1))
        rest = Ragged.take(alone, np.flatnonzero(~fits))
        left = Rows(own.starts[~fits], own.counts[~fits], 8)
        self.counters.add(losses.UNMERGED, int((~fits).sum()))
        more, _ = self._rewritten(chunk, rows[waiting][~fits], left, rest)
        both = np.concatenate([rows[waiting][fits], rows[waiting][~fits]])
        return both, Records.concat([records, more])

    def _match(self, columns: Columns, waiting: I64, cookies: U64) -> I32:
        """int32[n]: the deferred record of each sample that waits, -1 none."""
        scalars = columns.scalars
        if "tid" not in scalars or "time" not in scalars:
            return np.full(len(waiting), -1, np.int32)
        times = scalars["time"][waiting]
        times = np.where(times < NO_TIME, times, np.uint64(0)).astype(np.int64)
        return self.index.find(scalars["tid"][waiting].view(np.int32), times, cookies)

    def _rewritten(self, chunk: Chunk, rows: I64, own: Rows, chains: Ragged) -> tuple[Records, Bool]:
        cut = Cut(own.starts - 8, own.starts + 8 * own.counts, chunk.starts[rows] + chunk.sizes[rows])
        return with_callchains(chunk, rows, cut, (chains.offsets, chains.values), self.order)
