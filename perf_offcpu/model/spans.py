# SPDX-License-Identifier: Apache-2.0
"""Spans of time, of parts of a recording, of several recordings, of windows: their union and their gaps."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import TypeVar

Time = TypeVar("Time", int, float)


def united(spans: Iterable[tuple[Time, Time]]) -> list[tuple[Time, Time]]:
    """Return (begin, end) of the union of spans, ascending; spans that touch are one, empty ones none."""
    union: list[tuple[Time, Time]] = []
    for begin, end in sorted(span for span in spans if span[0] < span[1]):
        if union and begin <= union[-1][1]:
            union[-1] = union[-1][0], max(union[-1][1], end)
        else:
            union.append((begin, end))
    return union


def gaps(spans: Sequence[tuple[Time, Time]]) -> list[tuple[Time, Time]]:
    """Return (begin, end) of the times between spans that are in the order of time."""
    return [(earlier, later) for (_, earlier), (later, _) in pairwise(spans)]
