# SPDX-License-Identifier: Apache-2.0
"""How the report looks on a terminal: amounts, shares, headings, colours; what its parts have in common."""

from __future__ import annotations

from collections.abc import Iterator

from perf_offcpu.analysis.options import UNITS
from perf_offcpu.report.summary import Summary
from perf_offcpu.report.totals import Total
from perf_offcpu.structs import frozen
from perf_offcpu.text import printable

BOLD, DIM, RED, GREEN, RESET = "\x1b[1m", "\x1b[2m", "\x1b[31m", "\x1b[32m", "\x1b[0m"
_RED_FROM, _GREEN_FROM = 5.0, 0.5
"""Percent; perf's own colours (tools/perf/util/color.c: MIN_RED, MIN_GREEN)."""
NOT_KNOWN = "-"


@frozen
class Style:
    """How to print.

    Args:
        unit: unit of time, a key of UNITS.
        leaf_first: stacks begin with the function that waited (perf's `-g callee`), else with the root.
        width: columns of the terminal; None for a pipe or file: nothing is cut.
        color: use colours.
        stacks: show stacks, besides tables.
    """

    unit: str = "ms"
    leaf_first: bool = False
    width: int | None = None
    color: bool = False
    stacks: bool = True

    def paint(self, code: str, text: str) -> str:
        """The text in a colour, if there are colours and one was asked for."""
        return f"{code}{text}{RESET}" if self.color and code else text


def comment(text: str) -> str:
    """Never cut: totals and losses stand here."""
    return f"# {printable(text)}"


def heading(text: str, style: Style) -> str:
    """The title of a part."""
    return style.paint(BOLD, comment(text))


def amount(weight: int | None, unit: str, style: Style) -> str:
    """A weight: time in the style's unit, three decimals rounded half up (ns: none); occurrences as they
    are."""
    if weight is None:
        return NOT_KNOWN
    if unit != "ns" or style.unit == "ns":
        return str(weight)
    thousandth = UNITS[style.unit] // 1000
    whole, rest = divmod((abs(weight) + thousandth // 2) // thousandth, 1000)
    return f"{'-' if weight < 0 else ''}{whole}.{rest:03d}"


def exactly(weight: int, unit: str, style: Style) -> str:
    """A total: in the unit, and in full where that rounds."""
    if unit != "ns":
        return f"{weight} events"
    text = f"{amount(weight, unit, style)} {style.unit}"
    return text if style.unit == "ns" else f"{text} ({weight} ns)"


def count(total: Total) -> str:
    """The number of waits; `+` where it is the least that it can be."""
    return str(total.count) if total.count_is_exact else f"{total.count}+"


def plural(number: int, thing: str, text: str = "") -> str:
    """`3 waits`, `1 wait`."""
    return f"{text or number} {thing}{'' if number == 1 else 's'}"


def share(weight: int, summary: Summary) -> str:
    """A weight as percentage of all off-cpu time (or weight) of the report."""
    whole = summary.total.weight
    return f"{100 * weight / whole if whole else 0:.2f}%"


def heat(weight: int, summary: Summary) -> str:
    """The colour of a share."""
    percent = 100 * weight / (summary.total.weight or 1)
    return RED if percent >= _RED_FROM else GREEN if percent >= _GREEN_FROM else ""


def what(summary: Summary) -> str:
    """What the weights are."""
    return "off-cpu time" if summary.is_offcpu else ", ".join(summary.subject)


def more(cut: tuple[int, int], things: str, summary: Summary, style: Style) -> Iterator[str]:
    """The line that tells of rows cut off."""
    rows, weight = cut
    if rows:
        yield comment(f"and {rows} more {things}: {exactly(weight, summary.unit, style)}")
