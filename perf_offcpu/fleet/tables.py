# SPDX-License-Identifier: Apache-2.0
"""Open the tables of a dataset as expressions of Ibis, each at its first use."""

import decimal
import math
import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from perf_offcpu.dataset.schema import PARTITIONS, TABLES, VERSION, Column
from perf_offcpu.errors import PerfOffcpuError, UsageError
from perf_offcpu.fleet.engine import Engine, FileGoneError
from perf_offcpu.report.style import Column as TextColumn
from perf_offcpu.report.style import lay_out
from perf_offcpu.structs import mutable
from perf_offcpu.text import printable

if TYPE_CHECKING:
    from perf_offcpu.dataset.dataset import Dataset


_IBIS_TYPES = {
    "list<int64>": "array<int64>",
    "map<string,string>": "map<string, string>",
    "bool": "boolean",
    "date32": "date",
}

_LATER = ("gaps",)  # tables that databases of this version may lack


@mutable
class Tables:
    """Tables of a dataset as Ibis tables of an engine, opened at first use."""

    path: str  # path or URL of the dataset
    engine: Engine
    dataset: "Dataset | None"  # None for a database, which has tables under the same names
    opened: dict[str, Any]  # name → ibis Table

    def table(self, name: str) -> Any:
        """Return an Ibis table, without rows if nothing was written to it; raise UsageError for missing columns."""
        if name not in self.opened:
            with self.engine.asked():
                table = self._open(name)
            if self.dataset is not None:
                self._check_columns(name, table.schema())
            self.opened[name] = table
        return self.opened[name]

    def _check_columns(self, name: str, schema: Any) -> None:
        """Raise UsageError if `schema`, of the first file, lacks columns of TABLES (engines check the others)."""
        import ibis

        for column in TABLES[name]:
            wanted, present = ibis.dtype(_ibis_type(column)), schema.get(column.name)
            is_same = present is not None and _plain(present) == _plain(wanted)
            if is_same or (present is not None and present.is_integer() and wanted.is_integer()):
                continue
            problem = f"{column.name} of type {_plain(present)}" if present else f"no column '{column.name}'"
            raise UsageError(
                f"{self.path}: table {name} has {problem}: the first of its files at least was written by "
                "another version or program"
            )

    def check_versions(self, until_ns: int | None = None) -> None:
        """Raise PerfOffcpuError if a segment up to `until_ns` (None: any) was written by another version of the schema.
        Only files of table `hosts`, small ones, are read: each stands for all files of its segment."""
        from perf_offcpu.dataset.parquet import VERSION_KEY, wrong_version

        files = self.dataset.files("hosts", None, until_ns) if self.dataset else []
        for version, path in self.engine.notes(files, VERSION_KEY.decode()).items():
            if version != str(VERSION):
                raise PerfOffcpuError(wrong_version(path, version))

    def _open(self, name: str) -> Any:
        if self.dataset is None:
            is_missing = name in _LATER and name not in self.engine.backend.list_tables()
            return self._empty(name) if is_missing else self._of_database(name)
        files = self.dataset.files(name)
        return self.engine.read(files, f"{self.path}/{name}", name) if files else self._empty(name)

    def _of_database(self, name: str) -> Any:
        from ibis.common.exceptions import TableNotFound

        try:
            return self.engine.backend.table(name)
        except TableNotFound:
            raise UsageError(
                f"{self.engine.name}: there is no table '{name}': a database has the tables of a dataset "
                "under their names, made by its owner"
            ) from None

    def _empty(self, name: str) -> Any:
        import ibis

        types = {column.name: _ibis_type(column) for column in (*TABLES[name], *PARTITIONS)}
        return self.engine.empty(ibis.schema(types), name)


def _ibis_type(column: Column) -> str:
    return _IBIS_TYPES.get(column.type, column.type)


def _plain(type_: Any) -> str:
    """Format an Ibis type without its nullability, which not all engines report."""
    return str(type_).replace("!", "")


def open_tables(path: str, engine: Engine) -> Tables:
    """Open the tables of the dataset `path`; a database's engine looks them up by name. Raise PerfOffcpuError."""
    from perf_offcpu.dataset.dataset import open_dataset
    from perf_offcpu.dataset.parquet import check_version

    if engine.name not in ("duckdb", "pyspark"):  # these read files by path, others look up tables by name
        return Tables(path, engine, None, {})
    dataset = open_dataset(path)
    files = dataset.files("samples")
    if not files:
        raise UsageError(
            f"{path}: no dataset, or nothing was written to it yet: there are no Parquet files in "
            "samples/date=…/hour=…/"
        )
    for name in {files[0], files[-1]}:
        try:
            file = dataset.store.reader(name.removeprefix(f"{dataset.url}/"))
        except FileNotFoundError as problem:
            raise FileGoneError(f"{name}: {problem.strerror}") from None
        with file:
            check_version(file, name)
    engine.use_store(dataset.store)
    return Tables(dataset.url, engine, dataset, {})


def ask(tables: Tables, query: str) -> dict[str, list[Any]]:
    """Run a query of the user in the engine's SQL; return column name → values; raise PerfOffcpuError."""
    tables.check_versions()
    for name in TABLES:
        if re.search(rf"\b{name}\b", query, re.IGNORECASE):
            tables.table(name)
    return tables.engine.sql(query)


def document(columns: Mapping[str, list[Any]]) -> list[dict[str, Any]]:
    """Convert a result (column → values) to rows as JSON objects: integers stay exact, NaN and infinity become null."""
    return [dict(zip(columns, map(_plain_value, row), strict=True)) for row in zip(*columns.values(), strict=True)]


def _plain_value(value: Any) -> Any:
    """Convert a value to what JSON can hold; values that are no number, text, list or map, such as times, to text."""
    if isinstance(value, Mapping):
        return {str(key): _plain_value(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain_value(item) for item in value]
    if isinstance(value, decimal.Decimal):
        is_whole = value.is_finite() and value == value.to_integral_value()
        return int(value) if is_whole else _plain_value(float(value))
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    return value if value is None or isinstance(value, str | int) else str(value)


def lines(columns: dict[str, list[Any]]) -> Iterator[str]:
    """Yield the lines of a text table of a result (column → values)."""
    if not columns:
        return
    yield from lay_out([_column(name, values) for name, values in columns.items()], None)


def _column(name: str, values: list[Any]) -> TextColumn:
    left = any(isinstance(value, str | Mapping | list) for value in values)
    cells = ["" if value is None else printable(str(value)) for value in values]
    return TextColumn(printable(name), cells, left=left)
