# SPDX-License-Identifier: Apache-2.0
"""Examples of tests that stand in text files: sections `[name]` of rows, whose columns are parted by two blanks."""

import re
from pathlib import Path


def examples(path: Path, section: str) -> list[tuple[str, ...]]:
    """Return the rows of a section; an empty column stands as `-`."""
    _, _, rest = path.read_text().partition(f"\n[{section}]\n")
    lines = rest.partition("\n\n")[0].splitlines()
    rows = [tuple("" if word == "-" else word for word in re.split("  +", line)) for line in lines if line[0] != "#"]
    assert rows, f"{path} has no section [{section}]"
    return rows
