# SPDX-License-Identifier: Apache-2.0
"""Name the folders and files of a dataset, and list them without files whose rows are in a compacted file.

samples/date=2026-11-22/hour=14/web1-1795237533106477182-1795237593106477182-5f3a9c01.parquet
                                host-begin-end-digest: a segment; written again, it replaces itself
samples/date=2026-11-22/hour=14/compacted-77d0c3a1b2e4f560.parquet
                                several segments in one
samples/date=2026-11-22/hour=14/_compacted-77d0c3a1b2e4f560.json.zz
                                the names of these segments (`dataset.compact`)
"""

import datetime
import hashlib
import json
import re
import zlib
from collections.abc import Iterable, Iterator

from perf_offcpu.dataset.schema import TABLES
from perf_offcpu.dataset.store import SUFFIX, Store, imported, open_store
from perf_offcpu.errors import PerfOffcpuError
from perf_offcpu.structs import frozen

HOUR_NS = 3600 * 10**9
_NOTE = ".json.zz"
_LONGEST_NOTE = 1 << 28
COMPACTED = re.compile(r"compacted-([0-9a-f]{16})\.parquet", re.ASCII)
_PARTITIONS = re.compile(r"date=(\d{4}-\d\d-\d\d)/hour=(\d\d)", re.ASCII)
_EPOCH = datetime.datetime(1970, 1, 1)
_LAST_HOUR = (datetime.datetime(2200, 1, 1) - _EPOCH) // datetime.timedelta(hours=1)
_UNUSUAL = re.compile(r"[^A-Za-z0-9.-]+")
_LONGEST = 60


def folder_of(hour: int) -> str:
    """Return the folder of an hour (number since 1970), `date=2026-11-22/hour=14`; raise PerfOffcpuError after 2199."""
    if not 0 <= hour < _LAST_HOUR:
        raise PerfOffcpuError("times are not between 1970 and 2200: the recording's clocks are damaged")
    time = _EPOCH + datetime.timedelta(hours=hour)
    return f"date={time:%Y-%m-%d}/hour={time:%H}"


def hour_of_folder(date: str, hour: str) -> int | None:
    """Return the number since 1970 of the hour that folders `date=…` and `hour=…` name; None for other names."""
    match = _PARTITIONS.fullmatch(f"{date}/{hour}")
    try:
        time = match and datetime.datetime.fromisoformat(match[1]) + datetime.timedelta(hours=int(match[2]))
    except (ValueError, OverflowError):
        return None
    number = (time - _EPOCH) // datetime.timedelta(hours=1) if time else -1
    return number if 0 <= number < _LAST_HOUR and folder_of(number) == f"{date}/{hour}" else None


def segment_name(host_id: str, boot_id: str, begin_ns: int, end_ns: int) -> str:
    """Return the file name of a segment, which depends on host, boot and time (ns since 1970) alone."""
    return f"{plain_name(host_id)}-{begin_ns}-{end_ns}-{_boot_digest(host_id, boot_id)}{SUFFIX}"


def segments_of(host_id: str, boot_id: str) -> re.Pattern[str]:
    """Return a pattern that matches the file names of a host's segments of one boot."""
    digest = _boot_digest(host_id, boot_id)
    return re.compile(rf"{re.escape(plain_name(host_id))}-\d+-\d+-{digest}{re.escape(SUFFIX)}", re.ASCII)


def _boot_digest(host_id: str, boot_id: str) -> str:
    return hashlib.blake2b(f"{host_id}\0{boot_id}".encode(), digest_size=4).hexdigest()


def plain_name(text: str) -> str:
    """Reduce a text to letters, digits, dots and dashes, as a part of a file name; "host" if nothing is left."""
    return _UNUSUAL.sub("-", text).strip(".-")[:_LONGEST] or "host"


def compacted_name(segments: list[str]) -> str:
    """Return the name of the file into which segments are merged; it depends on their names alone."""
    digest = hashlib.blake2b("\n".join(sorted(segments)).encode(), digest_size=8).hexdigest()
    return f"compacted-{digest}{SUFFIX}"


def note_name(compacted: str) -> str:
    """Return the name of the note that lists the files merged into `compacted`; query engines skip it."""
    return f"_{compacted.removesuffix(SUFFIX)}{_NOTE}"


def notes(names: list[str]) -> Iterator[tuple[str, str]]:
    """Yield (note, compacted file) for each note among the names of a folder."""
    for name in names:
        compacted = name.removeprefix("_").removesuffix(_NOTE) + SUFFIX
        if COMPACTED.fullmatch(compacted) and name == note_name(compacted):
            yield name, compacted


def note_of(files: Iterable[str]) -> bytes:
    """Return the content of a note that lists `files`: compressed JSON."""
    return zlib.compress(json.dumps({"files": sorted(files)}).encode())


def files_of_note(note: bytes) -> list[str]:
    """Return the names of the files that a note lists; raise ValueError if it is damaged."""
    try:
        text = zlib.decompressobj().decompress(note, _LONGEST_NOTE)
        return [str(name) for name in json.loads(text)["files"]]
    except (zlib.error, KeyError, TypeError, RecursionError) as problem:
        raise ValueError(str(problem)) from None


def data_files(names: list[str]) -> Iterator[str]:
    """Return the names of visible Parquet files among the names of a folder."""
    return (name for name in names if name.endswith(SUFFIX) and name[0] not in "._")


_PATTERN = re.compile(r"[*?\[\]{}\\]")
"""Characters by which query engines take a path for a pattern; agents write none into names."""


@frozen
class Dataset:
    """Files of a dataset: each table is a folder of `store`, with a folder for each hour."""

    store: Store

    @property
    def url(self) -> str:
        """Return the path or URL of the dataset."""
        return self.store.url

    def folders(self, table: str, begin_ns: int | None = None, end_ns: int | None = None) -> Iterator[tuple[int, str]]:
        """Yield (hour since 1970, folder), sorted, for hours that overlap [begin_ns, end_ns) (UTC; None: open)."""
        first = 0 if begin_ns is None else begin_ns // HOUR_NS
        last = _LAST_HOUR if end_ns is None else (end_ns - 1) // HOUR_NS
        for date in self.store.names(table):
            midnight = hour_of_folder(date, "hour=00")
            if midnight is None or midnight > last or midnight + 23 < first:
                continue
            for name in self.store.names(f"{table}/{date}"):
                hour = hour_of_folder(date, name)
                if hour is not None and first <= hour <= last:
                    yield hour, f"{table}/{date}/{name}"

    def files(self, table: str, begin_ns: int | None = None, end_ns: int | None = None) -> list[str]:
        """Return the paths or URLs of a table's Parquet files of the hours that overlap [begin_ns, end_ns), without
        files whose rows are in another one. Compaction may remove a listed file before it is opened: then list again.
        Raise PerfOffcpuError if a path has a character that query engines expand."""
        assert table in TABLES, table
        paths = [
            self.store.path(f"{folder}/{name}")
            for _, folder in self.folders(table, begin_ns, end_ns)
            for name in self.live(folder)
        ]
        if match := next(filter(None, map(_PATTERN.search, paths)), None):
            raise PerfOffcpuError(f"{match.string}: query engines expand the '{match[0]}' in its name: rename it")
        return paths

    def live(self, folder: str) -> list[str]:
        """Return the names of the Parquet files of a folder, without files whose rows are in a compacted one."""
        names = self.store.names(folder)
        files = list(data_files(names))
        held = self.held(folder, files, names) if len(files) > 1 else set()
        return [file for file in files if file not in held]

    def held(self, folder: str, files: Iterable[str], names: list[str]) -> set[str]:
        """Return the names of files merged into a compacted file among `files`. `names`: all in the folder."""
        return {name for file in filter(COMPACTED.fullmatch, files) for name in self.held_by(folder, file, names)}

    def held_by(self, folder: str, compacted: str, names: list[str]) -> list[str]:
        """Read the note of file `compacted`: return the names of files merged into it. `names`: all in the folder."""
        note = note_name(compacted)
        if note not in names:
            return []
        path = f"{folder}/{note}"
        try:
            with self.store.reader(path) as file:
                return files_of_note(file.read())
        except ValueError:
            raise PerfOffcpuError(f"{self.store.path(path)}: is damaged") from None

    def is_compacted(self, folder: str, name: str) -> bool:
        """Return True if file `name` of a folder was merged into a compacted file."""
        names = self.store.names(folder)
        return name in self.held(folder, names, names)


def open_dataset(url: str, *, make: bool = False) -> Dataset:
    """Open a dataset by path or URL (s3://…, gs://…, abfs://…). `make`: make a missing local one, else UsageError."""
    imported("pyarrow")  # now: an agent that cannot write has recorded for nothing
    return Dataset(open_store(url, make=make))
