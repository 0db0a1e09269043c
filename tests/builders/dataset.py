# SPDX-License-Identifier: Apache-2.0
"""Datasets made by hand, row by row, for tests of everything that reads one; the rows of any dataset."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import pyarrow as pa
import pyarrow.parquet as pq

from perf_offcpu.dataset.dataset import Dataset
from perf_offcpu.dataset.schema import TABLES, VERSION

HOUR = 3600 * 10**9
BEGIN = 1_789_977_600_000_000_000
"""A time at which an hour begins, ns since 1970: 08:00, so that there are hours of one digit and of two."""
_TYPES = {"list<int64>": pa.list_(pa.int64()), "map<string,string>": pa.map_(pa.string(), pa.string())}
_ZEROS = {"int64": 0, "int32": 0, "string": "", "bool": False, "list<int64>": [], "map<string,string>": {}}
_TIMES = {"samples": "time_ns", "budgets": "begin_ns", "hosts": "begin_ns", "losses": "begin_ns", "gaps": "end_ns"}


def rows_of(dataset: Dataset, table: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for path in dataset.files(table):
        with dataset.store.reader(path.removeprefix(f"{dataset.url}/")) as file:
            found += pq.ParquetFile(file).read().to_pylist()
    return found


@dataclass
class DatasetBuilder:
    """Collects rows of all tables, then writes them; columns that are not given are null or zero."""

    rows: dict[str, list[dict[str, Any]]] = field(default_factory=lambda: {name: [] for name in TABLES})
    stacks: dict[tuple[str, ...], int] = field(default_factory=dict)

    def host(self, name: str, labels: Mapping[str, str] | None = None, **columns: Any) -> Self:
        """Add a segment of an hour; `begin_ns`, `end_ns`, `period_ns` are columns."""
        row = {"host_id": f"id-{name}", "hostname": name, "boot_id": "b", "cpus": 2, "labels": dict(labels or {})}
        self.rows["hosts"].append(row | {"begin_ns": BEGIN, "end_ns": BEGIN + HOUR} | columns)
        return self

    def wait(self, host: str, ns: int, stack: Sequence[str] = (), **columns: Any) -> Self:
        """Add a wait; `stack` names functions, root first, those of the kernel as `name_[k]`."""
        row = {"host_id": f"id-{host}", "boot_id": "b", "time_ns": BEGIN, "event": "offcpu-time", "count": 1}
        row |= {"off_ns": ns, "weight_ns": ns, "comm": "web", "class": "lock", "flags": 1, "idle": False}
        row |= {"stack_id": self.stack(stack)} | columns
        self.rows["samples"].append(row)
        return self

    def stack(self, functions: Sequence[str]) -> int:
        if not functions:
            return 0
        key = tuple(functions)
        if key not in self.stacks:
            self.stacks[key] = 1000 + len(self.stacks)
        return self.stacks[key]

    def write(self, path: Path) -> Path:
        """Write the tables; each hour has the stacks and frames that its samples name."""
        for name, rows in self.rows.items():
            hours: dict[int, list[dict[str, Any]]] = {}
            for row in rows:
                hours.setdefault(row[_TIMES[name]] // HOUR, []).append(row)
            for hour, mine in hours.items():
                write_part(path, name, hour, mine)
        for hour in {row["time_ns"] // HOUR for row in self.rows["samples"]}:
            used = {row["stack_id"] for row in self.rows["samples"] if row["time_ns"] // HOUR == hour}
            self._write_stacks(path, hour, used)
        return path

    def _write_stacks(self, path: Path, hour: int, used: set[int]) -> None:
        numbers = {name: at for at, name in enumerate(sorted({one for key in self.stacks for one in key}), 1)}
        known = {id_: key for key, id_ in self.stacks.items() if id_ in used}
        stacks = [{"stack_id": id_, "frame_ids": [numbers[one] for one in reversed(key)]} for id_, key in known.items()]
        frames = [
            {
                "frame_id": numbers[name],
                "symbol": name.removesuffix("_[k]"),
                "dso": "[kernel.kallsyms]" if name.endswith("_[k]") else "/usr/bin/web",
                "kernel": name.endswith("_[k]"),
            }
            for name in sorted({one for key in known.values() for one in key})
        ]
        for part in ("a", "b"):  # every id is there twice
            if stacks:
                write_part(path, "stacks", hour, stacks, part)
                write_part(path, "frames", hour, frames, part)


def write_part(
    path: Path, name: str, hour: int, rows: Sequence[Mapping[str, Any]], part: str = "a", version: int = VERSION
) -> None:
    folder = path / name / time.strftime("date=%Y-%m-%d/hour=%H", time.gmtime(hour * 3600))
    folder.mkdir(parents=True, exist_ok=True)
    fields, arrays = [], []
    for column in TABLES[name]:
        kind = _TYPES.get(column.type) or pa.type_for_alias(column.type)
        zero = None if column.nullable else _ZEROS[column.type]
        values = [row.get(column.name, zero) for row in rows]
        if column.type.startswith("map"):
            values = [list(value.items()) for value in values]
        arrays.append(pa.array(values, kind))
        fields.append(pa.field(column.name, kind, column.nullable))
    schema = pa.schema(fields, {"perf_offcpu.schema": str(version)})
    pq.write_table(pa.table(arrays, schema=schema), folder / f"{part}.parquet", compression="zstd")
