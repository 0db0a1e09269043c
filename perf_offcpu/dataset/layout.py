# SPDX-License-Identifier: Apache-2.0
"""Name the folders and files of a dataset.

samples/date=2026-11-22/hour=14/web1-1795237533106477182-1795237593106477182-5f3a9c01.parquet
                                host-begin-end-digest: a segment; written again, it replaces itself
samples/date=2026-11-22/hour=14/compacted-77d0c3a1b2e4f560.parquet
                                several segments in one
samples/date=2026-11-22/hour=14/_compacted-77d0c3a1b2e4f560.json.zz
                                the names of these segments (`dataset.compact`)
"""

from __future__ import annotations

import datetime
import hashlib
import json
import re
import zlib
from collections.abc import Iterable, Iterator

from perf_offcpu.errors import PerfOffcpuError

HOUR_NS = 3600 * 10**9
SUFFIX = ".parquet"
_NOTE = ".json.zz"
_LONGEST_NOTE = 1 << 28
COMPACTED = re.compile(r"compacted-([0-9a-f]{16})\.parquet", re.ASCII)
_PARTS = (re.compile(r"date=(\d{4}-\d\d-\d\d)", re.ASCII), re.compile(r"hour=(\d\d)", re.ASCII))
_EPOCH = datetime.datetime(1970, 1, 1)
_LAST_HOUR = (datetime.datetime(2200, 1, 1) - _EPOCH) // datetime.timedelta(hours=1)
_UNUSUAL = re.compile(r"[^A-Za-z0-9.-]+")
_LONGEST = 60


def folder_of(hour: int) -> str:
    """Return the partitions of an hour, counted from 1970, UTC: `date=2026-11-22/hour=14`.

    Raises:
        PerfOffcpuError: it is not between 1970 and 2200; the times are damaged.
    """
    if not 0 <= hour < _LAST_HOUR:
        raise PerfOffcpuError("times are not between 1970 and 2200: the recording's clocks are damaged")
    time = _EPOCH + datetime.timedelta(hours=hour)
    return f"date={time:%Y-%m-%d}/hour={time:%H}"


def hour_of_folder(date: str, hour: str) -> int | None:
    """Return the hour of a pair of folders, counted from 1970; None if they are no partitions."""
    matches = [pattern.fullmatch(name) for pattern, name in zip(_PARTS, (date, hour), strict=True)]
    if matches[0] is None or matches[1] is None:
        return None
    try:
        time = datetime.datetime.fromisoformat(matches[0][1]) + datetime.timedelta(hours=int(matches[1][1]))
    except ValueError:
        return None
    found_hour = (time - _EPOCH) // datetime.timedelta(hours=1)
    return found_hour if 0 <= found_hour < _LAST_HOUR and folder_of(found_hour) == f"{date}/{hour}" else None


def segment_name(host_id: str, boot_id: str, begin_ns: int, end_ns: int) -> str:
    """Return the file name of a segment: the same for the same host, boot and time."""
    digest = hashlib.blake2b(f"{host_id}\0{boot_id}".encode(), digest_size=4).hexdigest()
    host = _UNUSUAL.sub("-", host_id).strip(".-")[:_LONGEST] or "host"
    return f"{host}-{begin_ns}-{end_ns}-{digest}{SUFFIX}"


def compacted_name(segments: list[str]) -> str:
    """Return the file name for several segments in one: the same for the same segments."""
    digest = hashlib.blake2b("\n".join(sorted(segments)).encode(), digest_size=8).hexdigest()
    return f"compacted-{digest}{SUFFIX}"


def note_name(compacted: str) -> str:
    """Return the name of the note that lists the files in a compacted file; queries do not see it."""
    return f"_{compacted.removesuffix(SUFFIX)}{_NOTE}"


def notes(names: list[str]) -> Iterator[tuple[str, str]]:
    """Return (note, compacted file) for each note among the names of a folder."""
    for name in names:
        compacted = name.removeprefix("_").removesuffix(_NOTE) + SUFFIX
        if COMPACTED.fullmatch(compacted) and name == note_name(compacted):
            yield name, compacted


def note_of(files: Iterable[str]) -> bytes:
    """Return the content of a note."""
    return zlib.compress(json.dumps({"files": sorted(files)}).encode())


def files_of_note(note: bytes) -> list[str]:
    """Return the files that a note lists; raise ValueError if it is damaged."""
    try:
        text = zlib.decompressobj().decompress(note, _LONGEST_NOTE)
        return [str(name) for name in json.loads(text)["files"]]
    except (zlib.error, KeyError, TypeError) as problem:
        raise ValueError(str(problem)) from None


def data_files(names: list[str]) -> Iterator[str]:
    """Return the names of Parquet files among the names of a folder."""
    return (name for name in names if name.endswith(SUFFIX) and name[0] not in "._")
