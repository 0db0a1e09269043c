# SPDX-License-Identifier: Apache-2.0
"""Name code that programs generate at run time, by the perf map that they write: /tmp/perf-PID.map.

    7f4b3c00 20 py::work:/srv/app.py          start and size in hexadecimal, the rest is the name
    3f2a1000 1c8 JS:*handle /srv/app.js:12:9

Java, Node, Python (-X perf), .NET and others write it. Later lines replace earlier ones, because the memory
of discarded code is reused. As in perf, a map counts only if it belongs to root or to the user (dso__load in
tools/perf/util/symbol.c). The map of a process in a container is looked up inside it, under the pid that the
process has there. A map of an earlier or later process with the same pid is refused, where times tell."""

from __future__ import annotations

import bisect
import io
import os
import re
from array import array
from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np

from perf_offcpu import losses
from perf_offcpu.abi.jit_map import borders_of, lines_between, unsure_between
from perf_offcpu.directories import Directory
from perf_offcpu.files import FileRefusedError, is_mostly_holes, read_bounded
from perf_offcpu.losses import LossCause
from perf_offcpu.model.columns import I64, U64, distinct
from perf_offcpu.model.recording import Recording
from perf_offcpu.objects.symtab import NO_ADDRESS, Symbols, SymbolTable

MAX_BYTES: Final = 1 << 28
MAX_LINES: Final = 1 << 22  # a line takes 200 bytes of memory; large JVMs have some 100 000
_FRAME: Final = re.compile(rb"^:frame ([0-9a-f]{1,16}) ([0-9a-f]{1,6}) ([0-9a-f]{1,6})$", re.MULTILINE)
_METHOD: Final = re.compile(rb"^:method (.+\n)", re.MULTILINE)
_APART: Final = re.compile(rb"^:apart ([0-9]{1,18})$", re.MULTILINE)
_SLACK_NS: Final = 2 * 10**9
_OTHER_ROOT: Final = re.compile(r"(?P<root>/proc/\d+/root)/(?P<path>.+)")
_MAX_LINKS: Final = 8
_MEMORY: Final = ("//anon", "/dev/zero", "/anon_hugepage", "[heap]", "[stack", "/SYSV", "[anon", "/memfd:")
_PYTHON: Final = re.compile(r"py::(?P<name>.+?):(?P<file>.*)", re.DOTALL)
_PLACE: Final = re.compile(r"(?<=.):(?P<line>\d{1,9})(?::\d{1,9})?$")
_KIND: Final = re.compile(r"[A-Za-z]:")
"""Kind of function in Node's names, `JS:*handle /srv/app.js:12:9`. They are read from the end: no name takes long."""


class JitName(NamedTuple):
    """Name of a function of generated code: symbol, source file ("" unknown) and line (0 unknown)."""

    symbol: str
    file: str = ""
    line: int = 0


class PerfMaps:
    """Perf maps of a recording's processes, each read once. Files are looked up below directory `symfs`; "": the
    running system. `force`: accept maps of other users."""

    def __init__(self, recording: Recording, symfs: str, *, force: bool = False) -> None:
        self.recording, self.symfs, self.force = recording, symfs, force
        self._tables: dict[tuple[int, int], SymbolTable | LossCause] = {}
        self._frames: dict[tuple[int, int], dict[int, tuple[int, int]]] = {}
        self._methods: dict[tuple[int, int], SymbolTable] = {}
        self._unsure: dict[tuple[int, int], SymbolTable] = {}
        self._borders: dict[int, list[int]] = {}

    def _key(self, space: int) -> tuple[int, int]:
        """Return (pid, part of its map that holds) of an address space, a row in spaces; part -1: the whole map."""
        spaces = self.recording.spaces
        pid, begin_ns = int(spaces.pid[space]), int(spaces.begin_ns[space])
        if pid not in self._borders:
            borders = borders_of(self.recording.perf_maps.get(pid, b""))
            is_split = {*borders} <= {*spaces.begin_ns[spaces.pid == pid].tolist()}  # not so in joined recordings
            self._borders[pid] = borders if is_split else []
        borders = self._borders[pid]
        return pid, bisect.bisect_right(borders, begin_ns) if borders else -1

    def _text(self, key: tuple[int, int]) -> bytes | LossCause:
        text = self.text_of(key[0])
        return text if isinstance(text, LossCause) or key[1] < 0 else lines_between(text, key[1])

    def unsure_of(self, space: int) -> SymbolTable:
        """Return the functions in `of(space)` that may not have been there at all of its time (`abi.jit_map`)."""
        pid, part = key = self._key(space)
        if key not in self._unsure:
            self._unsure[key] = parse_perf_map(unsure_between(self.recording.perf_maps[pid], part) if part > 0 else b"")
        return self._unsure[key]

    def _text_of_jvm(self, key: tuple[int, int]) -> bytes:
        text = self._text(key) if key[0] in self.recording.perf_maps else b""
        return text if isinstance(text, bytes) else b""

    def of(self, space: int) -> SymbolTable | LossCause:
        """Return the functions in the map of a process (`space`: a row in spaces), or the reason why there are none."""
        key = self._key(space)
        if key not in self._tables:
            text = self._text(key)
            self._tables[key] = text if isinstance(text, LossCause) else parse_perf_map(text)
        return self._tables[key]

    def frames_of(self, space: int) -> dict[int, tuple[int, int]]:
        """Return, for compiled methods of a JVM (`JIT_MAP`), address of the code → (size of its frame, offset in the
        code from which on the frame exists), in bytes. `space`: a row in spaces."""
        key = self._key(space)
        if key not in self._frames:
            lines = _FRAME.findall(self._text_of_jvm(key))
            self._frames[key] = {int(start, 16): (int(size, 16), int(begin, 16)) for start, size, begin in lines}
        return self._frames[key]

    def methods_of(self, space: int) -> SymbolTable:
        """Return the interpreted methods of a JVM, as a table of the addresses of their method objects. `space`: a row
        in spaces."""
        key = self._key(space)
        if key not in self._methods:
            self._methods[key] = parse_perf_map(b"".join(_METHOD.findall(self._text_of_jvm(key))))
        return self._methods[key]

    def apart_ns(self, pid: int) -> int:
        """Return the time, ns of the recording's clock, from which on a JVM's waits share a stack copy only if their
        Java methods are equal; 0: they may always share."""
        return int((_APART.findall(self.recording.perf_maps.get(pid, b"")) or [0])[-1])

    def text_of(self, pid: int) -> bytes | LossCause:
        """Return the text of the map of a process, or the reason why there is none that can be trusted."""
        if text := self.recording.perf_maps.get(pid):
            is_reused = int((self.recording.tasks.tid == pid).sum()) > 1
            return losses.PERF_MAP_REFUSED.about(f"map of {pid}", "the pid was used again") if is_reused else text
        born, died = self._lifetime(pid)
        cause = losses.NO_PERF_MAP
        for path in perf_map_paths(pid, self.symfs):
            try:
                return read_perf_map(path, force=self.force, born_ns=born, died_ns=died)
            except OSError as problem:
                cause = losses.PERF_MAP_REFUSED.about(path, problem.strerror or "")
        return cause

    def _lifetime(self, pid: int) -> tuple[int, int]:
        """Return (birth, death) of a process in wall-clock ns; 0 where unknown, and if its pid was used twice."""
        meta, tasks = self.recording.meta, self.recording.tasks
        lives = np.flatnonzero(tasks.tid == pid)
        if not meta.wall_clock_ns or len(lives) != 1:
            return 0, 0
        begin, end = int(tasks.begin_ns[lives[0]]), int(tasks.end_ns[lives[0]])
        shift = meta.wall_clock_ns - meta.wall_clock_at_ns
        return (begin + shift if begin > 0 else 0), (end + shift if end > 0 else 0)


def is_jit_memory(path: str) -> bool:
    """Return True if a mapping with this name may hold generated code: it has no file."""
    return path.startswith(_MEMORY)


def perf_map_paths(pid: int, symfs: str) -> Iterator[str]:
    """Yield the existing paths of the perf map of a process, best first: inside its container, then below `symfs`."""
    inner = 0 if symfs else _namespaced_pid(pid)
    inside = [f"/proc/{pid}/root/tmp/perf-{inner}.map"] if inner else []
    yield from filter(os.path.lexists, [*inside, f"{symfs}/tmp/perf-{pid}.map"])


def _namespaced_pid(pid: int) -> int:
    """Return the pid of a running process in its own pid namespace; 0 if that is the namespace of /proc, or unknown."""
    try:
        with open(f"/proc/{pid}/status", "rb") as file:
            match = re.search(rb"^NStgid:((?:\t\d+)+)$", file.read(1 << 16), re.MULTILINE)
    except OSError:
        return 0
    pids = match[1].split() if match else []
    return int(pids[-1]) if len(pids) > 1 else 0


def read_perf_map(path: str, *, force: bool = False, born_ns: int = 0, died_ns: int = 0) -> bytes:
    """Return the text of a map. Any user can put a file of this name into /tmp: a link to a file that only root may
    read, or a second name of one. So only links of root and of the caller are followed, and their targets are checked,
    too. `force`: accept a map of any user. `born_ns`, `died_ns`: wall-clock times between which the process lived; 0
    unknown. Raise FileRefusedError if it cannot be trusted, is no regular file or larger than real maps; OSError."""
    trusted = {0, os.geteuid()}
    for _ in range(_MAX_LINKS):
        with _directory_of(path) as directory:
            name = os.path.basename(path)
            if target := directory.target_of_link(name, owners=trusted):
                path = os.path.join(os.path.dirname(path), target)
                continue
            fd = directory.open_regular(name, max_bytes=MAX_BYTES)
            break
    else:
        raise FileRefusedError(path, "it leads through too many links")
    try:
        status = os.fstat(fd)
        if not force and status.st_uid not in trusted:
            raise FileRefusedError(path, "it belongs to another user (-f reads it anyway)")
        if status.st_nlink != 1:
            raise FileRefusedError(path, "it has a second name, a hard link")
        if is_mostly_holes(status):
            raise FileRefusedError(path, "it is a sparse file: it consists of holes")
        if born_ns and status.st_mtime_ns < born_ns - _SLACK_NS:
            raise FileRefusedError(path, "it is older than the process")
        if died_ns and status.st_mtime_ns > died_ns + _SLACK_NS:
            raise FileRefusedError(path, "it was written after the process had ended")
        text = read_bounded(fd, MAX_BYTES, path)
        if text.count(b"\n") > MAX_LINES:
            raise FileRefusedError(path, f"it has more than {MAX_LINES} lines")
        return text
    finally:
        os.close(fd)


def _directory_of(path: str) -> Directory:
    """Open the directory of a map. Inside another mount namespace (/proc/PID/root), no link is followed."""
    place = os.path.dirname(path)
    if inside := _OTHER_ROOT.fullmatch(place):
        with Directory.of_process(inside["root"]) as root:
            return root.subdirectory(inside["path"])
    return Directory.named(place)


def parse_perf_map(text: bytes) -> SymbolTable:
    """Return the functions in the text of a map; lines of another form are skipped."""
    numbers, line_at = array("Q"), 0  # a list of tuples takes ten times as much memory
    for line in io.BytesIO(text):
        if parsed := _parse_line(line):
            start, size, name = parsed
            numbers.extend((start, size, line_at + name))
        line_at += len(line)
    start_of, size_of, name_of = np.frombuffer(numbers, np.uint64).reshape(-1, 3).T
    kept = _not_replaced(start_of, size_of)
    columns = {"start": start_of[kept], "size": size_of[kept], "name": name_of[kept], "limit": NO_ADDRESS, "code": 1}
    return SymbolTable(Symbols.sparse(len(kept), **columns), text.replace(b"\n", b"\0"))


def _parse_line(line: bytes) -> tuple[int, int, int] | None:
    """Return (start, size, offset of the name in the line) of a line of a map; None if it has another form."""
    parts = line.split(b" ", 2)
    if len(parts) < 3 or not parts[2].strip() or max(map(len, parts[:2])) > 18:
        return None
    try:
        start, size = int(parts[0], 16), int(parts[1], 16)
    except ValueError:
        return None
    sound = 0 <= start < 2**64 and 0 < size <= 2**64 - 1 - start
    return (start, size, len(parts[0]) + len(parts[1]) + 2) if sound else None


def _not_replaced(start: U64, size: U64) -> I64:
    """Return int64[k], indices of those of n ranges, from start[i] to start[i] + size[i], that no later range overlaps;
    a range that wholly contains a later one stays, too. Takes time n log n."""
    order = np.argsort(start, kind="stable")
    end = start + size
    if not np.any(start[order][1:] < np.maximum.accumulate(end[order])[:-1]):
        return np.arange(len(start))
    # The addresses at which ranges begin and end cut memory into segments. Rows are laid over the segments, the last
    # row first; a segment is covered once, and a boundary is closed once, when a range passes over it.
    bounds = distinct(np.concatenate([start, end]))
    first, last = np.searchsorted(bounds, start).tolist(), np.searchsorted(bounds, end).tolist()
    free = array("q", range(len(bounds) + 1))  # next segment from here that no later row covers
    opened = array("q", range(len(bounds) + 1))  # next boundary from here that no later row passes over
    kept = list[int]()
    for row in range(len(first) - 1, -1, -1):
        low, high = first[row], last[row]
        holds_later = _next(free, low) == low and _next(opened, high) == high
        if _close(free, low, high) == high - low or holds_later:
            kept.append(row)  # else a later line has taken some of its memory
        _close(opened, low + 1, high)
    return np.array(kept[::-1], np.int64)


def _next(following: array[int], place: int) -> int:
    """Return the first open index i (following[i] == i) from `place` on, and shorten the links on the way to it."""
    while following[place] != place:
        following[place] = following[following[place]]
        place = following[place]
    return place


def _close(following: array[int], low: int, high: int) -> int:
    """Close the open indices (see `_next`) in [low, high): link each to the next index. Return their number."""
    count, place = 0, _next(following, low)
    while place < high:
        following[place] = place + 1
        count, place = count + 1, _next(following, place + 1)
    return count


def read_jit_name(name: str) -> JitName:
    """Split a name of a map into symbol, file and line. `py::Class.method:/srv/app.py` becomes the symbol `Class.method
    (app.py)` with this file; `JS:*handle /srv/app.js:12:9` keeps its name, and gets file and line."""
    if python := _PYTHON.fullmatch(name):
        file = python["file"]
        return JitName(f"{python['name']} ({os.path.basename(file) or file})", file)
    if place := _PLACE.search(name):
        kind, _, file = name[: place.start()].rpartition(" ")
        file = file.removeprefix("file://")
        if file.startswith("/") and _KIND.search(kind.rpartition(" ")[2]):
            return JitName(name, file, int(place["line"]))
    return JitName(name)
