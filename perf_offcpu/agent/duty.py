# SPDX-License-Identifier: Apache-2.0
"""How much of each minute is recorded, where recording all of it would cost more than `--max-cpu`.

A busy machine may cost several times the budget: the BPF programs run at each context switch. A pause until
the budget has recovered would leave out half an hour, most likely the one that is asked about later. So a
part of each minute is recorded, and the rest of it is a gap of the cause `budget`.
"""

from __future__ import annotations

from typing import Final

from perf_offcpu.agent.budget import CpuBudget

MINUTE_S: Final = 60.0
LEAST_S: Final = 3.0
"""Recorded of a minute at least, unless the budget is overdrawn by more than `DEEPEST` bursts."""
DEEPEST: Final = 2.0
"""Bursts: multiples of what may be spent at once."""
_REPAID_S: Final = 600.0
"""Time in which what was spent too much is saved again."""
_SMOOTHING: Final = 0.3
"""Weight of the last minute in the averages: its recordings are delivered later, in others."""
_WHOLE: Final = 0.9
"""A greater part is the whole minute: the begin and end of a file have a cost of their own."""


class Duty:
    """The part of each minute that is recorded.

    Attributes:
        recorded_s: seconds from the begin of a minute for which recording is on; `MINUTE_S` or more: all.
    """

    def __init__(self) -> None:
        self.recorded_s = MINUTE_S
        self._cost_s, self._seconds, self._before_s = 0.0, 0.0, 0.0

    @property
    def is_whole(self) -> bool:
        """Return whether no part is left out."""
        return self.recorded_s >= MINUTE_S

    def adapt(self, budget: CpuBudget, recorded_s: float) -> bool:
        """Choose the part at the end of a minute.

        Args:
            recorded_s: seconds of this minute that were recorded.

        Returns:
            Whether pauses begin or end with this choice.
        """
        was_whole, spent = self.is_whole, budget.spent_s - self._before_s
        self._before_s = budget.spent_s
        if not budget.is_counting:
            return False
        keep = 1 - _SMOOTHING if self._seconds else 0.0
        self._cost_s = keep * self._cost_s + (1 - keep) * spent
        self._seconds = keep * self._seconds + (1 - keep) * recorded_s
        self.recorded_s = self._choose(budget)
        return was_whole != self.is_whole

    def _choose(self, budget: CpuBudget) -> float:
        level, limit = budget.level_s, budget.limit_s
        if level < -DEEPEST * limit:
            return 0.0
        each = self._cost_s / self._seconds if self._seconds else 0.0
        allowed = MINUTE_S * budget.part + (min(0.0, level - limit / 2) * MINUTE_S / _REPAID_S)
        if self.is_whole and level > 0 or each * MINUTE_S <= allowed:
            return MINUTE_S
        part = max(LEAST_S, allowed / each)
        return MINUTE_S if part >= _WHOLE * MINUTE_S else part
