# SPDX-License-Identifier: Apache-2.0
"""Format amounts, shares, headings and colours of the report. On a terminal a table is made to fit: first the least
important columns are left out, then the last column is cut. A pipe gets everything in full."""

import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from perf_offcpu.report.totals import Total
from perf_offcpu.structs import frozen
from perf_offcpu.text import printable
from perf_offcpu.units import UNITS

BOLD, DIM, RED, GREEN, RESET = "\x1b[1m", "\x1b[2m", "\x1b[31m", "\x1b[32m", "\x1b[0m"
_RED_FROM, _GREEN_FROM = 5.0, 0.5
"""Least percentages of coloured shares, those of perf (tools/perf/util/color.c: MIN_RED, MIN_GREEN)."""
NOT_KNOWN = "-"


@frozen
class Style:
    """Options of the text of reports: unit of times, width, colours, order of frames."""

    unit: str = "ms"  # unit of time, a key of UNITS
    leaf_first: bool = False  # begin stacks with the function that waited (`-g callee`), else with the root
    width: int | None = None  # columns of the terminal; None for a pipe or file: nothing is cut
    color: bool = False  # use colours
    stacks: bool = True  # show stacks after the tables

    @property
    def order(self) -> str:
        """Return `leaf first` or `root first`, for titles above stacks."""
        return "leaf first" if self.leaf_first else "root first"

    def paint(self, code: str, text: str) -> str:
        """Return the text between an escape `code` and RESET; unchanged if colours are off or the code is ""."""
        return f"{code}{text}{RESET}" if self.color and code else text


def comment(text: str) -> str:
    """Return a line that begins with `# `, printable; such lines are never cut: totals and losses are in them."""
    return f"# {printable(text)}"


def heading(text: str, style: Style) -> str:
    """Return a title as a bold comment line."""
    return style.paint(BOLD, comment(text))


def section(text: str, style: Style) -> tuple[str, str, str]:
    """Return the lines above a table or stacks: the title between two lines `#`."""
    return "#", heading(text, style), "#"


def amount(weight: int | None, unit: str, style: Style) -> str:
    """Format a weight: ns in `style.unit`, rounded half up to 3 decimals; other units as they are; None: NOT_KNOWN."""
    if weight is None:
        return NOT_KNOWN
    if unit != "ns" or style.unit == "ns":
        return str(weight)
    thousandth = UNITS[style.unit] // 1000
    integer, decimals = divmod((abs(weight) + thousandth // 2) // thousandth, 1000)
    return f"{'-' if weight < 0 else ''}{integer}.{decimals:03d}"


def time(ns: int, style: Style) -> str:
    """Format a time in the style's unit: `5.000 ms`."""
    return f"{amount(ns, 'ns', style)} {style.unit}"


def exact_amount(weight: int, unit: str, style: Style) -> str:
    """Format a total: `5.000 ms (5000123 ns)`, or ns alone if that is the style's unit; `7 events` if not a time."""
    if unit != "ns":
        return f"{weight} events"
    text = time(weight, style)
    return text if style.unit == "ns" else f"{text} ({weight} ns)"


def count_text(total: Total) -> str:
    """Format the number of waits; with `+` if it is a lower bound."""
    return str(total.count) if total.count_is_exact else f"{total.count}+"


def plural(number: int, thing: str, text: str = "") -> str:
    """Return a number and a thing, in the plural unless it is 1: `3 waits`, `1 wait`; `text` replaces the digits."""
    return f"{text or number} {thing}{'' if number == 1 else 's'}"


def share(weight: int, whole: int) -> str:
    """Format a weight in percent of the whole: `12.34%`."""
    return f"{100 * weight / whole if whole else 0:.2f}%"


def share_colour(weight: int, whole: int) -> str:
    """Return the escape code that perf gives to a weight's share of the whole; "" for a small one."""
    percent = 100 * weight / (whole or 1)
    return RED if percent >= _RED_FROM else GREEN if percent >= _GREEN_FROM else ""


def more_rows(cut: tuple[int, int], thing: str, unit: str, style: Style) -> Iterator[str]:
    """Yield the line about rows over the limit, if any. `cut`: number and weight of these rows."""
    yield from and_more(cut[0], f"more {thing}", exact_amount(cut[1], unit, style))


def counts(title: str, counted: Mapping[Any, int], style: Style) -> Iterator[str]:
    """Yield a title, then a line for each count."""
    yield heading(title, style)
    yield from (comment(f"{count:>10}  {cause}") for cause, count in counted.items())


def and_more(number: int, thing: str, weight_text: str = "") -> Iterator[str]:
    """Yield the line about things that are not shown, if any: `and 3 more rows: 5.000 ms`."""
    if number:
        yield comment(f"and {plural(number, thing)}{weight_text and f': {weight_text}'}")


_GAP = "  "
_ELLIPSIS = "…"


@frozen
class Column:
    """Column of a text table."""

    title: str  # its heading
    cells: Sequence[str]  # the texts, a line each, printable
    left: bool = False  # align to the left; numbers are aligned to the right
    spare: int = 0  # rank in which columns go when the room is short, the highest first; 0 stays

    @property
    def width(self) -> int:
        """Return the number of terminal columns of the widest cell, title included."""
        return max(map(display_width, (self.title, *self.cells)))


def weights(title: str, values: Iterable[int | None], unit: str, style: Style, spare: int = 0) -> Column:
    """Return a column of weights; `title` gets the style's unit if `unit` is "ns"; None is shown as not known. `spare`:
    if the table is too wide, the column with the highest number goes; 0 stays."""
    shown_unit = f" {style.unit}" if unit == "ns" else ""
    return Column(f"{title}{shown_unit}", [amount(value, unit, style) for value in values], spare=spare)


def times(title: str, values: Iterable[int | None], style: Style, spare: int = 0) -> Column:
    """Return a column of times, given in ns, shown in the style's unit, which follows the title; else as `weights`."""
    return weights(title, values, "ns", style, spare)


def shares(values: Iterable[int], whole: int) -> Column:
    """Return the column `Share`: each value in percent of the whole."""
    return Column("Share", [share(value, whole) for value in values])


def names(title: str, texts: Iterable[str], spare: int = 0) -> Column:
    """Return a column of printable texts, aligned to the left. `spare`: as in `weights`."""
    return Column(title, list(texts), left=True, spare=spare)


def lay_out(columns: Sequence[Column], width: int | None) -> Iterator[str]:
    """Yield the lines of a table: titles and dots (both begin with `#`), then rows. `width`: None for no limit."""
    kept = fitting(list(columns), width)
    yield _line("# ", [column.title for column in kept], kept, width)
    yield _line("# ", ["." * column.width for column in kept], kept, width)
    for cells in zip(*(column.cells for column in kept), strict=True):
        yield _line("  ", cells, kept, width)


def fitting(columns: list[Column], width: int | None) -> list[Column]:
    """Return the columns that fit into a width (None: all); those with the highest `spare` are left out first."""
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
        0 if unicodedata.combining(char) else 2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in text
    )


def pad(text: str, width: int, left: bool = False) -> str:
    """Return a text padded with blanks to a width; `left`: aligned to the left."""
    blanks = " " * (width - display_width(text))
    return text + blanks if left else blanks + text


def cut(text: str, width: int | None) -> str:
    """Return a text, cut with an ellipsis if it is wider than `width` (None: no limit)."""
    if width is None or display_width(text) <= width:
        return text
    while text and display_width(text) > width - 1:
        text = text[:-1]
    return text + _ELLIPSIS
