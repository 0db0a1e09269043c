# SPDX-License-Identifier: Apache-2.0
"""Which file to open for a name in a recording, and why none was.

The name was written by whoever made the recording, and the file may have changed since. So a path from a
recording is opened only if it is absolute and plain; nothing is opened but regular files outside of /dev,
/proc and /sys (reading there can act); and a file counts only if its build-id is the recorded one, when one
was recorded. When none was, a file changed after the recording does not count either, but for those that
`perf inject --jit` makes of code after recording it. Wrong is worse than unknown: what does not match is
refused, its frames stay [unknown], and the cause is counted and told.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Final

from perf_offcpu import losses
from perf_offcpu.cache import DiskCache
from perf_offcpu.errors import FormatError
from perf_offcpu.losses import LossCause
from perf_offcpu.objects import vdso
from perf_offcpu.objects.elf.cache import read_through_cache
from perf_offcpu.objects.elf.functions import ElfFile, full_table_of, read_elf_symbols
from perf_offcpu.objects.elf.image import ElfImage, open_elf
from perf_offcpu.objects.elf.source import BytesSource, NotRegularError
from perf_offcpu.objects.search import DELETED, Search, objects_by_build_id, objects_of_processes
from perf_offcpu.structs import frozen

_ACTING: Final = ("/dev/", "/proc/", "/sys/")
_PSEUDO: Final = ("[", "//", "/memfd:", "/SYSV", "/[aio]", "/anon_hugepage", "anon_inode:", "/dev/zero")
_MAX_PATH: Final = 4096
_JITTED: Final = re.compile(r"/jitted-\d+-\d+\.so$")  # perf's genelf.h: one file a function, made afterwards


@frozen
class Found:
    """An object's functions, or the cause why there are none.

    Args:
        elf: the functions; None if there are none.
        cause: None if there are some.
        detail: what exactly is wrong with a damaged file; else "".
    """

    elf: ElfFile | None = None
    cause: LossCause | None = None
    detail: str = ""


class Refused(Exception):
    """No file could be opened for a name.

    Args:
        cause, detail: as in `Found`.
    """

    def __init__(self, cause: LossCause, detail: str = "") -> None:
        self.cause, self.detail = cause, detail
        super().__init__(cause.text)


def find_object(
    name: str,
    build_id: bytes = b"",
    search: Search | None = None,
    pids: Sequence[int] = (),
    *,
    changed_after_ns: int = 0,
    cache: DiskCache | None = None,
) -> Found:
    """The functions of an object of a recording.

    Args:
        name: as in the map record; `[vdso]` is the running kernel's.
        build_id: the recorded build-id, b"" if none was recorded: then the file of that name is believed.
        search: where to look; None: at the recorded path, and for debug files where they usually are.
        pids: processes that had it mapped.
        changed_after_ns: wall-clock time after which the file, without a recorded build-id, must not have
            been changed; 0: no matter.
        cache: where symbol tables are kept; None: nowhere.
    """
    search = search or Search()
    with ExitStack() as stack:
        try:
            image = open_object(name, build_id, search, pids, stack, changed_after_ns=changed_after_ns)
            elf = read_through_cache(image, full_table_of(image, search, stack), cache, read_elf_symbols)
        except Refused as problem:
            return Found(cause=problem.cause, detail=problem.detail)
        except FormatError as problem:
            return Found(cause=losses.FILE_DAMAGED, detail=str(problem))
        except OSError:
            return Found(cause=losses.FILE_DENIED)
    return Found(elf) if len(elf.symbols) else Found(cause=losses.NO_SYMBOLS)


def open_object(
    name: str,
    build_id: bytes,
    search: Search,
    pids: Sequence[int],
    stack: ExitStack,
    *,
    changed_after_ns: int = 0,
) -> ElfImage:
    """The file that was mapped, open for the life of `stack`; arguments as for `find_object`.

    Raises:
        Refused: there is none, or not the right one.
    """
    try:
        image = _by_name(name, search.symfs, stack)
        if build_id and not same_build(image.build_id, build_id):
            raise Refused(losses.OTHER_BUILD)
        may_be_younger = search.symfs or _JITTED.search(name)
        if not build_id and 0 < changed_after_ns < image.changed_ns and not may_be_younger:
            raise Refused(losses.FILE_CHANGED)
        return image
    except Refused as problem:
        if found := _by_build_id(name, build_id, search, pids, stack, at_path=problem.cause):
            return found
        raise


def refusal(name: str, symfs: str = "") -> LossCause | None:
    """Why a name from a recording is not opened, without opening anything; None if it may be."""
    if not name or name.startswith(_PSEUDO):
        return losses.NO_FILE
    if name.endswith(DELETED):
        return losses.FILE_DELETED
    if not _plain(name) or any(path.startswith(_ACTING) for path in (name, _real(symfs + name))):
        return losses.UNSAFE_PATH
    return None


def same_build(one: bytes, other: bytes) -> bool:
    """Whether two build-ids are equal; some records pad theirs to 20 bytes with zeros."""
    return one.rstrip(b"\0") == other.rstrip(b"\0")


def _by_name(name: str, symfs: str, stack: ExitStack) -> ElfImage:
    if name == vdso.NAME:
        return _running_vdso()
    if cause := refusal(name, symfs):
        raise Refused(cause)
    return _opened(symfs + name, stack)


def _by_build_id(
    name: str, build_id: bytes, search: Search, pids: Sequence[int], stack: ExitStack, at_path: LossCause
) -> ElfImage | None:
    """The same object at another place, known by its build-id; None without one."""
    paths = list(objects_by_build_id(build_id.rstrip(b"\0"), search)) if build_id else []
    if build_id and search.processes and _plain(name) and at_path is not losses.NO_FILE:
        paths += objects_of_processes(name, pids)
    for path in paths:
        try:
            with ExitStack() as attempt:
                image = _opened(path, attempt)
                if same_build(image.build_id, build_id) and image.holds_code():
                    stack.enter_context(attempt.pop_all())
                    return image
        except Refused:
            continue
    return None


def _opened(path: str, stack: ExitStack) -> ElfImage:
    try:
        if os.stat(path).st_dev in _acting_devices():
            raise Refused(losses.UNSAFE_PATH)
        return stack.enter_context(open_elf(path))
    except NotRegularError:
        raise Refused(losses.NOT_REGULAR) from None
    except FormatError as problem:
        raise Refused(losses.FILE_DAMAGED, str(problem)) from None
    except OSError as problem:
        missing = isinstance(problem, FileNotFoundError | NotADirectoryError)
        raise Refused(losses.FILE_MISSING if missing else losses.FILE_DENIED) from None


def _running_vdso() -> ElfImage:
    try:
        return ElfImage(BytesSource(vdso.vdso_image()), vdso.NAME)
    except FormatError as problem:
        raise Refused(losses.FILE_DAMAGED, str(problem)) from None
    except OSError:
        raise Refused(losses.FILE_DENIED) from None


def _acting_devices() -> set[int]:
    """The file systems that /proc and /sys are: links inside another root may lead there unseen."""
    devices = set()
    for path in ("/proc", "/sys"):
        try:
            devices.add(os.stat(path).st_dev)
        except OSError:
            continue
    return devices - {os.stat("/").st_dev}


def _plain(path: str) -> bool:
    """Absolute, of bounded length, printable apart from bytes that are not UTF-8, without `..`."""
    printable = all(c.isprintable() or "\udc80" <= c <= "\udcff" for c in path)
    return path.startswith("/") and len(path) <= _MAX_PATH and printable and ".." not in path.split("/")


def _real(path: str) -> str:
    """Where symbolic links lead."""
    try:
        return os.path.realpath(path)
    except OSError:
        return path
