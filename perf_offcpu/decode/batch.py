# SPDX-License-Identifier: Apache-2.0
"""A batch: the samples of one chunk, decoded, before they join the Recording.

Memory stays bounded by the columns that come out, not by the file that goes in: a `Gathering` takes batch
after batch, and what it keeps of the callchains, few of which are repeated many times, is the different ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import field, replace
from typing import TypeVar

import numpy as np

from perf_offcpu.decode.switches.table import Switches
from perf_offcpu.model.callchains import Ragged
from perf_offcpu.model.chain_table import ChainTable
from perf_offcpu.model.columns import I32, I64, Bool
from perf_offcpu.model.growing import GrowingArray, GrowingTable
from perf_offcpu.model.recording import DeferredChains, Samples
from perf_offcpu.structs import mutable


@mutable
class Batch:
    """Samples in file order.

    Args:
        samples: `callchain` is a row of `callchains`; `comm` and `space` are not known yet.
        callchains: raw words; empty if all rows are those of a table that the decoder was given.
        from_upstream: bool[n], raw off-cpu samples of upstream perf, whose pid and tid may have to be
            exchanged once all tasks are known (`decode.swapped_ids`).
        deferred: user callchains that were sent later than the samples that they belong to; their
            `callchain` is a row of `callchains`, too.
        switches: context switches, to make waits of; their `callchain` likewise.
    """

    samples: Samples = field(default_factory=Samples)
    callchains: Ragged = field(default_factory=Ragged)
    from_upstream: Bool = field(default_factory=lambda: np.empty(0, np.bool_))
    deferred: DeferredChains = field(default_factory=DeferredChains)
    switches: Switches = field(default_factory=Switches)


_Chained = TypeVar("_Chained", Samples, DeferredChains, Switches)


def _renumbered(table: _Chained, ids: I32) -> _Chained:
    """The table with its callchains' new row numbers."""
    return table.with_columns(**{name: _in_new_order(rows, ids) for name, rows in _chain_columns(table)})


def _in_new_order(rows: I32, ids: I32) -> I32:
    known = rows >= 0
    if known.all():
        return ids[rows]
    if not known.any():
        return rows
    renamed = rows.copy()
    renamed[known] = ids[rows[known]]
    return renamed


def _chain_columns(table: Samples | DeferredChains | Switches) -> Iterator[tuple[str, I32]]:
    """(name, rows) of the columns that are rows of `callchains`."""
    yield "callchain", table.callchain
    if isinstance(table, Samples):
        yield "waker_callchain", table.waker_callchain


def _shifted(table: _Chained, base: int) -> _Chained:
    if not base:
        return table
    moved = {
        name: (rows + np.where(rows >= 0, base, 0)).astype(np.int32) for name, rows in _chain_columns(table)
    }
    return table.with_columns(**moved)


def in_table(batch: Batch, table: ChainTable) -> Batch:
    """The batch with its callchains in a table, and none of its own."""
    if not len(batch.callchains):
        return batch
    return _with_chains(batch, Ragged(), table.add(batch.callchains))


def _with_chains(batch: Batch, chains: Ragged, ids: I32) -> Batch:
    """The batch with other callchains: what was row i is row `ids[i]` of them."""
    return replace(
        batch,
        samples=_renumbered(batch.samples, ids),
        callchains=chains,
        deferred=_renumbered(batch.deferred, ids),
        switches=_renumbered(batch.switches, ids),
    )


class Gathering:
    """Takes batch after batch and keeps what the Recording needs: columns and different callchains."""

    def __init__(self) -> None:
        self._samples, self._deferred = GrowingTable(Samples), GrowingTable(DeferredChains)
        self._switches = GrowingTable(Switches)
        self._from_upstream = GrowingArray("?")
        self.chains = ChainTable()
        """The callchains so far. A batch that has none of its own refers to these."""

    def add(self, batch: Batch) -> None:
        """Take a batch up."""
        batch = in_table(batch, self.chains)
        self._samples.append(batch.samples)
        self._deferred.append(batch.deferred)
        self._switches.append(batch.switches)
        self._from_upstream.append(batch.from_upstream)

    def add_all(self, batches: list[Batch], places: list[I64]) -> None:
        """Take several batches up, of which each sample has its place (int64[n], ascending, for each batch).

        All places together are 0 to the number of samples.
        """
        batches = [in_table(batch, self.chains) for batch in batches]
        self._samples.interleave([batch.samples for batch in batches], places)
        if count := sum(map(len, places)):
            from_upstream = self._from_upstream.extend(count)
            for batch, place in zip(batches, places, strict=True):
                from_upstream[place] = batch.from_upstream
        for batch in batches:
            self._deferred.append(batch.deferred)
            self._switches.append(batch.switches)

    def batch(self) -> Batch:
        """All batches as one, in order, with callchains unique over all of them. The gathering is used up."""
        return Batch(
            self._samples.release(),
            self.chains.release(),
            self._from_upstream.release(),
            self._deferred.release(),
            self._switches.release(),
        )


def join(batches: Iterable[Batch]) -> Batch:
    """All batches as one, in order, with callchains unique over all of them."""
    gathering = Gathering()
    for batch in batches:
        gathering.add(batch)
    return gathering.batch()


def interleave(batches: list[Batch], places: list[I64]) -> Batch:
    """All batches as one, each sample at its place (int64[n], ascending, for each batch)."""
    bases = np.cumsum([0, *(len(batch.callchains) for batch in batches)]).tolist()
    pairs = list(zip(batches, bases, strict=False))
    from_upstream = np.empty(sum(map(len, places)), np.bool_)
    for batch, place in zip(batches, places, strict=True):
        from_upstream[place] = batch.from_upstream
    return Batch(
        Samples.interleaved([_shifted(batch.samples, base) for batch, base in pairs], places),
        Ragged.concat([batch.callchains for batch in batches]),
        from_upstream,
        DeferredChains.concat(_shifted(batch.deferred, base) for batch, base in pairs),
        Switches.concat(_shifted(batch.switches, base) for batch, base in pairs),
    )
