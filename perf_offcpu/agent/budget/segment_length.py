# SPDX-License-Identifier: Apache-2.0
"""Choose the length of segments: each has a cost of its own."""

from __future__ import annotations

from typing import Final

from perf_offcpu.agent.budget.cpu import CpuBudget

LONGEST_SEGMENT_S: Final = 300.0
_WINDOW_S: Final = 240.0
_LONGER_ABOVE, _SHORTER_BELOW = 0.9, 0.4


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
        share = budget.recent(max(_WINDOW_S, 2 * self.seconds)) / budget.part
        if share > _LONGER_ABOVE and not self.is_longest:
            self._factor *= 2
        elif share < _SHORTER_BELOW and self._factor > 1:
            self._factor //= 2
        else:
            return False
        self._changed_s = now_s
        return True
