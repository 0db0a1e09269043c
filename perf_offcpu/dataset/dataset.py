# SPDX-License-Identifier: Apache-2.0
"""Open a dataset and list its files, without files whose rows are in a compacted file."""

from __future__ import annotations

import re
from collections.abc import Iterator

from perf_offcpu.dataset.layout import (
    COMPACTED,
    HOUR_NS,
    data_files,
    files_of_note,
    hour_of_folder,
    note_name,
)
from perf_offcpu.dataset.schema import TABLES
from perf_offcpu.dataset.store import Store, imported, open_store, read_all
from perf_offcpu.errors import PerfOffcpuError
from perf_offcpu.structs import frozen

_PATTERN = re.compile(r"[*?\[\]{}\\]")
"""Characters by which query engines take a path for a pattern; agents write none into names."""


@frozen
class Dataset:
    """A dataset: its tables are folders of `store`."""

    store: Store

    @property
    def url(self) -> str:
        """Return the path or URL of the dataset."""
        return self.store.url

    def folders(self, table: str, begin_ns: int | None = None, end_ns: int | None = None) -> Iterator[tuple[int, str]]:
        """Return (hour since 1970, folder) of the partitions of a table, in order of time.

        Args:
            begin_ns, end_ns: ns since 1970, UTC: only hours that overlap this time.
        """
        first = None if begin_ns is None else begin_ns // HOUR_NS
        last = None if end_ns is None else (end_ns - 1) // HOUR_NS
        for date in self.store.names(table):
            first_hour = hour_of_folder(date, "hour=00")
            if (
                first_hour is None
                or (last is not None and first_hour > last)
                or (first is not None and first_hour + 23 < first)
            ):
                continue
            for name in self.store.names(f"{table}/{date}"):
                hour = hour_of_folder(date, name)
                if hour is not None and (first is None or hour >= first) and (last is None or hour <= last):
                    yield hour, f"{table}/{date}/{name}"

    def files(self, table: str, begin_ns: int | None = None, end_ns: int | None = None) -> list[str]:
        """Return the paths or URLs of the Parquet files of a table, none of which repeats rows of another.

        Compaction may remove a listed file before it is opened: then list again.

        Args:
            table: a key of `schema.TABLES`.
            begin_ns, end_ns: as in `folders`; rows of the first and last hour may lie outside.

        Raises:
            PerfOffcpuError: a path has a character of patterns: its rows would be read several times.
        """
        assert table in TABLES, table
        paths = [
            self.store.path(f"{folder}/{name}")
            for _, folder in self.folders(table, begin_ns, end_ns)
            for name in self.live(folder)
        ]
        for path in paths:
            if match := _PATTERN.search(path):
                raise PerfOffcpuError(f"{path}: query engines expand the '{match[0]}' in its name: rename it")
        return paths

    def live(self, folder: str) -> list[str]:
        """Return the names of the files of a partition, without files that are in a compacted one."""
        names = self.store.names(folder)
        files = list(data_files(names))
        if len(files) == 1:
            return files
        held = {name for file in files if COMPACTED.fullmatch(file) for name in self.held_by(folder, file, names)}
        return [file for file in files if file not in held]

    def held_by(self, folder: str, compacted: str, names: list[str]) -> list[str]:
        """Return the names of the files whose rows a compacted file of a partition holds."""
        note = note_name(compacted)
        if note not in names:
            return []
        path = f"{folder}/{note}"
        try:
            return files_of_note(read_all(self.store, path))
        except ValueError:
            raise PerfOffcpuError(f"{self.store.path(path)}: is damaged") from None

    def is_compacted(self, folder: str, name: str) -> bool:
        """Return whether a compacted file holds the rows of a file."""
        names = self.store.names(folder)
        files = filter(COMPACTED.fullmatch, names)
        return any(name in self.held_by(folder, file, names) for file in files)


def open_dataset(url: str, *, make: bool = False) -> Dataset:
    """Open a dataset by its path or URL (s3://…, gs://…, abfs://…).

    Args:
        make: make the folder if it does not exist.

    Raises:
        UsageError: it does not exist, or pyarrow or a package for this kind of store is missing.
    """
    imported("pyarrow")  # now: an agent that cannot write has recorded for nothing
    return Dataset(open_store(url, make=make))
