# SPDX-License-Identifier: Apache-2.0
"""Records of the tasks that run when a recording begins, read from /proc.

For each process: FORK and COMM of each thread, then, where wanted, NAMESPACES and one MMAP2 for each
executable mapping. The tracker events must be enabled first: what happens between their start and the scan
then appears twice, which is harmless, and nothing is missing.

Tasks come and go during the scan; one that is gone is left out. Names are bytes: programs choose them, and
they need not be UTF-8.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Container, Hashable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b

from perf_offcpu import losses
from perf_offcpu.abi.records import PROT_EXEC, CpuMode, Misc, RecordType
from perf_offcpu.collect.existing.mapped_files import MappedBuildIds, build_id_of_memory
from perf_offcpu.collect.existing.records import mmap2, synthesized
from perf_offcpu.errors import PerfOffcpuError
from perf_offcpu.files import kernel_lines, read_kernel
from perf_offcpu.losses import Losses

_GONE = (FileNotFoundError, ProcessLookupError, PermissionError, NotADirectoryError)

_LONGEST_NAME = 4087
"""Longest name in the kernel's own MMAP2 records, which have //toolong otherwise (perf_event_mmap_event)."""
_MOST_MAP_BYTES = 4 << 20
"""Bytes of the records of a process's mappings: some 30 000 mappings with names of ordinary length."""

# Order of the indices in PERF_RECORD_NAMESPACES, include/uapi/linux/perf_event.h
_NAMESPACES = ("net", "uts", "ipc", "pid", "user", "mnt", "cgroup")

_PROT = ((b"r", 1), (b"w", 2), (b"x", PROT_EXEC))
_MAP_SHARED, _MAP_PRIVATE = 1, 2


@dataclass(frozen=True, slots=True)
class Mapping:
    """A line of /proc/PID/maps."""

    start: int
    end: int
    permissions: bytes
    offset: int
    device: tuple[int, int]
    inode: int
    name: bytes


class KnownTasks:
    """Records of the last scan, used again for processes that have not changed.

    Args:
        most_bytes: largest size of the records of one scan that are kept.
    """

    def __init__(self, most_bytes: int = 16 << 20) -> None:
        self._most_bytes = most_bytes
        self._last: dict[Hashable, tuple[Hashable, bytes]] = {}
        self._next: dict[Hashable, tuple[Hashable, bytes]] = {}
        self._bytes = 0

    def begin(self) -> None:
        """Begin a scan; records that are not asked for in it are forgotten."""
        self._last, self._next, self._bytes = self._next, {}, 0

    def records(self, key: Hashable, content: Hashable, make: Callable[[], bytes]) -> bytes:
        """Return the records of a key; call `make` unless its content is that of the last scan."""
        known = self._last.get(key)
        found = known[1] if known is not None and known[0] == content else make()
        if self._bytes + len(found) <= self._most_bytes:
            self._next[key] = content, found
            self._bytes += len(found)
        return found


class ProcScan:
    """A scan of all processes.

    Args:
        mapped: processes whose maps and namespaces are wanted, None for all; of the others only threads and
            names are recorded, because they may be parents or wakers.
        build_ids: gathers the build-ids of mapped files.
        data_maps: also record files mapped for reading.
        known: records of the last scan, with the same `data_maps`; replaced by the records of this one.

    Attributes:
        skipped: lines of /proc that were left out.
    """

    def __init__(
        self,
        mapped: Container[object] | None,
        build_ids: MappedBuildIds,
        data_maps: bool = False,
        known: KnownTasks | None = None,
    ) -> None:
        self._known = known or KnownTasks()
        self._mapped, self._build_ids, self._data_maps = mapped, build_ids, data_maps
        self.skipped = Losses()
        self._vdso = _vdso_build_id()

    def map_all(self) -> None:
        """Record maps and namespaces of all processes from now on."""
        self._mapped = None

    def records(self) -> Iterator[bytes]:
        """Yield the records of one process at a time, in ascending order of pids."""
        self._known.begin()
        for pid in sorted(int(name) for name in os.listdir("/proc") if name.isdigit()):
            try:
                records = b"".join(self._process(pid))
            except _GONE:
                continue
            except (OSError, PerfOffcpuError, ValueError, IndexError):  # another user's: no reason to end
                self.skipped.add(losses.PROCESSES_ODD)
                continue
            yield records

    def _process(self, pid: int) -> Iterator[bytes]:
        parent, comms = _parent(pid), _comms(pid)
        yield self._known.records(pid, (parent, comms), lambda: _threads(pid, parent, comms))
        if self._mapped is not None and pid not in self._mapped:
            return
        if text := read_kernel(f"/proc/{pid}/maps"):  # kernel threads have none
            yield _namespaces(pid)
            digest = blake2b(text, digest_size=16).digest()
            yield self._known.records(("maps", pid), digest, lambda: self._maps(pid, text))

    def _maps(self, pid: int, text: bytes) -> bytes:
        records, size = list[bytes](), 0
        for mapping in filter(self._is_recorded, parse_maps(text, self.skipped)):
            if size > _MOST_MAP_BYTES:
                self.skipped.add(losses.MAPS_LEFT_OUT)
                continue
            records.append(self._mmap(pid, mapping))
            size += len(records[-1])
        return b"".join(records)

    def _is_recorded(self, mapping: Mapping) -> bool:
        data = self._data_maps and mapping.inode > 0 and mapping.permissions.startswith(b"r-")
        return data or b"x" in mapping.permissions

    def _mmap(self, pid: int, mapping: Mapping) -> bytes:
        build_id = self._build_id(pid, mapping)
        is_anonymous = not mapping.name or mapping.name.startswith(b"/anon_hugepage")
        name = mapping.name
        if len(name) > _LONGEST_NAME:
            name = b"//toolong"
            self.skipped.add(losses.LONG_NAMES)
        values = {
            "pid": pid,
            "tid": pid,
            "addr": mapping.start,
            "len": mapping.end - mapping.start,
            "pgoff": mapping.offset,
            "maj": mapping.device[0],
            "min": mapping.device[1],
            "ino": mapping.inode,
            "ino_generation": 0,
            "prot": sum(bit for letter, bit in _PROT if letter in mapping.permissions),
            "flags": _MAP_SHARED if b"s" in mapping.permissions else _MAP_PRIVATE,
            "filename": b"//anon" if is_anonymous else name,  # as in the kernel's own MMAP2 records
        }
        misc = 0 if b"x" in mapping.permissions else Misc.MMAP_DATA
        return mmap2(CpuMode.USER, values, build_id, misc)

    def _build_id(self, pid: int, mapping: Mapping) -> bytes:
        if mapping.name == b"[vdso]":
            return self._vdso
        if not mapping.inode:
            return b""
        found = self._build_ids.of_mapping(
            pid, mapping.start, mapping.end, mapping.device, mapping.inode, mapping.name, maps=True
        )
        return found or b""


def _comms(pid: int) -> tuple[tuple[int, bytes], ...]:
    """Return the threads of a process, ascending, with their names."""
    found = []
    for tid in sorted(map(int, os.listdir(f"/proc/{pid}/task"))):
        with suppress(*_GONE):
            found.append((tid, read_kernel(f"/proc/{pid}/task/{tid}/comm")[:-1]))
    return tuple(found)


def _threads(pid: int, parent: int, comms: tuple[tuple[int, bytes], ...]) -> bytes:
    """Return FORK and COMM of each thread."""
    records = []
    for tid, comm in comms:
        creator = parent if tid == pid else pid
        fork = {"pid": pid, "ppid": creator, "tid": tid, "ptid": creator, "time": 0}
        records.append(synthesized(RecordType.FORK, Misc.FORK_EXEC, fork))
        records.append(synthesized(RecordType.COMM, 0, {"pid": pid, "tid": tid, "comm": comm}))
    return b"".join(records)


def parse_maps(text: bytes, skipped: Losses | None = None) -> Iterator[Mapping]:
    """Parse the text of a /proc/PID/maps.

    Args:
        skipped: where lines of another form are counted; they are left out.
    """
    for line in kernel_lines(text):
        try:
            yield _mapping(line)
        except ValueError:
            if skipped is not None:
                skipped.add(losses.ODD_KERNEL_TEXT)


def _mapping(line: bytes) -> Mapping:
    """Parse one line. Only newlines are escaped in a name, which may hold any other byte.

    Raises:
        ValueError: it has another form.
    """
    place, permissions, offset, device, inode, *name = line.split(b" ", 5)
    start, _, end = place.partition(b"-")
    major, _, minor = device.partition(b":")
    return Mapping(
        int(start, 16),
        int(end, 16),
        permissions,
        int(offset, 16),
        (int(major, 16), int(minor, 16)),
        int(inode),
        name[0].lstrip(b" ").replace(rb"\012", b"\n") if name else b"",
    )


def _namespaces(pid: int) -> bytes:
    links = [os.stat(f"/proc/{pid}/ns/{name}") for name in _NAMESPACES]
    link_info = [{"dev": link.st_dev, "ino": link.st_ino} for link in links]
    return synthesized(RecordType.NAMESPACES, 0, {"pid": pid, "tid": pid, "link_info": link_info})


def _parent(pid: int) -> int:
    """Return the parent's pid. In /proc/PID/stat it follows the comm, which may have any characters."""
    return int(read_kernel(f"/proc/{pid}/stat").rpartition(b")")[2].split()[1])


def _vdso_build_id() -> bytes:
    for mapping in parse_maps(read_kernel("/proc/self/maps")):
        if mapping.name == b"[vdso]":
            return build_id_of_memory(mapping.start, mapping.end - mapping.start)
    return b""
