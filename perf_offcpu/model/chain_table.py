# SPDX-License-Identifier: Apache-2.0
"""Collect the different callchains of a recording, batch by batch.

A recording repeats few callchains many times, so only the different ones stay in memory. They are found by
hash, and compared word by word.
"""

from __future__ import annotations

import numpy as np

from perf_offcpu.model.callchains import Ragged, equal_rows, first_of_each, hash_rows
from perf_offcpu.model.columns import I32
from perf_offcpu.model.growing import GrowingArray
from perf_offcpu.model.hash_index import HashIndex


class ChainTable:
    """Different callchains in order of first appearance."""

    def __init__(self) -> None:
        self._values, self._offsets = GrowingArray("u8"), GrowingArray("i8")
        self._offsets.append(np.zeros(1, np.int64))
        self._index = HashIndex()
        self._by_words: dict[bytes, int] | None = None
        """Words of each row; used from the first collision of hashes on, by accident one in 2^64, or made."""

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def add(self, chains: Ragged) -> I32:
        """Add n callchains and return the row of each: int32[n]."""
        rows = self._add_by_hash(chains) if self._by_words is None else None
        return self._add_by_words(chains) if rows is None else rows

    def ragged(self) -> Ragged:
        """Return the callchains so far, not copied: the table cannot grow while they are in use."""
        return Ragged(self._offsets.view(), self._values.view())

    def release(self) -> Ragged:
        """Return the callchains, not copied, and leave the table empty."""
        return Ragged(self._offsets.release(), self._values.release())

    def _add_by_hash(self, chains: Ragged) -> I32 | None:
        """Return the rows of callchains; None, and add nothing, if two have the same hash."""
        hashes, before = hash_rows(chains), len(self)
        rows = self._index.find(hashes)
        new = np.flatnonzero(rows < 0)
        if len(new):
            first, ids = first_of_each(hashes[new])
            first = new[first]
            rows[new] = ids + np.int32(before)
            self._append(chains.take(first))
            fresh = np.arange(before, len(self), dtype=np.int32)
        # New rows are compared, too: two of them may have the same hash.
        if equal_rows(chains, self.ragged(), rows) and (
            not len(new) or self._index.add(hashes[first], fresh)
        ):
            return rows
        self._values.cut(int(self._offsets.view()[before]))
        self._offsets.cut(before + 1)
        return None

    def _add_by_words(self, chains: Ragged) -> I32:
        """Return the rows of callchains, found by Python's own hashes of their bytes."""
        if self._by_words is None:
            self._by_words = {words: row for row, words in enumerate(_words_of(self.ragged()))}
        before = len(self._by_words)
        rows = np.array(
            [self._by_words.setdefault(words, len(self._by_words)) for words in _words_of(chains)], np.int32
        )
        new = np.unique(rows, return_index=True)[1]
        self._append(chains.take(new[rows[new] >= before]))
        return rows

    def _append(self, chains: Ragged) -> None:
        self._offsets.append(chains.offsets[1:] + len(self._values))
        self._values.append(chains.values)


def _words_of(chains: Ragged) -> list[bytes]:
    return [chains.row(row).tobytes() for row in range(len(chains))]
