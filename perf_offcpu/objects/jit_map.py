# SPDX-License-Identifier: Apache-2.0
"""Code that programs make while they run, named by the map that they write: /tmp/perf-PID.map.

    7f4b3c00 20 py::work:/srv/app.py          start and size in hexadecimal, the rest is the name
    3f2a1000 1c8 JS:*handle /srv/app.js:12:9

Java, Node, Python (-X perf), .NET and others write it; later lines replace earlier ones, because the memory
of dropped code is used again. As in perf a map counts only if it belongs to root or to the user (dso__load in
tools/perf/util/symbol.c); what is inside a container is looked for there, under the pid that the process
has there. And a map of another process that had the same pid is refused, where times tell.
"""

from __future__ import annotations

import bisect
import os
import re
import stat
from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np

from perf_offcpu.model.columns import I64, U64
from perf_offcpu.objects.elf.source import open_regular
from perf_offcpu.objects.symtab import NO_ADDRESS, Symbols, SymbolTable

MAX_BYTES: Final = 1 << 28
_SLACK_NS: Final = 2 * 10**9
_MEMORY: Final = ("//anon", "/dev/zero", "/anon_hugepage", "[heap]", "[stack", "/SYSV", "[anon", "/memfd:")
_PYTHON: Final = re.compile(r"py::(?P<name>.+?):(?P<file>.*)", re.DOTALL)
_SCRIPT: Final = re.compile(r"[A-Za-z]+:\S* (?:file://)?(?P<file>/[^ ]*?):(?P<line>\d{1,9})(?::\d+)?$")


class JitName(NamedTuple):
    """What a line of a map names: a symbol, and the source that its name tells; "" and 0 unknown."""

    symbol: str
    file: str = ""
    line: int = 0


class MapRefused(Exception):
    """A map is there and is not used; the text says why."""


def is_jit_memory(path: str) -> bool:
    """Whether code mapped under this name may be a program's own making: memory that is no file's."""
    return path.startswith(_MEMORY)


def map_paths(pid: int, symfs: str) -> list[str]:
    """Where the map of a process may be, best first."""
    if symfs:
        return [f"{symfs}/tmp/perf-{pid}.map"]
    inner = _namespaced_pid(pid)
    inside = [f"/proc/{pid}/root/tmp/perf-{inner}.map"] if inner else []
    return [*inside, f"/tmp/perf-{pid}.map"]


def _namespaced_pid(pid: int) -> int:
    """The pid that a running process has in its own pid namespace; 0 if it is not in another one."""
    try:
        with open(f"/proc/{pid}/status", "rb") as file:
            found = re.search(rb"^NStgid:((?:\t\d+)+)$", file.read(1 << 16), re.MULTILINE)
    except OSError:
        return 0
    pids = found[1].split() if found else []
    return int(pids[-1]) if len(pids) > 1 else 0


def load_jit_map(path: str, *, force: bool = False, born_ns: int = 0, died_ns: int = 0) -> SymbolTable:
    """The functions of a map, by address in the process.

    Args:
        force: believe anybody's map.
        born_ns, died_ns: wall-clock time of the process's life; 0 unknown.

    Raises:
        OSError: it cannot be read.
        MapRefused: it is not to be believed.
    """
    fd = open_regular(path)
    try:
        status = os.fstat(fd)
        owners = {status.st_uid, os.lstat(path).st_uid}  # a link must be trusted as well
        if not force and not owners <= {0, os.geteuid()}:
            raise MapRefused("it belongs to another user (-f reads it anyway)")
        _check_time(status.st_mtime_ns, born_ns, died_ns)
        if not stat.S_ISREG(status.st_mode) or status.st_size > MAX_BYTES:
            raise MapRefused(f"it is larger than {MAX_BYTES} bytes")
        with open(fd, "rb", closefd=False) as file:
            return parse_jit_map(file.read(MAX_BYTES))
    finally:
        os.close(fd)


def _check_time(changed_ns: int, born_ns: int, died_ns: int) -> None:
    if born_ns and changed_ns < born_ns - _SLACK_NS:
        raise MapRefused("it is older than the process")
    if died_ns and changed_ns > died_ns + _SLACK_NS:
        raise MapRefused("it was written after the process had ended")


def parse_jit_map(text: bytes) -> SymbolTable:
    """As `load_jit_map`, from the text; lines of another form are passed over."""
    start, size, name = [], [], []
    at = 0
    for line in text.split(b"\n"):
        if parsed := _parse(line):
            start.append(parsed[0])
            size.append(parsed[1])
            name.append(at + parsed[2])
        at += len(line) + 1
    rows = Symbols.filled(
        len(start),
        start=np.array(start, np.uint64),
        size=np.array(size, np.uint64),
        name=name,
        limit=np.full(len(start), NO_ADDRESS),
        code=np.ones(len(start)),
    )
    return SymbolTable(rows.take(_living(rows.start, rows.size)), text.replace(b"\n", b"\0"))


def _parse(line: bytes) -> tuple[int, int, int] | None:
    """(start, size, place of the name in the line)."""
    parts = line.split(b" ", 2)
    if len(parts) < 3 or not parts[2].strip() or max(map(len, parts[:2])) > 18:
        return None
    try:
        start, size = int(parts[0], 16), int(parts[1], 16)
    except ValueError:
        return None
    sound = 0 <= start < 2**64 and 0 < size <= 2**64 - 1 - start
    return (start, size, len(parts[0]) + len(parts[1]) + 2) if sound else None


def _living(start: U64, size: U64) -> I64:
    """The rows that no later row has replaced, in part or as a whole; those that hold a later one live."""
    order = np.argsort(start, kind="stable")
    end = start + size
    if not np.any(start[order][1:] < np.maximum.accumulate(end[order])[:-1]):
        return np.arange(len(start))
    starts, ends, kept = list[int](), list[int](), list[int]()
    for row in range(len(start) - 1, -1, -1):
        low, high = int(start[row]), int(end[row])
        first = bisect.bisect_right(ends, low)
        last = bisect.bisect_left(starts, high, first)
        if first == last or (low < starts[first] and ends[last - 1] <= high):
            kept.append(row)  # else a later line has taken some of its memory
        else:
            low, high = min(low, starts[first]), max(high, ends[last - 1])
        starts[first:last], ends[first:last] = [low], [high]
    return np.array(kept[::-1], np.int64)


def read_jit_name(name: str) -> JitName:
    """What a map's name says, for people.

    `py::Class.method:/srv/app.py` is the function Class.method of that file, and shown as
    `Class.method (app.py)`; names of other languages stay as they are. Node's tell file and line.
    """
    if python := _PYTHON.fullmatch(name):
        file = python["file"]
        return JitName(f"{python['name']} ({os.path.basename(file) or file})", file)
    if script := _SCRIPT.search(name):
        return JitName(name, script["file"], int(script["line"]))
    return JitName(name)


def existing(paths: list[str]) -> Iterator[str]:
    """Those of the paths at which something is."""
    for path in paths:
        if os.path.lexists(path):
            yield path
