# SPDX-License-Identifier: Apache-2.0
"""Source lines and inlined functions from DWARF, object by object, when an address in it asks for them.

The DWARF stands in the object itself or in its separate debug file. `symbolic` (Rust, Sentry's) makes a table
of all of it in a process of its own, within bounds of time and memory; the table is kept on disk under
what it was made of, so that each build of a file costs this once.

What prevents source lines is counted and told: DWARF split off into .dwo files, or shared through dwz, which
the package does not follow; a file too large; a package that is not installed.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Final

import numpy as np

from perf_offcpu import losses
from perf_offcpu.cache import DiskCache, cache_name
from perf_offcpu.errors import FormatError
from perf_offcpu.losses import LossCause
from perf_offcpu.model.columns import U64
from perf_offcpu.objects.debug_files import open_debug
from perf_offcpu.objects.elf.image import ElfImage, open_elf
from perf_offcpu.objects.search import Search
from perf_offcpu.structs import frozen
from perf_offcpu.symbolize.lines.symcache import Calls, Symcache

KIND: Final = "lines9"
"""Names the format (see symcache.VERSION) and must change with what is kept."""
MAX_FILE: Final = 8 << 30
_SECONDS: Final = 300
_MEMORY_FLOOR: Final = 2 << 30
_MEMORY_PER_BYTE: Final = 12
_WORKER: Final = str(Path(__file__).with_name("worker.py"))
_MISSING, _UNREADABLE = 3, 4
_MAX_SEARCHED: Final = 1 << 26

_ALTLINK: Final = b".gnu_debugaltlink"


class NoLines(Exception):
    """An object has no source lines.

    Args:
        cause: why; None if it simply holds none.
        detail: what the reader of its DWARF reported; else "".
    """

    def __init__(self, cause: LossCause | None = None, detail: str = "") -> None:
        self.cause, self.detail = cause, detail
        super().__init__(cause.text if cause else "")


@frozen
class Lines:
    """The source lines of one object.

    Args:
        table: the lines.
        base: address of the object's first segment: the table counts from there.
        shared: some of its DWARF is in another file (dwz), which may leave functions without names.
    """

    table: Symcache
    base: int
    shared: bool = False

    def lookup(self, addresses: U64) -> Calls:
        """The functions at n addresses as in the file, see `Symcache.lookup`."""
        return self.table.lookup(addresses - np.uint64(self.base))


def load_lines(path: str, build_id: bytes, search: Search, cache: DiskCache | None) -> Lines:
    """The source lines of an object.

    Args:
        path: the file that its symbols came from.
        build_id: of that file; b"" if it has none.
        search: where its debug file is looked for.
        cache: where tables are kept.

    Raises:
        NoLines: there are none.
    """
    try:
        with ExitStack() as stack:
            image = stack.enter_context(open_elf(path, cache))
            if image.build_id != build_id:
                raise NoLines
            dwarf = image if image.holds(b".debug_info") else open_debug(image, search, b".debug_info", stack)
            if dwarf is None:
                raise NoLines
            base = int(dwarf.loads["p_vaddr"][0]) if len(dwarf.loads) else 0
            return Lines(_table(dwarf, cache), base, dwarf.section_named(_ALTLINK) is not None)
    except (OSError, FormatError):
        raise NoLines from None


def _table(dwarf: ElfImage, cache: DiskCache | None) -> Symcache:
    name = cache_name(KIND, dwarf.build_id, dwarf.source.identity)
    kept = cache.read(name) if cache else None
    if kept is not None and "symcache" in kept:
        return _checked(kept["symcache"].data, dwarf)
    data = _made(dwarf)
    table = _checked(memoryview(data), dwarf)
    if cache:
        cache.write(name, {"symcache": np.frombuffer(data, np.uint8)})
    return table


def _checked(data: memoryview, dwarf: ElfImage) -> Symcache:
    table = Symcache(data, dwarf.path)
    if not table.has_lines():
        raise NoLines(_hindrance(dwarf))
    return table


def _made(dwarf: ElfImage) -> bytes:
    """A symcache of an object's DWARF, by the worker."""
    if dwarf.source.size > MAX_FILE:
        raise NoLines(losses.DWARF_TOO_LARGE)
    memory = max(_MEMORY_FLOOR, _MEMORY_PER_BYTE * dwarf.source.size)
    with tempfile.TemporaryFile() as out:
        command = [sys.executable, "-P", _WORKER, str(dwarf.source.fd), str(memory), str(_SECONDS)]
        try:
            done = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.PIPE,
                pass_fds=[dwarf.source.fd],
                timeout=2 * _SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise NoLines(losses.DWARF_STOPPED) from None
        if done.returncode == _MISSING:
            raise NoLines(losses.NO_LINE_READER)
        if done.returncode == _UNREADABLE:
            raise NoLines(_hindrance(dwarf) or losses.DWARF_DAMAGED, _last_line(done.stderr))
        if done.returncode:
            raise NoLines(losses.DWARF_STOPPED)
        out.seek(0)
        return out.read()


def _last_line(text: bytes) -> str:
    lines = text.decode("utf-8", "replace").splitlines()
    return lines[-1] if lines else "no reason given"


def _hindrance(dwarf: ElfImage) -> LossCause | None:
    """What in a file with DWARF may keep its lines away; None if nothing does."""
    if dwarf.section_named(_ALTLINK) is not None:
        return losses.DWARF_SHARED
    for name in (b".debug_str", b".debug_line_str"):
        section = dwarf.section_named(name)
        with suppress(FormatError):
            if section is not None and b".dwo\0" in dwarf.content(section, _MAX_SEARCHED):
                return losses.DWARF_SPLIT
    return None
