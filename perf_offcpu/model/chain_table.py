# SPDX-License-Identifier: Apache-2.0
"""All different callchains of a recording, found one batch at a time.

A recording repeats few callchains many times: what must stay in memory is the different ones. The table finds
them by hash, and their words decide.
"""

from __future__ import annotations

import numpy as np

from perf_offcpu.model.callchains import Ragged, equal_rows, first_ones, hash_rows, unique_rows
from perf_offcpu.model.columns import I32
from perf_offcpu.model.growing import GrowingArray
from perf_offcpu.model.hash_index import HashIndex


class ChainTable:
    """Callchains, each different one once, in order of first appearance."""

    def __init__(self) -> None:
        self._values, self._offsets = GrowingArray("u8"), GrowingArray("i8")
        self._offsets.append(np.zeros(1, np.int64))
        self._index = HashIndex()
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
        """The rows of callchains; None, and nothing added, if one has the hash of another."""
        hashes, before = hash_rows(chains), len(self)
        rows = self._index.find(hashes)
        new = np.flatnonzero(rows < 0)
        if len(new):
            first, ids = first_ones(hashes[new])
            first = new[first]
            rows[new] = ids + np.int32(before)
            self._append(chains.take(first))
            fresh = np.arange(before, len(self), dtype=np.int32)
        # What is new is compared with itself, too: rows of one hash may differ.
        if equal_rows(chains, self.ragged(), rows) and (
            not len(new) or self._index.add(hashes[first], fresh)
        ):
            return rows
        self._values.cut(int(self._offsets.view()[before]))
        self._offsets.cut(before + 1)
        return None

    def _add_by_words(self, chains: Ragged) -> I32:
        """The same without hashes of ours."""
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


def united(chains: Ragged, more: Ragged) -> tuple[Ragged, I32]:
    """Each different callchain of both once, in order of first appearance: as `unique_rows` of both.

    Args:
        chains: most of them, and nearly always different; not copied if no others come.

    Returns:
        (unique, ids): ids is int32[n + m], the row in `unique` of each of `chains`, then of `more`.
    """
    hashes, rows = hash_rows(chains), np.arange(len(chains), dtype=np.int32)
    index = HashIndex()
    if len(np.unique(hashes)) < len(hashes) or not index.add(hashes, rows):
        return unique_rows(Ragged.concat([chains, more]))
    found = index.find(hash_rows(more))
    new = np.flatnonzero(found < 0)
    old = np.flatnonzero(found >= 0)
    if not equal_rows(more.take(old), chains, found[old]):
        return unique_rows(Ragged.concat([chains, more]))
    fresh, ids = unique_rows(more.take(new))
    found[new] = ids + np.int32(len(chains))
    unique = Ragged.concat([chains, fresh]) if len(new) else chains
    return unique, np.concatenate([rows, found])


def _words_of(chains: Ragged) -> list[bytes]:
    return [chains.row(row).tobytes() for row in range(len(chains))]
