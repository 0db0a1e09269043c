# SPDX-License-Identifier: Apache-2.0
"""Look up the rows of many 64-bit hashes at once, in an open hash table in numpy.

The upper bits of a hash, multiplied, select its first slot, the lower ones the distance to the next (double
hashing: different hashes share slots by accident only). Each step looks at all open hashes; at most half of
the slots are taken, so each step settles half of them.
"""

from __future__ import annotations

import numpy as np

from perf_offcpu.model.columns import I32, I64, U64

_MIX = np.uint64(0x9E3779B97F4A7C15)
_FIRST_BITS = 10

MAX_STEPS = 100
"""By accident, one hash in 2^100 takes that many; hashes made to collide would take as many as there are."""


class HashIndex:
    """Rows of different hashes."""

    def __init__(self) -> None:
        self._used = 0
        self._make(_FIRST_BITS)

    def _make(self, bits: int) -> None:
        self._shift, self._mask = np.uint64(64 - bits), (1 << bits) - 1
        self._hashes = np.zeros(1 << bits, np.uint64)
        self._rows = np.full(1 << bits, -1, np.int32)

    def find(self, hashes: U64) -> I32:
        """Return the row of each hash, -1 if it is not here: int32[n]."""
        slot = self._first_slot(hashes)
        rows = self._rows[slot]
        open_ = np.flatnonzero((self._hashes[slot] != hashes) & (rows >= 0))
        slot, hashes = slot[open_], hashes[open_]
        step = self._step(hashes)
        for _ in range(1, MAX_STEPS):
            if not len(open_):
                break
            slot = (slot + step) & self._mask
            found = self._rows[slot]
            rows[open_] = found
            left = np.flatnonzero((self._hashes[slot] != hashes) & (found >= 0))
            open_, slot, step, hashes = open_[left], slot[left], step[left], hashes[left]
        rows[open_] = -1
        return rows

    def add(self, hashes: U64, rows: I32) -> bool:
        """Add different hashes that are not here yet.

        Returns:
            True if each found a slot within `MAX_STEPS`; if not, the index can no longer be used.
        """
        self._used += len(hashes)
        if 2 * self._used > len(self._rows) and not self._grow():
            return False
        return self._put(hashes, rows)

    def _grow(self) -> bool:
        taken = np.flatnonzero(self._rows >= 0)
        hashes, rows = self._hashes[taken], self._rows[taken]
        self._make((4 * self._used - 1).bit_length())
        return self._put(hashes, rows)

    def _put(self, hashes: U64, rows: I32) -> bool:
        slot, step = self._first_slot(hashes), self._step(hashes)
        for _ in range(MAX_STEPS):
            free = np.flatnonzero(self._rows[slot] < 0)
            self._rows[slot[free]] = rows[free]
            mine = free[self._rows[slot[free]] == rows[free]]  # of several hashes with a slot, one gets it
            self._hashes[slot[mine]] = hashes[mine]
            left = np.ones(len(slot), np.bool_)
            left[mine] = False
            slot, step, hashes, rows = slot[left], step[left], hashes[left], rows[left]
            if not len(slot):
                return True
            slot = (slot + step) & self._mask
        return False

    def _first_slot(self, hashes: U64) -> I64:
        return ((hashes * _MIX) >> self._shift).view(np.int64)

    def _step(self, hashes: U64) -> I64:
        """Return odd distances: in a power of two of slots, they lead through all of them."""
        return (hashes.view(np.int64) & self._mask) | 1
