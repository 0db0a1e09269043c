# SPDX-License-Identifier: Apache-2.0
"""Lay out text tables as perf report does: a title line, dots below it, aligned cells.

On a terminal a table is made to fit: first the least important columns are left out, then the last column is
cut. Into a pipe everything is written in full, for grep and awk.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Sequence

from perf_offcpu.structs import frozen

_GAP = "  "
_ELLIPSIS = "…"


@frozen
class Column:
    """One column."""

    title: str  # its heading
    cells: Sequence[str]  # the texts, a line each, printable
    left: bool = False  # align to the left; numbers are aligned to the right
    spare: int = 0  # rank in which columns go when the room is short, the highest first; 0 stays

    @property
    def width(self) -> int:
        """Terminal columns that the column takes."""
        return max(map(display_width, (self.title, *self.cells)))


def lay_out(columns: Sequence[Column], width: int | None) -> Iterator[str]:
    """Return the lines of a table: titles and dots (both begin with `#`), then the rows.

    Args:
        width: room on the terminal; None for no limit.
    """
    kept = _fitting(list(columns), width)
    yield _line("# ", [column.title for column in kept], kept, width)
    yield _line("# ", ["." * column.width for column in kept], kept, width)
    for cells in zip(*(column.cells for column in kept), strict=True):
        yield _line("  ", cells, kept, width)


def _fitting(columns: list[Column], width: int | None) -> list[Column]:
    while width is not None and sum(len(_GAP) + column.width for column in columns) > width:
        spare = max(columns, key=lambda column: column.spare)
        if not spare.spare:
            break
        columns = [column for column in columns if column is not spare]
    return columns


def _line(lead: str, cells: Sequence[str], columns: Sequence[Column], width: int | None) -> str:
    parts = [pad(cell, column.width, column.left) for cell, column in zip(cells, columns, strict=True)]
    return cut(lead + _GAP.join(parts).rstrip(), width)


def display_width(text: str) -> int:
    """Return the terminal columns of a printable text: wide characters take two, combining ones none."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(char) else 2 if unicodedata.east_asian_width(char) in "WF" else 1
        for char in text
    )


def pad(text: str, width: int, left: bool = False) -> str:
    """Return the text padded to a width."""
    blanks = " " * (width - display_width(text))
    return text + blanks if left else blanks + text


def cut(text: str, width: int | None) -> str:
    """Return the text, cut with an ellipsis if it is wider than the room."""
    if width is None or display_width(text) <= width:
        return text
    while text and display_width(text) > width - 1:
        text = text[:-1]
    return text + _ELLIPSIS
