# SPDX-License-Identifier: Apache-2.0
"""Examples of tests that stand in text files: sections `[name]` of rows, whose columns are parted by two blanks."""

import re
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]


def examples(file: str, section: str) -> list[tuple[str, ...]]:
    """Return the rows of a section of a file below tests/; an empty column stands as `-`."""
    _, _, rest = (TESTS / file).read_text().partition(f"\n[{section}]\n")
    lines = rest.partition("\n\n")[0].splitlines()
    rows = [tuple("" if word == "-" else word for word in re.split("  +", line)) for line in lines if line[0] != "#"]
    assert rows, f"{file} has no section [{section}]"
    return rows
