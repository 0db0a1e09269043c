# SPDX-License-Identifier: Apache-2.0
"""Write tables of columns as Parquet, by the declarations in `dataset.schema`."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perf_offcpu.callpaths.keys import Texts
from perf_offcpu.dataset.schema import TABLES, VERSION
from perf_offcpu.dataset.store import imported
from perf_offcpu.errors import PerfOffcpuError
from perf_offcpu.model.columns import Bool

VERSION_KEY = b"perf_offcpu.schema"
LEVEL = 3  # level of zstd: higher levels take much more time, and level 9 saves a few percent
ROW_GROUP = 1 << 15  # Rows of a row group. It holds few hosts: a query for one service skips the row groups of others.
CHUNK = 1 << 17  # number of rows in memory while files are merged
_MOST_VALUES = ROW_GROUP * 1024
"""Most values of a column in a row group: as many as ROW_GROUP of the deepest stacks have.

A list of millions of equal numbers takes a kilobyte in a file, and as much memory as other lists."""
_DIFFERENCES = frozenset({"time_ns", "off_ns", "weight_ns", "runq_ns"})
"""Columns of mostly different numbers: their differences are shorter than a dictionary."""
_STATISTICS = {
    "samples": ["time_ns", "off_ns", "pid", "tid", "comm", "class", "stack_id", "host_id"],
    "stacks": ["stack_id"],
    "frames": ["frame_id"],
    "budgets": ["begin_ns", "host_id"],
    "hosts": ["begin_ns", "host_id"],
    "losses": ["begin_ns", "host_id"],
    "gaps": ["end_ns", "host_id"],
}
"""Columns by which engines skip row groups. Statistics of all columns would be half of a small file."""

ColumnData = Texts | NDArray[Any] | tuple[NDArray[Any], Bool] | Any
"""Texts; or numbers; or numbers and a mask of unknown ones; or an array of pyarrow."""


def arrow_schema(table: str, *, dictionaries: bool = False) -> Any:
    """Return the pyarrow schema of a table; `dictionaries`: with dictionary-encoded texts."""
    pa = imported("pyarrow")
    types = {
        "string": pa.dictionary(pa.int32(), pa.string()) if dictionaries else pa.string(),
        "list<int64>": pa.list_(pa.field("element", pa.int64(), nullable=False)),
        "map<string,string>": pa.map_(pa.string(), pa.string()),
    }
    fields = [
        pa.field(column.name, types.get(column.type) or pa.type_for_alias(column.type), column.nullable)
        for column in TABLES[table]
    ]
    return pa.schema(fields)


def arrow_table(table: str, columns: Mapping[str, ColumnData]) -> Any:
    """Return the columns of a table of the dataset as a pyarrow table; a Texts becomes a dictionary-encoded column."""
    pa, schema = imported("pyarrow"), arrow_schema(table)
    arrays = [_array(pa, columns[field.name], field.type) for field in schema]
    fields = [field.with_type(array.type) for field, array in zip(schema, arrays, strict=True)]
    return pa.Table.from_arrays(arrays, schema=pa.schema(fields))


def _array(pa: Any, data: ColumnData, type_: Any) -> Any:
    if isinstance(data, Texts):
        codes = pa.array(data.codes.astype(np.int32), mask=data.codes < 0)
        return pa.DictionaryArray.from_arrays(codes, pa.array(data.texts, pa.string()))
    if isinstance(data, tuple):
        return pa.array(data[0], type_, mask=data[1])
    return data if isinstance(data, pa.Array) else pa.array(data, type_)


def writer(table: str, file: Any, schema: Any) -> Any:
    """Return a ParquetWriter of rows of a table into `file`; `schema`: the pyarrow schema of these rows."""
    names = [column.name for column in TABLES[table]]
    paths = {name: name for name in names} | {"frame_ids": "frame_ids.list.element"}  # inside Parquet's schema
    made = imported("pyarrow.parquet").ParquetWriter(
        file,
        schema,
        compression="zstd",
        compression_level=LEVEL,
        use_dictionary=[paths[name] for name in names if name not in _DIFFERENCES],
        column_encoding={name: "DELTA_BINARY_PACKED" for name in names if name in _DIFFERENCES},
        write_statistics=_STATISTICS[table],
        store_schema=False,
    )
    made.add_key_value_metadata({VERSION_KEY: str(VERSION)})  # goes with the schema if that is not stored
    return made


def to_parquet(table: str, columns: Mapping[str, ColumnData]) -> Any:
    """Encode the columns of a table as a Parquet file, in a pyarrow buffer."""
    pa = imported("pyarrow")
    rows, sink = arrow_table(table, columns), pa.BufferOutputStream()
    with writer(table, sink, rows.schema) as out:
        out.write_table(rows, ROW_GROUP)
    return sink.getvalue()


def check_version(file: Any, shown: str) -> None:
    """Raise PerfOffcpuError for a damaged file or one of another version of the schema; `shown`: its name. A file
    without version is accepted, since another program may have rewritten it: `fleet.tables` checks its columns."""
    version = _version_of(_opened(file, shown))
    if version not in ("", str(VERSION)):
        raise PerfOffcpuError(wrong_version(shown, version))


def open_parquet(file: Any, shown: str, dictionaries: Sequence[str] = ()) -> Any:
    """Open a Parquet file of this version of the schema as a ParquetFile; columns in `dictionaries` stay encoded. Raise
    PerfOffcpuError, which names it as `shown`, for other files, and for row groups too large for memory."""
    opened = _opened(file, shown, dictionaries)
    version = _version_of(opened)
    if version != str(VERSION):
        raise PerfOffcpuError(wrong_version(shown, version))
    for number in range(opened.num_row_groups):
        group = opened.metadata.row_group(number)
        if max((group.column(column).num_values for column in range(group.num_columns)), default=0) > _MOST_VALUES:
            raise PerfOffcpuError(f"{shown}: a row group has more than {_MOST_VALUES} values in a column")
    return opened


def _opened(file: Any, shown: str, dictionaries: Sequence[str] = ()) -> Any:
    with refused(shown):
        return imported("pyarrow.parquet").ParquetFile(file, read_dictionary=list(dictionaries))


@contextlib.contextmanager
def refused(shown: str) -> Iterator[None]:
    """Turn pyarrow's exceptions on a file (named `shown`) in the `with` block into PerfOffcpuError."""
    try:
        yield
    except (imported("pyarrow").ArrowException, ValueError, KeyError) as problem:
        text = " ".join(str(problem).split())[:200]
        raise PerfOffcpuError(f"{shown}: it is no Parquet file of this table ({text})") from None


def _version_of(schema: Any) -> str:
    version: bytes = (schema.metadata.metadata or {}).get(VERSION_KEY, b"")
    return version.decode("ascii", "replace")


def wrong_version(shown: str, version: str) -> str:
    """Return the message on a file, named as `shown`, with another version of the schema ("" if it has none)."""
    text = f"has version {version!r} of the tables" if version else "was not written by perf-offcpu"
    return f"{shown}: it {text}, and this program reads version {VERSION}"
