# SPDX-License-Identifier: Apache-2.0
"""Choose the sampling period: a longer one where samples are the main cost."""

from __future__ import annotations

from typing import Final

from perf_offcpu.agent.budget.cpu import CpuBudget

COST_OF_SAMPLE_S: Final = 1e-4
"""CPU time of one sample, from the ring to the dataset: a higher period saves this much for each."""
MAX_RAISE: Final = 64
_LOWER_BELOW: Final = 0.6
_LEAST_S: Final = 600.0
_KNOWN_S: Final = 240.0
"""Least time over which the cost is measured before the period changes."""


class Period:
    """The sampling period: raised where samples are the main cost, lowered again when the budget has room.

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
