# SPDX-License-Identifier: Apache-2.0
"""Define what a recording says of its sampling of waits by length (`record --off-cpu-period`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Sampling(NamedTuple):
    """Period, and totals of the waits that ended: as the recorder counted and as samples estimate them."""

    period_ns: int = 0  # of waiting of a thread for each sample; 0: every wait was recorded
    waits: int = 0  # exact number of waits
    waits_ns: int = 0  # their exact time
    estimated_waits: int = 0  # counts of the samples
    estimated_ns: int = 0  # weights of the samples
    longest_period_ns: int = 0  # the longest one that a limit of the rate chose; 0 if none was longer

    def __bool__(self) -> bool:
        """Return whether waits were sampled."""
        return self.period_ns > 0

    @property
    def period_text(self) -> str:
        """The period in ms, or where a limit of the rate changed it, the shortest and the longest."""
        longest = f" to {self.longest_period_ns / 1e6:.4g}" if self.longest_period_ns else ""
        return f"{self.period_ns / 1e6:g}{longest} ms"


def joined_sampling(parts: Sequence[Sampling]) -> Sampling:
    """Return the sampling of several recordings; the longest period stands for all."""
    longest_ns = max((part.longest_period_ns for part in parts), default=0)
    totals = Sampling(
        max((part.period_ns for part in parts), default=0),
        *(
            sum(getattr(part, name) for part in parts)
            for name in ("waits", "waits_ns", "estimated_waits", "estimated_ns")
        ),
    )
    return totals._replace(longest_period_ns=longest_ns)
