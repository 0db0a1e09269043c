# SPDX-License-Identifier: Apache-2.0
"""Tables of the package are TOML; `perf_offcpu.tables` reads in them what tomllib does."""

import tomllib
from pathlib import Path
from typing import Any

import pytest

from perf_offcpu.tables import read_table

PACKAGE = Path(__file__).resolve().parents[2] / "perf_offcpu"


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.toml")), ids=lambda path: path.name)
def test_tables_are_read_as_toml(path: Path) -> None:
    sections: list[tuple[str, dict[str, Any]]] = []
    for heading, tables in tomllib.loads(path.read_text()).items():
        sections += [(heading, table) for table in (tables if isinstance(tables, list) else [tables])]
    expected = [
        (heading, {name: value if isinstance(value, str) else str(value).lower() for name, value in table.items()})
        for heading, table in sections
    ]
    assert expected and read_table(str(path)) == expected
