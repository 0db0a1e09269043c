# SPDX-License-Identifier: Apache-2.0
"""Build-ids: which build of a file was mapped. They let a report find symbols and debug files later.

A build-id is a note (owner GNU, type 3) of an ELF file. Files of running tasks are opened through
/proc/PID/map_files, which leads to the mapped file itself: deleted, replaced, or in another mount namespace.
Files are made by anyone, so nothing in them is believed: sizes are capped and every read is bounded.

Source: ELF gABI, chapter 5 (program headers, notes); include/uapi/linux/elf.h.
"""

from __future__ import annotations

import ctypes
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from perf_offcpu.abi.elf import EHDR, IDENT, NOTE, PHDR, ElfClass, SegmentType
from perf_offcpu.binary.layout import Order
from perf_offcpu.errors import LayoutError
from perf_offcpu.perfdata.write.features import BUILD_ID_BYTES

MAX_PROGRAM_HEADERS = 256
MAX_NOTE_BYTES = 64 << 10

_NT_GNU_BUILD_ID = 3


def unpack_elf_header(start: bytes) -> tuple[dict[str, Any], Order]:
    """The file header of an ELF file, from its first bytes, and the file's byte order.

    Raises:
        LayoutError: this is no ELF file.
    """
    if start[:4] != b"\x7fELF" or len(start) < IDENT.size() or start[4] not in EHDR:
        raise LayoutError("no ELF file")
    order: Order = ">" if start[5] == 2 else "<"
    return EHDR[ElfClass(start[4])].unpack(start, order), order


def build_id_of(fd: int) -> bytes:
    """The build-id of an open file, b"" if it has none or is no ELF file."""
    try:
        header, order = unpack_elf_header(os.pread(fd, EHDR[ElfClass.BITS64].size(), 0))
        for segment in _program_headers(fd, header, order):
            if segment["p_type"] == SegmentType.NOTE:
                notes = os.pread(fd, min(segment["p_filesz"], MAX_NOTE_BYTES), segment["p_offset"])
                if found := build_id_in_notes(notes, order, segment["p_align"]):
                    return found
    except (LayoutError, OSError, OverflowError):
        pass
    return b""


def _program_headers(fd: int, header: dict[str, Any], order: Order) -> Iterator[dict[str, Any]]:
    layout = PHDR[header["e_ident"]["ei_class"]]
    size = layout.size()
    stride = max(header["e_phentsize"], size)
    count = min(header["e_phnum"], MAX_PROGRAM_HEADERS)
    table = os.pread(fd, stride * count, header["e_phoff"])
    for at in range(0, len(table) - size + 1, stride):
        yield layout.unpack(table, order, start=at)


def build_id_in_notes(notes: bytes, order: Order, align: int = 4) -> bytes:
    """The first build-id in the bytes of a note segment or section, b"" if there is none."""
    at, align = 0, 8 if align == 8 else 4
    while at + NOTE.size() <= len(notes):
        note = NOTE.unpack(notes, order, start=at)
        name_at = at + NOTE.size()
        name_end = name_at + note["n_namesz"]
        text_at = name_end + -name_end % align
        end = text_at + note["n_descsz"]
        if note["n_type"] == _NT_GNU_BUILD_ID and notes[name_at : name_at + 4] == b"GNU\0":
            return notes[text_at:end][:BUILD_ID_BYTES]
        at = end + -end % align
    return b""


def build_id_of_memory(address: int, size: int) -> bytes:
    """The build-id of an ELF image in this process's own memory: the vdso, which is the same in all.

    Args:
        address, size: a readable mapping, as /proc/self/maps shows it.
    """
    image = ctypes.string_at(address, size)
    fd = os.memfd_create("image", os.MFD_CLOEXEC)
    try:
        os.write(fd, image)
        return build_id_of(fd)
    finally:
        os.close(fd)


def kernel_build_id() -> bytes:
    """The running kernel's, b"" if it does not tell."""
    return _sysfs_build_id(Path("/sys/kernel/notes"))


def module_build_id(name: str) -> bytes:
    """A loaded module's, b"" if it has none."""
    return _sysfs_build_id(Path("/sys/module", name, "notes", ".note.gnu.build-id"))


def _sysfs_build_id(path: Path) -> bytes:
    from perf_offcpu.collect.events.perf_event import NATIVE

    try:
        return build_id_in_notes(path.read_bytes(), NATIVE)
    except (OSError, LayoutError):
        return b""


class BuildIdCache:
    """Build-ids of mapped files; each file is read once, however many tasks map it."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, int, int], bytes] = {}

    def of_mapping(self, pid: int, mapping: str) -> bytes:
        """The build-id of what a process maps.

        Args:
            mapping: name of the link in /proc/PID/map_files (`START-END`, as /proc/PID/maps shows it).

        Returns:
            b"" if the file has none, is no regular file (opening a device may have effects), or is gone.
        """
        path = f"/proc/{pid}/map_files/{mapping}"
        try:
            info = os.stat(path)
            if not stat.S_ISREG(info.st_mode):
                return b""
            key = (info.st_dev, info.st_ino, info.st_mtime_ns)
            if key not in self._known:
                self._known[key] = _read(path)
        except OSError:
            return b""
        return self._known[key]


def _read(path: str) -> bytes:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    try:
        return build_id_of(fd) if stat.S_ISREG(os.fstat(fd).st_mode) else b""
    finally:
        os.close(fd)
