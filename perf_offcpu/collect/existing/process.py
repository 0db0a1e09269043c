# SPDX-License-Identifier: Apache-2.0
"""Make the records of one process from its files in /proc: threads, names, namespaces and mappings. This is the work of
a helper (`collect.system.helper`): a process can lock its files in /proc, and what it has mapped may be on a file
system that does not answer. The records of each process may take a share of the bytes in the file. Threads and mappings
beyond that are left out and counted: the first ones of a list are kept, and of mappings rather code than data."""

import itertools
import os
import re
import time
from collections.abc import Callable
from contextlib import suppress
from hashlib import blake2b
from typing import Any, Final, NamedTuple

from perf_offcpu import losses
from perf_offcpu.abi.records import PROT_EXEC, CpuMode, Misc, RecordType
from perf_offcpu.collect.existing import maps
from perf_offcpu.collect.existing.maps import Mapping
from perf_offcpu.collect.existing.records import MOST_NAME, TOO_LONG, mmap2, synthesized
from perf_offcpu.collect.system.helper import is_too_much_left
from perf_offcpu.files import read_kernel
from perf_offcpu.losses import Losses

MOST_THREADS: Final = 1 << 17
MOST_BYTES: Final = 8 << 20  # bytes of the MMAP2 records of a process: some 60 000 records
LEAST_BYTES: Final = 256 << 10
SHARED_BYTES: Final = 64 << 20
"""Bytes for MMAP2 records of all processes: one may use an eighth of the remainder, from LEAST_BYTES to MOST_BYTES."""
ALL_BYTES: Final = 256 << 20  # limit for MMAP2 records of all processes, with LEAST_BYTES of each process
_FILES_S: Final = 2.0  # time for reading build-ids of the files of one process
_MOST_TRIED: Final = 16

_GONE: Final = (FileNotFoundError, ProcessLookupError, NotADirectoryError)

# Order of the indices in PERF_RECORD_NAMESPACES, include/uapi/linux/perf_event.h
_NAMESPACES: Final = ("net", "uts", "ipc", "pid", "user", "mnt", "cgroup")

_PROT: Final = ((b"r", 1), (b"w", 2), (b"x", PROT_EXEC))
_MAP_SHARED, _MAP_PRIVATE = 1, 2
_PARENT_AND_THREADS: Final = re.compile(rb"^(?:PPid|Threads):\t(\d+)$", re.MULTILINE)
_THREADS, _MAPS = "threads", "maps"


class Part(NamedTuple):
    """Records of the threads, or of the mappings, of one process; `key`: ("threads" or "maps", pid)."""

    key: tuple[str, int]
    content: bytes  # hash of the text that the records were made of; b"" if they are to be made again at the next scan
    records: bytes | None  # None if the content is that of the last scan
    lost: dict[str, int]  # name of a loss cause → number


class Description(NamedTuple):
    """Result of reading one process: its records, and the build-ids of files that were read for them."""

    parts: list[tuple[Any, ...]]  # `Part` as plain tuples
    files: list[tuple[bytes, bytes, bytes]]  # key, path and build-id of each file that was read
    is_denied: bool = False  # the recorder may not read all files of the process
    mapped_bytes: int = 0  # size of the MMAP2 records of all processes up to this one
    threads: int = 0  # number of threads


class ProcessReader:
    """Make the records of processes for one scan. `build_ids`: of files that were read already; updated. `data_maps`:
    also record files mapped for reading. `is_known`: `KnownTasks.has`. `note`: is called with the `device_number` of a
    file before it is read, and with 0 after it. `mapped_bytes`: size of all MMAP2 records so far."""

    def __init__(
        self,
        build_ids: maps.MappedBuildIds,
        data_maps: bool,
        is_known: Callable[[Any, bytes], bool],
        note: Callable[[int], None],
    ) -> None:
        self._build_ids, self._data_maps, self._is_known, self._note = build_ids, data_maps, is_known, note
        self.mapped_bytes = 0
        self._vdso = _vdso_build_id()
        self._described = Description([], [])
        self._lost = Losses()
        self._files_until_s = 0.0

    def read(self, pid: int, *, mapped: bool) -> tuple[Any, ...]:
        """Return the `Description` of a process as a plain tuple, without records if the process has ended. `mapped`:
        also read mappings and namespaces. Raises Exception: a file in /proc has an unexpected form."""
        self._described, self._files_until_s = Description([], []), 0.0
        tids, is_denied = list[int](), False
        with suppress(*_GONE):
            try:
                tids = self._add_threads(pid)
                if mapped:
                    self._add_maps(pid, tids)
            except PermissionError:
                is_denied = True
        parts, files = self._described.parts, self._described.files
        return tuple(Description(parts, files, is_denied, self.mapped_bytes, len(tids)))

    def _add(self, key: tuple[str, int], text: bytes, make: Callable[[], bytes]) -> None:
        self._lost = Losses()
        content = blake2b(text, digest_size=16).digest()
        records = None if self._is_known(key, content) else make()
        if losses.FILES_UNREAD in self._lost:
            content = b""  # they are tried again at the next scan
        lost = {cause.name: count for cause, count in self._lost.items()}
        self._described.parts.append((key, content, records, lost))

    def _add_threads(self, pid: int) -> list[int]:
        # Not from /proc/PID/stat, which waits while the process is within execve.
        parent, number = map(int, _PARENT_AND_THREADS.findall(read_kernel(f"/proc/{pid}/status")))
        with os.scandir(f"/proc/{pid}/task") as entries:
            tids = sorted(int(entry.name) for entry in itertools.islice(entries, MOST_THREADS))
        comms = []
        for tid in tids:
            with suppress(*_GONE):
                comms.append((tid, read_kernel(f"/proc/{pid}/task/{tid}/comm")[:-1]))
        more = number - len(tids) if len(tids) == MOST_THREADS else 0

        def make() -> bytes:
            self._lost.add(losses.THREADS_LEFT_OUT, max(more, 0))
            return _threads(pid, parent, comms)

        self._add((_THREADS, pid), repr((parent, comms, more)).encode(), make)
        return tids

    def _add_maps(self, pid: int, tids: list[int]) -> None:
        # A process whose first thread has ended has its mappings under the other threads alone.
        others = [tid for tid in tids if tid != pid][:_MOST_TRIED]
        tid, text = next(((tid, text) for tid in (pid, *others) if (text := maps.read_maps(tid))), (pid, b""))
        if text:  # kernel threads have none
            namespaces = _namespaces(pid, tid)
            self._add((_MAPS, pid), namespaces + text, lambda: namespaces + self._maps(pid, tid, text))

    def _maps(self, pid: int, tid: int, text: bytes) -> bytes:
        left = max(SHARED_BYTES - self.mapped_bytes, 0) // 8
        room = min(max(LEAST_BYTES, min(MOST_BYTES, left)), ALL_BYTES - self.mapped_bytes)
        records, size = [], 0
        for mapping in maps.parse_maps(text, self._lost):
            is_code = b"x" in mapping.permissions
            is_data = self._data_maps and mapping.inode > 0 and mapping.permissions.startswith(b"r-")
            if not is_code and not is_data:
                continue
            if size >= (room if is_code else room // 2):
                self._lost.add(losses.MAPS_LEFT_OUT)
                continue
            records.append(self._mmap(pid, tid, mapping))
            size += len(records[-1])
        if len(text) > maps.MOST_BYTES - MOST_NAME:
            self._lost.add(losses.MAPS_LEFT_OUT)
        self.mapped_bytes += size
        return b"".join(records)

    def _mmap(self, pid: int, tid: int, mapping: Mapping) -> bytes:
        build_id, name = self._build_id(tid, mapping), mapping.name
        if not name or name.startswith(b"/anon_hugepage"):
            name = b"//anon"  # as in the kernel's own MMAP2 records
        elif len(name) > MOST_NAME:
            name = TOO_LONG
            self._lost.add(losses.LONG_NAMES)
        (major, minor), size = mapping.device, mapping.end - mapping.start
        file = {"maj": major, "min": minor, "ino": mapping.inode, "ino_generation": 0, "filename": name}
        place = {"pid": pid, "tid": pid, "addr": mapping.start, "len": size, "pgoff": mapping.offset}
        prot = sum(bit for letter, bit in _PROT if letter in mapping.permissions)
        flags = _MAP_SHARED if b"s" in mapping.permissions else _MAP_PRIVATE
        values = {**place, **file, "prot": prot, "flags": flags}
        misc = 0 if b"x" in mapping.permissions else Misc.MMAP_DATA
        return mmap2(CpuMode.USER, values, build_id, misc)

    def _build_id(self, tid: int, mapping: Mapping) -> bytes:
        if mapping.name == b"[vdso]":
            return self._vdso
        if not mapping.inode:
            return b""
        key = maps.key_of(mapping.device, mapping.inode, mapping.name)
        build_id = self._build_ids.get(key)
        if build_id is not None:
            return build_id
        self._files_until_s = self._files_until_s or time.monotonic() + _FILES_S
        is_late = time.monotonic() > self._files_until_s
        if is_late or is_too_much_left() or mapping.device in self._build_ids.avoided:
            self._lost.add(losses.FILES_UNREAD)
            return b""
        return self._read_build_id(tid, mapping, key)

    def _read_build_id(self, tid: int, mapping: Mapping, key: bytes) -> bytes:
        self._note(device_number(mapping.device))
        try:
            build_id = maps.read_build_id(tid, mapping.start, mapping.end, mapping.inode, mapping.name, maps=True)
        finally:
            self._note(0)
        if build_id is None:
            return b""
        name = mapping.name if len(mapping.name) <= MOST_NAME else b""
        self._build_ids.learn(key, name, build_id)
        self._described.files.append((key, name, build_id))
        return build_id


def device_number(device: tuple[int, int]) -> int:
    """Pack the (major, minor) of a file's device into one number, which is never 0."""
    return device[0] << 32 | device[1]


def device_of(number: int) -> tuple[int, int]:
    """Return the (major, minor) that `device_number` packed."""
    return number >> 32, number & 0xFFFFFFFF


def _threads(pid: int, parent: int, comms: list[tuple[int, bytes]]) -> bytes:
    """Return a FORK and a COMM record for each (tid, comm) of a process; `parent` is the tgid of its parent."""
    records = []
    for tid, comm in comms:
        creator = parent if tid == pid else pid
        fork = {"pid": pid, "ppid": creator, "tid": tid, "ptid": creator, "time": 0}
        records.append(synthesized(RecordType.FORK, Misc.FORK_EXEC, fork))
        records.append(synthesized(RecordType.COMM, 0, {"pid": pid, "tid": tid, "comm": comm}))
    return b"".join(records)


def _namespaces(pid: int, tid: int) -> bytes:
    links = [os.stat(f"/proc/{tid}/ns/{name}") for name in _NAMESPACES]
    link_info = [{"dev": link.st_dev, "ino": link.st_ino} for link in links]
    return synthesized(RecordType.NAMESPACES, 0, {"pid": pid, "tid": pid, "link_info": link_info})


def _vdso_build_id() -> bytes:
    for mapping in maps.parse_maps(read_kernel("/proc/self/maps")):
        if mapping.name == b"[vdso]":
            return maps.build_id_of_memory(mapping.start, mapping.end - mapping.start)
    return b""
