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

    def __bool__(self) -> bool:
        """Return whether waits were sampled."""
        return self.period_ns > 0


def joined_sampling(parts: Sequence[Sampling]) -> Sampling:
    """Return the sampling of several recordings; the longest period stands for all."""
    return Sampling(
        max((part.period_ns for part in parts), default=0),
        *(
            sum(getattr(part, name) for part in parts)
            for name in ("waits", "waits_ns", "estimated_waits", "estimated_ns")
        ),
    )
