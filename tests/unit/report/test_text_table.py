# SPDX-License-Identifier: Apache-2.0
"""Tables that fit."""

import pytest

from perf_offcpu.report.style import Column, cut, display_width, lay_out, pad

COLUMNS = [
    Column("Share", ["9.50%", "100.00%"]),
    Column("Time ms", ["1.000", "22.000"], spare=1),
    Column("Waits", ["3", "4"], spare=2),
    Column("Command", ["short", "a longer one"], left=True),
]


def test_whole() -> None:
    assert list(lay_out(COLUMNS, None)) == [
        "#   Share  Time ms  Waits  Command",
        "# .......  .......  .....  ............",
        "    9.50%    1.000      3  short",
        "  100.00%   22.000      4  a longer one",
    ]


def test_columns_that_can_be_spared_go_first_then_the_last_is_cut() -> None:
    def titles(width: int) -> str:
        lines = list(lay_out(COLUMNS, width))
        assert all(display_width(line) <= width for line in lines)
        return " ".join(lines[0].split()[1:])

    assert titles(39) == "Share Time ms Waits Command"
    assert titles(38) == "Share Time ms Command"
    assert titles(31) == "Share Command"
    assert list(lay_out(COLUMNS, 20))[-1] == "  100.00%  a longer…"
    assert titles(5) == "…"


def test_a_table_without_rows() -> None:
    assert list(lay_out([Column("A", []), Column("B", [], left=True)], 80)) == ["# A  B", "# .  ."]


@pytest.mark.parametrize(("text", "width"), [("abc", 3), ("名前", 4), ("e\u0301", 1), ("…", 1), ("größe", 5)])
def test_display_width(text: str, width: int) -> None:
    assert display_width(text) == width
    assert display_width(pad(text, 9)) == display_width(pad(text, 9, left=True)) == 9


def test_cut() -> None:
    assert cut("abcdef", 6) == cut("abcdef", None) == "abcdef"
    assert cut("abcdef", 5) == "abcd…"
    assert cut("名前名前", 6) == "名前…"
    assert cut("abc", 1) == "…"
