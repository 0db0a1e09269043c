# SPDX-License-Identifier: Apache-2.0
"""Merge the files of an hour into one for each table.

    1. write the merged rows under a hidden name (object stores: into a temporary file)
    2. write `_compacted-ID.json.zz`: a note with the names of the merged files
    3. give the merged rows their name, `compacted-ID.parquet`
    4. remove the merged files

`Dataset.files` leaves out files that the note of a compacted file names. So it lists each row once at any
time, also after a crash at any step; the next compaction completes an interrupted one. A reader that lists
folders by itself can see rows twice between steps 3 and 4. A segment that is delivered again after compaction
is not written again, because the note names it. Samples, budgets, hosts, losses and gaps are sorted by (host,
time); of stacks and frames one row of each id is kept."""

import heapq
import itertools
from collections.abc import Iterator
from typing import IO, Any

from perf_offcpu.dataset.dataset import (
    COMPACTED,
    HOUR_NS,
    Dataset,
    compacted_name,
    data_files,
    folder_of,
    note_name,
    note_of,
    notes,
    segments_of,
)
from perf_offcpu.dataset.parquet import CHUNK, ROW_GROUP, arrow_schema, open_parquet, refused, writer
from perf_offcpu.dataset.schema import TABLES
from perf_offcpu.dataset.store import imported, put
from perf_offcpu.errors import PerfOffcpuError
from perf_offcpu.structs import frozen, mutable

SETTLED_S = 3600
"""Time after the end of an hour in which delayed agents may still deliver its segments."""
_KEYS = {
    "samples": ("time_ns", "stack_id"),
    "budgets": ("begin_ns", "tid"),
    "hosts": ("begin_ns",),
    "losses": ("begin_ns",),
    "gaps": ("end_ns",),
}
"""Table → columns that give the order of the rows of one host."""
_IDS = {"stacks": "stack_id", "frames": "frame_id"}


@mutable
class Compacted:
    """Counts of what a compaction merged."""

    hours: int = 0  # partitions, of all tables
    files: int = 0  # files that were merged
    rows: int = 0  # rows of these files
    bytes_before: int = 0  # size of these files
    bytes_after: int = 0  # size of the files written

    def add(self, other: "Compacted") -> None:
        """Add the counts of another compaction."""
        for name in ("hours", "files", "rows", "bytes_before", "bytes_after"):
            setattr(self, name, getattr(self, name) + getattr(other, name))


@frozen
class _Input:
    name: str
    host: str  # of its first row; "" for stacks and frames
    is_sorted: bool  # by host, from a compaction of several hosts; else it has one host


def compact(dataset: Dataset, before_ns: int) -> Iterator[tuple[str, Compacted | Exception]]:
    """Merge the files of hours that ended by `before_ns` (ns since 1970, UTC). Yield (folder, counts or the exception
    that stopped it) for each partition with several files. Raise PerfOffcpuError if another process compacts."""
    with dataset.store.locked():
        for table in TABLES:
            for folder in _folders_before(dataset, table, before_ns):
                try:
                    _complete(dataset, folder)
                    if done := _compact_folder(dataset, table, folder):
                        yield folder, done
                except (PerfOffcpuError, OSError) as problem:
                    yield folder, problem


def _folders_before(dataset: Dataset, table: str, before_ns: int) -> Iterator[str]:
    """Yield the folders of a table's hours that ended by `before_ns` (ns since 1970, UTC)."""
    return (folder for hour, folder in dataset.folders(table, None, before_ns) if (hour + 1) * HOUR_NS <= before_ns)


def _complete(dataset: Dataset, folder: str) -> None:
    """Complete an interrupted compaction of a folder if its merged file is there, else undo it."""
    store = dataset.store
    names = store.names(folder)
    store.sweep(folder)
    for note, compacted in notes(names):
        if compacted not in names:
            store.remove(f"{folder}/{note}")
            continue
        for name in {*dataset.held_by(folder, compacted, names)} & {*names}:
            store.remove(f"{folder}/{name}")


def _compact_folder(dataset: Dataset, table: str, folder: str) -> Compacted | None:
    """Merge the files of one folder; return None if there are fewer than two."""
    names = dataset.store.names(folder)
    files = list(data_files(names))
    if len(files) < 2:
        return None
    before = [file for file in files if COMPACTED.fullmatch(file)]
    return _merge(dataset, table, folder, files, (dataset.held(folder, before, names) | {*files}) - {*before})


def compact_host(dataset: Dataset, hour: int, host_id: str, boot_id: str) -> Compacted:
    """Merge the files that a host wrote in one boot into an hour (number since 1970). No note of the segments is kept:
    they must not be delivered again. Raise PerfOffcpuError for a damaged file, or if another process compacts."""
    is_own, total = segments_of(host_id, boot_id).fullmatch, Compacted()
    with dataset.store.locked():
        for table in TABLES:
            folder = f"{table}/{folder_of(hour)}"
            files = list(filter(is_own, dataset.live(folder)))
            if len(files) > 1:
                total.add(_merge(dataset, table, folder, files, {*files}))
                dataset.store.remove(f"{folder}/{note_name(compacted_name(files))}")
    return total


def _merge(dataset: Dataset, table: str, folder: str, files: list[str], segments: set[str]) -> Compacted:
    """Merge `files` of a folder into one. `segments`: names of all segments in it, those in merged files included."""
    store = dataset.store
    before = [file for file in files if COMPACTED.fullmatch(file)]
    compacted, done = compacted_name(sorted(segments)), Compacted(1, len(files))
    inputs = []
    for name in files:
        with store.reader(f"{folder}/{name}") as file:
            inputs.append(_input(table, name, open_parquet(file, store.path(f"{folder}/{name}")), done))
            done.bytes_before += file.seek(0, 2)
    merge = _distinct if table in _IDS else _by_host
    with store.replacing(f"{folder}/{compacted}") as out:
        written = _write(table, out, merge(dataset, table, folder, inputs))
        if table not in _IDS and written != done.rows:
            raise PerfOffcpuError(f"{store.path(folder)}: {done.rows} rows were there, and {written} are merged")
        done.bytes_after = out.tell()
        put(store, f"{folder}/{note_name(compacted)}", note_of({*segments, *before} - {compacted}))
    for name in files:
        if name != compacted:
            store.remove(f"{folder}/{name}")
            if COMPACTED.fullmatch(name):
                store.remove(f"{folder}/{note_name(name)}")
    return done


def _input(table: str, name: str, parquet: Any, done: Compacted) -> _Input:
    done.rows += parquet.metadata.num_rows
    if table in _IDS or not parquet.metadata.num_rows:
        return _Input(name, "", is_sorted=False)
    column = [column_spec.name for column_spec in TABLES[table]].index("host_id")
    groups = [parquet.metadata.row_group(group).column(column).statistics for group in (0, parquet.num_row_groups - 1)]
    with refused(name):
        host = groups[0].min if groups[0] else parquet.read_row_group(0, ["host_id"])["host_id"][0].as_py()
    # Files of many hosts are open at the same time, files of one are read in turn.
    has_several = not all(groups) or groups[-1].max != host
    return _Input(name, str(host), is_sorted=has_several and COMPACTED.fullmatch(name) is not None)


def _read(dataset: Dataset, table: str, folder: str, name: str) -> Iterator[Any]:
    """Yield a file's row groups as pyarrow tables, texts dictionary-encoded; raise PerfOffcpuError if it is damaged."""
    schema = arrow_schema(table, dictionaries=True)
    texts = [column.name for column in TABLES[table] if column.type == "string"]
    shown = dataset.store.path(f"{folder}/{name}")
    with dataset.store.reader(f"{folder}/{name}") as file:
        parquet = open_parquet(file, shown, texts)
        for group in range(parquet.num_row_groups):
            with refused(shown):
                rows = parquet.read_row_group(group, use_threads=False)  # mostly files of a few kilobytes
                yield rows.select(schema.names).cast(schema)


def _by_host(dataset: Dataset, table: str, folder: str, inputs: list[_Input]) -> Iterator[Any]:
    """Yield a pyarrow table for each host, ascending, with the host's rows of all files in the order of `_KEYS`."""
    pa = imported("pyarrow")
    parts = heapq.merge(
        *(_hosts(dataset, table, folder, file) for file in inputs if file.is_sorted),
        ((file.host, file) for file in sorted(inputs, key=lambda file: file.host) if not file.is_sorted),
        key=lambda part: part[0],
    )
    for _, same in itertools.groupby(parts, key=lambda part: part[0]):
        rows: list[Any] = []
        for _, part in same:
            rows += _read(dataset, table, folder, part.name) if isinstance(part, _Input) else [part]
        merged = pa.concat_tables(rows)
        keys = [(key, "ascending") for key in _KEYS[table]]
        # Dictionaries of several files cannot be sorted or taken from before they are one.
        merged = merged.unify_dictionaries().combine_chunks()
        yield merged.take(imported("pyarrow.compute").sort_indices(merged, keys))


def _hosts(dataset: Dataset, table: str, folder: str, part: _Input) -> Iterator[tuple[str, Any]]:
    """Yield (host_id, pyarrow table of its rows) of a compacted file, ascending; a host can have several."""
    pc = imported("pyarrow.compute")
    for rows in _read(dataset, table, folder, part.name):
        ends = pc.run_end_encode(rows["host_id"].combine_chunks().cast("string"))
        begin = 0
        for host, end in zip(ends.values.to_pylist(), ends.run_ends.to_pylist(), strict=True):
            yield host, rows.slice(begin, end - begin)
            begin = end


def _distinct(dataset: Dataset, table: str, folder: str, inputs: list[_Input]) -> Iterator[Any]:
    """Yield pyarrow tables of the rows of `stacks` or `frames` files with the first row of each id."""
    seen: set[int] = set()
    for part in inputs:
        for rows in _read(dataset, table, folder, part.name):
            ids = rows[_IDS[table]].to_pylist()
            new = {id_: row for row, id_ in reversed([*enumerate(ids)]) if id_ not in seen}
            seen |= new.keys()
            if new:
                yield rows.take(sorted(new.values()))


def _write(table: str, out: IO[bytes], tables: Iterator[Any]) -> int:
    """Write pyarrow tables to a Parquet file, in row groups of ROW_GROUP rows; return the number of rows."""
    pa, parquet, written = imported("pyarrow"), None, 0
    waiting: list[Any] = []

    def flush() -> None:
        nonlocal parquet
        # A dictionary of all rows would stand in each row group; as texts each gets one of its own.
        rows = pa.concat_tables(waiting).cast(arrow_schema(table))
        parquet = parquet or writer(table, out, rows.schema)
        parquet.write_table(rows, ROW_GROUP)
        waiting.clear()

    for rows in tables:
        waiting.append(rows)
        written += len(rows)
        if sum(map(len, waiting)) >= CHUNK:
            flush()
    if waiting:
        flush()
    if parquet is not None:
        parquet.close()
    return written


_ORDER = ("samples", "budgets", "losses", "gaps", "hosts", "stacks", "frames")
"""Order in which `expire` empties the tables: samples first, so that a crash leaves no samples without stacks."""


@mutable
class Expired:
    """Counts of what `expire` removed."""

    hours: int = 0  # folders of table `samples`
    files: int = 0  # files of all tables


def expire(dataset: Dataset, before_ns: int) -> Expired:
    """Remove the files of hours that ended by `before_ns` (UTC). Raise PerfOffcpuError if another process compacts."""
    done, store = Expired(), dataset.store
    with store.locked():
        for table in _ORDER:
            for folder in list(_folders_before(dataset, table, before_ns)):
                names = store.names(folder)
                for name in names:
                    store.remove(f"{folder}/{name}")
                store.remove_folder(folder)
                store.remove_folder(folder.rpartition("/")[0])
                done.files += len(names)
                done.hours += table == "samples"
    return done


_OWN_NS = (SETTLED_S - 600) * 10**9
"""Age of an hour in which its own writer merges it, before `fleet compact` merges what all hosts left in it."""


@mutable
class Upkeep:
    """Maintenance of a dataset by one of its writers, when its first segment of an hour is written: merges the files of
    its host of the hour before, and removes hours older than `keep_ns`. It merges no files of other hosts, so that
    writers need not know of each other, also in a store without locks."""

    keep_ns: int = 0  # 0: hours are never removed
    hour: int = -1  # the newest hour (number since 1970) for which maintenance was done; -1 none

    def after(
        self, dataset: Dataset, host: tuple[str, str], begin_ns: int, now_ns: int
    ) -> tuple[Compacted, Expired] | None:
        """Merge and expire files after a segment of `host` (host_id, boot_id) that begins at `begin_ns` was written.
        Return the counts, None if no new hour began. Times are ns since 1970, UTC. Raise PerfOffcpuError or OSError on
        failure; the call for the next segment retries."""
        hour = begin_ns // HOUR_NS
        if hour <= self.hour:
            return None
        merged, removed = Compacted(), Expired()
        if now_ns - hour * HOUR_NS < _OWN_NS:
            merged = compact_host(dataset, hour - 1, *host)
        if self.keep_ns:
            removed = expire(dataset, now_ns - self.keep_ns)
        self.hour = hour
        return merged, removed
