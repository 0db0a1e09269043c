# SPDX-License-Identifier: Apache-2.0
"""Find processes that run CPython, by their MMAP2 records, and pass the place of their state to the BPF program. The
records come from /proc when a file begins, and from the kernel after that. A child has the memory of its parent until
it calls execve(2), so its FORK record suffices. Each file is read once, by a helper."""

import os
import struct
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Final

from perf_offcpu import losses
from perf_offcpu.abi.records import RECORD_HEADER, RECORD_LAYOUTS, RecordType
from perf_offcpu.collect.bpf.maps import ProgramMaps
from perf_offcpu.collect.events.perf_event import NATIVE
from perf_offcpu.collect.existing.maps import MOST_KNOWN, key_of, parse_maps, read_maps
from perf_offcpu.collect.python.offsets import PYTHON, Section, read_runtime
from perf_offcpu.collect.system.helper import Avoided, Helper, ask_each
from perf_offcpu.files import open_regular
from perf_offcpu.losses import Losses

_PATIENCE_S: Final = 0.5
_SETTLE_S: Final = 0.2  # time from the mapping of an interpreter until it counts as unread
_MOST_PROCESSES, _FIRST_WITH_LOOPS = 4096, 11
_HEAD: Final = RECORD_HEADER.size()
_LAYOUT: Final = RECORD_LAYOUTS[RecordType.MMAP2]
_NAME: Final = _HEAD + _LAYOUT.offset("filename", 0)
_SIZE_AT: Final = RECORD_HEADER.offset("size")
_ADDRESSES: Final = 2**64 - 1
_TASK: Final = struct.Struct("=IIII")  # pid, ppid, tid, ptid of FORK and EXIT
_MMAP2, _FORK, _EXIT = int(RecordType.MMAP2), int(RecordType.FORK), int(RecordType.EXIT)


class MappingFollower(ABC):
    """Base of classes that find processes which map a certain file, by MMAP2, FORK and EXIT records."""

    needle: bytes  # part of the path of this file

    def see(self, records: bytes) -> None:
        """Pass the MMAP2 records among `records` (complete ones, of existing mappings) to `see_mapping`."""
        if self.needle not in records:
            return
        view, offset = memoryview(records), 0
        while offset < len(records):
            size = int.from_bytes(view[offset + _SIZE_AT : offset + _SIZE_AT + 2], sys.byteorder)
            if int.from_bytes(view[offset : offset + 4], sys.byteorder) == _MMAP2:
                self.see_mapping(view[offset : offset + size])
            offset += size or len(records)

    @abstractmethod
    def see_mapping(self, record: memoryview) -> None:
        """Take an MMAP2 record, of any file."""

    @abstractmethod
    def see_task(self, kind: int, record: memoryview) -> None:
        """Take a FORK or EXIT record. `kind`: its record type."""

    def is_of_needle(self, record: memoryview) -> bool:
        """Return True if the path in an MMAP2 record ends with `needle`, the name of the file that is looked for."""
        return bytes(record[_NAME:]).partition(b"\0")[0].endswith(self.needle)


def pid_of(record: memoryview) -> int:
    """Return the pid in an MMAP2 record."""
    return int.from_bytes(record[_HEAD : _HEAD + 4], sys.byteorder)


def ended_process(kind: int, record: memoryview) -> int:
    """Return the pid if a FORK or EXIT record is the EXIT of a process's main thread; else 0. `kind`: record type."""
    pid, _, tid, _ = _TASK.unpack_from(record, _HEAD)
    return int(pid) if kind == _EXIT and pid == tid else 0


def forked_process(kind: int, record: memoryview) -> tuple[int, int]:
    """Return (pid, its parent's pid) if the record is the FORK of a process; (0, 0) for others."""
    pid, parent, _, _ = _TASK.unpack_from(record, _HEAD)
    return (int(pid), int(parent)) if kind == _FORK and pid != parent else (0, 0)


class PythonProcesses(MappingFollower):
    """Follow processes that run CPython. `lost`: counts recorded processes with an unsupported interpreter. `recorded`:
    returns the live pids that are recorded; None: all processes count as recorded. `maps`: receive the offsets, for
    BPF.

    Attributes:
        offsets: pid → members of `struct offcpu_python`; {} for an unsupported interpreter.
        meanwhile: is called again and again while a file is read.
    """

    needle = b"python3"

    def __init__(
        self, lost: Losses, recorded: Callable[[], set[int]] | None = None, maps: ProgramMaps | None = None
    ) -> None:
        self.meanwhile: Callable[[], object] = lambda: None
        self._lost, self._avoided, self._recorded, self._maps = lost, Avoided(), recorded, maps
        self._unread: dict[int, float] = {}  # pid → monotonic time when it is counted
        self._helper = Helper(_read_file, _PATIENCE_S)
        self._files: dict[bytes, dict[str, Any] | None] = {}
        self.offsets: dict[int, dict[str, int]] = {}

    @property
    def pids(self) -> frozenset[int]:
        """Pids of processes whose event loops can be read: they run CPython 3.11 or newer."""
        return frozenset(pid for pid, offsets in self.offsets.items() if offsets.get("minor", 0) >= _FIRST_WITH_LOOPS)

    def close(self) -> None:
        """End the helper that reads files."""
        self._helper.close()

    def see_mapping(self, record: memoryview) -> None:
        """Take an MMAP2 record; if it maps CPython's code, set the process's `offsets`."""
        name = bytes(record[_NAME:]).partition(b"\0")[0]
        if self.needle not in name or not PYTHON.search(name):
            return
        values = _LAYOUT.unpack(bytes(record[_HEAD:_NAME]) + b"\0" * 8, NATIVE, 0)
        pid, start = values["pid"], values["addr"]
        item = ((values["maj"], values["min"]), pid, start, start + values["len"], values["ino"], name)
        runtime = self._file_of(item)
        if runtime is None:
            return
        offsets, place = runtime["offsets"], Section(*runtime["section"]).place_in(start, values["pgoff"])
        if place is not None and offsets:
            place += offsets["interpreters"]
            self._tell(pid, offsets | {"interpreters": place & _ADDRESSES})  # a file may say anything
        if not runtime["offsets"] and pid not in self.offsets and len(self.offsets) < _MOST_PROCESSES:
            self._unread[pid] = time.monotonic() + _SETTLE_S
            self.offsets[pid] = {}  # counted once: its library may be mapped next

    def count_unread(self) -> None:
        """Count recorded processes with an unsupported interpreter in `lost`, _SETTLE_S after it was mapped."""
        now = time.monotonic()
        if due := {pid for pid, when in self._unread.items() if when <= now}:
            self._lost.add(losses.PYTHON_UNKNOWN, len(due & self._recorded() if self._recorded else due))
            self._unread = {pid: when for pid, when in self._unread.items() if pid not in due}

    def see_task(self, kind: int, record: memoryview) -> None:
        """Take a FORK or EXIT record: a child inherits the offsets of its parent, an ended process loses them."""
        if not self.offsets:
            return
        pid, parent, tid, _ = _TASK.unpack_from(record, _HEAD)
        if kind == _EXIT and pid == tid and pid in self.offsets:
            if self.offsets.pop(pid) and self._maps:
                self._maps.forget_python(pid)
        elif kind == _FORK and pid != parent and self.offsets.get(parent):
            self._tell(pid, self.offsets[parent], forked=True)

    def _tell(self, pid: int, offsets: dict[str, int], *, forked: bool = False) -> None:
        if len(self.offsets) >= _MOST_PROCESSES and pid not in self.offsets:
            self._lost.add(losses.PYTHON_UNKNOWN)
            return
        self.offsets[pid] = offsets
        if self._maps:
            self._maps.set_python(pid, offsets, forked=forked)

    def _file_of(self, item: tuple[Any, ...]) -> dict[str, Any] | None:
        """Return the result of `read_runtime` for a mapped file, cached; None if the file holds no interpreter or its
        process has ended. `item`: argument of `_read_file`."""
        key = key_of(item[0], item[4], item[5])
        if key not in self._files:
            for _, answer in ask_each(self._helper, [item], self._avoided, self.meanwhile):
                if answer.is_stuck:
                    return {"section": (0, 0, []), "offsets": {}}  # counted; asked again for another process
                if answer.value is None:  # the process has ended
                    return None
                if len(self._files) >= MOST_KNOWN:
                    self._files.clear()
                self._files[key] = answer.value or None
        return self._files.get(key)


def _read_file(item: tuple[Any, ...]) -> dict[str, Any] | None:
    """Return the result of `read_runtime` for a mapped file, {} if it holds no interpreter; None if the file is not
    found. `item`: (device, pid, start, end, inode, name) of the mapping."""
    _, pid, start, end, inode, name = item
    for path in (f"/proc/{pid}/map_files/{start:x}-{end:x}", os.fsdecode(name)):
        try:
            fd = open_regular(path)
        except (OSError, ValueError):
            continue
        try:
            # A record with a build-id has no inode; links of map_files are not for ordinary users.
            if path.startswith("/proc/") or os.fstat(fd).st_ino in (inode, _inode_at(pid, start)):
                return read_runtime(fd, name) or {}
        finally:
            os.close(fd)
    return None


def _inode_at(pid: int, start: int) -> int:
    """Return the inode of the file that a process maps at address `start`; -1 if unknown."""
    try:
        return next((mapping.inode for mapping in parse_maps(read_maps(pid)) if mapping.start == start), -1)
    except OSError:
        return -1
