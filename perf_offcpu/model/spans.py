# SPDX-License-Identifier: Apache-2.0
"""Unite spans of time: of parts of a recording, of several recordings, of windows."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

Time = TypeVar("Time", int, float)


def united(spans: Iterable[tuple[Time, Time]]) -> list[tuple[Time, Time]]:
    """Return (begin, end) of the union of spans, ascending; spans that touch are one, empty ones none."""
    found: list[tuple[Time, Time]] = []
    for begin, end in sorted(span for span in spans if span[0] < span[1]):
        if found and begin <= found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], end)
        else:
            found.append((begin, end))
    return found
