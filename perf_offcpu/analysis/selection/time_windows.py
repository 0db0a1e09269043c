# SPDX-License-Identifier: Apache-2.0
"""Parse `--time`, with the syntax of perf report and perf script.

    1107.25,1107.5      from … to, in seconds of the recording's clock; either may be missing
    1.0,1.5 2.0,2.5     several windows
    10%-20%,40%-50%     parts of the time from the first to the last sample
    10%/2               the second tenth
    20%                 the first fifth

A sample is in a window if its time is in it; the time of a wait is its end. Source: tools/perf/util/time-utils.c."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING

import numpy as np

from perf_offcpu.errors import UsageError
from perf_offcpu.model.columns import I64, Bool
from perf_offcpu.structs import frozen
from perf_offcpu.units import parse_time

if TYPE_CHECKING:
    from fractions import Fraction

_PERCENT = r"(\d{1,99}(?:\.\d{1,99})?)%"
_RANGE = re.compile(f"{_PERCENT}-{_PERCENT}")
_SLICE = re.compile(_PERCENT + r"(?:/(\d{1,9}))?")


@frozen
class Window:
    """Span of time in ns, or a part of the recording. Both ends are included, but not the end of a part (`is_part`)."""

    begin: Fraction | None  # None if it is open
    end: Fraction | None  # None if it is open
    is_part: bool = False  # begin, end: 0 (first sample) to 1 (last sample); the end is excluded unless it is 1

    def contains(self, times: I64, first_ns: int, last_ns: int) -> Bool:
        """Return bool[n]: True for times (ns) in the window. `first_ns`, `last_ns`: first and last time recorded."""
        inside = times >= 0
        if self.begin is not None:
            inside &= times >= math.ceil(self._absolute(self.begin, first_ns, last_ns))
        if self.end is not None:
            end = self._absolute(self.end, first_ns, last_ns)
            inside &= times < math.ceil(end) if self.is_part and self.end < 1 else times <= math.floor(end)
        return inside

    def bounds(self, first_ns: int, last_ns: int) -> tuple[float, float]:
        """Return (begin, end) in ns of the recording's clock; -inf or inf at an open end. Arguments: as `contains`."""
        begin = -math.inf if self.begin is None else float(self._absolute(self.begin, first_ns, last_ns))
        return begin, math.inf if self.end is None else float(self._absolute(self.end, first_ns, last_ns))

    def _absolute(self, edge: Fraction, first_ns: int, last_ns: int) -> Fraction:
        return first_ns + edge * (last_ns - first_ns) if self.is_part else edge


def parse_windows(text: str) -> tuple[Window, ...]:
    """Return the windows in a value of `--time`; raise UsageError if it is empty or invalid."""
    words = re.split(r"[ ,]+", text.strip()) if "%" in text else text.split()
    windows = tuple(_part(word) if "%" in text else _span(word) for word in words)
    if not windows:
        raise UsageError("--time: no time is given (1.5,2.5 or 10%-20%, see perf-offcpu-report(1))")
    return windows


def in_windows(windows: tuple[Window, ...], times: I64, first_ns: int, last_ns: int) -> Bool:
    """Return bool[n]: True for times (ns; -1 unknown: False) in any window. Other arguments: as `Window.contains`."""
    inside = np.zeros(len(times), np.bool_)
    for window in windows:
        inside |= window.contains(times, first_ns, last_ns)
    return inside


def _span(word: str) -> Window:
    begin, comma, end = word.partition(",")
    if not comma or not (begin or end):
        raise UsageError(f"--time: '{word}' is not START,STOP")
    window = Window(_seconds(begin), _seconds(end))
    if window.begin is not None and window.end is not None and window.begin > window.end:
        raise UsageError(f"--time: '{word}' ends before it begins")
    return window


def _seconds(text: str) -> Fraction | None:
    if not text:
        return None
    from fractions import Fraction

    return Fraction(parse_time("--time", text, "s"))


def _part(word: str) -> Window:
    from fractions import Fraction

    if match := _RANGE.fullmatch(word):
        begin, end = Fraction(match[1]) / 100, Fraction(match[2]) / 100
    elif match := _SLICE.fullmatch(word):
        width, number = Fraction(match[1]) / 100, int(match[2] or 1)
        begin, end = width * (number - 1), width * number
    else:
        raise UsageError(f"--time: '{word}' is not a part of the recording (10%-20%, 10%/2)")
    if not 0 <= begin < end or begin >= 1:
        raise UsageError(f"--time: '{word}' is empty, or outside of the recording")
    return Window(begin, min(end, Fraction(1)), is_part=True)
