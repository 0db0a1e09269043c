# SPDX-License-Identifier: Apache-2.0
"""Add source lines, and the functions inlined there, to named addresses.

The DWARF is in the object itself or in its separate debug file. `symbolic` (Rust, by Sentry) makes a table of
it in a process of its own, within bounds of time and memory. The table is kept on disk under the identity of
the file, so that each file costs this once.

Reasons for missing source lines are counted and reported: DWARF in .dwo files, or shared through dwz, which
the package does not follow; a file too large; a package that is not installed."""

import os
import sys
import time
from contextlib import ExitStack, suppress
from typing import Final

import numpy as np

from perf_offcpu import losses
from perf_offcpu.cache import DiskCache, cache_name
from perf_offcpu.environment import child_environment, interpreter
from perf_offcpu.errors import FormatError
from perf_offcpu.files import allocated_bytes
from perf_offcpu.losses import LossCause, Losses
from perf_offcpu.model.columns import I64, U32, U64, Strings
from perf_offcpu.objects.elf.image import ElfImage, open_elf
from perf_offcpu.objects.functions import ElfFile
from perf_offcpu.objects.search import Search, open_debug
from perf_offcpu.structs import frozen
from perf_offcpu.symbolize.frames import InlinedFunctions, SymbolNames
from perf_offcpu.symbolize.lines.symcache import Calls, Symcache

KIND: Final = "lines10"  # kind of cache file; the number changes with symcache.VERSION and with the columns
MAX_FILE: Final = 8 << 30
SECONDS: Final = 300  # most CPU time for the DWARF of one object
_MEMORY_FLOOR: Final = 2 << 30
_MEMORY_PER_BYTE: Final = 12
_WORKER: Final = os.path.join(os.path.dirname(__file__), "worker.py")
_MISSING, _UNREADABLE = 3, 4
_MAX_SEARCHED: Final = 1 << 26
_ALTLINK: Final = b".gnu_debugaltlink"


class NoLines(Exception):
    """Raised if an object has no source lines. `cause`: the reason; None if it was built without source lines.
    `detail`: what the reader of its DWARF reported; else ""."""

    def __init__(self, cause: LossCause | None = None, detail: str = "") -> None:
        self.cause, self.detail = cause, detail
        super().__init__(cause.text if cause else "")


@frozen
class Lines:
    """Looks up the source lines of one object."""

    table: Symcache  # the lines
    base: int  # address of the first segment of the object, from which the table counts
    shared: bool = False  # True if part of its DWARF is in another file (dwz), so functions may lack names

    def lookup(self, addresses: U64) -> Calls:
        """Return functions and lines at n virtual addresses of the object; an address without a line has no rows."""
        return self.table.lookup(addresses - np.uint64(self.base))


def load_lines(path: str, build_id: bytes, search: Search, seconds: float = SECONDS) -> Lines:
    """Load the source lines of an object. `path` and `build_id`: the file of its symbols. `search`: for its debug file,
    and where tables are kept. `seconds`: for reading its DWARF, at most SECONDS. Raises NoLines."""
    try:
        with ExitStack() as stack:
            image = stack.enter_context(open_elf(path, search.cache))
            if image.build_id != build_id:
                raise NoLines
            dwarf = image if image.holds(b".debug_info") else open_debug(image, search, b".debug_info", stack)
            if dwarf is None:
                raise NoLines
            base = int(dwarf.loads["p_vaddr"][0]) if len(dwarf.loads) else 0
            is_shared = dwarf.section_named(_ALTLINK) is not None
            return Lines(_table(dwarf, search.cache, seconds), base, is_shared)
    except (OSError, FormatError):
        raise NoLines from None


def _table(dwarf: ElfImage, cache: DiskCache | None, seconds: float) -> Symcache:
    name = cache_name(KIND, dwarf.build_id, dwarf.source.identity)
    columns = cache.read(name) if cache else None
    if columns is None or not columns.keys() >= {"symcache", "has_lines"}:
        data = np.frombuffer(_make(dwarf, min(SECONDS, int(seconds))), np.uint8)
        has_lines = Symcache(data.data, dwarf.path).has_lines()
        columns = {"symcache": data, "has_lines": np.zeros(int(has_lines), np.uint8)}
        if cache:
            cache.write(name, columns)
    if not len(columns["has_lines"]):
        raise NoLines(_hindrance(dwarf))
    return Symcache(columns["symcache"].data, dwarf.path)


def _make(dwarf: ElfImage, seconds: int) -> bytes:
    """Return the bytes of a symcache that the worker makes of an object's DWARF; raise NoLines if it fails."""
    import subprocess  # not needed for tables in the cache
    import tempfile

    if dwarf.source.size > MAX_FILE:
        raise NoLines(losses.DWARF_TOO_LARGE)
    if seconds <= 0:
        raise NoLines(losses.DWARF_STOPPED, "the time for all objects is used up")
    # A hole costs its author nothing, so only what is on the disk counts.
    memory = max(_MEMORY_FLOOR, _MEMORY_PER_BYTE * allocated_bytes(os.fstat(dwarf.source.fd)))
    with tempfile.TemporaryFile() as out:
        command = [interpreter(), "-P", _WORKER, str(dwarf.source.fd), str(memory), str(seconds), *sys.path]
        try:
            done = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.PIPE,
                pass_fds=[dwarf.source.fd],
                env=child_environment(),
                timeout=2 * seconds,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise NoLines(losses.DWARF_STOPPED) from None
        if done.returncode == _MISSING:
            raise NoLines(losses.NO_LINE_READER)
        if done.returncode == _UNREADABLE:
            reasons = done.stderr.decode("utf-8", "replace").splitlines() or ["no reason given"]
            raise NoLines(_hindrance(dwarf) or losses.DWARF_DAMAGED, reasons[-1])
        if done.returncode:
            raise NoLines(losses.DWARF_STOPPED)
        out.seek(0)
        return out.read()


def _hindrance(dwarf: ElfImage) -> LossCause | None:
    """Return why a file with DWARF may lack lines (dwz, .dwo files); None if there is no known reason."""
    if dwarf.section_named(_ALTLINK) is not None:
        return losses.DWARF_SHARED
    for name in (b".debug_str", b".debug_line_str"):
        section = dwarf.section_named(name)
        with suppress(FormatError):
            if section is not None and b".dwo\0" in dwarf.content(section, _MAX_SEARCHED):
                return losses.DWARF_SPLIT
    return None


TOTAL_SECONDS: Final = 600  # time for the DWARF of all objects of a recording; tables in the cache take nearly none


class LineNames:
    """Adds source lines and inlined functions to named addresses, object by object. `lost`: addresses whose lines
    could not be read, although there may be some, are counted there. `inline`: look up inlined functions too, not only
    lines. `inlined`: the functions found so far; `location` is a row of the caller's table."""

    def __init__(self, strings: Strings, search: Search, lost: Losses, *, inline: bool) -> None:
        self.strings, self.search, self.lost, self.inline = strings, search, lost, inline
        self.inlined = InlinedFunctions()
        self._seconds = float(TOTAL_SECONDS)

    def add(self, elf: ElfFile, addresses: U64, rows: I64, names: SymbolNames, shown: str) -> None:
        """Fill in `file` and `line` in `rows` of `names`, and add the functions inlined there. `addresses`: of these
        rows, as in the file. `shown`: name of the object in messages."""
        began = time.monotonic()
        try:
            lines = load_lines(elf.path, elf.build_id, self.search, self._seconds)
        except NoLines as problem:
            if problem.cause is not None:
                self.lost.add(problem.cause.about(shown, problem.detail), len(addresses))
            return
        finally:
            self._seconds -= time.monotonic() - began
        nameless = self._put(lines, lines.lookup(addresses), rows, names)
        if lines.shared:
            self.lost.add(losses.DWARF_SHARED.about(shown), nameless)

    def _put(self, lines: Lines, calls: Calls, rows: I64, names: SymbolNames) -> int:
        """Fill in `rows` of names from `calls`, whose `row` is an index of `rows`; return the number of inlined
        functions that were left out because they have no name."""
        if not len(calls):
            return 0
        files = self._interned(calls.file, lines.table, names=False)
        last = np.append(calls.row[1:] != calls.row[:-1], True)
        own = np.flatnonzero(last if self.inline else np.append(True, last[:-1]))
        names.file[rows[calls.row[own]]], names.line[rows[calls.row[own]]] = files[own], calls.line[own]
        inner = np.flatnonzero(~last)
        if not self.inline or not len(inner):
            return 0
        functions = self._interned(calls.function[inner], lines.table, names=True)
        nameless = functions == 0
        inner, functions = inner[~nameless], functions[~nameless]
        depth = np.searchsorted(calls.row[inner], calls.row[inner], side="right") - np.arange(len(inner))
        inlined = InlinedFunctions.filled(
            len(inner),
            location=rows[calls.row[inner]],
            depth=depth,
            symbol=functions,
            file=files[inner],
            line=calls.line[inner],
        )
        self.inlined = InlinedFunctions.concat([self.inlined, inlined])
        return int(nameless.sum())

    def _interned(self, indices: U32, table: Symcache, *, names: bool) -> U32:
        """Return uint32[n], strings: the texts of indices of functions (`names`) or files; each is decoded once."""
        used, inverse = np.unique(indices, return_inverse=True)
        text = table.function_name if names else table.file_path
        return self.strings.intern_all(text(index) for index in used.tolist())[inverse]
