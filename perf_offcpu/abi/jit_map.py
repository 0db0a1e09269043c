# SPDX-License-Identifier: Apache-2.0
"""Perf map of a JVM over time (`counters.JIT_MAP`): the lines of its first answer, then changes. A JVM compiles methods
again, and uses memory of discarded code for other code, so what an answer lists holds at its time only:

    7f1a20 40 int a.B.c()
    :split 1200345 1300456       times of two answers (ns of CLOCK_MONOTONIC), of which the second lists ...
    :gone 7f1a20 40 int a.B.c()  ... this no more,
    7f1a00 80 int a.B.d()        and this in addition

Between the two times, lines that both answers have hold. Lines of one of them are unsure there, as memory may have been
used several times; they do not hold if the other answer has other code in this memory, nor after `:strict` in place of
`:split`: classes were unloaded, whose code may have come and gone unlisted."""

import bisect
import itertools
import re
from collections.abc import Iterable
from typing import Final

MOST_SPLITS: Final = 128
_MOST_WORK: Final = 1 << 30
"""Most bytes that are read for all times of a map, each of which needs the text up to it."""
_SPLIT: Final = re.compile(rb"^:(split|strict) ([0-9]{1,18}) ([0-9]{1,18})\n", re.MULTILINE)
_GONE: Final = b":gone "
_RANGE: Final = re.compile(rb"(?::method )?(?:0x)?([0-9a-f]{1,16}) (?:0x)?([0-9a-f]{1,16}) ")
_FRAME: Final = re.compile(rb":frame ([0-9a-f]{1,16}) ")
_NO_MEMORY: Final = (b":frame", b":apart")
"""Lines of these kinds name no memory that other code or methods could take."""


def with_answer(text: bytes, answer: bytes, before_ns: int, now_ns: int, *, unloaded: bool) -> bytes:
    """Return a map with the changes that a newer answer brings. `before_ns`, `now_ns`: times of the answer before and
    of this one. `unloaded`: classes may have been unloaded between them. A map that would have too many changes or
    bytes (`borders_of`) begins again, without names before this answer."""
    lines, new = _lines_after(text), dict.fromkeys(answer.splitlines(keepends=True))
    gone = [line for line in lines if line not in new]
    changes = b"".join([*(_GONE + line for line in gone), *(line for line in new if line not in lines)])
    if not text or not changes or (not unloaded and all(line.startswith(_NO_MEMORY) for line in gone)):
        return text + changes
    longer = b"%b:%b %d %d\n%b" % (text, b"strict" if unloaded else b"split", before_ns, now_ns, changes)
    return longer if borders_of(longer) else begin_at(now_ns) + answer


def latest(text: bytes) -> bytes:
    """Return the lines of a map that hold since its last change, without earlier ones."""
    return b"".join(_lines_after(text))


def ended(text: bytes, last_ns: int) -> bytes:
    """Return the map of a JVM that has ended after its last answer at `last_ns`: if it unloaded classes before, no line
    holds from then on."""
    if not (changes := _SPLIT.findall(text)) or changes[-1][0] != b"strict":
        return text
    gone = b"".join(_GONE + line for line in _lines_after(text))
    return b"%b:strict %d %d\n%b" % (text, last_ns, last_ns, gone)


def begin_at(time_ns: int) -> bytes:
    """Return the begin of a map whose lines hold from a time on."""
    return b":split %d %d\n" % (time_ns, time_ns)


def borders_of(text: bytes) -> list[int]:
    """Return the times that divide a map, ns, ascending, some equal; [] if they descend, or are too many for its size:
    then the map holds at all times, later lines instead of earlier ones."""
    times = [int(time_ns) for _, *pair in _SPLIT.findall(text) for time_ns in pair]
    is_sound = times == sorted(times) and len(times) <= 2 * MOST_SPLITS and len(times) * len(text) <= _MOST_WORK
    return times if is_sound else []


def lines_between(text: bytes, number: int) -> bytes:
    """Return the lines that hold before border `number` of `borders_of`, and from the border before it on, with unsure
    ones."""
    lines = _lines_after(text[: _begins(text)[number // 2]])
    for line in _change_at(text, number)[1]:
        lines.pop(line, None)
    return b"".join(lines) + unsure_between(text, number)


def unsure_between(text: bytes, number: int) -> bytes:
    """Return the lines among `lines_between` that are unsure."""
    is_strict, gone, added = _change_at(text, number)
    if is_strict:
        return b""
    pairs = ((gone, added), (added, gone))
    lines = [line for own, others in pairs for line, hit in zip(own, _overlapped(own, others), strict=True) if not hit]
    starts = {own[0] for own in map(_range_of, lines) if own}
    frames = {line: int(match[1], 16) for line in lines if (match := _FRAME.match(line))}
    return b"".join(line for line in lines if frames.get(line, -1) in starts or _range_of(line))


def _begins(text: bytes) -> list[int]:
    return [match.start() for match in _SPLIT.finditer(text)] + [len(text)]


def _change_at(text: bytes, number: int) -> tuple[bool, list[bytes], list[bytes]]:
    """Return (True for `:strict`, lines that go, lines that come) of the change between border `number` and the one
    before it; (False, [], []) of times without change."""
    if number % 2 == 0:
        return False, [], []
    begins = _begins(text)
    head, *lines = text[begins[number // 2] : begins[number // 2 + 1]].splitlines(keepends=True)
    gone = [line.removeprefix(_GONE) for line in lines if line.startswith(_GONE)]
    return head.startswith(b":strict"), gone, [line for line in lines if not line.startswith(_GONE)]


def _overlapped(lines: Iterable[bytes], others: Iterable[bytes]) -> list[bool]:
    """Return, for each line, True if it names memory that any of the others names, too."""
    ranges = sorted(filter(None, map(_range_of, others)))
    starts, ends = [start for start, _ in ranges], [0, *itertools.accumulate((end for _, end in ranges), max)]
    own_ranges = [_range_of(line) or (0, 0) for line in lines]
    return [ends[bisect.bisect_left(starts, end)] > start for start, end in own_ranges]


def _range_of(line: bytes) -> tuple[int, int] | None:
    """Return (start, end) of the memory that a line names; None for other lines."""
    match = _RANGE.match(line)
    return (start := int(match[1], 16), start + int(match[2], 16)) if match else None


def _lines_after(text: bytes) -> dict[bytes, None]:
    """Return the lines that hold after all changes in a map, in the order of the answers."""
    lines = dict[bytes, None]()
    for line in text.splitlines(keepends=True):
        if line.startswith(_GONE):
            lines.pop(line.removeprefix(_GONE), None)
        elif not line.startswith((b":split ", b":strict ")):
            lines[line] = None
    return lines
