# SPDX-License-Identifier: Apache-2.0
"""Documentation/tables.md is made of the declarations of the model. After a change to them:
`.venv/bin/python tests/unit/model/test_tables_page.py`"""

import textwrap
from pathlib import Path

from perf_offcpu.model import recording
from perf_offcpu.model.columns import Table
from perf_offcpu.model.profile import Frames, ProfileSamples, Stacks
from perf_offcpu.model.recording import SampleFlag, Samples

PAGE = Path(__file__).parents[3] / "Documentation" / "tables.md"

NAMES = "Samples DeferredChains Spaces Maps Dsos Comms Tasks Budget KernelSymbols".split()
TABLES: dict[str, tuple[type[Table], ...]] = {
    "Recording: raw addresses": tuple(getattr(recording, name) for name in NAMES),
    "Profile: named frames": (ProfileSamples, Stacks, Frames),
}


def table(kind: type[Table]) -> str:
    meaning = (kind.__doc__ or "").partition("\n")[0].replace("`", "")
    rows = ["| column, dtype | none | meaning |", "|---|---|---|"]
    shared = {}
    if kind is ProfileSamples:
        shared = {name: column for name, column in kind.columns.items() if Samples.columns.get(name) == column}
        meaning += f" The columns of Samples up to `{[*shared][-1]}`, and:"
    for name, column in kind.columns.items():
        if name not in shared:
            none, unit = "" if column.sentinel is None else column.sentinel, f", {column.unit}" if column.unit else ""
            rows.append(f"| `{name}` {column.dtype}{unit} | {none} | {column.doc} |")
    return f"### {kind.__name__}\n\n{meaning}\n\n" + "\n".join(rows) + "\n"


def flags() -> str:
    names = ", ".join(f"{flag.value.bit_length() - 1} `{flag.name}`" for flag in SampleFlag)
    return "### Bits of `flags` (SampleFlag)\n\n" + textwrap.fill(names, 120) + "\n"


def page() -> str:
    introduction, parts = PAGE.read_text().partition("## ")[0], list[str]()
    for title, kinds in TABLES.items():
        parts += [f"## {title}\n", *map(table, kinds)]
    return introduction + "\n".join([*parts, flags()])


def test_the_page_shows_the_tables_as_they_are() -> None:
    assert PAGE.read_text() == page(), __doc__


if __name__ == "__main__":
    PAGE.write_text(page())
