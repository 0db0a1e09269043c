# SPDX-License-Identifier: Apache-2.0
"""Batches: decoded samples of one chunk, before they join the Recording. Memory is bounded by the columns that result,
not by the file that is read: a `BatchCollector` takes batch after batch, and keeps each distinct callchain once
(a recording has few distinct callchains, repeated many times)."""

import functools
from dataclasses import field, replace

import numpy as np

from perf_offcpu.decode.switches.events import Switches
from perf_offcpu.model.callchains import Ragged
from perf_offcpu.model.chain_table import ChainTable
from perf_offcpu.model.columns import I32, I64, Bool
from perf_offcpu.model.growing import GrowingArray, GrowingTable
from perf_offcpu.model.recording import DeferredChains, Samples
from perf_offcpu.structs import mutable


@mutable
class Batch:
    """Holds samples in file order, with the callchains, deferred callchains and context switches of their chunk."""

    samples: Samples = field(default_factory=Samples)  # without comm and space
    # raw words, of which the `callchain` of all tables are rows; empty if these are rows of a `ChainTable` (`in_table`)
    callchains: Ragged = field(default_factory=Ragged)
    # bool[n]: raw samples of upstream perf, whose pid and tid may have to be exchanged (`retype.repair_ids`)
    from_upstream: Bool = field(default_factory=lambda: np.empty(0, np.bool_))
    deferred: DeferredChains = field(default_factory=DeferredChains)
    switches: Switches = field(default_factory=Switches)


def in_table(batch: Batch, table: ChainTable) -> Batch:
    """Return the batch with its callchains moved into `table`; its `callchain` columns are rows of the table then."""
    if not len(batch.callchains):
        return batch
    # Of batches, `python` is a row of the callchains, too: places are not known yet.
    changes = dict.fromkeys(("callchains", "places"), functools.partial(_renumbered, table.add(batch.callchains)))
    return replace(
        batch,
        samples=batch.samples.renumbered(changes),
        callchains=Ragged(),
        deferred=batch.deferred.renumbered(changes),
        switches=batch.switches.renumbered(changes),
    )


def _renumbered(rows: I32, column: I32) -> I32:
    """Return the column with each row id replaced by rows[id]; -1 stays."""
    is_row = column >= 0
    if is_row.all():
        return rows[column]
    if not is_row.any():
        return column  # of a sparse table: it takes no memory
    renumbered = column.copy()
    renumbered[is_row] = rows[column[is_row]]
    return renumbered


class BatchCollector:
    """Appends batch after batch to the columns of a Recording, and keeps each distinct callchain once."""

    def __init__(self) -> None:
        self._samples, self._deferred = GrowingTable(Samples), GrowingTable(DeferredChains)
        self._switches, self._from_upstream = GrowingTable(Switches), GrowingArray("?")
        self.chains = ChainTable()  # distinct callchains; what `callchain` of an `in_table` batch is a row of

    def add(self, batch: Batch) -> None:
        """Append the samples, deferred callchains and switches of a batch."""
        self.add_interleaved([batch], [np.arange(len(batch.samples))])

    def add_interleaved(self, batches: list[Batch], rows: list[I64]) -> None:
        """Append the batches of one chunk, their samples in the order of the chunk: `rows` has for each batch the chunk
        rows of its samples, int64[n], ascending. Deferred callchains and switches are appended batch by batch."""
        batches, places = [in_table(batch, self.chains) for batch in batches], _ranks(rows)
        self._samples.interleave([batch.samples for batch in batches], places)
        if count := sum(map(len, places)):
            from_upstream = self._from_upstream.extend(count)
            for batch, place in zip(batches, places, strict=True):
                from_upstream[place] = batch.from_upstream
        for batch in batches:
            self._deferred.append(batch.deferred)
            self._switches.append(batch.switches)

    def release(self) -> Batch:
        """Return all batches joined, in order, with distinct callchains; the collector is then empty."""
        samples, chains, from_upstream = self._samples.release(), self.chains.release(), self._from_upstream.release()
        return Batch(samples, chains, from_upstream, self._deferred.release(), self._switches.release())


def _ranks(rows: list[I64]) -> list[I64]:
    """Convert row numbers (ascending in each part, no row twice) to ranks 0 … n - 1 among the rows of all parts."""
    if len(rows) < 2:
        return [np.arange(len(part)) for part in rows]
    is_row = np.zeros(max(int(part[-1]) if len(part) else 0 for part in rows) + 1, np.int64)
    for part in rows:
        is_row[part] = 1
    rank = np.cumsum(is_row) - 1
    return [rank[part] for part in rows]
