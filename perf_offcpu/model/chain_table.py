# SPDX-License-Identifier: Apache-2.0
"""All different callchains of a recording, found one batch at a time.

A recording repeats few callchains many times: what must stay in memory is the different ones. The table knows
them by hash (two sorted runs, a short one that new hashes go to and a long one that it joins now and then, so
that each hash is moved few times) and by their words, which decide.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from perf_offcpu.model.callchains import Ragged, equal_rows, hash_rows, unique_rows
from perf_offcpu.model.columns import I32, U64
from perf_offcpu.model.growing import GrowingArray

_SHORT = 1 << 16


@dataclass(slots=True)
class _Run:
    """Sorted hashes and the rows that they belong to."""

    hashes: U64 = field(default_factory=lambda: np.empty(0, np.uint64))
    rows: I32 = field(default_factory=lambda: np.empty(0, np.int32))

    def find(self, hashes: U64) -> I32:
        """int32[n]: the row of each hash, -1 if it is not here."""
        if not len(self.hashes):
            return np.full(len(hashes), -1, np.int32)
        slot = np.minimum(np.searchsorted(self.hashes, hashes), len(self.hashes) - 1)
        return np.where(self.hashes[slot] == hashes, self.rows[slot], np.int32(-1)).astype(np.int32)

    def joined(self, other: _Run) -> _Run:
        """Both runs as one; `other` is the shorter one."""
        places = np.searchsorted(self.hashes, other.hashes) + np.arange(len(other.hashes))
        mine = np.ones(len(self.hashes) + len(places), np.bool_)
        mine[places] = False
        joined = _Run(np.empty(len(mine), np.uint64), np.empty(len(mine), np.int32))
        for run, which in ((self, mine), (other, places)):
            joined.hashes[which], joined.rows[which] = run.hashes, run.rows
        return joined


class ChainTable:
    """Callchains, each different one once, in order of first appearance."""

    def __init__(self) -> None:
        self._values, self._offsets = GrowingArray("u8"), GrowingArray("i8")
        self._offsets.append(np.zeros(1, np.int64))
        self._long, self._short = _Run(), _Run()
        self._by_words: dict[bytes, int] | None = None
        """Used from the first collision of hashes on: made by accident once in 2^64, or on purpose."""

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def add(self, chains: Ragged) -> I32:
        """Take n callchains up.

        Returns:
            int32[n]: the row of each.
        """
        rows = self._add_by_hash(chains) if self._by_words is None else None
        return self._add_by_words(chains) if rows is None else rows

    def ragged(self) -> Ragged:
        """The callchains so far, not copied: the table cannot grow while this is in use."""
        return Ragged(self._offsets.view(), self._values.view())

    def release(self) -> Ragged:
        """The callchains so far, not copied and no longer held here. The table is used up."""
        return Ragged(self._offsets.release(), self._values.release())

    def _add_by_hash(self, chains: Ragged) -> I32 | None:
        """The rows of callchains; None if one has the hash of another."""
        hashes = hash_rows(chains)
        rows = self._find(hashes)
        known, new = np.flatnonzero(rows >= 0), np.flatnonzero(rows < 0)
        seen = chains.take(known) if len(new) else chains
        if not equal_rows(seen, self.ragged(), rows[known].astype(np.int64)):
            return None
        if not len(new):
            return rows
        unique, ids = unique_rows(chains.take(new), hashes[new])
        first = np.empty(len(unique), np.int64)
        first[ids[::-1]] = new[::-1]
        fresh = hashes[first]
        order = np.argsort(fresh)
        fresh = fresh[order]
        if bool((fresh[1:] == fresh[:-1]).any()):
            return None
        rows[new] = ids + len(self)
        self._remember(_Run(fresh, (order + len(self)).astype(np.int32)))
        self._append(unique)
        return rows

    def _find(self, hashes: U64) -> I32:
        """int32[n]: the row of each hash, -1 if it is not here."""
        order = np.argsort(hashes)  # to look for what is sorted leads through memory one way
        ascending = hashes[order]
        rows = np.empty(len(hashes), np.int32)
        rows[order] = np.maximum(self._long.find(ascending), self._short.find(ascending))
        return rows

    def _add_by_words(self, chains: Ragged) -> I32:
        """The same without hashes of ours."""
        if self._by_words is None:
            self._by_words = {words: row for row, words in enumerate(_words_of(self.ragged()))}
        before = len(self._by_words)
        rows = np.array(
            [self._by_words.setdefault(words, len(self._by_words)) for words in _words_of(chains)], np.int32
        )
        self._append(chains.take(np.flatnonzero(rows >= before)))
        return rows

    def _append(self, chains: Ragged) -> None:
        self._offsets.append(chains.offsets[1:] + len(self._values))
        self._values.append(chains.values)

    def _remember(self, run: _Run) -> None:
        self._short = self._short.joined(run)
        if len(self._short.rows) > max(_SHORT, len(self._long.rows) // 4):
            self._long, self._short = self._long.joined(self._short), _Run()


def _words_of(chains: Ragged) -> list[bytes]:
    return [chains.row(row).tobytes() for row in range(len(chains))]
