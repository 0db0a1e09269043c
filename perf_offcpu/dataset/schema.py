# SPDX-License-Identifier: Apache-2.0
"""Declare the tables of a dataset: schema.toml has names, types and meanings of the columns.

A dataset is a folder with a folder for each table, and in that hive partitions by hour, UTC:

    DATASET/samples/date=2026-11-22/hour=14/web1-….parquet

A row is in the hour of its `time_ns` (budgets, hosts, losses: of their `begin_ns`; gaps: `end_ns`), and the stacks and
frames of these rows are in the same hour. A file holds one host until compaction (`dataset.compact`). Hosts have no
folders of their own: see column `host_id`. Equal stacks and frames, which have equal ids (`dataset.content`), may occur
several times: a query takes one row of each id. All types used here exist in DuckDB, Spark, ClickHouse and Trino: no
unsigned integers. Documentation/dataset.md describes the tables to users; a test compares both."""

from perf_offcpu.structs import frozen
from perf_offcpu.tables import read_table

VERSION = 4  # version of the tables, in the metadata of each Parquet file (key `perf_offcpu.schema`)


@frozen
class Column:
    """Column of a table. `type` is an alias of pyarrow's types, or list<int64>, or map<string,string>."""

    name: str
    type: str
    doc: str
    nullable: bool = False


def _columns(entries: dict[str, str]) -> tuple[Column, ...]:
    parts = ((name, *text.partition(": ")) for name, text in entries.items())
    return tuple(Column(name, type_.rstrip("?"), doc, type_.endswith("?")) for name, type_, _, doc in parts)


TABLES = {name: _columns(entries) for name, entries in read_table(__file__)}
"""Name of a table → its columns."""
PARTITIONS = TABLES.pop("partitions")
"""Folders below the folder of each table, outermost first; they are no columns of the files."""
