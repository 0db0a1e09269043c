# SPDX-License-Identifier: Apache-2.0
"""Coverage of time by a recording: spans of time, their union and gaps; the sampling of waits by length."""

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple, TypeVar

Time = TypeVar("Time", int, float)


def united(spans: Iterable[tuple[Time, Time]]) -> list[tuple[Time, Time]]:
    """Return the union of (begin, end) spans as disjoint ones, ascending; touching spans are merged, empty dropped."""
    union: list[tuple[Time, Time]] = []
    for begin, end in sorted(span for span in spans if span[0] < span[1]):
        if union and begin <= union[-1][1]:
            union[-1] = union[-1][0], max(union[-1][1], end)
        else:
            union.append((begin, end))
    return union


def gaps(spans: Sequence[tuple[Time, Time]]) -> list[tuple[Time, Time]]:
    """Return (end of a span, begin of the next span) for each two consecutive `spans`, which are ascending."""
    return [(earlier, later) for (_, earlier), (later, _) in pairwise(spans)]


class Sampling(NamedTuple):
    """Sampling of waits by length (`record --off-cpu-period`) in a recording. Totals are of waits that ended: the
    recorder's exact counts, and estimates from the samples."""

    period_ns: int = 0  # ns of waiting for which a thread gets one sample; 0: every wait was recorded
    waits: int = 0  # exact number of waits
    waits_ns: int = 0  # their exact time
    estimated_waits: int = 0  # counts of the samples
    estimated_ns: int = 0  # weights of the samples
    longest_period_ns: int = 0  # the longest period that the limit of the sample rate chose; 0 if never longer
    stack_period_ns: int = 0
    """Time of a thread's short waits, ns, for which one user stack was taken; 0: of each, or of none."""

    def __bool__(self) -> bool:
        """Return True if waits were sampled, False if every wait was recorded."""
        return self.period_ns > 0

    @property
    def period_text(self) -> str:
        """Return the period, `10 ms`, or the shortest and longest, `10 to 40 ms`, if a limit of the rate changed it."""
        longest = f" to {self.longest_period_ns / 1e6:.4g}" if self.longest_period_ns else ""
        return f"{self.period_ns / 1e6:g}{longest} ms"
