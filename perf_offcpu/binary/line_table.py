# SPDX-License-Identifier: Apache-2.0
"""Decode tables of lines of CPython's code objects: Objects/locations.md (3.11 on), lnotab_notes.txt (3.10)."""

from bisect import bisect_right
from collections.abc import Iterator

_LONG, _NO_COLUMNS, _NONE, _ONE_LINE = 14, 13, 15, 10


class LineTable:
    """Look up source lines of a Python function. `table`: the first bytes of its line table, as CPython 3.`minor`
    encodes it (co_linetable). `first_line`: of the function (co_firstlineno)."""

    def __init__(self, table: bytes, first_line: int, minor: int) -> None:
        entries = list((_lines_310 if minor <= 10 else _lines)(table, first_line))
        self._ends, self._lines = [end for end, _ in entries], [line for _, line in entries]

    def line_of(self, index: int) -> int:
        """Return the source line of the instruction at 2 * `index` bytes; 0 if it has none, or is beyond the table."""
        place = bisect_right(self._ends, index)
        return self._lines[place] if place < len(self._lines) else 0


def _lines(table: bytes, first_line: int) -> Iterator[tuple[int, int]]:
    """Decode a line table of CPython 3.11 or newer, which may be cut off. Yields (index of the first instruction after
    a range, source line of the range; 0 for none)."""
    entries, end, line = iter(table), 0, first_line
    for head in entries:
        kind = head >> 3 & 15
        if kind in (_LONG, _NO_COLUMNS):
            delta = _varint(entries)
            line += -(delta >> 1) if delta & 1 else delta >> 1
            for _ in range(3 if kind == _LONG else 0):
                _varint(entries)
        elif kind != _NONE:
            line += max(kind - _ONE_LINE, 0)
            for _ in range(2 if kind >= _ONE_LINE else 1):
                next(entries, 0)
        end += (head & 7) + 1
        yield end, 0 if kind == _NONE else line


def _varint(entries: Iterator[int]) -> int:
    value = shift = 0
    for byte in entries:
        value |= (byte & 63) << shift
        shift += 6
        if not byte & 64:
            break
    return value


def _lines_310(table: bytes, first_line: int) -> Iterator[tuple[int, int]]:
    """Decode a line table of CPython 3.10: pairs (bytes of instructions, difference of lines). Yields as `_lines`."""
    end, line = 0, first_line
    for step, delta in zip(table[::2], table[1::2], strict=False):
        end += step // 2
        signed = delta - 256 if delta > 127 else delta
        line += 0 if signed == -128 else signed
        yield end, 0 if signed == -128 else line
