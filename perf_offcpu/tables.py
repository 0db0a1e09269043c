# SPDX-License-Identifier: Apache-2.0
"""Read tables of this package: files of TOML next to the modules that they belong to. They hold texts, words and flags,
one entry a line, texts also over several lines; `tomllib`, which reads all of TOML, takes ten times as long, for which
users would wait at each start. A test reads each table with both."""

import os
import re

_LINE = re.compile(
    r"""^(?:\[+ ([\w-]+) \]+ | ([\w-]+) \ = \ (?: '{3}\n? (.*?) '{3} | '([^'\n]*)' | "([^"\\\n]*)" | (\w+) ) )$""",
    re.VERBOSE | re.MULTILINE | re.DOTALL,
)


def read_table(module: str) -> list[tuple[str, dict[str, str]]]:
    """Return heading and entries, name → value, of each section. `module`: the `__file__` of a module; its table has
    the same name, with the suffix .toml. A heading may stand more than once; the first section may have none ("")."""
    with open(f"{os.path.splitext(module)[0]}.toml", encoding="utf-8") as file:  # direct: a table of this package
        text = file.read()
    sections: list[tuple[str, dict[str, str]]] = [("", {})]
    for heading, name, *values in _LINE.findall(text):
        if heading:
            sections.append((heading, {}))
        else:
            sections[-1][1][name] = "".join(values)
    return sections if sections[0][1] else sections[1:]
