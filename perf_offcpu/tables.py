# SPDX-License-Identifier: Apache-2.0
"""Read tables of this package: files of TOML next to the modules that they belong to. `tomllib`, which reads all of
TOML, takes ten times as long, for which users would wait at each start; a test reads each table with both."""

import os


def table_of(module: str) -> str:
    """Return the path of the table that belongs to a module: its file name with .toml. `module`: its `__file__`."""
    return f"{os.path.splitext(module)[0]}.toml"


def read_table(module: str) -> list[tuple[str, dict[str, str]]]:
    """Read the table of a module (`__file__`): return (heading, name → value) of each section; a heading can occur
    several times. An entry is a line `name = "text"`, `name = 'text'` or `name = word`, or begins with `name = '''` and
    ends with a line `'''`. Texts have no escapes; names with blanks or brackets are in quotes."""
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
