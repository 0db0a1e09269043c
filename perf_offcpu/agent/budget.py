# SPDX-License-Identifier: Apache-2.0
"""Budgets: how much CPU time, and how many bytes, may be spent by now.

A budget is a bucket that fills at a constant rate up to a limit. What is spent is taken out, also more than
there is. The rate is chosen so that no window of `window_s` seconds sees more than its share, although the
bucket may be full at its begin.
"""

from __future__ import annotations

from collections import deque
from typing import Final

HOUR_S: Final = 3600.0
BURST: Final = 1 / 12
"""Part of a window's share that may be spent at once."""
RECENT_S: Final = 600.0


class Bucket:
    """A budget of `share` units in each window of `window_s` seconds, full at first.

    Attributes:
        level: what may be spent now; below 0: too much was.
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
        """Go on with another share; the level keeps its part of the limit."""
        part = self.level / self.limit if self.limit else 1.0
        self.limit = share * BURST
        self._rate = share * (1 - BURST) / window_s
        self.level = part * self.limit


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
        """Count from now on."""
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
        """Go on with another limit."""
        if part != self.part:
            self.part = part
            self._bucket.change(part * HOUR_S, HOUR_S)

    @property
    def level_s(self) -> float:
        """Return the CPU time that may be spent at once; below 0: too much was."""
        return self._bucket.level

    @property
    def limit_s(self) -> float:
        """Return the most that may be spent at once."""
        return self._bucket.limit

    @property
    def spent_s(self) -> float:
        """Return the CPU time last noted."""
        return self._notes[-1][1] if self._notes else 0.0

    @property
    def noted_s(self) -> float:
        """Return the time that `recent` is about."""
        return self._notes[-1][0] - self._notes[0][0] if self._notes else 0.0

    def recent(self, window_s: float = RECENT_S) -> float:
        """Return the CPU time of the last ten minutes, or of fewer, as a part of one CPU."""
        if not self._notes:
            return 0.0
        last_s, after = self._notes[-1]
        within = (note for note in self._notes if note[0] >= last_s - window_s)
        first_s, before = next(within)
        return (after - before) / (last_s - first_s) if last_s > first_s else 0.0


COST_OF_SAMPLE_S: Final = 1e-4
"""CPU time of one sample, from the ring to the dataset: a higher period saves this much for each."""
MAX_RAISE: Final = 64
_LONGER_ABOVE, _SHORTER_BELOW = 0.9, 0.4
_LOWER_BELOW: Final = 0.6
_LEAST_S: Final = 600.0
_KNOWN_S: Final = 240.0
"""Time over which the cost must be known, before it says something."""


LONGEST_SEGMENT_S: Final = 300.0
_SEGMENT_WINDOW_S: Final = 240.0


class SegmentLength:
    """The length of segments: longer where the budget is nearly spent, for each has a cost of its own.

    The begin and end of a file, reading it, the symbols of what runs: half of what an agent takes with
    segments of a minute. Nothing is lost with longer ones.

    Args:
        base_s: the length asked for.
    """

    def __init__(self, base_s: float) -> None:
        self.base_s = base_s
        self._factor = 1
        self._changed_s = float("-inf")

    @property
    def seconds(self) -> float:
        """The length now."""
        return max(self.base_s, min(LONGEST_SEGMENT_S, self.base_s * self._factor))

    @property
    def is_longest(self) -> bool:
        """Return whether it cannot be longer."""
        return self.seconds >= LONGEST_SEGMENT_S

    def adapt(self, budget: CpuBudget, now_s: float) -> bool:
        """Choose the length after a segment; return whether it changed."""
        if not budget.is_counting or now_s - self._changed_s < 2 * self.seconds:
            return False
        share = budget.recent(max(_SEGMENT_WINDOW_S, 2 * self.seconds)) / budget.part
        if share > _LONGER_ABOVE and not self.is_longest:
            self._factor *= 2
        elif share < _SHORTER_BELOW and self._factor > 1:
            self._factor //= 2
        else:
            return False
        self._changed_s = now_s
        return True


class Period:
    """The sampling period: raised where samples are what costs, and lowered again when there is room.

    Args:
        base_ns: the period asked for.
    """

    def __init__(self, base_ns: int) -> None:
        self.base_ns = base_ns
        self.factor = 1
        self._changed_s = float("-inf")

    @property
    def ns(self) -> int:
        """The period now."""
        return self.base_ns * self.factor

    def adapt(self, budget: CpuBudget, samples_per_s: float, now_s: float) -> bool:
        """Choose the period after a segment; return whether it changed."""
        if not budget.is_counting or budget.noted_s < _KNOWN_S or now_s - self._changed_s < _LEAST_S:
            return False
        share, sampled = budget.recent() / budget.part, samples_per_s * COST_OF_SAMPLE_S / budget.part
        if share > 1 and sampled > 0.3 and self.factor < MAX_RAISE:
            self.factor *= 2
        elif share + sampled < _LOWER_BELOW and self.factor > 1:
            self.factor //= 2
        else:
            return False
        self._changed_s = now_s
        return True
