# SPDX-License-Identifier: Apache-2.0
"""Choose the length of segments: each segment has a fixed cost."""

from __future__ import annotations

from typing import Final

from perf_offcpu.agent.budget.cpu import CpuBudget

LONGEST_SEGMENT_S: Final = 300.0
_WINDOW_S: Final = 240.0
_LONGER_ABOVE, _SHORTER_BELOW = 0.9, 0.4


class SegmentLength:
    """The length of segments: longer where the budget is nearly spent, because each has a fixed cost.

    Begin and end of a file, reading it, and symbols of running programs are half of the CPU time of an agent
    with segments of one minute. Longer segments lose nothing.

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
        """Return whether the length is at its limit."""
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
