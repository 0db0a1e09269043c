# SPDX-License-Identifier: Apache-2.0
"""Open the file that a recording names, or refuse it with a cause.

A recording may come from anyone, and the file may have changed since. So a path from a recording is opened only if it
is absolute and plain, and only regular files outside of /dev, /proc and /sys are opened (reading there can have
effects). A file counts only if it has the recorded build-id. If none was recorded, a file that was changed after the
recording does not count, except for the files that `perf inject --jit` makes of code. Wrong names are worse than none:
the frames of a refused file stay [unknown], and the cause is counted and reported.

The image of the vDSO is that of the running kernel, from the memory of this process, if the build-id agrees."""

import functools
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from typing import Final

from perf_offcpu import losses
from perf_offcpu.abi.elf import ElfType
from perf_offcpu.build_ids import RECORDED_BYTES, kernel_build_id
from perf_offcpu.errors import FormatError
from perf_offcpu.files import FileRefusedError, kernel_lines, open_regular, read_kernel
from perf_offcpu.losses import LossCause
from perf_offcpu.model.columns import distinct
from perf_offcpu.model.recording import Meta, Recording
from perf_offcpu.objects.elf.headers import Source
from perf_offcpu.objects.elf.image import ElfImage
from perf_offcpu.objects.functions import ElfFile, symbols_of
from perf_offcpu.objects.search import DELETED, Search, mapped_files, objects_by_build_id, objects_of_processes

VDSO: Final = "[vdso]"
_MAX_BYTES: Final = 1 << 20


def vdso_image() -> bytes:
    """Return the bytes of this process's vDSO, an ELF file. Raise OSError if unreadable, FormatError if missing."""
    with open("/proc/self/maps", "rb") as maps:
        line = next((line for line in maps if line.rstrip().endswith(VDSO.encode())), None)
    if line is None:
        raise FormatError("/proc/self/maps", VDSO, "this process has no vDSO")
    start, end = (int(word, 16) for word in line.split(b" ", 1)[0].split(b"-"))
    with open("/proc/self/mem", "rb", buffering=0) as memory:
        return os.pread(memory.fileno(), min(end - start, _MAX_BYTES), start)


_ACTING: Final = ("/dev/", "/proc/", "/sys/")
_PSEUDO: Final = ("[", "//", "/memfd:", "/SYSV", "/[aio]", "/anon_hugepage", "anon_inode:", "/dev/zero")
_STORAGE: Final = frozenset(b"bcachefs btrfs ext2 ext3 ext4 f2fs overlay tmpfs xfs zfs".split())
_MAX_PATH: Final = 4096
_JITTED: Final = re.compile(r"/jitted-\d+-\d+\.so$")  # perf's genelf.h: one file a function, made afterwards
_SHORT_IDS: Final = (16, 8)  # bytes of build-ids that are no SHA-1: UUID or MD5, and the short hash of lld
_ALLOWANCE_NS: Final = 2 * 10**9


class Refused(Exception):
    """Raised if a recorded file is not opened, or has no functions; `cause` is the reason."""

    def __init__(self, cause: LossCause) -> None:
        self.cause = cause
        super().__init__(cause.text)


def find_dso(recording: Recording, dso: int, search: Search) -> ElfFile:
    """Return the functions of `dso`, a row of dsos. Raise Refused if its file is not opened, or has no functions."""
    with ExitStack() as stack:
        try:
            elf = symbols_of(open_dso(recording, dso, search, stack), search)
        except FormatError:
            raise Refused(losses.FILE_DAMAGED) from None
        except OSError:
            raise Refused(losses.FILE_DENIED) from None
    if not len(elf.symbols):
        raise Refused(losses.NO_SYMBOLS)
    return elf


def open_dso(recording: Recording, dso: int, search: Search, stack: ExitStack) -> ElfImage:
    """Open the file of `dso`, a row of the recording's dsos, until `stack` is closed; for `[vdso]`, the running
    kernel's. Raise Refused if no file is acceptable."""
    dsos, meta = recording.dsos, recording.meta
    name, hex_id = (recording.strings[int(ids[dso])] for ids in (dsos.path, dsos.build_id))
    build_id = bytes.fromhex(hex_id)
    if name == VDSO and not build_id and not is_running_kernel(meta):
        raise Refused(losses.OTHER_BUILD)
    try:
        if name != VDSO and (cause := refusal(name, search.symfs)):
            raise Refused(cause)
        inside = _inside(name, pids_of_dso(recording, dso)) if search.processes and not build_id else ""
        image = _open(name if name == VDSO else inside or search.symfs + name, search, stack)
        if build_id and not same_build(image.build_id, build_id):
            raise Refused(losses.OTHER_BUILD)
        may_be_younger = build_id or search.symfs or _JITTED.search(name)
        if not may_be_younger and 0 < _recorded_until(meta) < image.source.changed_ns:
            raise Refused(losses.FILE_CHANGED)
        return image
    except Refused as problem:
        pids = [] if problem.cause is losses.NO_FILE else pids_of_dso(recording, dso)
        paths = [path for path in recording.paths.get(hex_id, ()) if path != name]
        if build_id and (same_object := _by_build_id(name, build_id, search, pids, paths, stack)):
            return same_object
        raise


def _inside(name: str, pids: Sequence[int]) -> str:
    """Return a path to the file that running processes have mapped as `name`, if that is not the file `name` here but
    of a container; "" if there is none. Raise Refused if they have mapped different files."""
    files = {file: path for path in mapped_files(name, pids) if (file := _identity(path))}
    if len(files) > 1:
        raise Refused(losses.SEVERAL_FILES)
    outside = _identity(name)
    return next((path for file, path in files.items() if file != outside), "")


def _identity(path: str) -> tuple[int, int] | None:
    """Return the device and inode of a file; None if it cannot be looked up."""
    with suppress(OSError):
        status = os.stat(path)  # direct: asks which file it is; `_open` judges what it opens
        return status.st_dev, status.st_ino
    return None


def is_running_kernel(meta: Meta) -> bool:
    """Return True if a recording was made on the running kernel: compare build-ids, else releases."""
    if meta.kernel_build_id:
        return kernel_build_id().hex() == meta.kernel_build_id
    return bool(meta.os_release) and meta.os_release == os.uname().release


def pids_of_dso(recording: Recording, dso: int) -> list[int]:
    """Return the pids, ascending, of the processes that had mapped `dso`, a row of the recording's dsos."""
    spaces = distinct(recording.maps.space[recording.maps.dso == dso])
    pids: list[int] = distinct(recording.spaces.pid[spaces[spaces >= 0]]).tolist()
    return [pid for pid in pids if pid > 0]


def _recorded_until(meta: Meta) -> int:
    """Return the time (wall clock, ns) after which a changed file is too young: end of recording + 2 s; 0 unknown."""
    if meta.wall_clock_ns and meta.last_ns > 0:
        return meta.wall_clock_ns + meta.last_ns - meta.wall_clock_at_ns + _ALLOWANCE_NS
    try:
        # direct: asks for the time of change of the recording
        return os.stat(meta.source).st_mtime_ns + _ALLOWANCE_NS if meta.source else 0
    except (OSError, ValueError):
        return 0


def refusal(name: str, symfs: str = "") -> LossCause | None:
    """Return the reason why a recorded file name must not be opened, without opening anything; None if it may be."""
    if not name or name.startswith(_PSEUDO):
        return losses.NO_FILE
    if name.endswith(DELETED):
        return losses.FILE_DELETED
    if not _is_plain(name) or any(path.startswith(_ACTING) for path in (name, _real(symfs + name))):
        return losses.UNSAFE_PATH
    return None


def same_build(first: bytes, second: bytes) -> bool:
    """Return True if two build-ids are equal, as far as recordings hold them: 20 bytes, padded with zeros."""
    return first[:RECORDED_BYTES].rstrip(b"\0") == second[:RECORDED_BYTES].rstrip(b"\0")


def _by_build_id(
    name: str, build_id: bytes, search: Search, pids: Sequence[int], others: Sequence[str], stack: ExitStack
) -> ElfImage | None:
    """Open a copy of the file `name` elsewhere, found by build-id, until `stack` is closed; None if there is none.
    `pids`: processes that had it mapped. `others`: further paths that the recording has for the build-id."""
    paths = [path for unpadded in _unpadded(build_id) for path in objects_by_build_id(unpadded, search)]
    if search.processes and _is_plain(name):
        paths += objects_of_processes(name, pids)
    paths += [search.symfs + path for path in others if refusal(path, search.symfs) is None]
    for path in paths:
        with suppress(Refused), ExitStack() as attempt:
            image = _open(path, search, attempt)
            if same_build(image.build_id, build_id) and not image.is_debug_only():
                stack.enter_context(attempt.pop_all())
                return image
    return None


def _unpadded(build_id: bytes) -> Iterator[bytes]:
    """Yield a recorded build-id, then shorter ones in case zeros were appended, as in recordings that do not tell its
    size. Zeros at the end may be its own: of one SHA-1 in 256, the last byte is 0."""
    least = len(build_id.rstrip(b"\0"))
    for length in dict.fromkeys((len(build_id), *_SHORT_IDS, least)):
        if least <= length <= len(build_id):
            yield build_id[:length]


def _open(path: str, search: Search, stack: ExitStack) -> ElfImage:
    try:
        if path == VDSO:
            return ElfImage(Source(path, vdso_image()), search.cache)
        fd = open_regular(path)
        stack.callback(os.close, fd)
        if os.fstat(fd).st_dev in _acting_devices():
            raise Refused(losses.UNSAFE_PATH)
        image = ElfImage(Source(path, fd), search.cache)
        if image.type not in (ElfType.EXEC, ElfType.DYN):  # a core dump is data, and may be another user's
            raise Refused(losses.FILE_DAMAGED)
        return image
    except FileRefusedError:
        raise Refused(losses.NOT_REGULAR) from None
    except FormatError:
        raise Refused(losses.FILE_DAMAGED) from None
    except OSError as problem:
        missing = isinstance(problem, FileNotFoundError | NotADirectoryError)
        raise Refused(losses.FILE_MISSING if missing else losses.FILE_DENIED) from None


def _acting_devices() -> frozenset[int]:
    """Return the device numbers of file systems below /proc and /sys, where reading can have effects, and links may
    lead unseen; none if the list of mounts is unreadable. Those of _STORAGE (disks, tmpfs, overlay) are left out:
    containers mount such files there, too, which are safe to read."""
    try:
        return _acting_mounts(read_kernel("/proc/self/mountinfo"))
    except OSError:
        return frozenset()


@functools.lru_cache(1)
def _acting_mounts(mounts: bytes) -> frozenset[int]:
    devices = set[int]()
    for line in kernel_lines(mounts):
        words, _, source = line.partition(b" - ")
        _, _, number, _, place, *_ = words.split()
        if re.match(b"/(proc|sys)(/|$)", place) and source.split()[0] not in _STORAGE:
            devices.add(os.makedev(*map(int, number.split(b":"))))
    return frozenset(devices)


def _is_plain(path: str) -> bool:
    """Return True for an absolute path of bounded length without `..` and without control characters."""
    printable = all(c.isprintable() or "\udc80" <= c <= "\udcff" for c in path)
    return path.startswith("/") and len(path) <= _MAX_PATH and printable and ".." not in path.split("/")


def _real(path: str) -> str:
    try:
        return os.path.realpath(path)  # direct: asks where a name leads; `_open` asks the open file again
    except OSError:
        return path
