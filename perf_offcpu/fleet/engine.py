# SPDX-License-Identifier: Apache-2.0
"""Connect to the query engine through Ibis: DuckDB in this process, or an engine of the user. Queries are expressions
of Ibis (`fleet.queries`), so that each engine gets them in its own dialect. DuckDB and Spark read the files of a
dataset; a database (ClickHouse, Trino, …) has tables with the names of the dataset's tables."""

import contextlib
import decimal
import importlib.util
import itertools
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from perf_offcpu.errors import PerfOffcpuError, UsageError
from perf_offcpu.structs import frozen

DEFAULT = "duckdb"
_MEMORY_LIMIT = "1500MB"
"""Memory limit of DuckDB, without Python, Arrow and the result; larger queries use temporary files."""
_SPARK = {"sql.session.timeZone": "UTC", "ui.enabled": "false", "ui.showConsoleProgress": "false"}
_WITHOUT_TABLES = ("duckdb", "pyspark", "datafusion", "polars")
"""Engines of Ibis that run in a process and read files: by a URL, they would not look for tables in the dataset."""
_DATABASES = "clickhouse://HOST/DB, trino://HOST/CATALOG/SCHEMA"
_INSTALL = "pip install 'perf-offcpu[fleet]'"
_READ = """
FROM read_parquet([{files}], hive_partitioning = true, hive_types = {{'date': DATE, 'hour': INTEGER}})"""
"""Without hive_types, DuckDB takes the hours of all files for text if one is written 04."""
_NOTES = """
SELECT decode(value), any_value(file_name) FROM parquet_kv_metadata([{files}])
WHERE decode(key) = {key} GROUP BY 1"""


class EngineError(PerfOffcpuError):
    """The engine refused a query."""


class FileGoneError(EngineError):
    """A file was removed after it was listed, by compaction or retention: repeat the query with a new list."""


_GONE = ("No files found", "No such file", "FileNotFoundError", "FILE_NOT_EXIST", "NoSuchKey")
"""Words in errors of engines and stores which say that a file is gone."""


@frozen
class Engine:
    """Open connection of Ibis to a query engine."""

    name: str  # name of Ibis' backend: duckdb, pyspark, clickhouse, …
    backend: Any  # ibis.backends.BaseBackend

    def use_store(self, store: Any) -> None:
        """Register the store's fsspec file system with DuckDB, whose wheel has no clients for object stores."""
        filesystem = getattr(store, "filesystem", None)
        if self.name == "duckdb" and filesystem is not None:
            self.backend.con.register_filesystem(filesystem)

    def read(self, files: list[str], folder: str, name: str) -> Any:
        """Make a view `name` of Parquet files (paths or URLs), return it as an Ibis table. Partitions in the paths
        below `folder` (date=…/hour=…) become columns."""
        if self.name == "duckdb":
            self.backend.con.sql(_READ.format(files=", ".join(map(_quoted, files)))).create_view(name)
        else:
            reader = self.backend._session.read.option("basePath", folder)
            reader.parquet(*files).createOrReplaceTempView(name)
        return self.backend.table(name)

    def notes(self, files: list[str], key: str) -> dict[str, str]:
        """Read entry `key` of Parquet files' metadata: return value → name of a file with it; {} unless DuckDB."""
        if self.name != "duckdb" or not files:
            return {}
        query = _NOTES.format(files=", ".join(map(_quoted, files)), key=_quoted(key))
        with self.asked():
            return {value: name for value, name in self.backend.con.sql(query).fetchall()}

    def kept(self, expression: Any) -> Any:
        """Run an expression once and return its result as an Ibis table in memory; raise EngineError."""
        import ibis

        # Ibis 12 can neither make tables in DuckDB 2 nor cache what is made of memtables in Spark.
        with self.asked():
            return ibis.memtable(self.backend.to_pyarrow(expression))

    def empty(self, schema: Any, name: str) -> Any:
        """Return an Ibis table without rows, with the columns of an Ibis schema; in DuckDB and Spark a view `name`."""
        import ibis

        if self.name == "duckdb":
            return self.backend.create_view(name, ibis.memtable([], schema=schema), overwrite=True)
        if self.name != "pyspark":
            return ibis.memtable([], schema=schema)
        from ibis.backends.pyspark.datatypes import PySparkSchema

        frame = self.backend._session.createDataFrame([], PySparkSchema.from_ibis(schema))
        frame.createOrReplaceTempView(name)
        return self.backend.table(name)

    def run(self, expression: Any, *, of_rows: bool = True) -> dict[str, list[Any]]:
        """Run a table expression; return column name → Python values, decimals as integers. Raise EngineError if the
        engine refuses the query, or for a null, which perf-offcpu does not write into these columns; `of_rows=False`
        allows nulls, which an aggregate of no rows has."""
        with self.asked():
            columns: dict[str, list[Any]] = self.backend.to_pyarrow(expression).to_pydict()
        if of_rows and (nulls := [name for name, column in columns.items() if None in column]):
            raise EngineError(f"{self.name}: {nulls[0]} is null in a row: perf-offcpu did not write that file")
        return {
            name: [int(value) if isinstance(value, decimal.Decimal) else value for value in column]
            for name, column in columns.items()
        }

    def sql(self, text: str) -> dict[str, list[Any]]:
        """Run a query in the engine's SQL; return column name → values, {} without a result; raise EngineError."""
        with self.asked():
            if self.name == "duckdb":  # Ibis 12 asks DuckDB 2 for a function that is gone
                result = self.backend.con.sql(text)
                return {} if result is None else _columns(result.to_arrow_table())
            if self.name == "pyspark":
                return _columns(self.backend._session.sql(text).toArrow())
            return _columns(self.backend.sql(text).to_pyarrow())

    @contextlib.contextmanager
    def asked(self) -> Iterator[None]:
        """Turn exceptions of the engine in the `with` block into EngineError with one line, or FileGoneError."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # of Ibis' use of its engines
                yield
        except FileNotFoundError as problem:
            raise FileGoneError(f"{self.name}: {problem}") from problem
        except (PerfOffcpuError, OSError, KeyboardInterrupt):
            raise
        except Exception as problem:  # each engine has its own exceptions, without a common base
            kind = FileGoneError if any(word in str(problem) for word in _GONE) else EngineError
            raise kind(f"{self.name}: {_first_line(problem)}") from problem


def _columns(table: Any) -> dict[str, list[Any]]:
    """Return column name → Python values of an Arrow table; repeated names become NAME_1, NAME_2, as in DuckDB."""
    columns: dict[str, list[Any]] = {}
    for name, column in zip(table.column_names, table.columns, strict=True):
        numbered = (f"{name}_{number}" for number in itertools.count(1))
        unique = next(candidate for candidate in itertools.chain([name], numbered) if candidate not in columns)
        values = column.to_pylist()
        if str(column.type).startswith("map<"):
            values = [None if pairs is None else dict(pairs) for pairs in values]
        columns[unique] = values
    return columns


def records(columns: Mapping[str, Sequence[Any]], names: Sequence[str]) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of a result (column → values) as tuples of the columns `names`."""
    return zip(*(columns[name] for name in names), strict=True)


def _quoted(text: str) -> str:
    """Quote a text as a string literal of SQL."""
    return "'" + text.replace("'", "''") + "'"


def _first_line(problem: Exception) -> str:
    return next(filter(None, map(str.strip, str(problem).splitlines())), type(problem).__name__)


def connect(url: str = DEFAULT) -> Engine:
    """Connect to engine `url` (duckdb, spark:MASTER, spark://HOST:PORT, URL of Ibis); raise UsageError, EngineError."""
    if importlib.util.find_spec("ibis") is None:
        raise UsageError(f"fleet needs ibis and duckdb, which are not installed: {_INSTALL}")
    if url == DEFAULT:
        return Engine("duckdb", _duckdb())
    if url.partition(":")[0] == "spark":
        return Engine("pyspark", _spark(url))
    return _by_url(url)


def _duckdb() -> Any:
    import atexit
    import gc
    import shutil
    import tempfile

    import ibis

    # Private and of a random name: in /tmp, another user could have made one of a known name before.
    folder = tempfile.mkdtemp(prefix="perf-offcpu-fleet.")  # direct: made by this call, with mode 0700
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    atexit.register(gc.unfreeze)  # DuckDB 2 complains on stderr of objects that are left at exit
    backend = ibis.duckdb.connect(
        memory_limit=_MEMORY_LIMIT,
        temp_directory=folder,
        preserve_insertion_order=False,
        autoinstall_known_extensions=False,  # nothing is fetched from the network
    )
    ibis.set_backend(backend)
    return backend


def _spark(url: str) -> Any:
    if importlib.util.find_spec("pyspark") is None:
        raise UsageError(f"--engine {url}: pyspark is not installed: pip install pyspark 'pandas<3'")
    import logging

    import ibis
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName("perf-offcpu fleet")
    builder = builder.master(url if url.startswith("spark://") else url.removeprefix("spark:"))
    logging.getLogger("SQLQueryContextLogger").disabled = True  # errors are one sentence
    for key, value in _SPARK.items():
        builder = builder.config(f"spark.{key}", value)
    try:
        session = builder.getOrCreate()
        session.sparkContext.setLogLevel("ERROR")
        return ibis.pyspark.connect(session)
    except Exception as problem:  # py4j's, pyspark's and RuntimeError
        raise EngineError(f"--engine {url}: Spark does not start: {str(problem).splitlines()[0]}") from problem


def _by_url(url: str) -> Engine:
    import ibis

    if "://" not in url:
        raise UsageError(f"--engine {url}: give duckdb, spark:MASTER, or a URL such as clickhouse://HOST/DB")
    scheme = url.partition("://")[0]
    if scheme in _WITHOUT_TABLES:
        raise UsageError(f"--engine {url}: give duckdb, or spark:MASTER, or the URL of a database: {_DATABASES}")
    try:
        backend = ibis.connect(url)
    except ImportError as problem:
        missing = f"a package is missing ({problem.__cause__ or _first_line(problem)})"
        raise UsageError(f"--engine {url}: {missing}: pip install 'ibis-framework[{scheme}]'") from problem
    except Exception as problem:  # each engine has its own
        raise EngineError(f"--engine {url}: cannot connect: {_first_line(problem)}") from problem
    return Engine(backend.name, backend)
