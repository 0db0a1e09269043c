# SPDX-License-Identifier: Apache-2.0
"""List the paths of an object and its separate debug file to try, best first; open debug files.

    the path as recorded          below --symfs, if given
    DIR/.build-id/ab/cdef…/elf    perf's cache (--buildid-dir, ~/.debug) and archives unpacked
    …/debuginfod_client/ID/…      fetched earlier by GDB and others
    /proc/PID/root/PATH           of a process that still runs: containers
    /proc/PID/map_files/…         the same, for files that were deleted, or without a build-id in containers

Without a build-id only a file at the recorded path is accepted, outside or in the processes themselves. Debug files: by
build-id as GDB, perf and distributions lay them out (`ROOT/.build-id/ab/cdef….debug`), by debuglink next to the object
or below a debug root, and by the path of the object as on Fedora and Ubuntu. A debug file belongs to an object if both
have the same build-id; without build-ids, if the .gnu_debuglink of the object names it and holds its CRC.

Sources: GDB manual, "Debugging Information in Separate Files"; perf's dso__read_binary_type_filename
(tools/perf/util/dso.c) and build_id_cache__linkname (tools/perf/util/build-id.c) of Linux 6.16."""

import os
import zlib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from typing import Final, Self

from perf_offcpu.binary.layout import to_int
from perf_offcpu.cache import DiskCache
from perf_offcpu.errors import FormatError
from perf_offcpu.files import is_mostly_holes
from perf_offcpu.objects.elf.image import ElfImage, open_elf
from perf_offcpu.structs import frozen

DEBUG_ROOTS: Sequence[str] = ("/usr/lib/debug",)
DELETED: Final = " (deleted)"
_MAX_PROCESSES: Final = 8
_MAX_MAPS: Final = 1 << 24


@frozen
class Search:
    """Directories in which files are looked up, and the cache in which their tables are kept."""

    symfs: str = ""  # directory below which recorded paths are looked up; "" the root
    buildid_dir: str = ""  # a build-id cache as perf's; "" none
    debug_roots: Sequence[str] = ()  # directories with separate debug files
    debuginfod_dir: str = ""  # debuginfod's cache of this user; "" none. Nothing is fetched.
    processes: bool = False  # look into processes that still run
    cache: DiskCache | None = None  # of headers, symbols, frame rules and source lines of files; None: none

    @classmethod
    def usual(cls, symfs: str | None = None, buildid_dir: str | None = None, cache: DiskCache | None = None) -> Self:
        """Return a Search with the given directories; for None those of the environment, else perf's defaults."""
        home, environ = os.path.expanduser("~"), os.environ
        cached = environ.get("XDG_CACHE_HOME") or f"{home}/.cache"
        buildid_dir = buildid_dir or environ.get("PERF_BUILDID_DIR") or f"{home}/.debug"
        debuginfod_dir = environ.get("DEBUGINFOD_CACHE_PATH") or f"{cached}/debuginfod_client"
        return cls((symfs or "").rstrip("/"), buildid_dir, DEBUG_ROOTS, debuginfod_dir, not symfs, cache)


def by_build_id(root: str, build_id: bytes, tail: str = "") -> str:
    """Return `ROOT/.build-id/ab/cdef…TAIL`, the path of a build-id below a directory."""
    return f"{root}/.build-id/{build_id[:1].hex()}/{build_id[1:].hex()}{tail}"


def objects_by_build_id(build_id: bytes, search: Search) -> Iterator[str]:
    """Yield paths at which the object with a build-id may be, best first; not the recorded path."""
    if len(build_id) < 2:
        return
    for root in _caches(search):  # "": a link to the file itself, as old perfs made it
        yield from (by_build_id(root, build_id, tail) for tail in ("/elf", "/vdso", ""))
    yield from (by_build_id(root, build_id) for root in search.debug_roots)
    if search.debuginfod_dir:
        yield f"{search.debuginfod_dir}/{build_id.hex()}/executable"


def objects_of_processes(name: str, pids: Sequence[int]) -> Iterator[str]:
    """Yield paths to the object `name` in processes that run now, whose pids may be those of later processes."""
    path, pids = name.removesuffix(DELETED), pids[:_MAX_PROCESSES]
    yield from (f"/proc/{pid}/root{_below_root(path, pid)}" for pid in pids)
    yield from mapped_files(path + DELETED, pids)


def debug_by_build_id(build_id: bytes, search: Search) -> Iterator[str]:
    """Yield paths at which the debug file of a build-id may be."""
    if len(build_id) < 2:
        return
    yield from (by_build_id(root, build_id, ".debug") for root in _debug_roots(search))
    yield from (by_build_id(root, build_id, "/debug") for root in _caches(search))
    if search.debuginfod_dir:
        yield f"{search.debuginfod_dir}/{build_id.hex()}/debuginfo"


def debug_by_link(path: str, link: str, search: Search) -> Iterator[str]:
    """Yield paths at which the debug file `link`, named by the .gnu_debuglink of the object at `path`, may be."""
    if not link or "/" in link or link in (".", "..") or not link.isprintable():
        return
    directory = os.path.dirname(path)
    yield from (f"{directory}/{link}", f"{directory}/.debug/{link}")
    inside = directory.removeprefix(search.symfs)
    yield from (f"{root}{inside}/{link}" for root in _debug_roots(search))


def debug_by_path(path: str, search: Search) -> Iterator[str]:
    """Yield paths of debug files that are named after the object's own path, as on Fedora and Ubuntu."""
    inside = path.removeprefix(search.symfs)
    for root in _debug_roots(search):
        yield from (f"{root}{inside}.debug", f"{root}{inside}")


def _caches(search: Search) -> list[str]:
    """Return the directories laid out as perf's build-id cache; an unpacked archive given as --symfs is one."""
    return [root for root in (search.symfs, search.buildid_dir) if root]


def _debug_roots(search: Search) -> list[str]:
    below = [search.symfs + root for root in search.debug_roots] if search.symfs else []
    return [*below, *search.debug_roots]


def _below_root(path: str, pid: int) -> str:
    """Return a path of /proc/PID/maps without the root directory of the process, which chroot() puts before it."""
    with suppress(OSError):
        root = os.readlink(f"/proc/{pid}/root").rstrip("/")  # direct: asks for the name of the directory
        return path.removeprefix(root) if path.startswith(f"{root}/") else path
    return path


def mapped_files(name: str, pids: Sequence[int]) -> Iterator[str]:
    """Yield, for each process that has mapped a file as `name` (/proc/PID/maps), its path in /proc/PID/map_files."""
    wanted = f" {name}\n".encode("utf-8", "surrogateescape")
    for pid in pids[:_MAX_PROCESSES]:
        try:
            with open(f"/proc/{pid}/maps", "rb") as file:
                maps = file.read(_MAX_MAPS)
        except OSError:
            continue
        line_begin = maps.find(wanted)
        if line_begin >= 0:
            start, end = maps[maps.rfind(b"\n", 0, line_begin) + 1 :].split(b" ", 1)[0].split(b"-")
            yield f"/proc/{pid}/map_files/{start.decode().lstrip('0') or '0'}-{end.decode().lstrip('0')}"


_MAX_LINK: Final = 1 << 12
_CRC_BLOCK: Final = 1 << 20


def open_debug(image: ElfImage, search: Search, wanted: bytes, stack: ExitStack) -> ElfImage | None:
    """Open an object's debug file with the section `wanted`, until `stack` is closed; return None if there is none."""
    link, crc = debug_link(image)
    for path, by_crc in _candidates(image, link, search):
        with suppress(OSError, FormatError), ExitStack() as attempt:  # a damaged file is passed over
            debug = attempt.enter_context(open_elf(path, search.cache))
            if debug.holds(wanted) and _belongs(debug, image, crc if by_crc else None):
                stack.enter_context(attempt.pop_all())
                return debug
    return None


def _candidates(image: ElfImage, link: str, search: Search) -> Iterator[tuple[str, bool]]:
    """Yield (path of a possible debug file, True if its CRC may prove that it belongs to the object), best first."""
    yield from ((path, False) for path in debug_by_build_id(image.build_id, search))
    yield from ((path, True) for path in debug_by_link(image.path, link, search))
    if image.build_id:
        yield from ((path, False) for path in debug_by_path(image.path, search))


def _belongs(debug: ElfImage, image: ElfImage, crc: int | None) -> bool:
    if debug.machine != image.machine or debug.bits != image.bits:
        return False
    if image.build_id and debug.build_id:
        return debug.build_id == image.build_id
    return crc is not None and file_crc(debug) == crc


def debug_link(image: ElfImage) -> tuple[str, int]:
    """Return the file name and the CRC in .gnu_debuglink; ("", 0) if the section is missing or damaged."""
    section, data = image.section_named(b".gnu_debuglink"), b""
    with suppress(FormatError):
        data = image.content(section, _MAX_LINK) if section else b""
    name = data.partition(b"\0")[0]
    crc_at = len(name) + 4 - len(name) % 4  # after the NUL, 4-byte aligned
    crc = data[crc_at : crc_at + 4]
    if len(crc) < 4:
        return "", 0
    return name.decode("utf-8", "replace"), to_int(crc, image.order)


def file_crc(image: ElfImage) -> int | None:
    """Return a file's CRC-32, as in .gnu_debuglink; None for a sparse file, which can be huge at no cost."""
    source = image.source
    if source.fd >= 0 and is_mostly_holes(os.fstat(source.fd)):
        return None
    crc, offset = 0, 0
    while block := image.source.read(offset, _CRC_BLOCK):
        crc, offset = zlib.crc32(block, crc), offset + len(block)
    return crc
