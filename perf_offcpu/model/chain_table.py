# SPDX-License-Identifier: Apache-2.0
"""Collect the distinct callchains of a recording, batch by batch.

A recording repeats few callchains many times, so only the distinct ones stay in memory. They are found by hash, and
compared word by word. The rows of many hashes are looked up at once, in an open hash table in numpy: the upper bits of
a hash, multiplied, select its first slot, the lower ones the distance to the next (double hashing: different hashes
share slots by accident only). Each step looks at all hashes that are not settled; at most half of the slots are taken,
so each step settles half of the hashes."""

import numpy as np

from perf_offcpu.model.callchains import MIX, Ragged, equal_rows, first_of_each, hash_rows
from perf_offcpu.model.columns import I32, I64, U64
from perf_offcpu.model.growing import GrowingArray

_FIRST_BITS = 10
MAX_STEPS = 100
"""Slots that are tried for one hash. One hash in 2^100 needs more by accident, but hashes may be made to collide."""


class ChainTable:
    """Collects distinct callchains; rows are in order of first appearance."""

    def __init__(self) -> None:
        self._values, self._offsets = GrowingArray("u8"), GrowingArray("i8")
        self._offsets.append(np.zeros(1, np.int64))
        self._index = HashIndex()
        self._by_words: dict[bytes, int] | None = None
        """Words of a chain → its row; None until two distinct chains have one hash, by accident or made so."""

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def add(self, chains: Ragged) -> I32:
        """Add n callchains and return the row of each: int32[n]."""
        rows = self._add_by_hash(chains) if self._by_words is None else None
        return self._add_by_words(chains) if rows is None else rows

    def ragged(self) -> Ragged:
        """Return the callchains added so far, not copied: nothing can be added while the result is in use."""
        return Ragged(self._offsets.view(), self._values.view())

    def release(self) -> Ragged:
        """Return the callchains, not copied, and leave the table empty."""
        return Ragged(self._offsets.release(), self._values.release())

    def _add_by_hash(self, chains: Ragged) -> I32 | None:
        """Return int32[n], the rows of callchains; None, and add nothing, if two distinct chains have the same hash."""
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
        if equal_rows(chains, self.ragged(), rows) and (not len(new) or self._index.add(hashes[first], fresh)):
            return rows
        self._values.cut(int(self._offsets.view()[before]))
        self._offsets.cut(before + 1)
        return None

    def _add_by_words(self, chains: Ragged) -> I32:
        """Return int32[n], the rows of callchains, by a dict of their bytes: slower, but safe from equal hashes."""
        if self._by_words is None:
            self._by_words = {words: row for row, words in enumerate(_words_of(self.ragged()))}
        before = len(self._by_words)
        row_of = self._by_words
        rows = np.array([row_of.setdefault(words, len(row_of)) for words in _words_of(chains)], np.int32)
        new = np.unique(rows, return_index=True)[1]
        self._append(chains.take(new[rows[new] >= before]))
        return rows

    def _append(self, chains: Ragged) -> None:
        self._offsets.append(chains.offsets[1:] + len(self._values))
        self._values.append(chains.values)


def _words_of(chains: Ragged) -> list[bytes]:
    return [chains.row(row).tobytes() for row in range(len(chains))]


class HashIndex:
    """Maps distinct 64-bit hashes to rows, for arrays of hashes at once (open addressing)."""

    def __init__(self) -> None:
        self._used = 0
        self._make(_FIRST_BITS)

    def _make(self, bits: int) -> None:
        self._shift, self._mask = np.uint64(64 - bits), (1 << bits) - 1
        self._hashes = np.zeros(1 << bits, np.uint64)
        self._rows = np.full(1 << bits, -1, np.int32)

    def find(self, hashes: U64) -> I32:
        """Return int32[n]: the row of each hash; -1 if the index does not have it."""
        slot = self._first_slot(hashes)
        rows = self._rows[slot]
        open_ = np.flatnonzero((self._hashes[slot] != hashes) & (rows >= 0))
        slot, hashes = slot[open_], hashes[open_]
        step = self._step(hashes)
        for _ in range(1, MAX_STEPS):
            if not len(open_):
                break
            slot = (slot + step) & self._mask
            row = self._rows[slot]
            rows[open_] = row
            left = np.flatnonzero((self._hashes[slot] != hashes) & (row >= 0))
            open_, slot, step, hashes = open_[left], slot[left], step[left], hashes[left]
        rows[open_] = -1
        return rows

    def add(self, hashes: U64, rows: I32) -> bool:
        """Add new hashes, each once, with rows. Return False, the index now broken, if MAX_STEPS find no free slot."""
        self._used += len(hashes)
        if 2 * self._used > len(self._rows):
            filled = np.flatnonzero(self._rows >= 0)
            hashes, rows = np.append(self._hashes[filled], hashes), np.append(self._rows[filled], rows)
            self._make((4 * self._used - 1).bit_length())
        return self._put(hashes, rows)

    def _put(self, hashes: U64, rows: I32) -> bool:
        slot, step = self._first_slot(hashes), self._step(hashes)
        for _ in range(MAX_STEPS):
            free = np.flatnonzero(self._rows[slot] < 0)
            self._rows[slot[free]] = rows[free]
            placed = free[self._rows[slot[free]] == rows[free]]  # of several hashes with a slot, one gets it
            self._hashes[slot[placed]] = hashes[placed]
            left = np.ones(len(slot), np.bool_)
            left[placed] = False
            slot, step, hashes, rows = slot[left], step[left], hashes[left], rows[left]
            if not len(slot):
                return True
            slot = (slot + step) & self._mask
        return False

    def _first_slot(self, hashes: U64) -> I64:
        return ((hashes * MIX) >> self._shift).view(np.int64)

    def _step(self, hashes: U64) -> I64:
        """Return int64[n]: the distance between slots tried for each hash; odd, so that all slots are tried."""
        return (hashes.view(np.int64) & self._mask) | 1
