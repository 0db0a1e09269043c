# SPDX-License-Identifier: Apache-2.0
"""Perf map of a JVM over time (`counters.JIT_MAP`): the lines of its first answer, then changes. A JVM compiles methods
again, and uses memory of discarded code for other code, so what an answer lists holds at its time only:

    7f1a20 40 int a.B.c()
    :split 1200345 1300456       times of two answers (ns of CLOCK_MONOTONIC), of which the second lists ...
    :gone 7f1a20 40 int a.B.c()  ... this no more,
    7f1a00 80 int a.B.d()        and this in addition

Between the two times only lines hold that both answers have: memory may have been used several times."""

import re
from typing import Final

MOST_SPLITS: Final = 128
_SPLIT: Final = re.compile(rb"^:split ([0-9]{1,18}) ([0-9]{1,18})\n", re.MULTILINE)
_GONE: Final = b":gone "
_NO_MEMORY: Final = (b":frame", b":apart")
"""Lines of these kinds name no memory that other code or methods could take."""


def with_answer(text: bytes, answer: bytes, before_ns: int, now_ns: int) -> bytes:
    """Return a map with the changes that a newer answer brings. `before_ns`, `now_ns`: times of the answer before and
    of this one. After MOST_SPLITS changes the map begins again, without names before this answer."""
    lines, new = _lines_after(text), dict.fromkeys(answer.splitlines(keepends=True))
    gone = [line for line in lines if line not in new]
    changes = b"".join([*(_GONE + line for line in gone), *(line for line in new if line not in lines)])
    if all(line.startswith(_NO_MEMORY) for line in gone):
        return text + changes
    if len(_SPLIT.findall(text)) >= MOST_SPLITS:
        return begin_at(now_ns) + answer
    return b"%b:split %d %d\n%b" % (text, before_ns, now_ns, changes)


def begin_at(time_ns: int) -> bytes:
    """Return the begin of a map whose lines hold from a time on."""
    return b":split %d %d\n" % (time_ns, time_ns)


def borders_of(text: bytes) -> list[int]:
    """Return the times that divide a map, ns, ascending, some equal; [] if they descend, or are too many."""
    times = [int(time_ns) for pair in _SPLIT.findall(text) for time_ns in pair]
    return times if times == sorted(times) and len(times) <= 2 * MOST_SPLITS else []


def lines_between(text: bytes, number: int) -> bytes:
    """Return the lines that hold before border `number` of `borders_of`, and from the border before it on."""
    begins = [match.start() for match in _SPLIT.finditer(text)] + [len(text)]
    lines = _lines_after(text[: begins[number // 2]])
    if number % 2:
        for line in text[begins[number // 2] : begins[number // 2 + 1]].splitlines(keepends=True):
            lines.pop(line.removeprefix(_GONE) if line.startswith(_GONE) else b"", None)
    return b"".join(lines)


def _lines_after(text: bytes) -> dict[bytes, None]:
    """Return the lines that hold after all changes in a map, in the order of the answers."""
    lines = dict[bytes, None]()
    for line in text.splitlines(keepends=True):
        if line.startswith(_GONE):
            lines.pop(line.removeprefix(_GONE), None)
        elif not line.startswith(b":split "):
            lines[line] = None
    return lines
