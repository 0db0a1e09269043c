# SPDX-License-Identifier: Apache-2.0
"""Read tables of this package: files of TOML next to the modules that they belong to. `tomllib`, which reads all of
TOML, takes ten times as long, for which users would wait at each start; a test reads each table with both."""

import os


def table_of(module: str) -> str:
    """Return the path of the table that belongs to a module. `module`: its `__file__`."""
    return f"{os.path.splitext(module)[0]}.toml"


def read_table(module: str) -> list[tuple[str, dict[str, str]]]:
    """Return heading and entries, name → value, of each section of the table of a module; a heading may stand more than
    once. Each entry begins a line, as `name = "text"`, `'text'` or a word, or is `'''` and lines of text up to a line
    `'''`; no text has escapes, and a name that has blanks or brackets stands in quotes."""
    with open(table_of(module), encoding="utf-8") as file:  # direct: a table of this package
        lines = file.read().splitlines()
    sections: list[tuple[str, dict[str, str]]] = []
    name, is_open = "", False
    for line in lines:
        if is_open:
            is_open = line != "'''"
            sections[-1][1][name] += f"{line}\n" if is_open else ""
        elif line.startswith("["):
            sections.append((line.strip("[]"), {}))
        elif line and not line.startswith("#"):
            name, _, value = line.partition(" = ")
            is_open = value == "'''"
            name = name.strip('"')
            sections[-1][1][name] = "" if is_open else value[1:-1] if value[0] in "'\"" else value
    return sections
