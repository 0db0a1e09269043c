# SPDX-License-Identifier: Apache-2.0
"""Compare the CPU time of the agent with `--max-cpu`.

A bucket fills at a constant rate up to a limit. Spending takes an amount out, and the level may fall below 0.
The rate is chosen so that no window of `window_s` seconds exceeds its share, even if the bucket is full when
the window begins.
"""

from __future__ import annotations

from collections import deque
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


HOUR_S: Final = 3600.0
RECENT_S: Final = 600.0


class CpuBudget:
    """CPU time against `--max-cpu`.

    Args:
        part: of one CPU.

    Attributes:
        is_counting: False until `begin`: the start (compiling, first symbol tables) is not counted.
    """

    def __init__(self, part: float) -> None:
        self.part = part
        self.is_counting = False
        self._bucket = Bucket(part * HOUR_S, HOUR_S, 0.0)
        self._notes: deque[tuple[float, float]] = deque()

    def begin(self, now_s: float) -> None:
        """Begin to count."""
        self._bucket = Bucket(self.part * HOUR_S, HOUR_S, now_s)
        while len(self._notes) > 1:
            self._notes.popleft()
        self.is_counting = True

    def note(self, cpu_s: float, now_s: float) -> None:
        """Note the CPU time of all parts since their beginning, which never falls."""
        spent = cpu_s - self._notes[-1][1] if self._notes else 0.0
        self._notes.append((now_s, cpu_s))
        while len(self._notes) > 2 and self._notes[1][0] <= now_s - RECENT_S:
            self._notes.popleft()
        if self.is_counting:
            self._bucket.spend(max(0.0, spent), now_s)

    def change(self, part: float) -> None:
        """Set another limit."""
        if part != self.part:
            self.part = part
            self._bucket.change(part * HOUR_S, HOUR_S)

    @property
    def level_s(self) -> float:
        """Return the CPU time that may be spent at once; below 0 after overspending."""
        return self._bucket.level

    @property
    def limit_s(self) -> float:
        """Return the largest CPU time that may be spent at once."""
        return self._bucket.limit

    @property
    def spent_s(self) -> float:
        """Return the CPU time last noted."""
        return self._notes[-1][1] if self._notes else 0.0

    @property
    def noted_s(self) -> float:
        """Return the time over which `recent` averages."""
        return self._notes[-1][0] - self._notes[0][0] if self._notes else 0.0

    def recent(self, window_s: float = RECENT_S) -> float:
        """Return the CPU time of the last ten minutes, or of fewer, as a part of one CPU."""
        if not self._notes:
            return 0.0
        last_s, after = self._notes[-1]
        within = (note for note in self._notes if note[0] >= last_s - window_s)
        first_s, before = next(within)
        return (after - before) / (last_s - first_s) if last_s > first_s else 0.0
