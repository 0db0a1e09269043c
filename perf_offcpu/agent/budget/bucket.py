# SPDX-License-Identifier: Apache-2.0
"""Compute the amount of a budget that may be spent now: a token bucket.

A bucket fills at a constant rate up to a limit. Spending takes an amount out, and the level may fall below 0.
The rate is chosen so that no window of `window_s` seconds exceeds its share, even if the bucket is full when
the window begins.
"""

from __future__ import annotations

from typing import Final

BURST: Final = 1 / 12
"""Part of a window's share that may be spent at once."""


class Bucket:
    """A budget of `share` units in each window of `window_s` seconds, full at first.

    Attributes:
        level: the amount that may be spent now; below 0 after overspending.
    """

    def __init__(self, share: float, window_s: float, now_s: float) -> None:
        self.limit = share * BURST
        self._rate = share * (1 - BURST) / window_s
        self.level, self._at = self.limit, now_s

    def spend(self, amount: float, now_s: float) -> None:
        """Take out an amount, after filling up to now."""
        self.level = min(self.limit, self.level + max(0.0, now_s - self._at) * self._rate) - amount
        self._at = now_s

    def change(self, share: float, window_s: float) -> None:
        """Set another share; the ratio of the level to the limit stays the same."""
        part = self.level / self.limit if self.limit else 1.0
        self.limit = share * BURST
        self._rate = share * (1 - BURST) / window_s
        self.level = part * self.limit
