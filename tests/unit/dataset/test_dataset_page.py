# SPDX-License-Identifier: Apache-2.0
"""The tables in Documentation/dataset.md, which are made of `dataset.schema`. After a change to that:
`.venv/bin/python tests/unit/dataset/test_dataset_page.py`"""

from pathlib import Path

from perf_offcpu.dataset.parquet import arrow_schema
from perf_offcpu.dataset.schema import PARTITIONS, TABLES, VERSION, Column

PAGE = Path(__file__).resolve().parents[3] / "Documentation" / "dataset.md"
BEGIN, END = "<!-- tables -->\n", "<!-- end of tables -->\n"


def rows(columns: tuple[Column, ...]) -> str:
    lines = ["| column, type | meaning |", "|---|---|"]
    for column in columns:
        type_ = column.type + (" or null" if column.nullable else "")
        lines.append(f"| `{column.name}` {type_} | {column.doc} |")
    return "\n".join(lines) + "\n"


def tables() -> str:
    parts = [f"### {name}\n\n{rows(columns)}" for name, columns in TABLES.items()]
    parts.append(f"### Partitions of each table\n\n{rows(PARTITIONS)}")
    return "\n".join(["", f"Version {VERSION}.", "", *parts])


def test_the_page_has_the_tables() -> None:
    text = PAGE.read_text()
    assert text[text.index(BEGIN) + len(BEGIN) : text.index(END)] == tables() + "\n", __doc__


def test_every_column_has_a_type_of_arrow_and_is_there_once() -> None:
    for table, columns in TABLES.items():
        schema = arrow_schema(table)
        assert [field.name for field in schema] == [column.name for column in columns]
        assert len(set(schema.names)) == len(schema.names)
        assert [field.nullable for field in schema] == [column.nullable for column in columns]
        assert not [field for field in schema if str(field.type).startswith("uint")], "Spark has no such type"


if __name__ == "__main__":
    text = PAGE.read_text()
    PAGE.write_text(text[: text.index(BEGIN) + len(BEGIN)] + tables() + "\n" + text[text.index(END) :])
