# SPDX-License-Identifier: Apache-2.0
"""Lines of a JVM's perf map over time (`counters.JIT_MAP`). A JVM compiles methods again, and uses memory of discarded
code for other code. Where an answer of the JVM lists code in such memory, a line divides the map:

    :split 1200345 1300456

Before the first time (ns of CLOCK_MONOTONIC) the lines above it hold, from the second time on those below it; between
them the lines that do not contradict each other."""

import bisect
import itertools
import re
from collections.abc import Iterable
from typing import Final

MOST_SPLITS: Final = 32
_SPLIT: Final = re.compile(rb"^:split ([0-9]{1,18}) ([0-9]{1,18})\n", re.MULTILINE)
_RANGE: Final = re.compile(rb"(?::method )?(?:0x)?([0-9a-f]{1,16}) (?:0x)?([0-9a-f]{1,16}) ")
_FRAME: Final = re.compile(rb":frame ([0-9a-f]{1,16}) ")


def split_line(before_ns: int, from_ns: int) -> bytes:
    """Return the line that divides a map."""
    return b":split %d %d\n" % (before_ns, from_ns)


def last_part(text: bytes) -> tuple[bytes, bytes]:
    """Return (a map up to its last dividing line, the lines after it). A map with MOST_SPLITS parts loses the first."""
    lines = [*_SPLIT.finditer(text)]
    if len(lines) >= MOST_SPLITS:
        text, shift = text[lines[1].start() :], lines[1].start()
    else:
        shift = 0
    place = lines[-1].end() - shift if lines else 0
    return text[:place], text[place:]


def borders_of(text: bytes) -> list[int]:
    """Return the times that divide a map, ns, ascending, some equal; [] if they descend, or are too many."""
    times = [int(time_ns) for pair in _SPLIT.findall(text) for time_ns in pair]
    return times if times == sorted(times) and len(times) <= 2 * MOST_SPLITS else []


def lines_between(text: bytes, number: int) -> bytes:
    """Return the lines that hold before border `number` of `borders_of`, and from the border before it on."""
    parts = _SPLIT.split(text)[::3]
    before, after = (part.splitlines(keepends=True) for part in (parts[number // 2], parts[(number + 1) // 2]))
    if number % 2 == 0:
        return b"".join(before)
    both = {*before} & {*after}
    old, new = ([line for line in lines if line not in both] for lines in (before, after))
    sure = [line for line in before if line in both]
    for lines, others in ((old, new), (new, old)):
        sure += [line for line, is_hit in zip(lines, overlapped(lines, others), strict=True) if not is_hit]
    starts = {-1} | starts_of(sure)
    return b"".join(line for line in sure if frame_start(line) in starts)


def starts_of(lines: Iterable[bytes]) -> set[int]:
    """Return the addresses of the code and methods in lines of a map."""
    return {own[0] for own in map(_range_of, lines) if own}


def frame_start(line: bytes) -> int:
    """Return the address of the code whose frame a line `:frame` describes; -1 for other lines."""
    match = _FRAME.match(line)
    return int(match[1], 16) if match else -1


def overlapped(lines: Iterable[bytes], others: Iterable[bytes]) -> list[bool]:
    """Return, for each line of code or of a method, True if its memory overlaps that of any of `others`."""
    ranges = sorted(filter(None, map(_range_of, others)))
    starts, ends = [start for start, _ in ranges], [*itertools.accumulate((end for _, end in ranges), max)]
    places = [(own, bisect.bisect_left(starts, own[1]) - 1 if own else -1) for own in map(_range_of, lines)]
    return [own is not None and place >= 0 and ends[place] > own[0] for own, place in places]


def _range_of(line: bytes) -> tuple[int, int] | None:
    """Return (start, end) of the memory that a line names; None for other lines."""
    match = _RANGE.match(line)
    return (start := int(match[1], 16), start + int(match[2], 16)) if match else None
