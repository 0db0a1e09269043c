# SPDX-License-Identifier: Apache-2.0
"""Compare the CPU time of the agent with `--max-cpu`."""

from __future__ import annotations

from collections import deque
from typing import Final

from perf_offcpu.agent.budget.bucket import Bucket

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
